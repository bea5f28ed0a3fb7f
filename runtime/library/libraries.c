/* Opens the libraries of a device, and describes them. */
#include "runtime/library/library.h"

#include <assert.h>

static void
add(Text *list, const char *what)
{
	text_printf(list, "%s%s", list->n ? ", " : "", what);
}

static void
describe(Libraries *libraries)
{
	text_free(&libraries->text);
	text_free(&libraries->versions);
	for (int i = 0; i < libraries->n; i++) {
		const OpenedLibrary *l = &libraries->at[i];
		const char *fault = l->library && l->ops->fault ? l->ops->fault(l->library) : NULL;
		const char *version = l->library && !fault ? l->ops->version(l->library) : NULL;
		if (version)
			add(&libraries->versions, version);
		add(&libraries->text, version ? version : fault ? fault : l->why_none->message);
	}
}

void
libraries_open(Libraries *out, const LibraryHome *home, int n, const LibraryOps *const *list)
{
	assert(n <= MOST_LIBRARIES);
	for (int i = 0; i < n; i++) {
		OpenedLibrary *l = &out->at[out->n++];
		l->ops = list[i];
		l->why_none = l->ops->open(home, &l->library);
	}
	describe(out);
}

void
libraries_look_again(Libraries *libraries)
{
	describe(libraries);
}

void
libraries_close(Libraries *libraries)
{
	for (int i = 0; i < libraries->n; i++) {
		OpenedLibrary *l = &libraries->at[i];
		if (l->library)
			l->ops->close(l->library);
		status_free(l->why_none);
	}
	text_free(&libraries->text);
	text_free(&libraries->versions);
	*libraries = (Libraries){0};
}
