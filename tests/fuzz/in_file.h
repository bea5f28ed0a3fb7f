/* Puts bytes into a file, for readers that take a path. */
#ifndef GRADC_TESTS_FUZZ_IN_FILE_H
#define GRADC_TESTS_FUZZ_IN_FILE_H

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* The path of this process's one file, which holds these bytes until the next call. */
static const char *
in_file(const uint8_t *data, size_t size)
{
	static char path[] = "/tmp/gradc-fuzz-XXXXXX";
	static int fd = -1;

	if (fd < 0)
		fd = mkstemp(path);
	if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
		abort();
	return path;
}

#endif
