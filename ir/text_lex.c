/* Reads the tokens of .gir, the text form of modules: names, numbers, types, tensors, locations,
 * attributes. */
#include "ir/text.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void
read_fault(Reader *r, const char *fmt, ...)
{
	va_list args;

	r->faults++;
	if (r->fault_line == r->line)
		return;
	r->fault_line = r->line;
	va_start(args, fmt);
	char *what = arena_vprintf(r->m->arena, fmt, args);
	va_end(args);
	diag_error(r->diag, EXIT_INVALID, "%s:%d:%d: %s", r->file, r->line,
	           (int)(r->at - r->line_start) + 1, what);
}

void
read_space(Reader *r)
{
	while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')
		r->at++;
	if (*r->at == ';' || (r->at[0] == '/' && r->at[1] == '/'))
		r->at += strcspn(r->at, "\n");
}

void
read_lines(Reader *r)
{
	for (read_space(r); *r->at == '\n'; read_space(r)) {
		r->line_start = ++r->at;
		r->line++;
	}
}

bool
read_at_line_end(Reader *r)
{
	read_space(r);
	return *r->at == '\n' || *r->at == '\0';
}

void
read_skip_line(Reader *r)
{
	r->at += strcspn(r->at, "\n");
}

static bool
name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '$' || c == '-';
}

bool
read_word(Reader *r, const char *word)
{
	size_t n = strlen(word);

	read_space(r);
	if (strncmp(r->at, word, n) != 0 || name_char(r->at[n]))
		return false;
	r->at += n;
	return true;
}

bool
read_char(Reader *r, char c)
{
	read_space(r);
	if (*r->at != c)
		return false;
	r->at++;
	return true;
}

bool
read_expect(Reader *r, char c)
{
	if (read_char(r, c))
		return true;
	read_fault(r, "expected `%c`", c);
	return false;
}

const char *
read_name(Reader *r)
{
	read_space(r);
	const char *start = r->at;

	if (!isalpha((unsigned char)*start) && *start != '_')
		return NULL;
	while (name_char(*r->at))
		r->at++;
	return arena_strndup(r->m->arena, start, (size_t)(r->at - start));
}

const char *
read_symbol(Reader *r, char sigil)
{
	read_space(r);
	if (*r->at != sigil)
		return NULL;
	r->at++;
	if (*r->at == '"') {
		const char *text = text_unquote(r->m->arena, &r->at);
		if (!text)
			read_fault(r, "malformed string");
		return text;
	}
	const char *start = r->at;
	while (name_char(*r->at))
		r->at++;
	if (r->at == start) {
		read_fault(r, "expected a name after `%c`", sigil);
		return NULL;
	}
	return arena_strndup(r->m->arena, start, (size_t)(r->at - start));
}

bool
read_int(Reader *r, int64_t *out)
{
	char *end;

	read_space(r);
	if (!isdigit((unsigned char)*r->at) && *r->at != '-' && *r->at != '+') {
		read_fault(r, "expected an integer");
		return false;
	}
	errno = 0;
	*out = *r->at == '-' ? strtoll(r->at, &end, 10) : (int64_t)strtoull(r->at, &end, 10);
	if (end == r->at || errno) {
		read_fault(r, "an integer out of range");
		return false;
	}
	r->at = end;
	return true;
}

bool
read_small(Reader *r, int64_t most, int64_t *out)
{
	if (!read_int(r, out))
		return false;
	if (*out >= 0 && *out <= most)
		return true;
	read_fault(r, "%lld is not from 0 to %lld", (long long)*out, (long long)most);
	return false;
}

bool
read_double(Reader *r, double *out)
{
	char *end;

	read_space(r);
	*out = strtod(r->at, &end);
	if (end == r->at) {
		read_fault(r, "expected a number");
		return false;
	}
	r->at = end;
	return true;
}

int
read_enum(Reader *r, const char *const *names)
{
	const char *word = read_name(r);

	for (int i = 0; word && names[i]; i++)
		if (strcmp(names[i], word) == 0)
			return i;
	read_fault(r, "unknown word `%s`", word ? word : "");
	return -1;
}

bool
read_list(Reader *r, Ints *list)
{
	*list = (Ints){0};
	if (!read_expect(r, '['))
		return false;
	while (!read_char(r, ']')) {
		if (list->n == MAX_RANK) {
			read_fault(r, "a list of more than %d numbers", MAX_RANK);
			return false;
		}
		if ((list->n && !read_expect(r, ',')) || !read_int(r, &list->at[list->n++]))
			return false;
	}
	return true;
}

Type
read_type(Reader *r)
{
	const char *name = read_name(r);
	int64_t n = 1;
	DType d;
	Ints dims;

	if (!name || !dtype_parse(name, &d)) {
		read_fault(r, "expected a type, not `%s`", name ? name : "");
		return NULL;
	}
	if (!read_list(r, &dims))
		return NULL;
	for (int i = 0; i < dims.n; i++)
		if (dims.at[i] < 0 || !size_mul(n, dims.at[i], &n) || n > INT64_MAX / 16) {
			read_fault(r, "a size of %lld is out of range", (long long)dims.at[i]);
			return NULL;
		}
	return type_new(r->m, d, dims.n, dims.at);
}

/* Reads "3 more", the last part of a fused location. False after reporting. */
static bool
read_more(Reader *r, int64_t *more)
{
	if (read_int(r, more) && read_word(r, "more") && *more > 0 && *more <= INT_MAX)
		return true;
	read_fault(r, "malformed location");
	return false;
}

static Loc
read_loc_at(Reader *r, int depth)
{
	Loc parts[4];
	int64_t more = 0;
	int n = 0;

	read_space(r);
	if (*r->at == '"') {
		const char *text = text_unquote(r->m->arena, &r->at);
		if (!text)
			read_fault(r, "malformed string");
		return text ? loc_name(r->m, text) : NULL;
	}
	const char *word = read_name(r);
	if (!word || depth > 64 || !read_expect(r, '(')) {
		read_fault(r, "expected a location");
		return NULL;
	}
	bool is_fused = strcmp(word, "fused") == 0;
	do {
		read_space(r);
		if (is_fused && n > 0 && isdigit((unsigned char)*r->at)) {
			if (!read_more(r, &more))
				return NULL;
			break;
		}
		if (n == COUNT(parts) || !(parts[n++] = read_loc_at(r, depth + 1))) {
			read_fault(r, "malformed location");
			return NULL;
		}
	} while (read_char(r, ','));
	if (!read_expect(r, ')'))
		return NULL;
	return is_fused ? loc_fuse(r->m, parts, n, (int)more) : loc_of_parts(r->m, word, parts, n);
}

Loc
read_loc(Reader *r)
{
	return read_loc_at(r, 0);
}

static bool
read_element(Reader *r, DType d, void *data, int64_t i)
{
	double f;
	int64_t n;

	if (dtype_is_float(d)) {
		if (!read_double(r, &f))
			return false;
		dtype_store_float(d, data, i, f);
		/* dtype_store_float saturates f8e5m2, but the text may mean infinity */
		if (d == F8E5M2 && isinf(f))
			((uint8_t *)data)[i] = f < 0 ? 0xFC : 0x7C;
		return true;
	}
	if (d == BOOL && (read_word(r, "true") || read_word(r, "false")))
		n = r->at[-1] == 'e' && r->at[-2] == 'u';
	else if (!read_int(r, &n))
		return false;
	dtype_store_int(d, data, i, n);
	return true;
}

/* @data[0x0123456789abcdef] */
static const Tensor *
read_data_reference(Reader *r, Type t)
{
	char name[32];
	int end = 0;

	read_space(r);
	if (sscanf(r->at, "@data[%18[0-9a-fx]]%n", name, &end) != 1 || end == 0) {
		read_fault(r, "expected `[` or @data[0xHASH]");
		return NULL;
	}
	r->at += end;
	const Tensor *found = r->data ? strmap_get(r->data, name) : NULL;
	if (!found) {
		read_fault(r, "no data for %s: it lies in the .safetensors file beside the text",
		           name);
		return NULL;
	}
	const SafeTensor *s = (const SafeTensor *)found;
	if (s->dtype != t->dtype || s->n_bytes != type_bytes(t)) {
		read_fault(r, "the data of %s has another type", name);
		return NULL;
	}
	return tensor_borrow(r->m, t, s->data);
}

const Tensor *
read_tensor(Reader *r)
{
	Type t = read_type(r);

	if (!t)
		return NULL;
	if (!read_char(r, '['))
		return read_data_reference(r, t);
	if (t->n > 4096) {
		read_fault(r, "too many elements for the text");
		return NULL;
	}
	void *data = arena_alloc(r->m->arena, (size_t)type_bytes(t));
	for (int64_t i = 0; i < t->n; i++)
		if ((i && !read_expect(r, ',')) || !read_element(r, t->dtype, data, i))
			return NULL;
	return read_expect(r, ']') ? tensor_borrow(r->m, t, data) : NULL;
}

static bool
read_reference(Reader *r, FieldKind kind, void *at)
{
	const char *name = read_symbol(r, '@');
	void *found = NULL;

	if (name)
		found = kind == FIELD_FUNC    ? (void *)module_function(r->m, name)
		        : kind == FIELD_STATE ? (void *)module_state(r->m, name)
		                              : strmap_get(r->m->kernel_names, name);
	if (!found)
		read_fault(r, "unknown name @%s", name ? name : "");
	*(void **)at = found;
	return found != NULL;
}

bool
read_dtype_word(Reader *r, DType *out)
{
	const char *name = read_name(r);

	if (name && dtype_parse(name, out))
		return true;
	read_fault(r, "expected a dtype");
	return false;
}

static bool
read_field(Reader *r, const Field *f, char *at)
{
	switch (f->kind) {
	case FIELD_INT: return read_int(r, (int64_t *)at);
	case FIELD_FLOAT: return read_double(r, (double *)at);
	case FIELD_BOOL:
		*(bool *)at = read_word(r, "true");
		if (!*(bool *)at && !read_word(r, "false")) {
			read_fault(r, "expected true or false");
			return false;
		}
		return true;
	case FIELD_ENUM: return (*(int *)at = read_enum(r, f->names)) >= 0;
	case FIELD_DTYPE: return read_dtype_word(r, (DType *)at);
	case FIELD_DTYPE_IF_ANY: {
		DType dtype;
		bool ok = read_dtype_word(r, &dtype);
		*(int *)at = ok ? 1 + (int)dtype : 0;
		return ok;
	}
	case FIELD_INTS: return read_list(r, (Ints *)at);
	case FIELD_TENSOR: return (*(const Tensor **)at = read_tensor(r)) != NULL;
	default: return read_reference(r, f->kind, at);
	}
}

bool
read_attrs(Reader *r, const OpRow *row, void *attr)
{
	uint64_t given = 0;

	if (read_char(r, '{')) {
		while (!read_char(r, '}')) {
			const char *name;
			int i = 0;
			if (given && !read_expect(r, ','))
				return false;
			name = read_name(r);
			while (name && row->fields && row->fields[i].name &&
			       strcmp(row->fields[i].name, name) != 0)
				i++;
			if (!name || !row->fields || !row->fields[i].name) {
				read_fault(r, "%s has no attribute %s", row->name,
				           name ? name : "");
				return false;
			}
			given |= 1ull << i;
			if (!read_expect(r, '=') ||
			    !read_field(r, &row->fields[i], (char *)attr + row->fields[i].offset))
				return false;
		}
	}
	for (int i = 0; row->fields && row->fields[i].name; i++) {
		if (!row->fields[i].optional && !(given >> i & 1)) {
			read_fault(r, "%s needs attribute %s", row->name, row->fields[i].name);
			return false;
		}
	}
	return true;
}
