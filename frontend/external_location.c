/* The file that a location names. It is opened by descriptor; where a component is a link, the file
 * behind it must lie below one of the model's folders: the folder of the path that was given, the
 * folder of the file that this path leads to, and the `blobs` of a Hugging Face cache, whose
 * `snapshots/REVISION` holds links alone. */
#define _GNU_SOURCE
#include "frontend/frontend_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *
external_location(Arena *arena, const char *location, const char **out)
{
	const char *path = NULL;

	*out = location;
	if (!location || !*location)
		return "has external data without a location";
	if (strlen(location) > 4095)
		return "has an external location of more than 4095 bytes";
	if (strchr(location, '\\') || location[1] == ':')
		return "has an external location with a backslash or a drive letter";
	for (const char *p = location;; p++) {
		size_t n = strcspn(p, "/");
		bool here = n == 1 && p[0] == '.';
		if (n == 0 || (n == 2 && !strncmp(p, "..", 2)) || (here && !p[n] && !path))
			return "has an external location that is not a plain path below the "
			       "model's folder";
		if (!here)
			path = path ? arena_printf(arena, "%s/%.*s", path, (int)n, p)
			            : arena_strndup(arena, p, n);
		p += n;
		if (!*p)
			break;
	}
	*out = path;
	return NULL;
}

static const char *
folder_of(Arena *arena, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return ".";
	return slash == path ? "/" : arena_strndup(arena, path, (size_t)(slash - path));
}

/* .../models--A--B/blobs for .../models--A--B/snapshots/REVISION and what is below; else NULL. */
static const char *
cache_of(Arena *arena, const char *folder)
{
	const char *at = strstr(folder, "/snapshots/");

	return at ? path_join(arena, arena_strndup(arena, folder, (size_t)(at - folder)), "blobs")
	          : NULL;
}

void
external_folders(Model *model)
{
	Arena *arena = model->arena;
	const char *given = path_real(arena, folder_of(arena, model->path));
	const char *file = path_real(arena, model->path);
	const char *real = file ? folder_of(arena, file) : NULL;
	const char *folders[] = {
		given,
		real && given && strcmp(real, given) == 0 ? NULL : real,
		given ? cache_of(arena, given) : NULL,
	};

	for (int i = 0; i < COUNT(folders); i++)
		if (folders[i])
			vec_push(arena, &model->folders, folders[i]);
}

/* The part of a resolved path below a folder, or NULL. */
static const char *
below(const char *path, const char *folder)
{
	size_t n = strcmp(folder, "/") == 0 ? 0 : strlen(folder);

	return strncmp(path, folder, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

const char *
external_path(const Model *model, const char *location)
{
	const char *real = NULL;

	/* Of a model that is a link, the data may lie beside the link or beside the file. */
	for (int i = 0; i < model->folders.n && !real; i++)
		real = path_real(model->arena,
		                 path_join(model->arena, model->folders.at[i], location));
	return real;
}

/* The kernel resolves the whole path; where it cannot (before Linux 5.6), component by component.
 * Through no link. */
static int
open_below(int folder, const char *location)
{
	struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
	                       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
	long fd = syscall(SYS_openat2, folder, location, &how, sizeof(how));

	if (fd >= 0 || errno != ENOSYS)
		return (int)fd;
	int at = dup(folder);
	while (at >= 0) {
		char part[256];
		size_t n = strcspn(location, "/");
		if (n >= sizeof(part)) {
			close(at);
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(part, location, n);
		part[n] = 0;
		int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
		int next = openat(at, part, location[n] ? flags | O_DIRECTORY : flags);
		int error = errno;
		close(at);
		errno = error;
		at = next;
		if (!location[n])
			break;
		location += n + 1;
	}
	return at;
}

int
external_open_path(const Model *model, const char *location, const char **path)
{
	*path = external_path(model, location);
	if (!*path)
		return -1; /* errno is realpath's */
	for (int i = 0; i < model->folders.n; i++) {
		const char *rest = below(*path, model->folders.at[i]);
		if (!rest)
			continue;
		int folder = open(model->folders.at[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
		int fd = folder < 0 ? -1 : open_below(folder, rest), error = errno;
		if (folder >= 0)
			close(folder);
		errno = error;
		return fd;
	}
	errno = EXDEV;
	return -1;
}
