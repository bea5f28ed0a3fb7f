/* Checks the paths that one run reads and writes: no output may be an input or another output, whether by name, through
 * hard or symbolic links, or because the file lies in an output folder. */
#include "base/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

const char *
path_link(Arena *arena, const char *path)
{
	char target[PATH_MAX];
	const char *slash = strrchr(path, '/');
	ssize_t n = readlink(path, target, sizeof(target) - 1);

	if (n <= 0)
		return NULL;
	target[n] = '\0';
	return !slash || *target == '/'
	               ? arena_strdup(arena, target)
	               : arena_printf(arena, "%.*s/%s", (int)(slash - path), path, target);
}

const char *
path_target(Arena *arena, const char *path)
{
	const char *next;

	for (int links = 0; links < MAX_LINKS && (next = path_link(arena, path)); links++)
		path = next;
	return path;
}

/* The path without links, "." and "..". Components that do not exist yet contain no links. */
static const char *
real_path(Arena *arena, const char *path)
{
	const char *existing = path_real(arena, path), *end = path + strlen(path), *name;

	if (existing)
		return existing;
	while (end > path + 1 && end[-1] == '/')
		end--;
	for (name = end; name > path && name[-1] != '/';)
		name--;
	size_t n = (size_t)(end - name);
	if (n == 0) /* an empty path */
		return path;
	const char *parent = name == path ? path_real(arena, ".")
	                                  : real_path(arena, arena_strndup(arena, path,
	                                                                   (size_t)(name - path)));
	const char *slash = parent ? strrchr(parent, '/') : NULL;
	if (!slash) /* the current folder was removed */
		return path;
	if (n == 1 && *name == '.')
		return parent;
	if (n == 2 && strncmp(name, "..", 2) == 0)
		return slash == parent ? "/"
		                       : arena_strndup(arena, parent, (size_t)(slash - parent));
	return path_join(arena, parent, arena_strndup(arena, name, n));
}

/* The real path of a file that may not exist yet. */
static const char *
future_path(Arena *arena, const char *path)
{
	return real_path(arena, path_target(arena, path));
}

bool
path_is_same(Arena *arena, const char *a, const char *b)
{
	struct stat x, y;
	bool has_a = stat(a, &x) == 0, has_b = stat(b, &y) == 0;

	if (has_a != has_b)
		return false;
	if (has_a)
		return x.st_dev == y.st_dev && x.st_ino == y.st_ino && !S_ISCHR(x.st_mode) &&
		       !S_ISFIFO(x.st_mode);
	return strcmp(future_path(arena, a), future_path(arena, b)) == 0;
}

void
paths_add(Arena *arena, PathUses *uses, PathKind kind, const char *option, const char *path)
{
	if (path && *path)
		vec_push(arena, uses, ((PathUse){kind, option, path}));
}

/* Two output folders do not clash: a folder may hold several kinds of outputs. */
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
			    !path_is_same(arena, out->path, other->path))
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

/* ---- the inputs of all sessions of this process */
typedef struct {
	dev_t device;
	ino_t inode;
	char *path, *what; /* what: "--input x.npy", in the same allocation as path */
} Protected;
struct PathGuard {
	PathGuard *next;
	int n;
	Protected at[];
};
static PathGuard *guards;
static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;

/* Allocates outside the caller's session, because other sessions read the entry. */
static bool
protect(const PathUse *use, Protected *out)
{
	size_t path = strlen(use->path) + 1, what = strlen(use->option) + path + 1;
	struct stat st;

	if (use->kind != PATH_INPUT || stat(use->path, &st) != 0)
		return true;
	*out = (Protected){st.st_dev, st.st_ino, malloc(path + what), NULL};
	if (!out->path)
		return false;
	memcpy(out->path, use->path, path);
	out->what = out->path + path;
	snprintf(out->what, what, "%s %s", use->option, use->path);
	return true;
}

static void
free_guard(PathGuard *g)
{
	for (int i = 0; i < g->n; i++)
		free(g->at[i].path);
	free(g);
}

PathGuard *
paths_guard(const PathUses *uses)
{
	PathGuard *g = calloc(1, sizeof(*g) + (size_t)uses->n * sizeof(g->at[0]));
	bool ok = g != NULL;

	for (int i = 0; i < uses->n && ok; i++) {
		ok = protect(&uses->at[i], &g->at[g->n]);
		g->n += ok && g->at[g->n].path;
	}
	if (!ok) {
		if (g)
			free_guard(g);
		out_of_memory();
	}
	pthread_mutex_lock(&guards_lock);
	g->next = guards;
	guards = g;
	pthread_mutex_unlock(&guards_lock);
	return g;
}

void
paths_unguard(PathGuard *g)
{
	PathGuard **at = &guards;

	if (!g)
		return;
	pthread_mutex_lock(&guards_lock);
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	pthread_mutex_unlock(&guards_lock);
	free_guard(g);
}

static bool
is_same_file(const Protected *p, const struct stat *st)
{
	return p->device == st->st_dev && p->inode == st->st_ino;
}

/* Compares with stat again: the inode number of a removed input may belong to another file by now. */
static bool
find_protected(const struct stat *st, char *what, size_t n)
{
	bool found = false;
	struct stat now;

	pthread_mutex_lock(&guards_lock);
	for (const PathGuard *g = guards; g && !found; g = g->next)
		for (int i = 0; i < g->n && !found; i++) {
			const Protected *p = &g->at[i];
			found = is_same_file(p, st) && stat(p->path, &now) == 0 &&
			        is_same_file(p, &now);
			if (found)
				snprintf(what, n, "%s", p->what);
		}
	pthread_mutex_unlock(&guards_lock);
	return found;
}

Status
paths_refuse(const char *path, const struct stat *st)
{
	char what[PATH_MAX + 64];

	if (!find_protected(st, what, sizeof(what)))
		return NULL;
	return status_error(EXIT_USAGE, "%s is also %s: it would be written over", path, what);
}

/* ---- trial writes */
static Status
try_file(const char *path)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open(path, &w));
	file_writer_abort(w);
	return NULL;
}

/* Makes a file under a name that only gradc uses, and removes the file immediately. */
static Status
try_name(const char *name, const char *folder)
{
	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", folder);
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int error = errno;
	if (fd >= 0)
		unlink(name);
	cleanup_end_making();
	if (fd < 0)
		return status_error(EXIT_SYSTEM, "%s: no file can be made there: %s", folder,
		                    strerror(error));
	close(fd);
	return NULL;
}

/* Tries to make a file in the folder, or in its nearest parent that exists. */
static Status
try_folder(Arena *arena, const char *path)
{
	char *folder = arena_strdup(arena, path);
	struct stat st;

	while (stat(*folder ? folder : ".", &st) != 0) {
		char *slash = strrchr(folder, '/');
		if (errno != ENOENT)
			return status_error(EXIT_SYSTEM, "%s: %s", folder, strerror(errno));
		if (slash == folder) /* the root's slash stays */
			slash++;
		*(slash ? slash : folder) = '\0';
	}
	if (!S_ISDIR(st.st_mode))
		return status_error(EXIT_SYSTEM, "%s: not a directory", folder);
	const char *name = arena_printf(arena, ".gradc-%ld.try", (long)getpid());
	return try_name(*folder ? path_join(arena, folder, name) : name, path);
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
		else if (use->kind == PATH_STREAM || use->kind == PATH_SHARED)
			status = try_stream(use->path);
		else if (use->kind == PATH_OUTPUT)
			status = try_file(use->path);
		status = status_annotate(status, "%s", use->option);
	}
	return status;
}

/* ---- output folders */

static bool
lies_in(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	return strncmp(path, folder, n) == 0 && path[n] == '/';
}

Status
paths_make(Arena *arena, const PathUses *uses)
{
	for (int i = 0; i < uses->n; i++)
		for (int k = 0; k < uses->n; k++) {
			const PathUse *in = &uses->at[i], *folder = &uses->at[k];
			if (k == i || in->kind == PATH_INPUT || folder->kind != PATH_FOLDER)
				continue;
			const char *path = future_path(arena, in->path);
			if (!lies_in(path, future_path(arena, folder->path)))
				continue;
			path = arena_strndup(arena, path, (size_t)(strrchr(path, '/') - path));
			RETURN_IF_ERROR(status_annotate(folder_make(path), "%s", folder->option));
		}
	return NULL;
}

/* ---- locks: a lock file in the folder of each output, removed when the lock is released. The lock file of a killed
 * process is not locked any more and is taken over. */

/* The first process makes the lock file. Another user may only have read access, which is enough for a lock. */
static int
open_lock(const char *path, bool *made)
{
	const int flags = O_NOFOLLOW | O_CLOEXEC;
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | flags, 0666);

	*made = fd >= 0;
	if (fd < 0 && errno == EEXIST)
		fd = open(path, O_RDWR | O_CREAT | flags, 0666);
	return fd < 0 && errno == EACCES ? open(path, O_RDONLY | flags) : fd;
}

/* Locks the lock file, which another process may be removing at the same time. If the lock file can be neither made nor
 * locked, sets *fd to -1 and *error_out to the errno, and returns NULL: the run goes on without a lock. */
static Status
lock_file(const char *path, int *fd, int *error_out, CleanupSlot *cleanup)
{
	enum { TRIES = 100 };
	struct stat own, there;

	*fd = -1;
	*error_out = EAGAIN;
	for (int i = 0; i < TRIES; i++) {
		if (!cleanup_begin_making())
			return status_error(EXIT_SYSTEM, "the process is ending");
		bool made;
		*fd = open_lock(path, &made);
		int failed = *fd < 0 ? -1 : flock(*fd, LOCK_EX | LOCK_NB), error = errno;
		bool is_ours = failed == 0 && fstat(*fd, &own) == 0 && stat(path, &there) == 0 &&
		               own.st_ino == there.st_ino && own.st_dev == there.st_dev;
		if (is_ours)
			*cleanup = cleanup_add_path(path);
		cleanup_end_making();
		if (is_ours)
			return NULL;
		bool had_file = *fd >= 0;
		if (had_file)
			close(*fd);
		*fd = -1;
		if (failed && error == EWOULDBLOCK && had_file)
			return status_error(EXIT_SYSTEM, "another run is writing it");
		if (failed) {
			if (made)
				unlink(path);
			*error_out = error;
			return NULL;
		}
	}
	return NULL;
}

static bool
is_lockable(const PathUse *use)
{
	struct stat st;

	return (use->kind == PATH_OUTPUT || use->kind == PATH_STREAM) &&
	       (stat(use->path, &st) != 0 || S_ISREG(st.st_mode));
}

Status
paths_lock(Arena *arena, const PathUses *uses, PathLocks *out, Diag *diag)
{
	int error;

	for (int i = 0; i < uses->n; i++) {
		const PathUse *use = &uses->at[i];
		if (!is_lockable(use))
			continue;
		const char *path = future_path(arena, use->path), *slash = strrchr(path, '/');
		int folder = slash ? (int)(slash - path) + 1 : 0;
		uint64_t name = hash_bytes(path + folder, strlen(path + folder), 0);
		PathLock lock = {.cleanup = -1};
		lock.path = arena_printf(arena, "%.*s.gradc-%016llx.lock", folder, path,
		                         (unsigned long long)name);
		RETURN_IF_ERROR(
			status_annotate(lock_file(lock.path, &lock.fd, &error, &lock.cleanup),
		                        "%s %s", use->option, use->path));
		if (lock.fd >= 0)
			vec_push(arena, out, lock);
		else
			diag_warning(diag, "%s %s: nothing keeps another run from writing it: %s",
			             use->option, use->path, strerror(error));
	}
	return NULL;
}

void
paths_unlock(PathLocks *locks)
{
	for (int i = 0; i < locks->n; i++) {
		cleanup_forget(
			locks->at[i]
				/* before unlocking: afterwards another process may own this path, and cleanup must not
				 * remove it */
				.cleanup);
		unlink(locks->at[i].path);
		close(locks->at[i].fd);
	}
	locks->n = 0;
}
