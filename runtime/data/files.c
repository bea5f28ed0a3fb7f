/* Opens data files: .npy files (one or several, whose rows follow each other), and token streams. Headers are checked here,
 * values when they are read. Files are read with pread and never mapped, so a file that shrinks during training is an error and
 * not a SIGBUS. */
#include "runtime/data/sources.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void
files_close(FileSet *set)
{
	for (int i = 0; i < set->n_files; i++)
		if (set->files[i].fd >= 0)
			close(set->files[i].fd);
	set->n_files = 0;
}

static bool
same_samples(const NpyInfo *a, const NpyInfo *b)
{
	return a->dtype == b->dtype && a->rank == b->rank &&
	       (a->rank < 2 ||
	        memcmp(a->dims + 1, b->dims + 1, sizeof(int64_t) * (size_t)(a->rank - 1)) == 0);
}

static Status
open_one(Arena *arena, const char *path, FileSet *set)
{
	DataFile *file = &set->files[set->n_files];
	const DataFile *first = &set->files[0];

	*file = (DataFile){.path = arena_strdup(arena, path), .fd = -1};
	if (access(path, R_OK) != 0) /* a missing file or permission is not a fault of the data */
		return status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	RETURN_IF_ERROR(npy_open(path, &file->info, &file->fd));
	set->n_files++;
	file->rows = file->info.rank > 0 ? file->info.dims[0] : 1;
	if (set->n_files > 1) {
		file->first_row = file[-1].first_row + file[-1].rows;
		if (!same_samples(&first->info, &file->info))
			return status_error(EXIT_DATA,
			                    "%s: %s%s does not continue %s, which is %s%s", path,
			                    dtype_info[file->info.dtype].name,
			                    shape_text(arena, file->info.rank, file->info.dims),
			                    first->path, dtype_info[first->info.dtype].name,
			                    shape_text(arena, first->info.rank, first->info.dims));
	}
	return NULL;
}

/* Opens the files that match a pattern, sorted by the bytes of their names. If the pattern itself is the name of a file, opens
 * only this file. */
static Status
open_pattern(Arena *arena, const char *pattern, FileSet *set)
{
	glob_t found = {0};
	bool is_pattern = strpbrk(pattern, "*?[") && access(pattern, F_OK) != 0;
	bool matches = is_pattern && glob(pattern, 0, NULL, &found) == 0;

	if (is_pattern && !matches)
		return status_error(EXIT_SYSTEM, "%s: no file matches", pattern);
	size_t n = matches ? found.gl_pathc : 1;
	DataFile *grown = NEW_ARRAY(arena, DataFile, (size_t)set->n_files + n);
	Status status = NULL;

	if (set->n_files)
		memcpy(grown, set->files, sizeof(*grown) * (size_t)set->n_files);
	set->files = grown;
	for (size_t i = 0; i < n && !status; i++)
		status = open_one(arena, matches ? found.gl_pathv[i] : pattern, set);
	if (matches)
		globfree(&found);
	return status;
}

Status
files_open(Arena *arena, const GradcPairs *pairs, const char *name, FileSet *out)
{
	*out = (FileSet){0};
	for (int i = 0; i < pairs->n; i++)
		if (strcmp(pairs->at[i].name, name) == 0)
			RETURN_IF_ERROR(open_pattern(arena, pairs->at[i].value, out));
	return NULL;
}

static bool
ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && strcmp(text + n - m, end) == 0;
}

/* Element type of a file without a header, from its name. */
static bool
raw_type(const char *path, bool text, DType *out)
{
	static const struct {
		const char *end;
		DType dtype;
	} rows[] = {{".u32.bin", U32}, {".bin", U16}};

	*out = U8;
	for (int i = 0; i < COUNT(rows) && !text; i++)
		if (ends_with(path, rows[i].end)) {
			*out = rows[i].dtype;
			return true;
		}
	return text;
}

static Status
open_raw(const char *path, DType dtype, DataFile *file)
{
	int64_t size = dtype_bytes(dtype, 1), n;

	RETURN_IF_ERROR(file_open_regular(path, EXIT_SYSTEM, &file->fd, &n));
	if (n % size != 0)
		return status_error(EXIT_DATA,
		                    "%s: truncated: the size of %lld bytes is not a multiple of "
		                    "the token size, %lld bytes",
		                    path, (long long)n, (long long)size);
	file->info = (NpyInfo){.dtype = dtype,
	                       .rank = 1,
	                       .dims = {n / size},
	                       .n_elements = n / size,
	                       .n_bytes = n};
	return NULL;
}

static Status
check_stream(const DataFile *file)
{
	DTypeClass class = dtype_info[file->info.dtype].class;

	if (file->info.rank != 1)
		return status_error(EXIT_DATA, "%s: a token stream has rank 1, this has rank %d",
		                    file->path, file->info.rank);
	if ((class != CLASS_SIGNED && class != CLASS_UNSIGNED) ||
	    dtype_info[file->info.dtype].bits < 8)
		return status_error(EXIT_DATA, "%s: tokens are integers, these are %s", file->path,
		                    dtype_info[file->info.dtype].name);
	return NULL;
}

Status
tokens_open(Arena *arena, const char *path, bool text, FileSet *out)
{
	DataFile *file = NEW(arena, DataFile);
	DType dtype;

	*out = (FileSet){file, 1};
	*file = (DataFile){.path = path, .fd = -1};
	if (raw_type(path, text, &dtype))
		RETURN_IF_ERROR(open_raw(path, dtype, file));
	else if (ends_with(path, ".npy"))
		RETURN_IF_ERROR(npy_open(path, &file->info, &file->fd));
	else
		return status_error(EXIT_USAGE,
		                    "--tokens: \"%s\" ends neither in .bin (u16), .u32.bin nor "
		                    ".npy",
		                    path);
	return check_stream(file);
}
