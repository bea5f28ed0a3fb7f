/* base/: reading and writing files, and file formats with hostile headers. */
#include "base/files/files.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/gradc-base-test-XXXXXX";
static char path_buffer[64];

static const char *
path_of(const char *name)
{
	snprintf(path_buffer, sizeof(path_buffer), "%s/%s", folder, name);
	return path_buffer;
}

static void
assert_ok(Status status)
{
	if (status)
		fail_msg("%s", status->message);
}

/* The status has this exit code, names the file, and contains this text. */
static void
assert_fault(Status status, int exit_code, const char *says)
{
	assert_non_null(status);
	assert_int_equal(status->exit_code, exit_code);
	if (!strstr(status->message, says) || !strstr(status->message, folder))
		fail_msg("\"%s\" does not say \"%s\"", status->message, says);
	status_free(status);
}

/* ---- file.c ---- */

static int
count_entries(void)
{
	Text command = {0};
	FILE *list;
	int n = 0;

	text_printf(&command, "ls -A %s", folder);
	list = popen(command.at, "r");
	for (int c; (c = fgetc(list)) != EOF;)
		n += c == '\n';
	pclose(list);
	text_free(&command);
	return n;
}

static void
test_file_writer(void **state)
{
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("out"));
	int before = count_entries();
	FileWriter *w;
	struct stat st;
	void *bytes;
	int64_t n;

	assert_ok(file_write(path, "old", 3));
	assert_ok(file_writer_open(path, &w));
	for (int i = 0; i < 100000; i++)
		assert_ok(file_writer_add(w, "abc", 3));
	assert_ok(file_writer_pad(w, 4096));
	assert_int_equal(file_writer_offset(w) % 4096, 0);
	assert_ok(file_read(arena, path, 100, &bytes, &n));
	assert_memory_equal(bytes, "old", 4);
	file_writer_abort(w);
	assert_int_equal(count_entries(), before + 1);
	assert_ok(file_writer_open(path, &w));
	bytes = arena_alloc(arena, 200000);
	assert_ok(file_writer_add(w, "x", 1));
	assert_ok(file_writer_add(w, bytes, 200000));
	assert_ok(file_writer_commit(w, true));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0500, 0500);
	assert_ok(file_read(arena, path, 200001, &bytes, &n));
	assert_int_equal(n, 200001);
	assert_fault(file_read(arena, path, 200000, &bytes, &n), EXIT_SYSTEM, "at most 200000");
	assert_int_equal(count_entries(), before + 1);
	unlink(path);
	arena_free(arena);
}

static mode_t
mode_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 07777;
}

/* A replaced file keeps its owner's permissions, from the first byte on. With `executable`, users who may read it may run
 * it. */
static void
test_file_keeps_permissions(void **state)
{
	static const struct {
		mode_t old, kept, executable;
	} modes[] = {{0600, 0600, 0700},
	             {0640, 0640, 0750},
	             {0444, 0444, 0555},
	             {0755, 0755, 0755},
	             {04750, 0750, 0750}};
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("private"));
	mode_t umask_before = umask(022);
	FileWriter *w;

	for (int i = 0; i < 2 * COUNT(modes); i++) {
		bool executable = i % 2;
		assert_ok(file_write(path, "old", 3));
		assert_int_equal(chmod(path, modes[i / 2].old), 0);
		assert_ok(file_writer_open(path, &w));
		assert_ok(file_writer_add(w, "new", 3));
		assert_ok(file_writer_commit(w, executable));
		assert_int_equal(mode_of(path),
		                 executable ? modes[i / 2].executable : modes[i / 2].kept);
		unlink(path);
	}
	umask(077);
	assert_ok(file_writer_open(path, &w));
	assert_ok(file_writer_commit(w, true));
	assert_int_equal(mode_of(path), 0700);
	unlink(path);
	umask(umask_before);
	arena_free(arena);
}

/* A link is replaced if the program chose its name; otherwise the file behind the link is written. */
static void
test_file_at_a_link(void **state)
{
	Arena *arena = arena_new();
	char *link = arena_strdup(arena, path_of("link")),
	     *target = arena_strdup(arena, path_of("target"));
	struct stat st;
	FileWriter *w;
	void *bytes;
	int64_t n;

	assert_ok(file_write(target, "mine", 4));
	assert_int_equal(chmod(target, 0600), 0);
	for (int own = 0; own < 2; own++) {
		assert_int_equal(symlink("target", link), 0);
		assert_ok((own ? file_writer_open_name : file_writer_open)(link, &w));
		assert_ok(file_writer_add(w, own ? "own" : "theirs", own ? 3 : 6));
		assert_ok(file_writer_commit(w, false));
		assert_int_equal(lstat(link, &st), 0);
		assert_int_equal(S_ISLNK(st.st_mode), !own);
		assert_ok(file_read(arena, target, 100, &bytes, &n));
		assert_string_equal(bytes, "theirs");
		assert_int_equal(mode_of(target), 0600);
		unlink(link);
	}
	unlink(target);
	arena_free(arena);
}

/* A file can be read and written through up to 40 links. */
static void
test_file_behind_many_links(void **state)
{
	enum { LINKS = 40 };
	Arena *arena = arena_new();
	char *links[LINKS];
	struct stat st;
	void *bytes;
	int64_t n;

	for (int i = 0; i < LINKS; i++) {
		links[i] = arena_strdup(arena, path_of(arena_printf(arena, "link%d", i)));
		assert_int_equal(
			symlink(i ? arena_printf(arena, "link%d", i - 1) : "target", links[i]), 0);
	}
	assert_ok(file_write(links[LINKS - 1], "mine", 4));
	assert_ok(file_read(arena, path_of("target"), 100, &bytes, &n));
	for (int i = 0; i < LINKS; i++) {
		assert_int_equal(lstat(links[i], &st), 0);
		assert_true(S_ISLNK(st.st_mode));
		unlink(links[i]);
	}
	unlink(path_of("target"));
	arena_free(arena);
}

/* An input of the process is never opened for writing, whichever function opens it. */
static void
test_inputs_are_not_opened(void **state)
{
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("input"));
	char *other = arena_strdup(arena, path_of("other"));
	PathUses uses = {0};
	FileAppender *a;
	FileWriter *w;

	assert_ok(file_write(path, "mine", 4));
	paths_add(arena, &uses, PATH_INPUT, "--data", path);
	PathGuard *guard = paths_guard(&uses);
	assert_fault(file_writer_open(path, &w), EXIT_USAGE, "is also --data");
	assert_fault(file_writer_open_name(path, &w), EXIT_USAGE, "is also --data");
	assert_fault(file_appender_open(path, false, &a), EXIT_USAGE, "is also --data");
	assert_fault(file_appender_open(path, true, &a), EXIT_USAGE, "is also --data");
	assert_int_equal(rename(path, other),
	                 0); /* a rotated input: a new file may get its inode number */
	assert_ok(file_write(other, "new", 3));
	unlink(other);
	paths_unguard(guard);
	arena_free(arena);
}

/* Sizes around blocks and buffers: without a caller's buffer, with one, and with bytes that are aligned in memory as in the
 * file. The bytes are added in odd pieces. */
static void
test_file_part(void **state)
{
	enum { BUFFER = 4 * FILE_DIRECT_LEAST, MOST = 3 * BUFFER };
	static const int64_t sizes[] = {0,
	                                1,
	                                FILE_BLOCK,
	                                FILE_DIRECT_LEAST - 1,
	                                FILE_DIRECT_LEAST,
	                                FILE_DIRECT_LEAST + 1,
	                                BUFFER - 1,
	                                BUFFER,
	                                BUFFER + 1,
	                                2 * BUFFER + FILE_BLOCK + 5};
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("part")), *bytes, *buffer;
	char *room = arena_alloc(arena, BUFFER + MOST + 3 * FILE_BLOCK);
	int before = count_entries();
	FileWriter *w;
	void *got;
	int64_t n;

	buffer = room + FILE_BLOCK - (uintptr_t)room % FILE_BLOCK;
	bytes = buffer + BUFFER + FILE_BLOCK;
	for (int i = -1; i < MOST; i++)
		bytes[i] = (char)(i * 2654435761u >> 13);
	for (int i = 0; i < 3 * COUNT(sizes); i++) {
		int64_t size = sizes[i / 3];
		const char *from = i % 3 == 2 ? bytes : bytes - 1;

		assert_ok(
			file_writer_open_part(path, i % 3 ? buffer : NULL, i % 3 ? BUFFER : 0, &w));
		assert_int_equal(count_entries(), before + 1); /* no second name */
		for (int64_t at = 0, part = 1; at < size; at += part, part = part * 7 + 1) {
			part = part < size - at ? part : size - at;
			assert_ok(file_writer_add(w, from + at, part));
		}
		assert_int_equal(file_writer_offset(w), size);
		assert_ok(file_writer_commit(w, false));
		assert_ok(file_read(arena, path, MOST, &got, &n));
		assert_int_equal(n, size);
		assert_memory_equal(got, from, (size_t)size);
		assert_fault(file_writer_open_part(path, NULL, 0, &w), EXIT_SYSTEM, "File exists");
		assert_null(w);
		unlink(path);
	}
	assert_ok(file_writer_open_part(path, NULL, 0, &w));
	file_writer_abort(w);
	assert_int_equal(count_entries(), before);
	arena_free(arena);
}

/* Every byte counts, in whichever part, block or window it lies, and the size counts, too. */
typedef struct {
	char *at;
	int64_t n;
	int part;
} Seen;

static void
collect(void *context, int part, const void *bytes, int64_t n)
{
	Seen *s = context;

	assert_true(part >= s->part);
	s->part = part;
	memcpy(s->at + s->n, bytes, (size_t)n);
	s->n += n;
}

static void
test_file_parts(void **state)
{
	enum { BUFFER = 2 * FILE_BLOCK, SIZE = (1 << 22) + FILE_DIRECT_LEAST + FILE_BLOCK / 2 };
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("parts")), says[80];
	char *bytes = arena_alloc(arena, SIZE), *room = arena_alloc(arena, BUFFER + FILE_BLOCK);
	char *buffer = room + FILE_BLOCK - (uintptr_t)room % FILE_BLOCK;
	char *copy = arena_alloc(arena, SIZE);
	Seen seen = {.at = arena_alloc(arena, SIZE)};
	FileSink sink = {&seen, collect};

	for (int i = 0; i < SIZE; i++)
		bytes[i] = (char)(i * 2654435761u >> 13);
	for (int cut = 1; cut <= 4; cut++) {
		int64_t n = cut == 3 ? 1000 : SIZE, first = cut == 1 ? 1 : n / 2;
		/* parts that are adjacent in memory, or not */
		const char *rest = cut == 4 ? memcpy(copy, bytes + first, (size_t)(n - first))
		                            : bytes + first;
		const FilePart parts[] = {
			{bytes, first}, {cut == 3 ? NULL : bytes + first, 0}, {rest, n - first}};
		FileWriter *w;

		unlink(path);
		assert_ok(file_writer_open_part(path, buffer, BUFFER, &w));
		assert_ok(file_writer_end(w, file_writer_add_parts(w, parts, 3)));
		seen.n = seen.part = 0;
		memset(seen.at, 0, SIZE);
		assert_ok(file_sync_parts(path, parts, 3, buffer, BUFFER, &sink));
		assert_int_equal(seen.n, n);
		assert_int_equal(seen.part, 2);
		assert_memory_equal(seen.at, bytes, n);
		snprintf(says, sizeof(says), "%lld bytes, %lld were written", (long long)n,
		         (long long)first);
		assert_fault(file_sync_parts(path, parts, 2, buffer, BUFFER, &sink), EXIT_SYSTEM,
		             says);
		assert_ok(file_write(path, bytes, n - 1));
		assert_fault(file_sync_parts(path, parts, 3, buffer, BUFFER, &sink), EXIT_SYSTEM,
		             "were written");
	}
	assert_ok(file_write(path, bytes, 0));
	assert_ok(file_sync_parts(path, NULL, 0, buffer, BUFFER, &sink));
	unlink(path);
	assert_fault(file_sync_parts(path, NULL, 0, buffer, BUFFER, &sink), EXIT_SYSTEM,
	             "No such file");
	arena_free(arena);
}

/* If the file size limit ends a line in its middle, the partial line is removed. */
static void
test_file_appender_cuts_half_a_line(void **state)
{
	const struct rlimit limit = {10, RLIM_INFINITY};
	struct rlimit before;
	FileAppender *a;
	Arena *arena = arena_new();
	void *bytes;
	int64_t n;

	getrlimit(RLIMIT_FSIZE, &before);
	assert_null(file_appender_open(path_of("lines"), false, &a));
	assert_null(file_appender_add(a, "12345\n", 6));
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	Status status = file_appender_add(a, "67890\n", 6);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_SYSTEM);
	status_free(status);
	assert_null(file_appender_add(a, "abc\n", 4));
	assert_null(file_appender_close(a));
	assert_null(file_read(arena, path_of("lines"), 100, &bytes, &n));
	assert_string_equal(bytes, "12345\nabc\n");
	unlink(path_of("lines"));
	arena_free(arena);
}

static void
test_file_faults(void **state)
{
	Arena *arena = arena_new();
	char *fifo = arena_strdup(arena, path_of("fifo"));
	char *deep = arena_strdup(arena, path_of("a/b/c"));
	FileWriter *w;
	void *bytes;
	int64_t n;

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_fault(file_read(arena, fifo, 10, &bytes, &n), EXIT_SYSTEM, "not a regular file");
	assert_fault(file_writer_open(fifo, &w), EXIT_SYSTEM, "not a regular file");
	assert_null(w);
	assert_fault(file_read(arena, folder, 10, &bytes, &n), EXIT_SYSTEM, "not a regular file");
	assert_fault(file_read(arena, path_of("none"), 10, &bytes, &n), EXIT_SYSTEM,
	             "No such file");
	assert_fault(file_write(path_of("no/out"), "x", 1), EXIT_SYSTEM, "No such file");
	assert_ok(folder_make(deep));
	assert_ok(folder_make(deep));
	assert_ok(file_write(path_join(arena, deep, "f"), "x", 1));
	assert_fault(folder_make(path_of("a/b/c/f/g")), EXIT_SYSTEM, "");
	assert_string_equal(path_join(arena, "", "f"), "f");
	assert_string_equal(path_join(arena, "d/", "f"), "d/f");
	arena_free(arena);
}

/* ---- npy.c ---- */

static void
test_npy_round_trip(void **state)
{
	static const int64_t shapes[][3] = {{2, 3, 5}, {1, 1, 1}, {7, 0, 2}};
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("a.npy"));
	uint8_t data[8 * 30], expected[30];
	NpyInfo info;
	void *read;

	for (int i = 0; i < COUNT(data); i++)
		data[i] = (uint8_t)(i * 37);
	for (int t = 0; t < N_DTYPES; t++) {
		for (int s = 0; s < COUNT(shapes) * 4; s++) {
			const int64_t *dims = shapes[s / 4];
			int rank = s % 4;
			bool packed = dtype_info[t].bits < 8;
			assert_ok(npy_write(path, (DType)t, rank, dims, data));
			assert_ok(npy_read(arena, path, &info, &read));
			assert_int_equal(info.rank, rank);
			assert_int_equal(info.data_offset % 64, 0);
			assert_memory_equal(info.dims, dims, sizeof(*dims) * (size_t)rank);
			if (dtype_info[t].npy)
				assert_int_equal(info.dtype, t);
			dtype_convert(U8, expected, t == U2 || t == S2 ? U2 : U4, data, 30);
			assert_memory_equal(read, packed ? expected : data, info.n_bytes);
		}
	}
	unlink(path);
	arena_free(arena);
}

/* Writes a .npy file with this header and `data` bytes of data, and opens it. */
static Status
open_npy(const char *header, int data, NpyInfo *info)
{
	Text file = {0};
	const char *path = path_of("bad.npy");
	unsigned n = (unsigned)strlen(header);
	char length[2] = {(char)(n & 0xFF), (char)(n >> 8)};
	Status status;
	int fd;

	text_add_bytes(&file, "\x93NUMPY\1\0", 8);
	text_add_bytes(&file, length, 2);
	text_add(&file, header);
	for (int i = 0; i < data; i++)
		text_add_bytes(&file, "\0", 1);
	assert_ok(file_write(path, file.at, (int64_t)file.n));
	text_free(&file);
	status = npy_open(path, info, &fd);
	if (!status)
		close(fd);
	return status;
}

#define NPY(descr, order, shape) \
	"{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }"

static void
test_npy_accepted(void **state)
{
	NpyInfo info;

	assert_ok(open_npy(NPY("'<f4'", "False", "(2, 3)") "   \n", 24, &info));
	assert_int_equal(info.dtype, F32);
	assert_int_equal(info.n_elements, 6);
	assert_ok(open_npy(NPY("'=i8'", "False", "()"), 8, &info));
	assert_ok(open_npy(NPY("'>u1'", "False", "(4,)"), 9, &info));
	assert_ok(open_npy(NPY("'|b1'", "True", "(4L,)"), 4, &info));
	assert_ok(open_npy(NPY("'<f2'", "False", "(0, 4)"), 0, &info));
	assert_ok(open_npy("{\"shape\":(1,),\"descr\":\"<f8\",\"fortran_order\":False}", 8, &info));
}

/* clang-format off */
static const struct { const char *header; int data; const char *says; } bad_npy[] = {
	{NPY("'<f4'", "False", "(2, 3)"), 23, "truncated: the header promises 24 bytes"},
	{NPY("'|O'", "False", "(2,)"), 16, "Python objects"},
	{NPY("'O'", "False", "(2,)"), 16, "cannot be read"},
	{NPY("[('a', '<f4')]", "False", "(2,)"), 16, "structured"},
	{NPY("'>f4'", "False", "(2,)"), 8, "big endian"},
	{NPY("'<c8'", "False", "(2,)"), 16, "'<c8' cannot be read"},
	{NPY("''", "False", "(2,)"), 16, "cannot be read"},
	{NPY("'<f4'", "True", "(2, 3)"), 24, "Fortran order"},
	{NPY("'<f4'", "1", "(2, 3)"), 24, "neither True nor False"},
	{NPY("'<f4'", "False", "(4611686018427387904, 4)"), 24, "too large"},
	{NPY("'<f4'", "False", "(0, 4611686018427387904, 4)"), 24, "too large"},
	{NPY("'<f8'", "False", "(2305843009213693952,)"), 24, "too large"},
	{NPY("'|u1'", "False", "(9223372036854775807,)"), 24, "too large"},
	{NPY("'|u1'", "False", "(99999999999999999999,)"), 24, "too large"},
	{NPY("'|u1'", "False", "(4294967296,)"), 24, "truncated"},
	{NPY("'|u1'", "False", "(-1,)"), 24, "a dimension is expected"},
	{NPY("'|u1'", "False", "(3)"), 24, "not a tuple"},
	{NPY("'|u1'", "False", "(3,, 2)"), 24, "a dimension is expected"},
	{NPY("'|u1'", "False", "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)"), 24, "dimensions"},
	{NPY("'|u1'", "False", "(3,)") "x", 24, "unexpected text after"},
	{"{'descr': '|u1', 'descr': '|u1'}", 24, "twice"},
	{"{'descr': '|u1'}", 24, "missing"},
	{"{'descr': '|u1', 'evil': __import__('os')}", 24, "unknown key 'evil'"},
	{"{'descr': '|u1", 24, "expected"},
	{"{'descr'", 24, "expected"},
	{"{", 24, "a string is expected"},
	{"", 24, "'{' expected"},
};
/* clang-format on */

static void
test_npy_refused(void **state)
{
	NpyInfo info;

	for (int i = 0; i < COUNT(bad_npy); i++)
		assert_fault(open_npy(bad_npy[i].header, bad_npy[i].data, &info), EXIT_DATA,
		             bad_npy[i].says);
}

/* A valid file that is cut at any byte, or has any byte of its head changed, is never misread. */
static void
test_npy_damaged(void **state)
{
	Arena *arena = arena_new();
	char *good = arena_strdup(arena, path_of("good.npy"));
	char *bad = arena_strdup(arena, path_of("bad.npy"));
	int64_t dims[] = {2, 3}, n;
	float data[6] = {0};
	unsigned char *bytes;
	NpyInfo info;
	void *at, *read;

	assert_ok(npy_write(good, F32, 2, dims, data));
	assert_ok(file_read(arena, good, 1000, &at, &n));
	bytes = at;
	for (int64_t i = 0; i < n; i++) {
		assert_ok(file_write(bad, bytes, i));
		assert_fault(npy_read(arena, bad, &info, &read), EXIT_DATA, "bad.npy: ");
	}
	for (int64_t i = 0; i < info.data_offset; i++) {
		for (int flip = 1; flip < 256; flip <<= 1) {
			bytes[i] ^= (unsigned char)flip;
			assert_ok(file_write(bad, bytes, n));
			status_free(npy_read(arena, bad, &info, &read));
			bytes[i] ^= (unsigned char)flip;
		}
	}
	arena_free(arena);
}

/* ---- safetensors.c ---- */

static void
test_safetensors_round_trip(void **state)
{
	static const float floats[6] = {1, 2, 3, 4, 5, 6};
	static const int64_t whole = -7;
	static const uint8_t bytes[3] = {1, 0, 1};
	const SafeTensor tensors[] = {
		{"mask", BOOL, 1, {3}, .n_bytes = 3, .data = bytes},
		{"w \"1\" ö", F32, 2, {2, 3}, .n_bytes = 24, .data = floats},
		{"empty", F16, 2, {0, 5}, .n_bytes = 0},
		{"scalar", S64, 0, {0}, .n_bytes = 8, .data = &whole},
	};
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("a.safetensors"));
	SafeTensors st;
	int found = 0;

	assert_ok(safetensors_write(path, tensors, COUNT(tensors)));
	assert_ok(safetensors_open(arena, path, EXIT_CHECKPOINT, &st));
	assert_int_equal(st.n_tensors, COUNT(tensors));
	int64_t first = INT64_MAX;
	for (int i = 0; i < st.n_tensors; i++)
		first = st.tensors[i].offset < first ? st.tensors[i].offset : first;
	assert_int_equal(first, FILE_BLOCK);
	for (int i = 0; i < st.n_tensors * COUNT(tensors); i++) {
		const SafeTensor *t = &st.tensors[i / COUNT(tensors)];
		const SafeTensor *u = &tensors[i % COUNT(tensors)];
		char data[24];
		if (strcmp(t->name, u->name) != 0)
			continue;
		found++;
		assert_int_equal(t->dtype, u->dtype);
		assert_int_equal(t->rank, u->rank);
		assert_memory_equal(t->dims, u->dims, sizeof(t->dims));
		assert_int_equal(t->n_bytes, u->n_bytes);
		assert_int_equal(t->offset % (dtype_info[t->dtype].bits / 8), 0);
		assert_ok(file_pread(st.fd, path, data, t->n_bytes, t->offset));
		if (t->n_bytes)
			assert_memory_equal(data, u->data, t->n_bytes);
	}
	assert_int_equal(found, COUNT(tensors));
	safetensors_close(&st);
	assert_ok(safetensors_write(path, NULL, 0));
	assert_ok(safetensors_open(arena, path, EXIT_CHECKPOINT, &st));
	assert_int_equal(st.n_tensors, 0);
	safetensors_close(&st);
	arena_free(arena);
}

static void
test_safetensors_unwritable(void **state)
{
	static const uint8_t bytes[4] = {0};
	SafeTensor t[2] = {
		{"x", U8, 1, {4}, .n_bytes = 4, .data = bytes},
		{"x", U8, 1, {4}, .n_bytes = 4, .data = bytes},
	};
	Arena *arena = arena_new();
	char *path = arena_strdup(arena, path_of("bad.safetensors"));

	assert_fault(safetensors_write(path, t, 2), EXIT_SYSTEM, "two tensors have the name");
	t[1].name = "\xFF";
	assert_fault(safetensors_write(path, t, 2), EXIT_SYSTEM, "not UTF-8");
	t[1].name = "y";
	t[1].n_bytes = 3;
	assert_fault(safetensors_write(path, t, 2), EXIT_SYSTEM, "do not fill its shape");
	t[1].dtype = S4;
	assert_fault(safetensors_write(path, t, 2), EXIT_SYSTEM, "no type s4");
	assert_int_not_equal(access(path, F_OK), 0);
	arena_free(arena);
}

/* n: header length to claim; -1: the true length. */
static Status
open_safetensors(Arena *arena, const char *header, int64_t n, int data)
{
	Text file = {0};
	const char *path = path_of("bad.safetensors");
	uint64_t length = n < 0 ? strlen(header) : (uint64_t)n;
	SafeTensors st;
	Status status;

	for (int i = 0; i < 8; i++)
		text_add_bytes(&file, &(char){(char)(length >> 8 * i)}, 1);
	text_add(&file, header);
	for (int i = 0; i < data; i++)
		text_add(&file, "x");
	assert_ok(file_write(path, file.at, (int64_t)file.n));
	text_free(&file);
	status = safetensors_open(arena, path, EXIT_CHECKPOINT, &st);
	if (!status)
		safetensors_close(&st);
	else
		assert_int_equal(st.fd, -1);
	return status;
}

#define ENTRY(name, dtype, shape, begin, end)                                                \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin \
	"," end "]}"

/* clang-format off */
static const struct { const char *header; int64_t n; int data; const char *says; } bad_safetensors[] = {
	{"{" ENTRY("a", "U8", "[4]", "0", "4") "," ENTRY("b", "U8", "[4]", "2", "6") "}", -1, 6,
	 "overlaps"},
	{"{" ENTRY("a", "U8", "[4]", "0", "4") "," ENTRY("b", "U8", "[4]", "0", "4") "}", -1, 4,
	 "overlaps"},
	{"{" ENTRY("a", "U8", "[4]", "0", "4") "," ENTRY("b", "U8", "[4]", "5", "9") "}", -1, 9,
	 "a hole of 1 bytes"},
	{"{" ENTRY("a", "U8", "[4]", "1", "5") "}", -1, 5, "a hole of 1 bytes"},
	{"{" ENTRY("a", "U8", "[2]", "0", "2") "," ENTRY("a", "U8", "[2]", "2", "4") "}", -1, 4,
	 "duplicate"},
	{"{" ENTRY("a", "U8", "[4]", "0", "4") "}", -1, 3, "bytes 0 to 4 of 3"},
	{"{" ENTRY("a", "U8", "[4]", "0", "4") "}", -1, 5, "1 bytes after"},
	{"{" ENTRY("a", "F32", "[2]", "0", "4") "}", -1, 4, "needs 8 bytes"},
	{"{" ENTRY("a", "F4", "[3]", "0", "1") "}", -1, 1, "whole bytes"},
	{"{" ENTRY("a", "X8", "[4]", "0", "4") "}", -1, 4, "\"X8\""},
	{"{" ENTRY("a", "U8", "[-4]", "0", "4") "}", -1, 4, "dimension 0"},
	{"{" ENTRY("a", "U8", "[4.0]", "0", "4") "}", -1, 4, "dimension 0"},
	{"{" ENTRY("a", "U8", "[4611686018427387904,4]", "0", "4") "}", -1, 4, "too large"},
	{"{" ENTRY("a", "F64", "[4611686018427387904]", "0", "4") "}", -1, 4, "whole bytes"},
	{"{" ENTRY("a", "U8", "[4]", "4", "0") "}", -1, 4, "bytes 4 to 0"},
	{"{" ENTRY("a", "U8", "[1]", "-1", "0") "}", -1, 4, "bytes -1 to 0"},
	{"{" ENTRY("a", "U8", "[99999999999999999999]", "0", "4") "}", -1, 4, "malformed"},
	{"{" ENTRY("a", "U8", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "0", "1") "}", -1, 1,
	 "dimensions"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", -1, 4, "no data_offsets"},
	{"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}", -1, 4, "no shape"},
	{"{\"a\":[]}", -1, 0, "no dtype"},
	{"{\"__metadata__\":{\"a\":1}}", -1, 0, "not text"},
	{"{\"__metadata__\":7}", -1, 0, "not an object"},
	{"[]", -1, 0, "not an object"},
	{" {}", -1, 0, "not an object"},
	{"{", -1, 0, "malformed header"},
	{"{}", 3, 0, "truncated"},
	{"{}", INT64_MAX, 0, "truncated"},
	{"{}", 0, 0, "malformed header"},
};
/* clang-format on */

static void
test_safetensors_refused(void **state)
{
	Arena *arena = arena_new();
	Text many = {0};

	for (int i = 0; i < COUNT(bad_safetensors); i++)
		assert_fault(open_safetensors(arena, bad_safetensors[i].header,
		                              bad_safetensors[i].n, bad_safetensors[i].data),
		             EXIT_CHECKPOINT, bad_safetensors[i].says);
	for (int i = 0; i < 100000; i++)
		text_add(&many, "[");
	assert_fault(open_safetensors(arena, many.at, -1, 0), EXIT_CHECKPOINT, "malformed header");
	for (int i = 0; i < 1000000; i++)
		text_add(&many, "{},");
	assert_fault(open_safetensors(arena, many.at, -1, 0), EXIT_CHECKPOINT, "malformed header");
	for (int i = 0; i < 1000001; i++)
		text_add(&many, "0,");
	assert_fault(open_safetensors(arena, many.at, -1, 0), EXIT_CHECKPOINT, "values");
	assert_ok(open_safetensors(arena, "{\"__metadata__\":{\"format\":\"pt\"}}  ", -1, 0));
	text_free(&many);
	arena_free(arena);
}

static int
make_scratch(void **state)
{
	return mkdtemp(folder) ? 0 : -1;
}

static int
remove_scratch(void **state)
{
	Text command = {0};
	int result;

	text_printf(&command, "rm -rf %s", folder);
	result = system(command.at);
	text_free(&command);
	return result;
}

/* clang-format off */
static const struct CMUnitTest tests[] = {
	cmocka_unit_test(test_file_writer),
	cmocka_unit_test(test_file_keeps_permissions),
	cmocka_unit_test(test_file_at_a_link),
		cmocka_unit_test(test_file_behind_many_links),
	cmocka_unit_test(test_inputs_are_not_opened),
	cmocka_unit_test(test_file_part),
	cmocka_unit_test(test_file_parts),
	cmocka_unit_test(test_file_faults),
	cmocka_unit_test(test_file_appender_cuts_half_a_line),
	cmocka_unit_test(test_npy_round_trip),
	cmocka_unit_test(test_npy_accepted),
	cmocka_unit_test(test_npy_refused),
	cmocka_unit_test(test_npy_damaged),
	cmocka_unit_test(test_safetensors_round_trip),
	cmocka_unit_test(test_safetensors_unwritable),
	cmocka_unit_test(test_safetensors_refused),
};
/* clang-format on */

int
main(void)
{
	return cmocka_run_group_tests_name("base_files", tests, make_scratch, remove_scratch);
}
