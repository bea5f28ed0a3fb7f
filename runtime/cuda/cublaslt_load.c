/* Finding and opening cuBLASLt. */
#include "runtime/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stdlib.h>

static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

/* Where the loader looks by itself, then where a toolkit lies. */
static void *
open_library(const char *soname)
{
	void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
	const char *home = getenv("CUDA_HOME");
	Text path = {0};

	if (library)
		return library;
	text_printf(&path, "%s/lib64/%s", home && *home ? home : "/usr/local/cuda", soname);
	library = dlopen(path.at, RTLD_NOW | RTLD_LOCAL);
	text_free(&path);
	return library;
}

/* The first that it lacks; NULL: none. */
static const char *
first_missing(CublasLt *lt)
{
#define CUBLASLT_SYMBOL(name, type, parameters)                     \
	*(void **)&lt->name = dlsym(lt->library, "cublasLt" #name); \
	if (!lt->name)                                              \
		return "cublasLt" #name;
#include "runtime/cuda/cublaslt_symbols.def"
#undef CUBLASLT_SYMBOL
	return NULL;
}

Status
cublaslt_load(CublasLt *out)
{
	const char *lacks = NULL;

	for (int i = 0; i < COUNT(sonames); i++) {
		*out = (CublasLt){.library = open_library(sonames[i])};
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
