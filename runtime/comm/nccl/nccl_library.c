/* Finds and opens NCCL, NVIDIA's library for collectives between GPUs. */
#include "runtime/comm/nccl/nccl_library.h"

#include "base/base.h"

#define LIBRARY "libnccl.so.2"
enum {
	/* The first version with calls that do not block, so that a lost rank can be noticed. */
	LEAST_VERSION = 21400
};

const char *
nccl_version_text(int version, char *out)
{
	snprintf(out, NCCL_VERSION_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100,
	         version % 100);
	return out;
}

static const LibrarySymbol symbols[] = {
#define NCCL_SYMBOL(name, parameters) {"nccl" #name, offsetof(NcclLibrary, name), false},
#define NCCL_TEXT NCCL_SYMBOL
#define NCCL_OPTIONAL(name, parameters) {"nccl" #name, offsetof(NcclLibrary, name), true},
#include "runtime/comm/nccl/nccl_symbols.def"
#undef NCCL_SYMBOL
#undef NCCL_TEXT
#undef NCCL_OPTIONAL
	{0}};

static Status
too_old(int version, const char *lacks)
{
	char own[NCCL_VERSION_TEXT] = "without a version", least[NCCL_VERSION_TEXT];

	if (version >= 10000)
		nccl_version_text(version, own);
	return status_error(EXIT_SYSTEM, "NCCL %s%s%s is too old: %s or newer is needed", own,
	                    lacks ? ", which lacks " : "", lacks ? lacks : "",
	                    nccl_version_text(LEAST_VERSION, least));
}

Status
nccl_library_open(NcclLibrary *out)
{
	*out = (NcclLibrary){.library = cuda_library_open(LIBRARY)};
	if (!out->library)
		return status_error(EXIT_SYSTEM,
		                    LIBRARY " is not found: install NVIDIA's package libnccl2, or "
		                            "add the folder that has it to LD_LIBRARY_PATH");
	const char *lacks = symbols_find(out->library, symbols, out);
	if (out->GetVersion && out->GetVersion(&out->version) != NCCL_OK)
		out->version = 0;
	return lacks || out->version < LEAST_VERSION ? too_old(out->version, lacks) : NULL;
}
