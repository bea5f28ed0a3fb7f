/* Takes the place of onednn.c if gradc was built without oneDNN: opening the library is an error. */
#include "runtime/library/library.h"

#if !GRADC_ONEDNN
static Status
none_open(const LibraryHome *home, Library **out)
{
	(void)home;
	*out = NULL;
	return status_error(EXIT_SYSTEM, "built without oneDNN");
}

static void
none_close(Library *library)
{
	(void)library;
}

const LibraryOps library_onednn = {.name = "oneDNN", .open = none_open, .close = none_close};
#endif
