/* What one run reads and writes. No output may be something that it reads, or another output: by name, through links of
 * either kind, or because a folder stands for its file. */
#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINKS = 16 };

/* The folder of the path without its links, and the name in it; for a file that is not there yet. */
static char *
future_path(Arena *arena, const char *path, int links)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	char *folder = slash ? arena_strndup(arena, path, (size_t)(slash - path) + 1) : ".";
	char resolved[PATH_MAX], target[PATH_MAX];
	ssize_t n = readlink(path, target, sizeof(target) - 1);

	if (n > 0 && links < MAX_LINKS) { /* a link to nothing: its target is what gets written */
		target[n] = '\0';
		return future_path(arena,
		                   *target == '/' ? arena_strdup(arena, target)
		                                  : path_join(arena, folder, target),
		                   links + 1);
	}
	return path_join(arena, realpath(folder, resolved) ? arena_strdup(arena, resolved) : folder,
	                 base);
}

static bool
is_same(Arena *arena, const char *a, const char *b)
{
	struct stat x, y;
	bool has_a = stat(a, &x) == 0, has_b = stat(b, &y) == 0;

	if (has_a != has_b)
		return false;
	if (has_a)
		return x.st_dev == y.st_dev && x.st_ino == y.st_ino && !S_ISCHR(x.st_mode) &&
		       !S_ISFIFO(x.st_mode);
	return strcmp(future_path(arena, a, 0), future_path(arena, b, 0)) == 0;
}

void
paths_add(Arena *arena, PathUses *uses, PathKind kind, const char *option, const char *path)
{
	if (path && *path)
		vec_push(arena, uses, ((PathUse){kind, option, path}));
}

bool
paths_check(Arena *arena, const PathUses *uses, Diag *diag)
{
	bool ok = true;

	for (int i = 0; i < uses->n; i++) {
		const PathUse *out = &uses->at[i];
		for (int k = 0; k < uses->n && out->kind == PATH_OUTPUT; k++) {
			const PathUse *other = &uses->at[k];
			if (k == i || (other->kind == PATH_OUTPUT && k > i) ||
			    !is_same(arena, out->path, other->path))
				continue;
			diag_error(diag, EXIT_USAGE,
			           "%s %s is also %s %s: it would be written over", out->option,
			           out->path, other->option, other->path);
			ok = false;
			break;
		}
	}
	return ok;
}
