/* What an instruction of a schedule asks of a machine, from the executable's tables: the same numbers for every machine.
 * predict.c turns them into seconds. */
#include "cost/cost.h"

#include <string.h>

const char *const work_class_names[] = {"nothing",     "loops",       "attention", "product",
                                        "convolution", "device copy", "fill",      "host copy",
                                        "collective",  NULL};
const char *const math_names[] = {"f32", "f64", "tf32", "16", "8", NULL};

/* The type in which operands of a product are multiplied; types not listed are computed as f32. */
static const Math product_math[N_DTYPES] = {
	[F64] = MATH_F64,           [F16] = MATH_16_BITS,   [BF16] = MATH_16_BITS,
	[F8E4M3] = MATH_8_BITS,     [F8E5M2] = MATH_8_BITS, [F8E4M3FNUZ] = MATH_8_BITS,
	[F8E5M2FNUZ] = MATH_8_BITS, [S8] = MATH_8_BITS,     [U8] = MATH_8_BITS,
};

RunFacts
predict_facts(const Outlook *o)
{
	RunFacts facts = {.ranks = o->ranks, .mode = o->mode, .shard_at = o->shard_at};

	facts.holds = ONLY_APART | (o->ranks > 1 || o->mode ? run_holds(&facts, false, false) : 0);
	return facts;
}

/* ---- loops */
/* The type in which a kernel of loops computes: MATH_F64 if its largest float argument is f64,
 * otherwise MATH_F32. */
static Math
loop_math(const Format *f, const KernelRecord *k)
{
	int64_t most = -1;
	uint32_t dtype = F32;

	for (uint32_t i = 0; i < k->n_arguments; i++) {
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
		if (!dtype_is_float((DType)a->dtype) || a->bytes <= most)
			continue;
		most = a->bytes;
		dtype = a->dtype;
	}
	return dtype == F64 ? MATH_F64 : MATH_F32;
}

/* The type of the operands that matrix units multiply: that of the smallest float argument. */
static Math
tile_math(const Format *f, const KernelRecord *k)
{
	DType smallest = F64;

	for (uint32_t i = 0; i < k->n_arguments; i++) {
		DType of = (DType)f->kernel_arguments[k->first_argument + i].dtype;
		if (dtype_is_float(of) && dtype_info[of].bits < dtype_info[smallest].bits)
			smallest = of;
	}
	return smallest == F32 && format_info_is(f, "allow_tf32", "1") ? MATH_TF32
	                                                               : product_math[smallest];
}

static void
work_of_loops(Work *w, const Format *f, const KernelRecord *k, double share)
{
	w->class = k->chained ? WORK_ATTENTION : WORK_LOOPS;
	w->math = k->matrix_flops ? tile_math(f, k) : loop_math(f, k);
	w->flops = share * (double)k->flops;
	w->bytes = share * (double)k->bytes;
	w->instructions = share * (double)k->instructions;
	w->matrix_flops = share * (double)k->matrix_flops;
	w->steps = k->steps;
	w->block_threads = kernel_block_threads(k);
	w->blocks = ceil_div(w->parts, kernel_block_parts(k));
	w->shared_bytes = k->shared_bytes;
}

/* ---- library calls */
/* The largest power of two, up to 16 bytes, that divides the operand's start, the distances between its rows, and the length of
 * a contiguous axis. */
static int64_t
operand_alignment(const LibraryOperand *o, int64_t so_far)
{
	int64_t places = o->offset;

	for (uint32_t i = 0; i < o->rank; i++)
		if (o->dims[i] > 1)
			places |= o->strides[i] == 1 ? o->dims[i] : o->strides[i];
	while (dtype_bytes((DType)o->dtype, places) % so_far)
		so_far /= 2;
	return so_far;
}

/* Libraries take one batch axis: the longest. Other batch axes are launches of their own (runtime/library/cublaslt_plan.c). */
static void
product_batch(ProductSizes *p, const LibraryOperand *z)
{
	p->batch = p->runs = 1;
	for (uint32_t i = 0; i + 2 < z->rank; i++) {
		p->runs *= z->dims[i] > p->batch ? p->batch : z->dims[i];
		p->batch = z->dims[i] > p->batch ? z->dims[i] : p->batch;
	}
}

static void
work_of_product(Work *w, const LibraryCall *c)
{
	enum { WIDEST = 16 }; /* bytes that a thread loads at a time */
	const LibraryOperand *x = &c->operands[LIBRARY_FIRST], *z = &c->operands[LIBRARY_RESULT];
	ProductSizes *p = &w->product;

	w->class = WORK_PRODUCT;
	p->m = z->dims[z->rank - 2];
	p->n = z->dims[z->rank - 1];
	p->k = x->dims[x->rank - 1];
	p->transposed = x->strides[x->rank - 1] != 1 && p->k > 1;
	product_batch(p, z);
	p->alignment = WIDEST;
	for (int i = 0; i <= LIBRARY_RESULT; i++)
		p->alignment = operand_alignment(&c->operands[i], p->alignment);
}

/* Bytes of the images that a convolution for matrix units moves to scratch memory, so that channels are next to each other,
 * or back: each image is read and written once more. */
static double
moved_bytes(const LibraryCall *c, Math math)
{
	double bytes = 0;

	for (int i = 0; i <= LIBRARY_RESULT; i++) {
		const LibraryOperand *o = &c->operands[i];
		if (library_conv_operands[c->kind][i] != CONV_W && !library_is_channels_last(o))
			bytes += 2 * library_operand_bytes(o);
	}
	return math == MATH_F32 || math == MATH_F64 ? 0 : bytes;
}

/* The sizes come from the library call, because the kernel's record describes the loops that the call replaces. */
static void
work_of_library(Work *w, const Format *f, const LibraryCall *c)
{
	w->math = product_math[c->operands[LIBRARY_FIRST].dtype];
	if (w->math == MATH_F32 && format_info_is(f, "allow_tf32", "1"))
		w->math = MATH_TF32;
	w->flops = library_flops(c);
	w->bytes = library_bytes(c);
	if (c->kind == LIBRARY_DOT) {
		work_of_product(w, c);
		return;
	}
	w->class = WORK_CONVOLUTION;
	w->bytes += moved_bytes(c, w->math);
}

/* ---- kernels */
/* Bytes of an argument on the first rank, which has the largest part. */
static int64_t
argument_bytes(const Format *f, const Instruction *in, uint32_t i, const Outlook *o)
{
	RunFacts facts = predict_facts(o);
	SlotPlace at;

	format_place(&f->slots[f->arguments[in->args + i].slot], &facts, 0, &at);
	return at.bytes;
}

/* Iterations of a launch that works on a part of its arguments; all iterations if no argument is a part. */
static int64_t
part_iterations(const Format *f, const Instruction *in, const KernelRecord *k, const Outlook *o)
{
	for (uint32_t i = 0; i < in->n_args; i++) {
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
		if (f->slots[f->arguments[in->args + i].slot].share == SLOT_PART && a->each)
			return argument_bytes(f, in, i, o) / a->each;
	}
	return k->iterations;
}

/* k may be a serving kernel: it prepares data for another kernel. Does a library call replace that
 * other kernel? The call does the work of k, too, so k is not launched. */
static bool
serves_library(const Format *f, const KernelRecord *k)
{
	const KernelRecord *served = k->serves ? &f->kernels[k->serves - 1] : NULL;

	return served && (served->library || serves_library(f, served));
}

static void
work_of_kernel(Work *w, const Format *f, const Instruction *in, const Outlook *o)
{
	const KernelRecord *k = &f->kernels[in->what];

	w->parts = k->iterations;
	if (k->elements)
		format_launch_end(f, k, argument_bytes(f, in, in->n_args - 1u, o), &w->parts);
	else
		w->parts = part_iterations(f, in, k, o);
	if (w->parts == 0 || serves_library(f, k))
		return;
	if (k->library)
		work_of_library(w, f, &f->library[k->library - 1].call);
	else
		work_of_loops(w, f, k, (double)w->parts / (double)k->iterations);
}

/* ---- copies, fills, collectives */
static bool
is_on_host(const Format *f, const Instruction *in, uint32_t i)
{
	return space_table[f->slots[f->arguments[in->args + i].slot].space].on_host;
}

static void
work_of_fill(Work *w, const Format *f, const Instruction *in, const Outlook *o)
{
	w->class = WORK_FILL;
	w->bytes = (double)argument_bytes(f, in, 0, o);
}

/* A copy within the device reads and writes every byte. */
static void
work_of_copy(Work *w, const Format *f, const Instruction *in, const Outlook *o)
{
	bool host = is_on_host(f, in, 0) || is_on_host(f, in, 1);

	w->class = host ? WORK_HOST_COPY : WORK_COPY;
	w->bytes = (host ? 1 : 2) * (double)argument_bytes(f, in, 0, o);
}

static void
work_of_collective(Work *w, const Format *f, const Instruction *in, const Outlook *o)
{
	const CollectiveRecord *c = &f->collectives[in->what];

	(void)o;
	w->class = WORK_COLLECTIVE;
	w->bytes = (double)dtype_bytes((DType)c->dtype, c->n);
}

static void (*const work_of_kind[N_INSTRUCTIONS])(Work *, const Format *, const Instruction *,
                                                  const Outlook *) = {
	[RUN_KERNEL] = work_of_kernel,
	[COPY] = work_of_copy,
	[FILL_ZERO] = work_of_fill,
	[COLLECTIVE] = work_of_collective,
};

Work
work_of_instruction(const Format *f, const Instruction *in, const Outlook *o)
{
	Work w = {.parts = 1, .blocks = 1, .block_threads = 1};

	if (work_of_kind[in->kind])
		work_of_kind[in->kind](&w, f, in, o);
	return w;
}

/* ---- fields, for printers and readers */
#define WHOLE(name)                               \
	{                                         \
#name, offsetof(Work, name), true \
	}
#define SIZE(name)                                        \
	{                                                 \
#name, offsetof(Work, product.name), true \
	}
const WorkField work_fields[] = {
	{"bytes", offsetof(Work, bytes), false},
	{"flops", offsetof(Work, flops), false},
	{"instructions", offsetof(Work, instructions), false},
	{"matrix_flops", offsetof(Work, matrix_flops), false},
	WHOLE(steps),
	WHOLE(parts),
	WHOLE(blocks),
	WHOLE(block_threads),
	WHOLE(shared_bytes),
	SIZE(m),
	SIZE(n),
	SIZE(k),
	SIZE(batch),
	SIZE(runs),
	SIZE(alignment),
	SIZE(transposed),
	{0},
};
