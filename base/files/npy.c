/* NumPy's array files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
 * The header is a Python dictionary; the parser reads just the grammar that NumPy writes:
 *   {'descr': STRING, 'fortran_order': BOOL, 'shape': (N, ...)}   keys in any order, then
 * blanks. The header is not trusted: sizes are checked against the file before anything is allocated. */
#include "base/files/files.h"

#include <string.h>
#include <unistd.h>

#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define MAX_HEADER 65536
#define HEADER_ALIGNMENT 64

typedef struct {
	const char *path;
	const char *at, *end;
	NpyInfo *info;
	bool fortran_order;
	unsigned seen; /* keys found so far; bit i: keys[i] */
	Status status; /* first fault */
} Parser;

static bool fail(Parser *p, const char *fmt, ...) PRINTF(2, 3);

static bool
fail(Parser *p, const char *fmt, ...)
{
	Text message = {0};
	va_list args;

	if (p->status)
		return false;
	va_start(args, fmt);
	text_vprintf(&message, fmt, args);
	va_end(args);
	p->status = status_error(EXIT_DATA, "%s: %s", p->path, message.at);
	text_free(&message);
	return false;
}

static void
skip_blanks(Parser *p)
{
	while (p->at < p->end && (*p->at == ' ' || *p->at == '\n'))
		p->at++;
}

static bool
accept(Parser *p, char c)
{
	skip_blanks(p);
	if (p->at == p->end || *p->at != c)
		return false;
	p->at++;
	return true;
}

static bool
expect(Parser *p, char c)
{
	return accept(p, c) || fail(p, "malformed header: '%c' expected at byte %lld of the header",
	                            c, (long long)(p->info->data_offset - (p->end - p->at)));
}

static bool
accept_word(Parser *p, const char *word)
{
	size_t n = strlen(word);

	skip_blanks(p);
	if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
		return false;
	p->at += n;
	return true;
}

/* Reads 'text' or "text" without escapes. */
static bool
parse_string(Parser *p, char *to, size_t size)
{
	char quote;
	size_t n = 0;

	skip_blanks(p);
	if (p->at == p->end || (*p->at != '\'' && *p->at != '"'))
		return fail(p, "malformed header: a string is expected");
	for (quote = *p->at++; p->at < p->end && *p->at != quote; p->at++) {
		if (n + 1 >= size || *p->at == '\\' || *p->at == '\0')
			return fail(p, "malformed header: unexpected string");
		to[n++] = *p->at;
	}
	to[n] = '\0';
	return expect(p, quote);
}

static bool
parse_descr(Parser *p)
{
	char descr[32];
	const char *kind = descr + 1;

	skip_blanks(p);
	if (p->at < p->end && *p->at == '[')
		return fail(p, "structured arrays cannot be read");
	if (!parse_string(p, descr, sizeof(descr)))
		return false;
	if (*descr && *kind == 'O')
		return fail(p, "arrays of Python objects cannot be read");
	if (!*descr || !strchr("<>|=", *descr))
		return fail(p, "element type '%s' cannot be read", descr);
	for (int t = 0; t < N_DTYPES; t++) {
		const char *known = dtype_info[t].npy;
		if (!known || strcmp(known + 1, kind) != 0)
			continue;
		if (*descr == '>' && dtype_info[t].bits > 8)
			return fail(p, "element type '%s' is big endian", descr);
		p->info->dtype = (DType)t;
		return true;
	}
	return fail(p, "element type '%s' cannot be read", descr);
}

static bool
parse_fortran_order(Parser *p)
{
	p->fortran_order = accept_word(p, "True");
	return p->fortran_order || accept_word(p, "False") ||
	       fail(p, "malformed header: fortran_order is neither True nor False");
}

static bool
parse_dim(Parser *p, int64_t *out)
{
	*out = 0;
	skip_blanks(p);
	if (p->at == p->end || *p->at < '0' || *p->at > '9')
		return fail(p, "malformed header: a dimension is expected");
	for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
		if (!size_mul(*out, 10, out) || !size_add(*out, *p->at - '0', out))
			return fail(p, "a dimension is too large");
	if (p->at < p->end && *p->at == 'L') /* Python 2 writes 3L */
		p->at++;
	return true;
}

static bool
parse_shape(Parser *p)
{
	NpyInfo *info = p->info;

	if (!expect(p, '('))
		return false;
	while (!accept(p, ')')) {
		if (info->rank == MAX_RANK)
			return fail(p, "more than %d dimensions", MAX_RANK);
		if (!parse_dim(p, &info->dims[info->rank++]))
			return false;
		if (!accept(p, ',')) {
			if (info->rank == 1)
				return fail(p, "malformed header: shape is not a tuple");
			return expect(p, ')');
		}
	}
	return true;
}

static bool
parse_entry(Parser *p)
{
	static const struct {
		const char *key;
		bool (*parse)(Parser *);
	} keys[] = {
		{"descr", parse_descr},
		{"fortran_order", parse_fortran_order},
		{"shape", parse_shape},
	};
	char key[32];

	if (!parse_string(p, key, sizeof(key)) || !expect(p, ':'))
		return false;
	for (int i = 0; i < COUNT(keys); i++) {
		if (strcmp(keys[i].key, key) != 0)
			continue;
		if (p->seen & 1u << i)
			return fail(p, "malformed header: '%s' twice", key);
		p->seen |= 1u << i;
		return keys[i].parse(p);
	}
	return fail(p, "malformed header: unknown key '%s'", key);
}

static bool
parse_header(Parser *p)
{
	if (!expect(p, '{'))
		return false;
	while (!accept(p, '}')) {
		if (!parse_entry(p))
			return false;
		if (accept(p, ','))
			continue;
		if (!expect(p, '}'))
			return false;
		break;
	}
	skip_blanks(p);
	if (p->at != p->end)
		return fail(p, "malformed header: unexpected text after the dictionary");
	if (p->seen != 7)
		return fail(p, "malformed header: descr, fortran_order or shape is missing");
	if (p->fortran_order && p->info->rank > 1)
		return fail(p, "is in Fortran order; save it with numpy.ascontiguousarray");
	return true;
}

/* Computes the sizes from the shape and checks them for overflow. The check ignores dimensions of 0. */
static bool
check_sizes(Parser *p, int64_t file_bytes)
{
	NpyInfo *info = p->info;
	int64_t n = 1, bytes, end;
	bool empty = false, ok = true;

	for (int i = 0; i < info->rank; i++) {
		empty |= info->dims[i] == 0;
		ok = ok && (info->dims[i] == 0 || size_mul(n, info->dims[i], &n));
	}
	ok = ok && size_mul(n, dtype_info[info->dtype].bits / 8, &bytes);
	if (!ok || !size_add(info->data_offset, empty ? 0 : bytes, &end))
		return fail(p, "the shape is too large");
	info->n_elements = empty ? 0 : n;
	info->n_bytes = empty ? 0 : bytes;
	if (end > file_bytes)
		return fail(p,
		            "truncated: the header promises %lld bytes of data, the file has %lld",
		            (long long)info->n_bytes, (long long)(file_bytes - info->data_offset));
	return true;
}

/* Reads the bytes before the dictionary: magic, version, length. */
static Status
read_preamble(const char *path, int fd, int64_t file_bytes, int64_t *start, int64_t *n)
{
	uint8_t head[12] = {0};

	*start = *n = 0;
	if (file_bytes < 10)
		return status_error(EXIT_DATA, "%s: not a .npy file: only %lld bytes", path,
		                    (long long)file_bytes);
	RETURN_IF_ERROR(file_pread_as(EXIT_DATA, fd, path, head, file_bytes < 12 ? 10 : 12, 0));
	if (memcmp(head, MAGIC, MAGIC_BYTES) != 0)
		return status_error(EXIT_DATA, "%s: not a .npy file: wrong first bytes", path);
	if (head[6] < 1 || head[6] > 3 || head[7] != 0)
		return status_error(EXIT_DATA, "%s: .npy format %d.%d is not known", path, head[6],
		                    head[7]);
	*start = head[6] == 1 ? 10 : 12;
	*n = head[8] | head[9] << 8;
	if (head[6] > 1)
		*n |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
	if (*n > MAX_HEADER || *n > file_bytes - *start)
		return status_error(EXIT_DATA, "%s: truncated: the header has %lld bytes", path,
		                    (long long)*n);
	return NULL;
}

static Status
read_info(const char *path, int fd, int64_t file_bytes, NpyInfo *info)
{
	char header[MAX_HEADER];
	int64_t start, n;
	Parser p = {.path = path, .info = info, .at = header};

	RETURN_IF_ERROR(read_preamble(path, fd, file_bytes, &start, &n));
	RETURN_IF_ERROR(file_pread_as(EXIT_DATA, fd, path, header, n, start));
	info->data_offset = start + n;
	p.end = header + n;
	if (parse_header(&p))
		check_sizes(&p, file_bytes);
	return p.status;
}

Status
npy_open(const char *path, NpyInfo *info, int *fd)
{
	int64_t file_bytes;
	Status status;

	*info = (NpyInfo){0};
	RETURN_IF_ERROR(file_open_regular(path, EXIT_DATA, fd, &file_bytes));
	status = read_info(path, *fd, file_bytes, info);
	if (status) {
		close(*fd);
		*fd = -1;
	}
	return status;
}

Status
npy_read(Arena *arena, const char *path, NpyInfo *info, void **data)
{
	Status status;
	int fd;

	*data = NULL;
	RETURN_IF_ERROR(npy_open(path, info, &fd));
	*data = arena_alloc(arena, (size_t)info->n_bytes);
	status = file_pread_as(EXIT_DATA, fd, path, *data, info->n_bytes, info->data_offset);
	close(fd);
	if (status)
		*data = NULL;
	return status;
}

static void
print_header(Text *out, DType dtype, int rank, const int64_t *dims)
{
	const DTypeInfo *t = &dtype_info[dtype];

	text_printf(out, "{'descr': '%s', 'fortran_order': False, 'shape': (",
	            t->npy ? t->npy : t->npy_bits);
	for (int i = 0; i < rank; i++)
		text_printf(out, "%s%lld", i ? ", " : "", (long long)dims[i]);
	text_add(out, rank == 1 ? ",), }" : "), }");
	while ((MAGIC_BYTES + 4 + out->n + 1) % HEADER_ALIGNMENT)
		text_add(out, " ");
	text_add(out, "\n");
}

static Status
write_data(FileWriter *w, DType dtype, int64_t n, const uint8_t *data)
{
	int bits = dtype_info[dtype].bits;
	int per_byte = 8 / bits;

	if (bits >= 8)
		return file_writer_add(w, data, dtype_bytes(dtype, n));
	for (int64_t i = 0; i < n; i++) {
		int shift = (int)(i % per_byte) * bits;
		uint8_t element = (uint8_t)(data[i / per_byte] >> shift & ((1 << bits) - 1));
		RETURN_IF_ERROR(file_writer_add(w, &element, 1));
	}
	return NULL;
}

Status
npy_write_header(FileWriter *w, DType dtype, int rank, const int64_t *dims)
{
	Text header = {0};
	uint8_t head[MAGIC_BYTES + 4] = MAGIC "\1";

	print_header(&header, dtype, rank, dims);
	head[8] = (uint8_t)(header.n & 0xFF);
	head[9] = (uint8_t)(header.n >> 8);
	Status status = file_writer_add(w, head, sizeof(head));
	if (!status)
		status = file_writer_add(w, header.at, (int64_t)header.n);
	text_free(&header);
	return status;
}

static Status
write_array(FileWriter *w, DType dtype, int rank, const int64_t *dims, const void *data)
{
	int64_t n = 1;

	for (int i = 0; i < rank; i++)
		n *= dims[i];
	RETURN_IF_ERROR(npy_write_header(w, dtype, rank, dims));
	return write_data(w, dtype, n, data);
}

bool
npy_merges_axes(int rank, const int64_t *dims, int of_rank, const int64_t *of)
{
	int k = 0;

	for (int i = 0; i < rank; i++) {
		int64_t n = k < of_rank ? of[k++] : 0;
		while (k < of_rank && (n < dims[i] || of[k] == 1) && n > 0)
			n *= of[k++];
		if (n != dims[i])
			return false;
	}
	return k == of_rank;
}

Status
npy_write(const char *path, DType dtype, int rank, const int64_t *dims, const void *data)
{
	FileWriter *w;
	Status status;

	RETURN_IF_ERROR(file_writer_open(path, &w));
	status = write_array(w, dtype, rank, dims, data);
	if (!status)
		return file_writer_commit(w, false);
	file_writer_abort(w);
	return status;
}
