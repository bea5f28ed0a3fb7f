/* Prints the arrays of a kernel as CUDA C, the places of their elements, and copies to arrays.
 * Arrays of a team lie in shared memory; arrays of a member are registers. */
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/print.h"

/* Does each outer member (group of threads of a divided team) have its own copy of the array?
 * Yes, if the array is declared inside the outer team loop. */
static bool
is_of_member(const CPrinter *p, int buffer)
{
	return p->k->buffers.at[buffer].kind == BUFFER_LOCAL && p->declared[buffer] == 1;
}

const char *
cuda_array(CPrinter *p, int buffer)
{
	const char *name = c_name(p, buffer);

	if (p->pack)
		return p->pack;
	return is_of_member(p, buffer) ? arena_printf(p->arena, "%s[v%d]", name, p->open[0]->result)
	                               : name;
}

static int64_t
columns_of(Type t)
{
	return t->rank ? t->dims[t->rank - 1] : 1;
}

/* Are the units of 16 bytes within each row permuted, so that accesses hit different banks? This
 * is possible only if the size of a row in bytes is a power of two. */
static bool
is_swizzled(const LoopBuffer *b)
{
	int64_t bytes = dtype_bytes(b->type->dtype, columns_of(b->type));

	return b->swizzle && !b->pad && dtype_info[b->type->dtype].bits >= 8 && bytes >= 32 &&
	       (bytes & (bytes - 1)) == 0;
}

const char *
cuda_place(CPrinter *p, int buffer, const char *place)
{
	const LoopBuffer *b = &p->k->buffers.at[buffer];
	long long columns = columns_of(b->type);

	if (p->pack)
		return arena_printf(p->arena, "v%d", p->vector->result);
	if (b->kind == BUFFER_TILE)
		return cuda_tile_element(p, buffer);
	if (b->kind == BUFFER_LOCAL && b->pad)
		return arena_printf(p->arena, "gradc_pad<%lld, %lld>(%s)", columns,
		                    (long long)b->pad, place);
	if (b->kind == BUFFER_LOCAL && is_swizzled(b))
		return arena_printf(p->arena, "gradc_swizzle<%lld, %d>(%s)", columns,
		                    dtype_info[b->type->dtype].bits / 8, place);
	return place;
}

/* ---- shared memory: a launch requests one range of bytes; the arrays lie in it one after the
 * other */
int64_t
cuda_dynamic_bytes(const Kernel *k)
{
	return k->n_team ? launch_shared_bytes(kernel_shared_bytes(k)) : 0;
}

static void
declare_shared(CPrinter *p, DType type, const char *type_name, const char *name, int64_t members,
               int64_t n)
{
	const char *each = members ? arena_printf(p->arena, "[%lld]", (long long)n) : "";

	c_indent(p);
	if (!cuda_dynamic_bytes(p->k)) {
		text_printf(p->out, "__shared__ __align__(%d) %s %s[%lld]%s;\n", SHARED_ALIGNMENT,
		            type_name, name, (long long)(members ? members : n), each);
		return;
	}
	if (members)
		text_printf(p->out, "%s (*%s)%s = (%s (*)%s)(gradc_shared + %lld);\n", type_name,
		            name, each, type_name, each, (long long)p->shared);
	else
		text_printf(p->out, "%s *%s = (%s *)(gradc_shared + %lld);\n", type_name, name,
		            type_name, (long long)p->shared);
	int64_t bytes = dtype_info[type].bits < 8
	                        ? n
	                        : dtype_bytes(type, n); /* for packed types n counts bytes */
	p->shared += (bytes * (members ? members : 1) + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT *
	             SHARED_ALIGNMENT;
}

void
cuda_declare_shared(CPrinter *p)
{
	p->shared = 0;
	for (DType t = 0; t < N_DTYPES; t++) {
		int64_t partials = kernel_partials(p->k, t), staged = kernel_staged(p->k, t);
		const char *name = dtype_info[t].name;
		if (partials)
			declare_shared(p, t, c_compute_names[t],
			               arena_printf(p->arena, "partials_%s", name), 0, partials);
		if (staged)
			declare_shared(p, t, c_compute_names[t],
			               arena_printf(p->arena, "staged_%s", name), 0, staged);
	}
}

void
cuda_print_local(CPrinter *p, const LoopStatement *s, int at)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	int64_t columns = columns_of(b->type), rows = columns ? b->type->n / columns : 0;
	int64_t n = rows > 0 ? rows * (columns + b->pad) : 1;
	DType d = b->type->dtype;

	(void)at;
	p->declared[s->buffer] = p->n_open;
	if (b->kind == BUFFER_TILE) {
		cuda_print_tile(p, s->buffer);
		return;
	}
	if (b->kind == BUFFER_LOCAL && p->k->n_team) {
		declare_shared(p, d, c_storage_names[d], c_name(p, s->buffer),
		               p->n_open ? p->k->team[0] : 0,
		               dtype_info[d].bits < 8 ? dtype_bytes(d, n) : n);
		return;
	}
	c_indent(p);
	text_printf(p->out, "%s %s[%lld];\n", c_storage_names[d], c_name(p, s->buffer),
	            (long long)n);
}

/* ---- copies */
/* How many elements one copy instruction can move; 0: none can. An instruction moves 16, 8 or 4
 * bytes, and must begin at a multiple of that size in source and destination. */
static int
copied_at_once(const CPrinter *p, const LoopStatement *s)
{
	const LoopBuffer *to = &p->k->buffers.at[s->buffer];
	int size = (int)dtype_bytes(to->type->dtype, 1), n = 16 / size;
	int64_t row = columns_of(to->type) + to->pad;

	while (n > 1 && (s->extent % n || !affine_is_multiple(s->place, -1, n) || row % n ||
	                 columns_of(to->type) % n || !affine_is_multiple(s->windows->place, -1, n)))
		n /= 2;
	return n * size >= 4 ? n : 0;
}

void
cuda_print_copy(CPrinter *p, const LoopStatement *s, int at)
{
	DType d = p->k->buffers.at[s->buffer].type->dtype;
	int n = copied_at_once(p, s), step = n ? n : 1;
	const char *mask = s->n_operands ? arena_printf(p->arena, "v%d", s->operands[0]) : "true";

	(void)at;
	for (int64_t i = 0; i < s->extent; i += step) {
		const char *more = i ? arena_printf(p->arena, " + %lld", (long long)i) : "";
		const char *to = c_place(
			p, s->buffer, arena_printf(p->arena, "%s%s", c_affine(p, s->place), more));
		const char *from = arena_printf(p->arena, "%s%s", c_affine(p, s->windows->place),
		                                more);
		c_indent(p);
		if (n)
			text_printf(p->out, "gradc_copy<%d>(&%s[%s], &%s[%s], %s);\n",
			            n * (int)dtype_bytes(d, 1), cuda_array(p, s->buffer), to,
			            c_name(p, s->windows->buffer), from, mask);
		else
			text_printf(p->out, "%s[%s] = !%s ? 0 : %s[%s];\n",
			            cuda_array(p, s->buffer), to, mask,
			            c_name(p, s->windows->buffer), from);
	}
}

void
cuda_print_commit(CPrinter *p, const LoopStatement *s, int at)
{
	(void)s, (void)at;
	c_indent(p);
	text_add(p->out, "gradc_copy_commit();\n");
}

void
cuda_print_wait(CPrinter *p, const LoopStatement *s, int at)
{
	(void)at;
	c_indent(p);
	text_printf(p->out, "gradc_copy_wait<%lld>();\n", (long long)s->i);
}
