/* The library call of a kernel, such as a matrix product of cuBLASLt that can replace the
 * kernel's loops: prints and reads its text form, and checks that the call stays inside the
 * kernel's buffers. */
#include "ir/text.h"

#include <string.h>

/* ---- text */
static const char *
buffer_name(const void *kernel, int64_t buffer)
{
	const Kernel *k = kernel;

	return buffer < k->n_inputs + k->n_outputs ? k->buffers.at[buffer].name : "?";
}

void
kernel_print_library(Text *out, const Kernel *k)
{
	library_call_print(out, k->library, buffer_name, k);
}

/* Reads [1,2,3] with exactly n numbers. */
static bool
read_numbers(Reader *r, int n, int64_t *out)
{
	Ints list;

	if (!read_list(r, &list))
		return false;
	if (list.n != n) {
		read_fault(r, "%d numbers instead of %d", list.n, n);
		return false;
	}
	memcpy(out, list.at, sizeof(*out) * (size_t)n);
	return true;
}

/* Reads the name of a buffer and returns the buffer's number; -1 after reporting an error. */
static int
read_param(Reader *r, const Kernel *k)
{
	const char *name = read_name(r);

	for (int i = 0; name && i < k->n_inputs + k->n_outputs; i++)
		if (strcmp(k->buffers.at[i].name, name) == 0)
			return i;
	read_fault(r, "expected a buffer of the kernel, not `%s`", name ? name : "");
	return -1;
}

/* TYPE at BUFFER+OFFSET by [STRIDES] */
static bool
read_operand(Reader *r, const Kernel *k, LibraryOperand *o)
{
	Type t = read_type(r);

	if (!t)
		return false;
	if (t->rank < 1 || t->rank > MAX_LIBRARY_RANK || !read_word(r, "at")) {
		read_fault(r, "expected 1 to %d axes, and `at BUFFER`", MAX_LIBRARY_RANK);
		return false;
	}
	*o = (LibraryOperand){.dtype = t->dtype, .rank = (uint32_t)t->rank};
	memcpy(o->dims, t->dims, sizeof(*o->dims) * (size_t)t->rank);
	library_dense(o);
	return (o->buffer = read_param(r, k)) >= 0 &&
	       (!read_char(r, '+') || read_int(r, &o->offset)) &&
	       (!read_word(r, "by") || read_numbers(r, t->rank, o->strides));
}

static bool
read_field(Reader *r, const Kernel *k, const LibraryField *f, LibraryCall *c)
{
	void *at = (char *)c + f->offset;
	int word;

	switch (f->type) {
	case LIBRARY_OPERAND: return read_operand(r, k, at);
	case LIBRARY_NUMBER: return read_int(r, at);
	case LIBRARY_AXES: return read_numbers(r, (int)c->operands[LIBRARY_FIRST].rank - 2, at);
	default:
		word = read_enum(r, epilogue_names);
		c->epilogue = word < 0 ? EPILOGUE_NONE : (uint32_t)word;
		return word >= 0;
	}
}

/* Reads NAME = VALUE. Fields stand in the order of the table, from field `first` on. Returns the number of the field;
 * -1 after reporting. */
static int
read_named_field(Reader *r, const Kernel *k, int first, LibraryCall *c)
{
	const char *name = read_name(r);

	for (int i = first; name && library_fields[i].name; i++) {
		const LibraryField *f = &library_fields[i];
		if (!library_has_field(c, f))
			continue;
		if (strcmp(f->name, name) == 0)
			return read_expect(r, '=') && read_field(r, k, f, c) ? i : -1;
		if (f->otherwise < 0)
			break; /* this field is required, but the text has another field */
	}
	read_fault(r, "no field `%s` of a library's %s stands here", name ? name : "",
	           library_kind_names[c->kind]);
	return -1;
}

/* The name of the first required field from number `first` on; NULL: no such field. */
static const char *
missing_field(const LibraryCall *c, int first)
{
	for (const LibraryField *f = &library_fields[first]; f->name; f++)
		if (library_has_field(c, f) && f->otherwise < 0)
			return f->name;
	return NULL;
}

static bool
read_fields(Reader *r, const Kernel *k, LibraryCall *c)
{
	int next = 0;

	for (bool more = false; !read_char(r, '}'); more = true) {
		int i = more && !read_expect(r, ',') ? -1 : read_named_field(r, k, next, c);
		if (i < 0)
			return false;
		next = i + 1;
	}
	const char *missing = missing_field(c, next);
	if (missing)
		read_fault(r, "a library's %s needs `%s`", library_kind_names[c->kind], missing);
	return !missing;
}

const LibraryCall *
read_library(Reader *r, const Kernel *k)
{
	LibraryCall *c = NEW(r->m->arena, LibraryCall);
	int kind = read_enum(r, library_kind_names);
	Text why = {0};

	if (kind < 0)
		return NULL;
	library_call_begin(c, (LibraryKind)kind);
	if (!read_expect(r, '{') || !read_fields(r, k, c))
		return NULL;
	bool ok = library_call_check(c, &why) && library_stays_inside(k, c, &why);
	if (!ok)
		read_fault(r, "library call: %s", why.at);
	text_free(&why);
	return ok ? c : NULL;
}

/* ---- bounds of the kernel's buffers */
bool
library_stays_inside(const Kernel *k, const LibraryCall *c, Text *why)
{
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		const LibraryOperand *o = &c->operands[i];
		if (!library_has_operand(c, i))
			continue;
		if (o->buffer >= k->n_inputs + k->n_outputs) {
			text_printf(why, "buffer %lld of %d", (long long)o->buffer,
			            k->n_inputs + k->n_outputs);
			return false;
		}
		const LoopBuffer *b = &k->buffers.at[o->buffer];
		if (b->type->dtype != (DType)o->dtype) {
			text_printf(why, "%s is %s, not %s", b->name,
			            dtype_info[b->type->dtype].name, dtype_info[o->dtype].name);
			return false;
		}
		if (library_reach(o) > type_bytes(b->type)) {
			text_printf(why, "%lld bytes of %s, which has %lld",
			            (long long)library_reach(o), b->name,
			            (long long)type_bytes(b->type));
			return false;
		}
		if (!library_writes(c, i) && b->kind == BUFFER_OUT) {
			text_printf(why, "it reads the output %s, which is not inout", b->name);
			return false;
		}
		for (int y = k->n_inputs; y < k->n_inputs + k->n_outputs; y++)
			if (k->buffers.at[y].from == 1 + o->buffer) {
				text_printf(why, "it reads %s, as which %s begins", b->name,
				            k->buffers.at[y].name);
				return false;
			}
		if (b->from && i != LIBRARY_ADDED && !library_writes(c, i)) {
			text_printf(why, "it reads %s, which it overwrites", b->name);
			return false;
		}
		if (library_writes(c, i) && b->kind == BUFFER_IN) {
			text_printf(why, "its result goes into the input %s", b->name);
			return false;
		}
	}
	if (!library_writes_apart(c)) {
		text_add(why, "it writes two operands into one buffer");
		return false;
	}
	return true;
}
