/* What one run reads and writes. No output may be something that it reads, or another output: by name, through links of
 * either kind, or because a folder stands for its file. */
#include "base/base_impl.h"

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

/* Folders may hold several kinds of outputs. */
static bool
may_clash(const PathUse *out, const PathUse *other)
{
	return out->kind != PATH_INPUT && !(out->kind == PATH_FOLDER && other->kind == PATH_FOLDER);
}

bool
paths_check(Arena *arena, const PathUses *uses, Diag *diag)
{
	bool ok = true;

	for (int i = 0; i < uses->n; i++) {
		const PathUse *out = &uses->at[i];
		for (int k = 0; k < uses->n; k++) {
			const PathUse *other = &uses->at[k];
			if (k == i || !may_clash(out, other) ||
			    (other->kind != PATH_INPUT && k > i) ||
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

/* ---- files that are inputs of this process */
typedef struct {
	dev_t device;
	ino_t inode;
	char *what; /* "--input x.npy" */
} Protected;
static Protected *protected_files; /* set before there is a second thread */
static int n_protected;

void
paths_protect(const PathUses *uses)
{
	struct stat st;

	protected_files = memory_resize(protected_files,
	                                (size_t)(n_protected + uses->n) * sizeof(Protected));
	for (int i = 0; i < uses->n; i++) {
		const PathUse *use = &uses->at[i];
		Text what = {0};
		if (use->kind != PATH_INPUT || stat(use->path, &st) != 0)
			continue;
		text_printf(&what, "%s %s", use->option, use->path);
		protected_files[n_protected++] = (Protected){st.st_dev, st.st_ino, what.at};
	}
}

Status
paths_refuse(const char *path, const struct stat *st)
{
	for (int i = 0; i < n_protected; i++)
		if (protected_files[i].device == st->st_dev &&
		    protected_files[i].inode == st->st_ino)
			return status_error(EXIT_USAGE, "%s is also %s: it would be written over",
			                    path, protected_files[i].what);
	return NULL;
}

/* ---- trying */
static Status
try_file(const char *path)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open(path, &w));
	file_writer_abort(w);
	return NULL;
}

/* In the folder, or where it will be made. The name is one that only FileWriters give. */
static Status
try_folder(Arena *arena, const char *path)
{
	char *folder = arena_strdup(arena, path);
	struct stat st;

	while (stat(*folder ? folder : ".", &st) != 0) {
		char *slash = strrchr(folder, '/');
		if (errno != ENOENT)
			return status_error(EXIT_SYSTEM, "%s: %s", folder, strerror(errno));
		if (slash == folder) /* of the root */
			slash++;
		*(slash ? slash : folder) = '\0';
	}
	if (!S_ISDIR(st.st_mode))
		return status_error(EXIT_SYSTEM, "%s: not a directory", folder);
	const char *name = arena_printf(arena, ".gradc-%ld.try", (long)getpid());
	return status_annotate(try_file(*folder ? path_join(arena, folder, name) : name), "%s",
	                       path);
}

static Status
try_stream(const char *path)
{
	if (access(path, F_OK) != 0)
		return try_file(path);
	return access(path, W_OK) == 0 ? NULL
	                               : status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
}

Status
paths_try(Arena *arena, const PathUses *uses)
{
	Status status = NULL;

	for (int i = 0; i < uses->n && !status; i++) {
		const PathUse *use = &uses->at[i];
		if (use->kind == PATH_FOLDER)
			status = try_folder(arena, use->path);
		else if (use->kind == PATH_STREAM)
			status = try_stream(use->path);
		else if (use->kind == PATH_OUTPUT)
			status = try_file(use->path);
		status = status_annotate(status, "%s", use->option);
	}
	return status;
}
