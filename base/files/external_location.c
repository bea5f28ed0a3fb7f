/* Finds and opens the file that a location names. A component of the path may be a link only if the
 * link's target lies below one of the model's folders. The model's folders are: the folder of the
 * given path; if the path is a link, the folders of all links on the way and of the file at the
 * end; and, in a Hugging Face cache, the folder `blobs`, since `snapshots/REVISION` holds only
 * links. */
#define _GNU_SOURCE
#include "base/files/files.h"

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

/* .../models--A--B/blobs for .../models--A--B/snapshots/REVISION and the folders below it; else
 * NULL. */
static const char *
cache_of(Arena *arena, const char *folder)
{
	const char *snapshots = NULL;

	for (const char *at = folder; (at = strstr(at, "/snapshots/")); at++)
		snapshots = at;
	if (!snapshots)
		return NULL;
	const char *cache = arena_strndup(arena, folder, (size_t)(snapshots - folder));
	const char *name = strrchr(cache, '/');
	return name && strstr(name, "--") ? path_join(arena, cache, "blobs") : NULL;
}

static void
add_folder(Arena *arena, StringList *folders, const char *folder)
{
	for (int i = 0; folder && i < folders->n; i++)
		if (!strcmp(folders->at[i], folder))
			return;
	if (folder)
		vec_push(arena, folders, folder);
}

StringList
external_folders(Arena *arena, const char *path)
{
	StringList folders = {0};
	const char *file = path;

	for (int links = 0; file && links < MAX_LINKS; links++) {
		const char *folder = path_real(arena, folder_of(arena, file));
		add_folder(arena, &folders, folder);
		add_folder(arena, &folders, folder ? cache_of(arena, folder) : NULL);
		file = path_link(arena, file);
	}
	return folders;
}

/* The part of a resolved path below a folder; NULL: the path lies elsewhere. */
static const char *
below(const char *path, const char *folder)
{
	size_t n = strcmp(folder, "/") == 0 ? 0 : strlen(folder);

	return strncmp(path, folder, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

/* If the model is a link, its data may lie in the folder of the link or in the folder of the link's
 * target. A fault in one folder, such as a circle of links, takes precedence over "No such file" in
 * another folder. */
const char *
external_path(Arena *arena, const StringList *folders, const char *location)
{
	const char *found = NULL;
	int error = ENOENT;

	for (int i = 0; i < folders->n; i++) {
		const char *real = path_real(arena, path_join(arena, folders->at[i], location));
		error = !real && error == ENOENT ? errno : error;
		if (real && found && strcmp(real, found)) {
			errno = ENOTUNIQ;
			return NULL;
		}
		found = real ? real : found;
	}
	errno = error;
	return found;
}

/* Opens a path below a folder and follows no link. The kernel resolves the whole path; kernels
 * before Linux 5.6 cannot, so there each component is opened in turn. */
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
external_open_path(Arena *arena, const StringList *folders, const char *location, const char **path)
{
	*path = external_path(arena, folders, location);
	if (!*path)
		return -1; /* errno is realpath's */
	for (int i = 0; i < folders->n; i++) {
		const char *rest = below(*path, folders->at[i]);
		if (!rest)
			continue;
		int folder = open(folders->at[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
		int fd = folder < 0 ? -1 : open_below(folder, rest), error = errno;
		if (folder >= 0)
			close(folder);
		errno = error;
		return fd;
	}
	errno = EXDEV;
	return -1;
}
