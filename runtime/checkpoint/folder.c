/* Lists, names, replaces and removes the checkpoints in a folder DIR, which looks like this:
 *
 * DIR/step-00000020/manifest.json
 * DIR/step-00000020/shard-00000-00000.safetensors      rank, number
 * DIR/step-000000020/                                  if the usual name is taken by something else
 * DIR/.gradc-checkpoint-PID-N.tmp/                     being written or removed
 *
 * A run that saves holds a lock on DIR, which ends with its process. So all temporary folders that a run finds at its start
 * belong to killed runs. */
#include "runtime/checkpoint/parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".gradc-checkpoint-"
#define TEMPORARY_PATTERN TEMPORARY_PREFIX "*.tmp"
enum { MOST_DIGITS = 18 };

/* The path of the checkpoint for the entry's step and digits. */
char *
folder_entry_path(Arena *arena, const CheckpointFolder *folder, const CheckpointEntry *entry)
{
	return arena_printf(arena, "%s/step-%0*lld", folder->path, entry->digits,
	                    (long long)entry->step);
}

char *
folder_temporary(Arena *arena, CheckpointFolder *folder)
{
	for (;;) {
		char *path = arena_printf(arena, "%s/" TEMPORARY_PREFIX "%ld-%lld.tmp",
		                          folder->path, (long)getpid(),
		                          (long long)folder->n_temporaries++);
		if (access(path, F_OK) != 0)
			return path;
	}
}

/* Is it the name of a file in a checkpoint, such as manifest.json? */
static bool
is_ours(const char *name)
{
	static const char *const ours[] = {MANIFEST_FILE, SHARD_PATTERN, ".gradc-*.tmp"};

	for (int i = 0; i < COUNT(ours); i++)
		if (glob_match(ours[i], name))
			return true;
	return false;
}

/* Is it a regular file? A checkpoint contains no folders and no links. */
static bool
is_file(DIR *dir, const char *name)
{
	struct stat st;

	return fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

/* The next entry; NULL at the end, or after an error, which sets *failed. */
static struct dirent *
next_entry(DIR *dir, bool *failed)
{
	errno = 0;
	struct dirent *e = readdir(dir);

	*failed |= !e && errno != 0;
	return e;
}

/* Opens a folder. NULL if that fails, or if the path is a link: a link's target does not belong to the checkpoints. */
static DIR *
open_folder(const char *path)
{
	struct stat st;

	if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
		errno = ELOOP;
		return NULL;
	}
	return opendir(path);
}

/* Is the path taken by something that is not a checkpoint, and so must stay? A folder that contains only files of a checkpoint
 * may be moved. EXIT_SYSTEM if the folder cannot be read. */
static Status
check_taken(const char *path, bool *taken)
{
	DIR *dir = open_folder(path);
	bool failed = false;
	int error = errno;

	*taken = !dir && (error == ENOTDIR || error == ELOOP || error == EACCES);
	if (!dir)
		return *taken || error == ENOENT
		               ? NULL
		               : status_error(EXIT_SYSTEM, "%s: %s", path, strerror(error));
	for (struct dirent *e; (e = next_entry(dir, &failed));)
		*taken |= !(is_ours(e->d_name) && is_file(dir, e->d_name)) &&
		          strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
	Status status = failed ? status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno)) : NULL;
	closedir(dir);
	return status;
}

/* Removes the files of a checkpoint, its manifest first. If the folder has other files, they and the folder stay. */
void
folder_remove(const char *path)
{
	DIR *dir = open_folder(path);

	if (dir)
		unlinkat(dirfd(dir), MANIFEST_FILE, 0);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (is_ours(e->d_name))
			unlinkat(dirfd(dir), e->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

Status
folder_lock(CheckpointFolder *folder)
{
	if (folder->lock >= 0)
		return NULL;
	int fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return NULL; /* the first save reports the fault */
	folder->alone = flock(fd, LOCK_EX | LOCK_NB) == 0;
	if (!folder->alone && errno == EWOULDBLOCK) {
		close(fd);
		return status_error(EXIT_CHECKPOINT, "%s: another run is saving there",
		                    folder->path);
	}
	folder->lock = fd;
	return NULL;
}

void
folder_close(CheckpointFolder *folder)
{
	if (folder->lock >= 0)
		close(folder->lock);
	arena_free(folder->arena);
	*folder = (CheckpointFolder){.lock = -1};
}

bool
checkpoint_name_parse(const char *name, int64_t *step, int *digits)
{
	static const char prefix[] = "step-";
	size_t n = sizeof(prefix) - 1;

	if (strncmp(name, prefix, n) != 0)
		return false;
	size_t all = strlen(name + n);
	*digits = (int)all;
	return all >= CHECKPOINT_DIGITS && all <= MOST_DIGITS &&
	       strspn(name + n, "0123456789") == all && parse_int(name + n, step);
}

static void
read_entry(const CheckpointFolder *folder, CheckpointEntry *entry)
{
	Arena *arena = arena_new();
	Manifest m;
	Status status = manifest_read(
		arena, path_join(arena, folder_entry_path(arena, folder, entry), MANIFEST_FILE),
		&m);

	entry->serial = -1;
	entry->only_best = false;
	if (!status) {
		entry->serial = m.serial;
		entry->run = m.run;
		entry->model = m.model;
		entry->constants = manifest_constants(&m);
		entry->only_best = m.only_best;
	}
	status_free(status);
	arena_free(arena);
}

static void
close_folder(void *dir)
{
	if (dir)
		closedir(dir);
}

Status
folder_list(CheckpointFolder *folder)
{
	DIR *dir = opendir(folder->path);
	bool failed = !dir && errno != ENOENT && errno != ENOTDIR;
	CheckpointEntry entry = {0};

	folder->entries.n = 0;
	memory_hold(close_folder, dir);
	for (struct dirent *e; dir && (e = next_entry(dir, &failed));)
		if (checkpoint_name_parse(e->d_name, &entry.step, &entry.digits)) {
			read_entry(folder, &entry);
			vec_push(folder->arena, &folder->entries, entry);
		}
	Status status = failed ? status_error(EXIT_SYSTEM, "%s: %s", folder->path, strerror(errno))
	                       : NULL;
	memory_let_go();
	if (dir)
		closedir(dir);
	return status;
}

static void
remove_leftovers(const CheckpointFolder *folder)
{
	Arena *arena = arena_new();
	DIR *dir = opendir(folder->path);

	memory_hold(close_folder, dir);
	for (struct dirent *e; dir && (e = readdir(dir));)
		if (glob_match(TEMPORARY_PATTERN, e->d_name))
			folder_remove(path_join(arena, folder->path, e->d_name));
	memory_let_go();
	if (dir)
		closedir(dir);
	arena_free(arena);
}

Status
folder_prepare(CheckpointFolder *folder)
{
	if (folder->scanned)
		return NULL;
	RETURN_IF_ERROR(folder_make(folder->path));
	RETURN_IF_ERROR(folder_lock(folder));
	if (folder->lock < 0)
		return status_error(EXIT_SYSTEM, "%s: %s", folder->path, strerror(errno));
	if (folder->alone)
		remove_leftovers(folder);
	RETURN_IF_ERROR(folder_list(folder));
	folder->scanned = true;
	return NULL;
}

int64_t
folder_next_serial(const CheckpointFolder *folder)
{
	int64_t last = 0;

	for (int i = 0; i < folder->entries.n; i++)
		if (folder->entries.at[i].serial > last)
			last = folder->entries.at[i].serial;
	return last + 1;
}

static void
forget(CheckpointFolder *folder, int index)
{
	folder->entries.at[index] = folder->entries.at[--folder->entries.n];
}

/* Exchanges the old checkpoint for the new one in a single rename. On file systems that cannot exchange, the old one is moved
 * away just before. */
static Status
replace(CheckpointFolder *folder, const char *temporary, const char *path)
{
	Arena *arena = arena_new();
	const char *old = temporary;
	struct stat st;

	if (stat(path, &st) == 0)
		chmod(temporary, st.st_mode & 0777); /* keeps the permissions of the old folder */
	if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) != 0) {
		old = folder_temporary(arena, folder);
		if (rename(path, old) != 0) {
			old = NULL;
		} else if (rename(temporary, path) != 0) {
			int error = errno;

			rename(old, path);
			errno = error;
			old = NULL;
		}
	}
	if (old)
		folder_remove(old);
	arena_free(arena);
	return old ? NULL : status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
}

/* CHECKPOINT_DIGITS, or the step's own number of digits if that is larger. */
static int
usual_digits(int64_t step)
{
	int n = 1;

	for (; step >= 10; step /= 10)
		n++;
	return n < CHECKPOINT_DIGITS ? CHECKPOINT_DIGITS : n;
}

static bool
stays(const CheckpointFolder *folder, const CheckpointEntry *entry)
{
	for (int i = 0; i < folder->entries.n; i++) {
		const CheckpointEntry *e = &folder->entries.at[i];
		if (e->stays && e->step == entry->step && e->digits == entry->digits)
			return true;
	}
	return false;
}

/* Finds a free name. If the usual name is taken by something that must stay, the step gets one more leading zero; names with
 * more digits are valid too. */
static Status
find_name(Arena *arena, const CheckpointFolder *folder, CheckpointEntry *entry)
{
	bool taken;

	for (entry->digits = usual_digits(entry->step); entry->digits <= MOST_DIGITS;
	     entry->digits++) {
		RETURN_IF_ERROR(check_taken(folder_entry_path(arena, folder, entry), &taken));
		if (!taken && !stays(folder, entry))
			return NULL;
	}
	return status_error(EXIT_SYSTEM, "%s: every name for a checkpoint of step %lld is taken",
	                    folder->path, (long long)entry->step);
}

Status
folder_add(CheckpointFolder *folder, const char *temporary, CheckpointEntry *entry, bool *beside)
{
	Arena *arena = arena_new();
	Status status = find_name(arena, folder, entry);
	const char *path = folder_entry_path(arena, folder, entry);

	if (!status && rename(temporary, path) != 0)
		status = errno == EEXIST || errno == ENOTEMPTY
		                 ? replace(folder, temporary, path)
		                 : status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	if (!status)
		status = folder_sync(folder->path);
	arena_free(arena);
	RETURN_IF_ERROR(status);
	for (int i = folder->entries.n - 1; i >= 0; i--)
		if (folder->entries.at[i].step == entry->step &&
		    folder->entries.at[i].digits == entry->digits)
			forget(folder, i);
	vec_push(folder->arena, &folder->entries, *entry);
	*beside = entry->digits > usual_digits(entry->step);
	return NULL;
}

static bool
is_due(const SaveSteps *steps, int64_t step)
{
	return step > steps->done && step <= steps->last &&
	       (step == steps->last || (steps->every > 0 && step % steps->every == 0));
}

/* Why this run cannot continue from a readable checkpoint: it belongs to another model or has other constants. NULL if the run
 * can continue from it. */
static const char *
whose(const CheckpointEntry *e, const Manifest *own)
{
	uint64_t constants = manifest_constants(own);

	if (e->serial < 0)
		return NULL;
	if (e->model != own->model)
		return "of another model";
	return e->constants && constants && e->constants != constants ? "with other frozen values"
	                                                              : NULL;
}

void
folder_judge(CheckpointFolder *folder, const Manifest *own)
{
	for (int i = 0; i < folder->entries.n; i++) {
		CheckpointEntry *e = &folder->entries.at[i];
		e->stays |= e->serial < 0 || whose(e, own);
	}
	folder->judged = true;
}

/* Fails if the name is taken by something that is not a checkpoint, or by an undamaged checkpoint of another training, which
 * may be the only copy of that training. */
static Status
check_due(Arena *arena, const CheckpointFolder *folder, const CheckpointEntry *entry,
          const Manifest *own)
{
	CheckpointEntry e = *entry;
	const char *other = whose(entry, own);
	bool taken;

	e.digits = usual_digits(e.step);
	const char *path = folder_entry_path(arena, folder, &e);
	RETURN_IF_ERROR(check_taken(path, &taken));
	if (taken)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: not a checkpoint, but this run would save step %lld "
		                    "under this name: move it away, or save to another folder",
		                    path, (long long)e.step);
	if (other)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: a checkpoint %s, but this run would save step %lld "
		                    "under this name: move it away, or save to another folder",
		                    path, other, (long long)e.step);
	return NULL;
}

Status
folder_check_names(const CheckpointFolder *folder, const SaveSteps *steps, const Manifest *own,
                   int *replaced)
{
	Arena *arena = arena_new();
	Status status = NULL;

	*replaced = 0;
	for (int i = 0; i < folder->entries.n && !status; i++) {
		const CheckpointEntry *e = &folder->entries.at[i];
		if (!is_due(steps, e->step))
			continue;
		status = check_due(arena, folder, e, own);
		*replaced += !e->stays && e->run != own->run;
	}
	arena_free(arena);
	return status;
}

/* Removes a checkpoint. It gets a temporary name first, so that no program ever sees half of a checkpoint under its name. */
static void
drop(CheckpointFolder *folder, int index)
{
	Arena *arena = arena_new();
	const char *path = folder_entry_path(arena, folder, &folder->entries.at[index]);
	const char *temporary = folder_temporary(arena, folder);

	bool taken;
	Status status = check_taken(path, &taken);
	if (status || taken)
		folder_remove(path);
	else if (rename(path, temporary) == 0)
		folder_remove(temporary);
	status_free(status);
	arena_free(arena);
	forget(folder, index);
}

const CheckpointEntry *
folder_find(const CheckpointFolder *folder, uint64_t run, int64_t step)
{
	for (int i = 0; i < folder->entries.n; i++) {
		const CheckpointEntry *e = &folder->entries.at[i];

		if (e->run == run && e->step == step && e->serial >= 0)
			return e;
	}
	return NULL;
}

/* The oldest of this run's checkpoints that --keep counts, and how many are newer. -1 without such a checkpoint. */
static int
oldest_of(const CheckpointFolder *folder, uint64_t run, int64_t best, int64_t *newer)
{
	const CheckpointEntry *e = folder->entries.at;
	int oldest = -1;

	*newer = -1;
	for (int i = 0; i < folder->entries.n; i++)
		if (e[i].step != best && e[i].run == run && !e[i].stays &&
		    (oldest < 0 || e[i].serial < e[oldest].serial))
			oldest = i;
	for (int i = 0; i < folder->entries.n && oldest >= 0; i++)
		*newer += e[i].run == run && !e[i].stays && e[i].serial >= e[oldest].serial;
	return oldest;
}

void
folder_rotate(CheckpointFolder *folder, uint64_t run, int64_t keep, int64_t best)
{
	int64_t newer, last = folder_next_serial(folder) - 1;

	for (int i = folder->entries.n - 1; i >= 0 && best >= 0; i--) {
		const CheckpointEntry *e = &folder->entries.at[i];
		if (e->only_best && e->step != best && e->serial < last && e->run == run &&
		    !e->stays)
			drop(folder, i);
	}
	for (;;) {
		int oldest = oldest_of(folder, run, best, &newer);
		if (oldest < 0 || keep == 0 || newer < keep)
			return;
		drop(folder, oldest);
	}
}
