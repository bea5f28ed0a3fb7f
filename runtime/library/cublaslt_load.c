/* Finds and opens cuBLASLt, NVIDIA's library of matrix products. */
#include "base/base.h"
#include "runtime/library/cublaslt.h"

static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12", NULL};
static const LibrarySymbol symbols[] = {
#define CUBLASLT_SYMBOL(name, type, parameters) {"cublasLt" #name, offsetof(CublasLt, name), false},
#include "runtime/library/cublaslt_symbols.def"
#undef CUBLASLT_SYMBOL
	{0}};

Status
cublaslt_load(CublasLt *out)
{
	const char *lacks;

	*out = (CublasLt){0};
	out->library = cuda_library_load(sonames, symbols, out, &lacks);
	if (out->library)
		return NULL;
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
