/* Finds and opens cuBLASLt, NVIDIA's library of matrix products. */
#include "base/base.h"
#include "runtime/library/cublaslt.h"

#include <dlfcn.h>

static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

/* The first function that the library lacks; NULL if it has all. */
static const char *
first_missing(CublasLt *lt)
{
#define CUBLASLT_SYMBOL(name, type, parameters)                     \
	*(void **)&lt->name = dlsym(lt->library, "cublasLt" #name); \
	if (!lt->name)                                              \
		return "cublasLt" #name;
#include "runtime/library/cublaslt_symbols.def"
#undef CUBLASLT_SYMBOL
	return NULL;
}

Status
cublaslt_load(CublasLt *out)
{
	const char *lacks = NULL;

	for (int i = 0; i < COUNT(sonames); i++) {
		*out = (CublasLt){.library = cuda_library_open(sonames[i])};
		if (!out->library)
			continue;
		lacks = first_missing(out);
		if (!lacks)
			return NULL;
		dlclose(out->library);
	}
	*out = (CublasLt){0};
	return lacks ? status_error(EXIT_SYSTEM, "cuBLASLt lacks %s: a newer one is needed", lacks)
	             : status_error(
			       EXIT_SYSTEM,
			       "cuBLASLt is not found (%s, %s): install NVIDIA's CUDA toolkit, or "
			       "`pip install nvidia-cublas==13.1.0.3` and add its folder "
			       "nvidia/cu13/lib to LD_LIBRARY_PATH",
			       sonames[0], sonames[1]);
}

Status
cublaslt_status(const CublasLt *lt, int code, const char *what)
{
	return code == CUBLASLT_OK ? NULL
	                           : status_error(EXIT_SYSTEM, "cuBLASLt: %s: %s", what,
	                                          lt->GetStatusString(code));
}
