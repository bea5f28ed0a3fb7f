/* The libraries of a device. */
#include "runtime/library.h"

#include <assert.h>

static void
add(Text *list, const char *what)
{
	text_printf(list, "%s%s", list->n ? ", " : "", what);
}

void
libraries_open(Libraries *out, const LibraryHome *home, int n, const LibraryOps *const *list)
{
	assert(n <= MOST_LIBRARIES);
	for (int i = 0; i < n; i++) {
		OpenedLibrary *l = &out->at[out->n++];
		l->ops = list[i];
		l->why_none = l->ops->open(home, &l->library);
		if (l->library)
			add(&out->versions, l->ops->version(l->library));
		add(&out->text, l->library ? l->ops->version(l->library) : l->why_none->message);
	}
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
