/* Finds and opens cuDNN. The opened library is small, and opens further libraries when it needs them. */
#include "base/base.h"
#include "cudnn/cudnn.h"

#define SONAME "libcudnn.so.9"

static const LibrarySymbol symbols[] = {
#define CUDNN_SYMBOL(name, type, parameters) {"cudnn" #name, offsetof(Cudnn, name), false},
#include "cudnn/symbols.def"
#undef CUDNN_SYMBOL
	{0}};

Status
cudnn_load(Cudnn *out)
{
	static const char *const sonames[] = {SONAME, NULL};
	const char *lacks;

	*out = (Cudnn){0};
	out->library = cuda_library_load(sonames, symbols, out, &lacks);
	if (out->library)
		return NULL;
	*out = (Cudnn){0};
	return lacks ? status_error(EXIT_SYSTEM, "cuDNN lacks %s: a newer one is needed", lacks)
	             : status_error(EXIT_SYSTEM,
	                            "cuDNN is not found (" SONAME "): `pip install "
	                            "nvidia-cudnn-cu13` and add its folder nvidia/cudnn/lib to "
	                            "LD_LIBRARY_PATH");
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
