/* An MPI library opened at run time, so that an executable runs where there is none. The two ABIs in use
 * differ in what a handle is: Open MPI's are addresses, MPICH's (Intel MPI, MVAPICH, Cray) are
 * numbers. Both fit a word, which is what the calling conventions of 64-bit machines pass. */
#ifndef GRADC_MPI_LIBRARY_H
#define GRADC_MPI_LIBRARY_H

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

/* The one of the launcher that started this process: "Open MPI" or "MPICH"; NULL: none did. */
const char *mpi_launcher(void);
/* Ranks that the launcher started; 1 without one. */
int mpi_launched_ranks(void);
/* Did srun, which does not say whether it also starts MPI? Then its variables of PMI or PMIx do, and there must be a library. */
bool mpi_launched_by_srun(void);
bool mpi_starts_by_srun(void);
Status mpi_check_environment(void); /* EXIT_USAGE: a launcher's variable makes no sense */
/* EXIT_COMM, naming what was looked for, when it is not there. Never closed: MPI does not survive it. */
Status mpi_library_open(MpiLibrary *out);

#endif
