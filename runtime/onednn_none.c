/* What onednn.h gives in a build without the library. */
#include "runtime/onednn.h"

#if !GRADC_ONEDNN
Status
onednn_open(Pool *pool, bool tiled, Onednn **out)
{
	(void)pool;
	(void)tiled;
	*out = NULL;
	return status_error(EXIT_SYSTEM, "built without oneDNN");
}

void
onednn_close(Onednn *lib)
{
	(void)lib;
}

const char *
onednn_version(const Onednn *lib)
{
	(void)lib;
	return "";
}

Status
onednn_call_open(Onednn *lib, const LibraryWork *work, unsigned fixed, int64_t scratch_limit,
                 OnednnCall **out)
{
	(void)lib;
	(void)work;
	(void)fixed;
	(void)scratch_limit;
	*out = NULL;
	return status_error(EXIT_UNSUPPORTED, "built without oneDNN");
}

void
onednn_call_close(OnednnCall *call)
{
	(void)call;
}

const char *
onednn_implementation(const OnednnCall *call)
{
	(void)call;
	return "";
}

int64_t
onednn_scratch(const OnednnCall *call)
{
	(void)call;
	return 0;
}

int64_t
onednn_packed_bytes(const OnednnCall *call, int i)
{
	(void)call;
	(void)i;
	return 0;
}

Status
onednn_pack(OnednnCall *call, int i, const void *buffer, char *to)
{
	(void)call;
	(void)i;
	(void)buffer;
	(void)to;
	return status_error(EXIT_UNSUPPORTED, "built without oneDNN");
}

Status
onednn_run(OnednnCall *call, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
           char *scratch)
{
	(void)call;
	(void)buffers;
	(void)packed;
	(void)scratch;
	return status_error(EXIT_UNSUPPORTED, "built without oneDNN");
}
#endif
