/* Finds NVIDIA's libraries and programs on this machine. */

#include "base/base.h"

#include <dlfcn.h>
#include <stdlib.h>

const char *
cuda_home(void)
{
	const char *home = getenv("CUDA_HOME");

	return home && *home ? home : "/usr/local/cuda";
}

void *
cuda_library_open(const char *soname)
{
	void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
	Text path = {0};

	if (library)
		return library;
	text_printf(&path, "%s/lib64/%s", cuda_home(), soname);
	library = dlopen(path.at, RTLD_NOW | RTLD_LOCAL);
	text_free(&path);
	return library;
}
