/* Files: reading, crash-safe writing, and the file formats for arrays. Each section is named after its .c file. */
#ifndef GRADC_BASE_FILES_FILES_H
#define GRADC_BASE_FILES_FILES_H

#include "base/numbers/numbers.h"

#include <sys/stat.h>

/* ---- file.c, file_append.c: the file system. */
/* Both functions read a whole regular file of at most `limit` bytes. FIFOs, directories and devices are errors.
 * file_read_regular reports every error with the given exit code. */
Status file_read_regular(Arena *arena, const char *path, int exit_code, int64_t limit, void **bytes,
                         int64_t *n);
Status file_read(Arena *arena, const char *path, int64_t limit, void **bytes, int64_t *n);
/* Opens a regular file for reading; *n is its size. Never waits for a FIFO's writer. */
Status file_open_regular(const char *path, int exit_code, int *fd, int64_t *n);
/* A file that appears under its name only when complete: it gets a temporary name in the same folder, then fsync and
 * rename. The new file has the permissions of the file that it replaces. If the name is a symbolic link, the link
 * stays, and the file that the link points to is replaced. */
typedef struct FileWriter FileWriter;
Status file_writer_open(const char *path, FileWriter **out);
/* As file_writer_open, for a name that this program chose, as in a cache. A symbolic link of this name is replaced by
 * the new file; the file that the link points to stays unchanged. */
Status file_writer_open_name(const char *path, FileWriter **out);
/* A new file in a folder that is renamed when all of its files are complete. The file has its final name from the start.
 * file_sync_parts syncs the file after its neighbours are written, so that the syncs share disk work.
 * With a buffer of the caller's (whole blocks, aligned to FILE_BLOCK) writes bypass the page cache where the file system can:
 * for files that nobody reads soon, copying into the cache costs more than everything else. Memory
 * is written without a copy if its address and its offset in the file are multiples of FILE_BLOCK.
 * Without a buffer: NULL, 0. */
Status file_writer_open_part(const char *path, void *buffer, int64_t bytes, FileWriter **out);
Status file_writer_add(FileWriter *w, const void *bytes, int64_t n);
/* One part of a file's content; the parts follow each other without gaps. */
typedef struct {
	const void *at;
	int64_t n;
} FilePart;
/* A callback that receives the content of a file in order: `take` gets the next n bytes, which belong to `part`. */
typedef struct {
	void *context;
	void (*take)(void *context, int part, const void *bytes, int64_t n);
} FileSink;
Status file_writer_add_parts(FileWriter *w, const FilePart *parts, int n);
int64_t file_writer_offset(const FileWriter *w);
Status file_writer_pad(FileWriter *w, int64_t alignment); /* zeros up to a multiple */
/* executable: every user who may read the file may also run it. Frees w even when it fails. */
Status file_writer_commit(FileWriter *w, bool executable);
void file_writer_abort(FileWriter *w); /* removes the temporary file; NULL is allowed */
Status file_writer_end(FileWriter *w,
                       Status status); /* commits, or aborts and hands the fault on */
/* A file that grows by whole additions. After a fault, a partial addition is cut off again if the file can be truncated.
 * `keep`: appends to the existing content instead of replacing it. */
typedef struct FileAppender FileAppender;
Status file_appender_open(const char *path, bool keep, FileAppender **out);
Status file_appender_add(FileAppender *a, const void *bytes, size_t n);
Status file_appender_close(FileAppender *a); /* NULL is allowed */
Status file_write(const char *path, const void *bytes, int64_t n);
/* Syncs a written file and reads it again, past the page cache where the file system can, through a buffer like
 * file_writer_open_part's. `seen` receives the bytes that were read, which may differ from the parts. EXIT_SYSTEM if the file
 * is not as long as the parts together. */
Status file_sync_parts(const char *path, const FilePart *parts, int n, void *buffer, int64_t bytes,
                       const FileSink *seen);
Status folder_make(const char *path); /* with its parents; an existing folder is no error */
/* Makes the names in the folder durable. Succeeds, too, if the file system cannot sync folders. */
Status folder_sync(const char *path);
char *path_join(Arena *arena, const char *folder, const char *name);
/* As realpath, in the arena. NULL if the path does not exist; errno then has the reason. */
const char *path_real(Arena *arena, const char *path);
/* Turns direct access on or off: reads and writes that bypass the page cache. false: the file system cannot.
 * With direct access, addresses, sizes and offsets must be multiples of FILE_BLOCK. */
enum {
	FILE_BLOCK = 4096,
	FILE_DIRECT_LEAST = 1 << 17
}; /* direct access is not worth it for fewer bytes */
bool file_set_direct(int fd, bool direct);
/* Reads exactly n bytes at an offset; continues after EINTR and short reads. */
Status file_pread(int fd, const char *path, void *to, int64_t n, int64_t offset);
/* Does the same as file_pread, with the caller's exit code for errors. */
Status file_pread_as(int exit_code, int fd, const char *path, void *to, int64_t n, int64_t offset);

/* ---- paths.c: makes sure that no output is an input or another output, under whatever name. */
typedef enum {
	PATH_NONE, /* not a path */
	PATH_INPUT,
	PATH_OUTPUT, /* an output file that appears when complete */
	PATH_STREAM, /* an output that is written piece by piece; may be a device */
	PATH_SHARED, /* a PATH_STREAM to which several runs add lines */
	PATH_FOLDER, /* a folder in which outputs appear */
} PathKind;
typedef struct {
	PathKind kind;
	const char *option, *path; /* "--log", and the path as the user gave it */
} PathUse;
typedef VEC(PathUse) PathUses;
/* Adds a path, unless it is NULL or "". The texts are borrowed. */
void paths_add(Arena *arena, PathUses *uses, PathKind kind, const char *option, const char *path);
/* Reports every clash as EXIT_USAGE, naming both options. Opens no file. */
bool paths_check(Arena *arena, const PathUses *uses, Diag *diag);
/* Do both paths name one file or folder, even if it does not exist yet? */
bool path_is_same(Arena *arena, const char *a, const char *b);
enum { MAX_LINKS = 40 }; /* longest chain of symbolic links, as in Linux */
/* The target of a symbolic link; a relative target is joined to the link's folder. The target may be a link, too. NULL: `path`
 * is no link. */
const char *path_link(Arena *arena, const char *path);
/* The path to write for a file of this name: the end of the chain of symbolic links, whether or not that file exists. */
const char *path_target(Arena *arena, const char *path);
/* Until paths_unguard this process opens none of the inputs for writing, not even as a file in an output folder. */
typedef struct PathGuard PathGuard;
PathGuard *paths_guard(const PathUses *uses);
void paths_unguard(PathGuard *guard); /* NULL is allowed */
/* Checks that every output can be written in its place, by making a temporary file there and removing it. EXIT_SYSTEM if not. */
Status paths_try(Arena *arena, const PathUses *uses);
/* Makes the output folders in which other outputs will lie. */
Status paths_make(Arena *arena, const PathUses *uses);
/* Locks the output files for this process until paths_unlock. EXIT_SYSTEM if another process has a lock; a warning if no lock
 * can be made. Without the locks two runs could write one log, or a run could overwrite another run's model. Folders are not
 * locked: a checkpoint folder has a lock of its own, and in other folders files of the same name are overwritten. */
typedef struct {
	int fd;
	const char *path;
	CleanupSlot cleanup;
} PathLock;
typedef VEC(PathLock) PathLocks;
Status paths_lock(Arena *arena, const PathUses *uses, PathLocks *out, Diag *diag);
void paths_unlock(PathLocks *locks);
/* EXIT_USAGE if the file is an input under paths_guard. */
Status paths_refuse(const char *path, const struct stat *st);

/* ---- npy.c: NumPy's array files, format 1.0 to 3.0, little endian, C order only. */
typedef struct {
	DType dtype; /* type of the file's descr */
	int rank;
	int64_t dims[MAX_RANK];
	int64_t data_offset; /* offset of the elements in the file */
	int64_t n_elements, n_bytes;
} NpyInfo;
/* Reads and checks the header and the file's length. Exit code: EXIT_DATA. */
Status npy_open(const char *path, NpyInfo *info, int *fd);
Status npy_read(Arena *arena, const char *path, NpyInfo *info, void **data);
/* Is shape `dims` equal to shape `of`, or `of` with neighbouring axes merged? [24] is [4,6] with merged axes. */
bool npy_merges_axes(int rank, const int64_t *dims, int of_rank, const int64_t *of);
/* Writes what stands before the elements. */
Status npy_write_header(FileWriter *w, DType dtype, int rank, const int64_t *dims);
/* Types that NumPy lacks are written as raw bits; packed types take one byte per element. */
Status npy_write(const char *path, DType dtype, int rank, const int64_t *dims, const void *data);

/* ---- external_location.c: data files of an ONNX model, which the model names by a location, a path relative to its folder */
/* Sets *out to the location without its "." components. Returns NULL or what is wrong: a location must be relative, without "..",
 * empty components, backslashes or a drive letter. */
const char *external_location(Arena *arena, const char *location, const char **out);
/* The resolved folders of a model file's data, by precedence. */
StringList external_folders(Arena *arena, const char *path);
/* The resolved path of the location's file. NULL with errno on a fault; ENOTUNIQ: two folders have different files. */
const char *external_path(Arena *arena, const StringList *folders, const char *location);
/* A descriptor of the location's file, or -1 with errno; EXDEV: the file lies in none of the folders. */
int external_open_path(Arena *arena, const StringList *folders, const char *location,
                       const char **path);

/* ---- safetensors.c: https://huggingface.co/docs/safetensors, with the checks of the official reader: no duplicate key, no
 * hole, no overlap, header at most 100 MB. */
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	int64_t n_bytes;
	int64_t offset;   /* offset from the start of the file (for reading only) */
	const void *data; /* elements (for writing only) */
} SafeTensor;
typedef struct {
	const char *key, *value;
} SafeText;
typedef struct {
	SafeTensor *tensors;
	int n_tensors;
	SafeText *metadata; /* metadata of the file */
	int n_metadata;
	int fd;
} SafeTensors;
Status safetensors_open(Arena *arena, const char *path, int exit_code, SafeTensors *out);
/* Does the same for an open file of file_bytes bytes. `out` owns fd from here on; path is for messages. */
Status safetensors_read(Arena *arena, const char *path, int fd, int64_t file_bytes, int exit_code,
                        SafeTensors *out);
void safetensors_close(SafeTensors *st);
Status safetensors_write(const char *path, const SafeTensor *tensors, int n);
Status safetensors_write_with(const char *path, const SafeTensors *st); /* ignores st->fd */
/* The n + 1 parts of a file. Part 0, in the arena, is the header, padded with spaces to a multiple of FILE_BLOCK. Part i + 1 is
 * tensor order[i]; order may be NULL. path is for messages. */
Status safetensors_parts(Arena *arena, const char *path, const SafeTensor *tensors, int n,
                         FilePart *parts, int *order);

#endif
