/* Opens an MPI library at run time, so that executables also run without MPI. The two binary interfaces differ in their
 * handles: addresses in Open MPI, numbers in MPICH (and Intel MPI, MVAPICH, Cray). Addresses and numbers both fit into a 64-bit
 * word, which calling conventions pass in the same way, so MpiHandle is a word. */
#ifndef GRADC_RUNTIME_COMM_MPI_MPI_LIBRARY_H
#define GRADC_RUNTIME_COMM_MPI_MPI_LIBRARY_H

#include "base/base.h"

typedef uintptr_t MpiHandle;
typedef struct {
#define MPI_SYMBOL(name, parameters) int(*name) parameters;
#include "runtime/comm/mpi/mpi_symbols.def"
#undef MPI_SYMBOL
#define MPI_HANDLE(name, symbol, number) MpiHandle name;
#include "runtime/comm/mpi/mpi_handles.def"
#undef MPI_HANDLE
	void *status_ignore, *in_place;
	int any_source;
	void *library;
} MpiLibrary;

/* The library of the launcher that started this process: "Open MPI" or "MPICH"; NULL without a launcher. */
const char *mpi_launcher(void);
/* Number of ranks that the launcher started; 1 without a launcher. */
int mpi_launched_ranks(void);
/* mpi_launched_by_srun: did srun start several ranks? srun does not say whether they use MPI. mpi_starts_by_srun: can MPI start
 * under srun? It can if variables of PMI or PMIx are set and an MPI library can be opened. */
bool mpi_launched_by_srun(void);
bool mpi_starts_by_srun(void);
Status
mpi_check_environment(void); /* EXIT_USAGE if a launcher's environment variable makes no sense */
/* Opens the library. EXIT_COMM, with the names that were tried, if there is no library. The library is never closed, because
 * MPI cannot be unloaded. */
Status mpi_library_open(MpiLibrary *out);

#endif
