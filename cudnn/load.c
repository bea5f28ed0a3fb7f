/* Finds and opens cuDNN. The opened library is small, and opens further libraries when it needs them. */
#include "base/base.h"
#include "cudnn/cudnn.h"

#include <dlfcn.h>

#define SONAME "libcudnn.so.9"

/* The first function that the library lacks; NULL if it has all. */
static const char *
first_missing(Cudnn *dnn)
{
#define CUDNN_SYMBOL(name, type, parameters)                       \
	*(void **)&dnn->name = dlsym(dnn->library, "cudnn" #name); \
	if (!dnn->name)                                            \
		return "cudnn" #name;
#include "cudnn/symbols.def"
#undef CUDNN_SYMBOL
	return NULL;
}

Status
cudnn_load(Cudnn *out)
{
	*out = (Cudnn){.library = cuda_library_open(SONAME)};
	if (!out->library)
		return status_error(EXIT_SYSTEM,
		                    "cuDNN is not found (" SONAME "): `pip install "
		                    "nvidia-cudnn-cu13` and add its folder nvidia/cudnn/lib to "
		                    "LD_LIBRARY_PATH");
	const char *lacks = first_missing(out);
	if (!lacks)
		return NULL;
	dlclose(out->library);
	*out = (Cudnn){0};
	return status_error(EXIT_SYSTEM, "cuDNN lacks %s: a newer one is needed", lacks);
}

Status
cudnn_status(const Cudnn *dnn, int code, const char *what)
{
	return code == CUDNN_OK ? NULL
	                        : status_error(EXIT_SYSTEM, "cuDNN: %s: %s", what,
	                                       dnn->GetErrorString(code));
}

void
cudnn_version(const Cudnn *dnn, char out[MOST_CUDNN_VERSION])
{
	int v = (int)dnn->GetVersion();

	snprintf(out, MOST_CUDNN_VERSION, "cuDNN %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}
