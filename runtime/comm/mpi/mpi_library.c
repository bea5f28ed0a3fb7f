/* Finds the MPI library (Open MPI or MPICH) of the launcher that started this process, and opens it. */
#include "runtime/comm/mpi/mpi_library.h"
#include "base/base.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
	const char *launcher;     /* name for people */
	const char *variables[3]; /* of the environment: the number of started ranks */
	const char *libraries[3];
	const char *package; /* package of Debian */
	bool handles_are_addresses;
	uintptr_t status_ignore, in_place;
	int any_source;
} MpiAbi;

static const MpiAbi abis[] = {
	{.launcher = "Open MPI",
         .variables = {"OMPI_COMM_WORLD_SIZE"},
         .libraries = {"libmpi.so.40"},
         .package = "libopenmpi3",
         .handles_are_addresses = true,
         .in_place = 1,
         .any_source = -1},
	{.launcher = "MPICH",
         .variables = {"PMI_SIZE", "MPI_LOCALNRANKS"},
         .libraries = {"libmpi.so.12", "libmpich.so.12"},
         .package = "libmpich12",
         .status_ignore = 1,
         .in_place = UINTPTR_MAX,
         .any_source = -2},
};

/* The number in a launcher's variable; 0 if it is not set. If the text is not a number, *wrong is the variable's name. */
static int
variable(const char *name, const char **wrong)
{
	const char *text = name ? getenv(name) : NULL;
	int64_t n;

	if (!text)
		return 0;
	if (parse_int(text, &n) && n >= 0 && n < 1 << 24)
		return (int)n;
	*wrong = name;
	return 0;
}

/* MPICH and Open MPI may load UCX, which takes over the handlers of fatal signals and prints the stack from there. Then
 * temporary files stay, and a signal inside malloc hangs the process. So UCX's handlers are switched off, unless the user has
 * set the variable. */
static void *
open_library(const char *name)
{
	setenv("UCX_HANDLE_ERRORS", "none", 0);
	return dlopen(name, RTLD_NOW | RTLD_GLOBAL);
}

/* The library that the launcher belongs to. srun with PMIx or PMI-2 does not say which library the program needs: then the
 * first library that can be opened. */
static const MpiAbi *
launched_by(int *ranks, const char **wrong)
{
	*wrong = NULL;
	*ranks = 1;
	for (int i = 0; i < COUNT(abis); i++)
		for (int k = 0; k < COUNT(abis[i].variables); k++)
			if (variable(abis[i].variables[k], wrong)) {
				*ranks = variable(abis[i].variables[k], wrong);
				return &abis[i];
			}
	*ranks = variable("SLURM_STEP_NUM_TASKS", wrong);
	if (*ranks <= 1)
		*ranks = 1;
	for (int i = 0; *ranks > 1 && i < COUNT(abis); i++) {
		void *library = open_library(abis[i].libraries[0]);
		if (library)
			return &abis[i];
	}
	return *ranks > 1 ? &abis[0] : NULL;
}

const char *
mpi_launcher(void)
{
	int ranks;
	const char *wrong;
	const MpiAbi *abi = launched_by(&ranks, &wrong);

	return abi ? abi->launcher : NULL;
}

int
mpi_launched_ranks(void)
{
	int ranks;
	const char *wrong;

	launched_by(&ranks, &wrong);
	return ranks;
}

bool
mpi_launched_by_srun(void)
{
	const char *wrong;

	for (int i = 0; i < COUNT(abis); i++)
		for (int k = 0; k < COUNT(abis[i].variables); k++)
			if (variable(abis[i].variables[k], &wrong))
				return false;
	return variable("SLURM_STEP_NUM_TASKS", &wrong) > 1;
}

bool
mpi_starts_by_srun(void)
{
	static const char *const pmi[] = {"PMIX_RANK", "PMI_RANK", "PMI_FD"};
	bool has_pmi = false, has_library = false;

	for (int i = 0; i < COUNT(pmi); i++)
		has_pmi = has_pmi || getenv(pmi[i]);
	for (int i = 0; i < COUNT(abis) && has_pmi; i++)
		has_library = has_library || open_library(abis[i].libraries[0]);
	return has_library;
}

Status
mpi_check_environment(void)
{
	int ranks;
	const char *wrong;

	launched_by(&ranks, &wrong);
	return wrong ? status_error(EXIT_USAGE,
	                            "%s=%s: no number of ranks, though a launcher sets it", wrong,
	                            getenv(wrong))
	             : NULL;
}

static Status
find_handles(MpiLibrary *m, const MpiAbi *abi)
{
#define MPI_HANDLE(name, symbol, number)                                                      \
	m->name = abi->handles_are_addresses ? (MpiHandle)dlsym(m->library, symbol) : number; \
	if (!m->name)                                                                         \
		return status_error(EXIT_COMM, "MPI: " symbol " is missing");
#include "runtime/comm/mpi/mpi_handles.def"
#undef MPI_HANDLE
	m->status_ignore = (void *)abi->status_ignore;
	m->in_place = (void *)abi->in_place;
	m->any_source = abi->any_source;
	return NULL;
}

static const LibrarySymbol symbols[] = {
#define MPI_SYMBOL(name, parameters) {"MPI_" #name, offsetof(MpiLibrary, name), false},
#include "runtime/comm/mpi/mpi_symbols.def"
#undef MPI_SYMBOL
	{0}};

Status
mpi_library_open(MpiLibrary *out)
{
	int ranks;
	const char *wrong;
	const MpiAbi *abi = launched_by(&ranks, &wrong);

	*out = (MpiLibrary){0};
	if (!abi)
		return status_error(EXIT_COMM, "MPI: no launcher started this process");
	for (int i = 0; i < COUNT(abi->libraries) && abi->libraries[i] && !out->library; i++)
		out->library = open_library(abi->libraries[i]);
	if (!out->library)
		return status_error(EXIT_COMM,
		                    "%d ranks of %s: %s cannot be opened: install %s, or start "
		                    "with the launcher of the MPI that is there",
		                    ranks, abi->launcher, abi->libraries[0], abi->package);
	RETURN_IF_ERROR(find_handles(out, abi));
	const char *lacks = symbols_find(out->library, symbols, out);
	return lacks ? status_error(EXIT_COMM, "MPI: %s is missing", lacks) : NULL;
}
