/* Files: reading, writing so that nothing is lost, and the containers of arrays. Sections are named after the .c file. */
#ifndef GRADC_BASE_FILES_FILES_H
#define GRADC_BASE_FILES_FILES_H

#include "base/numbers/numbers.h"

#include <sys/stat.h>

/* ---- file.c, file_append.c: the file system. */
/* The whole of a regular file, at most `limit` bytes. FIFOs, directories and devices are errors. */
/* Of a regular file, with that exit code for all that is wrong with it. */
Status file_read_regular(Arena *arena, const char *path, int exit_code, int64_t limit, void **bytes,
                         int64_t *n);
Status file_read(Arena *arena, const char *path, int64_t limit, void **bytes, int64_t *n);
/* Opens a regular file for reading; *n is its size. Never waits for a FIFO's writer. */
Status file_open_regular(const char *path, int exit_code, int *fd, int64_t *n);
/* A file that appears under its name only when complete: temporary name in the same folder,
 * fsync, rename. The new file has the permissions of the file that it replaces. Where the name is a symbolic link, the file behind
 * the link is written and the link stays. */
typedef struct FileWriter FileWriter;
Status file_writer_open(const char *path, FileWriter **out);
/* As file_writer_open, for a name that this program made, as in a cache: a link of that name is replaced, and the file behind the
 * link stays as it is. */
Status file_writer_open_name(const char *path, FileWriter **out);
/* A new file of a folder that gets its name when all are complete: it has its own from the start, and is synced by
 * file_sync_parts, when its neighbours are written, too: they share what the disk does for it. Through a buffer of the
 * caller's, of whole blocks and aligned to them, it goes past the page cache where the file system can: for files that
 * nobody reads soon the copy costs more than all else. Blocks that lie in memory as in the file, at a multiple of
 * FILE_BLOCK, are written from there. No buffer: NULL, 0. */
Status file_writer_open_part(const char *path, void *buffer, int64_t bytes, FileWriter **out);
Status file_writer_add(FileWriter *w, const void *bytes, int64_t n);
/* What a file holds: one part behind the other. */
typedef struct {
	const void *at;
	int64_t n;
} FilePart;
/* Is given n bytes of a part, those behind what it was given last. */
typedef struct {
	void *context;
	void (*take)(void *context, int part, const void *bytes, int64_t n);
} FileSink;
Status file_writer_add_parts(FileWriter *w, const FilePart *parts, int n);
int64_t file_writer_offset(const FileWriter *w);
Status file_writer_pad(FileWriter *w, int64_t alignment); /* zeros up to a multiple */
/* executable: whoever may read the file may run it. Frees w in any case. */
Status file_writer_commit(FileWriter *w, bool executable);
void file_writer_abort(FileWriter *w); /* removes the temporary file; NULL is allowed */
Status file_writer_end(FileWriter *w,
                       Status status); /* commits, or aborts and hands the fault on */
/* A file that grows, each addition whole: what a fault leaves of one is cut off again, where the file can be cut.
 * `keep`: behind what it has. */
typedef struct FileAppender FileAppender;
Status file_appender_open(const char *path, bool keep, FileAppender **out);
Status file_appender_add(FileAppender *a, const void *bytes, size_t n);
Status file_appender_close(FileAppender *a); /* NULL is allowed */
Status file_write(const char *path, const void *bytes, int64_t n);
/* Syncs what was written, and reads it again, through a buffer as of file_writer_open_part and past the page cache,
 * where the file system can: EXIT_SYSTEM where the file has not as many bytes as the parts. What it has is `seen`,
 * whatever it is. */
Status file_sync_parts(const char *path, const FilePart *parts, int n, void *buffer, int64_t bytes,
                       const FileSink *seen);
Status folder_make(const char *path); /* and its parents; existing is fine */
/* Names in it are durable; fine too where the file system has no such call. */
Status folder_sync(const char *path);
char *path_join(Arena *arena, const char *folder, const char *name);
/* As realpath, in the arena; NULL where there is nothing, errno then says why. */
const char *path_real(Arena *arena, const char *path);
/* Reads and writes go past the page cache from now on, or no longer; false where the file system cannot.
 * Addresses, sizes and offsets must then be multiples of FILE_BLOCK. */
enum { FILE_BLOCK = 4096, FILE_DIRECT_LEAST = 1 << 17 }; /* less is not worth it */
bool file_set_direct(int fd, bool direct);
/* Reads exactly n bytes at an offset, EINTR and short reads handled. */
Status file_pread(int fd, const char *path, void *to, int64_t n, int64_t offset);
/* As file_pread, with the caller's exit code. */
Status file_pread_as(int exit_code, int fd, const char *path, void *to, int64_t n, int64_t offset);

/* ---- paths.c: no output is an input or another output, whatever the names. */
typedef enum {
	PATH_NONE, /* not a path */
	PATH_INPUT,
	PATH_OUTPUT, /* appears when complete */
	PATH_STREAM, /* an output that is written as it comes: may be a device */
	PATH_SHARED, /* the same, to which several runs add lines */
	PATH_FOLDER, /* outputs appear in it */
} PathKind;
typedef struct {
	PathKind kind;
	const char *option, *path; /* "--log", as it was given */
} PathUse;
typedef VEC(PathUse) PathUses;
/* Nothing for NULL and "". The texts are borrowed. */
void paths_add(Arena *arena, PathUses *uses, PathKind kind, const char *option, const char *path);
/* Reports every clash with both options, EXIT_USAGE; opens nothing. */
bool paths_check(Arena *arena, const PathUses *uses, Diag *diag);
/* Do both name one file or folder, also where it is not there yet? */
bool path_is_same(Arena *arena, const char *a, const char *b);
enum { MAX_LINKS = 40 }; /* of links to links, as many as Linux follows */
/* The path that a symbolic link holds, read from the link's folder; this path may be a link, too. NULL: `path` is no link. */
const char *path_link(Arena *arena, const char *path);
/* Where a file of that name is written: what a symbolic link leads to, be it there or not. */
const char *path_target(Arena *arena, const char *path);
/* Until paths_unguard no file of this process that is opened to be written is one of the inputs, be it in a folder of outputs. */
typedef struct PathGuard PathGuard;
PathGuard *paths_guard(const PathUses *uses);
void paths_unguard(PathGuard *guard); /* NULL is allowed */
/* Whether every output could be written where it is to be: a temporary file there, which is removed. EXIT_SYSTEM. */
Status paths_try(Arena *arena, const PathUses *uses);
/* Makes those folders of outputs that other outputs are to lie in. */
Status paths_make(Arena *arena, const PathUses *uses);
/* The output files are this process's until paths_unlock: EXIT_SYSTEM where another one has them, a warning where no lock
 * can be had. Nothing else keeps two runs from writing one log, or the later one's model over the first's. Folders may
 * be shared: a checkpoint folder has a lock of its own, in others files of one name are written over. */
typedef struct {
	int fd;
	const char *path;
	CleanupSlot cleanup;
} PathLock;
typedef VEC(PathLock) PathLocks;
Status paths_lock(Arena *arena, const PathUses *uses, PathLocks *out, Diag *diag);
void paths_unlock(PathLocks *locks);
/* EXIT_USAGE when it is an input that paths_protect knows. */
Status paths_refuse(const char *path, const struct stat *st);

/* ---- npy.c: NumPy's array files, format 1.0 to 3.0, little endian, C order only. */
typedef struct {
	DType dtype; /* of the file's descr */
	int rank;
	int64_t dims[MAX_RANK];
	int64_t data_offset; /* in the file */
	int64_t n_elements, n_bytes;
} NpyInfo;
/* Reads and checks the header, and that the file is long enough. exit code EXIT_DATA. */
Status npy_open(const char *path, NpyInfo *info, int *fd);
Status npy_read(Arena *arena, const char *path, NpyInfo *info, void **data);
/* Is this shape the other one, or that with neighbouring axes merged: [24] of [4,6]? */
bool npy_merges_axes(int rank, const int64_t *dims, int of_rank, const int64_t *of);
/* Types that NumPy lacks are written as their raw bits (one element a byte for packed types). */
Status npy_write(const char *path, DType dtype, int rank, const int64_t *dims, const void *data);

/* ---- safetensors.c: https://huggingface.co/docs/safetensors, as checked by its own reader: no
 * duplicate key, no hole, no overlap, header at most 100 MB. */
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	int64_t n_bytes;
	int64_t offset;   /* reading: from the start of the file */
	const void *data; /* writing */
} SafeTensor;
typedef struct {
	const char *key, *value;
} SafeText;
typedef struct {
	SafeTensor *tensors;
	int n_tensors;
	SafeText *metadata; /* of the file */
	int n_metadata;
	int fd;
} SafeTensors;
Status safetensors_open(Arena *arena, const char *path, int exit_code, SafeTensors *out);
/* The same of an open file of so many bytes, which is out's from here on; path: for messages. */
Status safetensors_read(Arena *arena, const char *path, int fd, int64_t file_bytes, int exit_code,
                        SafeTensors *out);
void safetensors_close(SafeTensors *st);
Status safetensors_write(const char *path, const SafeTensor *tensors, int n);
Status safetensors_write_with(const char *path, const SafeTensors *st); /* fd is not looked at */
/* The n + 1 parts of a file: what lies before the tensors, in the arena, spaces up to a multiple of FILE_BLOCK included,
 * and the tensors, order[i] (NULL: not wanted) in part i + 1. path: for messages. */
Status safetensors_parts(Arena *arena, const char *path, const SafeTensor *tensors, int n,
                         FilePart *parts, int *order);

#endif
