/* Opens shared libraries at run time and finds their functions, by tables of symbols. */
#include "base/base.h"

#include <dlfcn.h>
#include <string.h>

const char *
symbols_find(void *library, const LibrarySymbol *list, void *into)
{
	const char *lacks = NULL;

	for (const LibrarySymbol *s = list; s->name; s++) {
		void *function = dlsym(library, s->name);
		memcpy((char *)into + s->at, &function, sizeof(function));
		if (!function && !s->optional && !lacks)
			lacks = s->name;
	}
	return lacks;
}

void *
cuda_library_load(const char *const *sonames, const LibrarySymbol *list, void *into,
                  const char **lacks)
{
	*lacks = NULL;
	for (; *sonames; sonames++) {
		void *library = cuda_library_open(*sonames);
		if (!library)
			continue;
		*lacks = symbols_find(library, list, into);
		if (!*lacks)
			return library;
		dlclose(library);
	}
	return NULL;
}
