/* Emits convolutions as matrix products. Operand b of the product is the patches of x. A product
 * first copies b into the order in which its inner loop reads it. This copy computes the patches
 * (implicit im2col), so they never lie in memory as a whole. On GPUs, a library's convolution may
 * run instead. */
#include "codegen/kernels/conv.h"
#include "codegen/kernels/library.h"

#include <string.h>

int64_t
conv_period(int64_t stride, int64_t dilation, int64_t window)
{
	int64_t n = 1;

	while (n < window && n * dilation % stride != 0)
		n++;
	return n;
}

/* The index of an element of x or y in memory. at: batch, channel, place.. */
static Index
index_in_memory(const ConvShape *s, const Index *at)
{
	Index out = *at;

	if (!s->a->channels_last)
		return out;
	for (int i = 2; i < at->rank; i++)
		out.at[i - 1] = at->at[i];
	out.at[at->rank - 1] = at->at[1];
	out.of = NULL;
	return out;
}

/* x[batch, channel, p*stride - low + q*dilation]; 0 outside of x */
static LoopValue
patch_element(Lower *lw, const ConvShape *s, const Value *x, Affine batch, Affine channel,
              const Index *p, const Index *q)
{
	LoopBuilder *lb = lw->lb;
	Index at = {.rank = s->x->rank, .at = {batch, channel}};
	LoopValue inside = -1;

	for (int i = 0; i < p->rank; i++) {
		Affine place = affine_add_scaled(lb, affine_scale(lb, p->at[i], s->a->stride.at[i]),
		                                 q->at[i], s->a->dilation.at[i]);
		place = affine_plus(place, -s->a->low.at[i]);
		int64_t last = (s->y_space->dims[i] - 1) * s->a->stride.at[i] +
		               (s->window->dims[i] - 1) * s->a->dilation.at[i] - s->a->low.at[i];
		bool never = s->a->low.at[i] <= 0 && last < s->x_space->dims[i];
		at.at[i + 2] = place;
		if (!never)
			lb_and_inside(lb, place, s->x_space->dims[i], &inside);
	}
	at = index_in_memory(s, &at);
	return lower_element_inside(lw, x, &at, inside);
}

static Ints
with_first(int64_t first, Type rest)
{
	Ints shape = {.n = rest->rank + 1, .at = {first}};

	memcpy(shape.at + 1, rest->dims, sizeof(int64_t) * (size_t)rest->rank);
	return shape;
}

/* Splits a flat number: flat = *first * inner->n + r, and *rest is the index into `inner` of
 * element r. outer: the number of possible values of *first. */
static void
split_two(LoopBuilder *lb, Module *m, Affine flat, int64_t outer, Type inner, Affine *first,
          Index *rest)
{
	int64_t dims[MAX_RANK] = {outer};
	Index at;

	memcpy(dims + 1, inner->dims, sizeof(int64_t) * (size_t)inner->rank);
	index_split(lb, type_new(m, inner->dtype, inner->rank + 1, dims), flat, &at);
	*first = at.at[0];
	rest->rank = inner->rank;
	rest->of = NULL;
	memcpy(rest->at, at.at + 1, sizeof(Affine) * (size_t)inner->rank);
}

/* the product's batch number -> image and group: batch = image * groups + group */
static void
split_batch(LoopBuilder *lb, Module *m, const ConvShape *s, Affine batch, Affine *image,
            Affine *group)
{
	Index rest;

	split_two(lb, m, batch, s->x->dims[0], type_new(m, S64, 1, &s->a->groups), image, &rest);
	*group = rest.at[0];
}

/* The flat place in x or y of channel m of the product's group, at the flat place `at` of `space`. channels: of a
 * group */
static Affine
flat_in_memory(Lower *lw, const ConvShape *s, Type space, int64_t channels, Affine batch, Affine m,
               Affine at)
{
	LoopBuilder *lb = lw->lb;
	Affine image, group;

	if (!s->a->channels_last) {
		/* (image * groups + group) * channels + m is image * all channels + channel */
		Affine channel = affine_add(lb, affine_scale(lb, batch, channels), m);
		return affine_add(lb, affine_scale(lb, channel, space->n), at);
	}
	split_batch(lb, lw->m, s, batch, &image, &group);
	Affine place = affine_add(lb, affine_scale(lb, image, space->n), at);
	Affine channel = affine_add(lb, affine_scale(lb, group, channels), m);
	return affine_add(lb, affine_scale(lb, place, channels * s->a->groups), channel);
}

/* conv: rows = outputs of the group, columns = positions of y, k = (input channel, window position) */
static LoopValue
conv_a(Lower *lw, const Product *product, Affine batch, Affine m, Affine k)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	Affine image, group;
	Index at = {.rank = s.w->rank}, q;

	split_batch(lb, lw->m, &s, batch, &image, &group);
	at.at[0] = affine_add(lb, affine_scale(lb, group, s.out), m);
	split_two(lb, lw->m, k, s.in, s.window, &at.at[1], &q);
	memcpy(at.at + 2, q.at, sizeof(Affine) * (size_t)q.rank);
	return lower_element(lw, s.q, &at);
}
static LoopValue
conv_b(Lower *lw, const Product *product, Affine batch, Affine k, Affine col)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	Affine image, group, in;
	Index p, q;

	split_batch(lb, lw->m, &s, batch, &image, &group);
	split_two(lb, lw->m, k, s.in, s.window, &in, &q);
	index_split(lb, s.y_space, col, &p);
	Affine channel = affine_add(lb, affine_scale(lb, group, s.in), in);
	return patch_element(lw, &s, s.p, image, channel, &p, &q);
}
static Affine
conv_c(Lower *lw, const Product *product, Affine batch, Affine m, Affine col)
{
	ConvShape s = conv_shapes(lw->m, product->node);

	return flat_in_memory(lw, &s, s.y_space, s.out, batch, m, col);
}
static int
conv_products(Lower *lw, const Node *n, Product *out)
{
	ConvShape s = conv_shapes(lw->m, n);

	*out = (Product){.node = n,
	                 .type = accumulation_type(n),
	                 .batch = s.x->dims[0] * s.a->groups,
	                 .m = s.out,
	                 .n = ints_of_type(s.y_space),
	                 .k = with_first(s.in, s.window),
	                 .a_along_k = true,
	                 .a = conv_a,
	                 .b = conv_b,
	                 .c = conv_c};
	return 1;
}

/* conv_grad_input: rows = inputs of the group, columns = positions of x, k = (output channel,
 * window position).
 *
 * With a stride there is one product per remainder of the position of x modulo the stride,
 * because each remainder needs different window positions. For p = 0, 1, ... and q = 0, 1, ...,
 * the product of one remainder uses along each axis:
 *
 *	position of x         place + stride * p
 *	position in window    tap + period * q
 *	position of dy        p + base - step * q
 *
 * An axis with too many remainders is not split. Its code computes the position of dy by a
 * division instead, and skips positions where the division leaves a remainder. */
typedef struct {
	int64_t place, stride, places;
	int64_t tap, period, taps;
	int64_t base, step;
	int64_t divisor; /* 1: the axis is split by remainders */
} InputAxis;
typedef struct {
	InputAxis axes[MAX_RANK];
	Type places, taps; /* shapes over all axes */
} InputPart;

static InputAxis
dividing_axis(const ConvShape *s, int i)
{
	return (InputAxis){.stride = 1,
	                   .places = s->x_space->dims[i],
	                   .period = 1,
	                   .taps = s->window->dims[i],
	                   .base = s->a->low.at[i],
	                   .step = s->a->dilation.at[i],
	                   .divisor = s->a->stride.at[i]};
}

/* Describes axis i for the matrix product that computes the positions rest, rest + stride, ... of
 * x along this axis. */
static InputAxis
axis_of_rest(const ConvShape *s, int i, int64_t rest)
{
	int64_t stride = s->a->stride.at[i], dilation = s->a->dilation.at[i];
	int64_t low = s->a->low.at[i], window = s->window->dims[i], tap = 0;
	int64_t period = conv_period(stride, dilation, window);

	while (tap < window && (rest + low - tap * dilation) % stride != 0)
		tap++;
	return (InputAxis){.place = rest,
	                   .stride = stride,
	                   .places = (s->x_space->dims[i] - rest + stride - 1) / stride,
	                   .tap = tap,
	                   .period = period,
	                   .taps = (window - tap + period - 1) / period,
	                   .base = tap < window ? (rest + low - tap * dilation) / stride : 0,
	                   .step = period * dilation / stride,
	                   .divisor = 1};
}

/* Lists the products, one per combination of remainders of all axes, and returns how many. If the
 * stride is longer than x, there are only as many remainders as positions of x. */
static int
input_parts(Module *m, const ConvShape *s, InputPart parts[MAX_PRODUCTS])
{
	int rank = s->x_space->rank, n = 1;
	int64_t places[MAX_RANK], taps[MAX_RANK];

	parts[0] = (InputPart){0};
	for (int i = rank - 1; i >= 0; i--) {
		int64_t stride = s->a->stride.at[i], size = s->x_space->dims[i];
		int64_t rests = stride < size ? stride : size > 0 ? size : 1;
		bool split = n * rests <= MAX_PRODUCTS;
		int before = n;

		n = split ? (int)rests * n : n;
		for (int k = n - 1; k >= 0; k--) {
			parts[k] = parts[k % before];
			parts[k].axes[i] = split ? axis_of_rest(s, i, k / before)
			                         : dividing_axis(s, i);
		}
	}
	for (int k = 0; k < n; k++) {
		for (int i = 0; i < rank; i++) {
			places[i] = parts[k].axes[i].places;
			taps[i] = parts[k].axes[i].taps;
		}
		parts[k].places = type_new(m, S64, rank, places);
		parts[k].taps = type_new(m, S64, rank, taps);
	}
	return n;
}

static LoopValue
conv_grad_input_a(Lower *lw, const Product *product, Affine batch, Affine m, Affine k)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	const InputPart *part = product->part;
	Affine image, group, out;
	Index at = {.rank = s.w->rank}, q;

	split_batch(lb, lw->m, &s, batch, &image, &group);
	split_two(lb, lw->m, k, s.out, part->taps, &out, &q);
	at.at[0] = affine_add(lb, affine_scale(lb, group, s.out), out);
	at.at[1] = m;
	for (int i = 0; i < q.rank; i++)
		at.at[i + 2] = affine_plus(affine_scale(lb, q.at[i], part->axes[i].period),
		                           part->axes[i].tap);
	return lower_element(lw, s.q, &at);
}

/* Returns place / divisor. Adds to *inside the condition that there is no remainder. */
static Affine
divided(LoopBuilder *lb, Affine place, int64_t divisor, LoopValue *inside)
{
	LoopValue v = lb_affine(lb, place), by = lb_int(lb, S64, divisor);
	LoopValue whole = lb_binary(lb, LOOP_div, v, by);
	LoopValue exact = lb_compare(lb, LOOP_eq, lb_binary(lb, LOOP_mul, whole, by), v);

	*inside = *inside < 0 ? exact : lb_binary(lb, LOOP_and, *inside, exact);
	return affine_scalar(lb, whole);
}

static LoopValue
conv_grad_input_b(Lower *lw, const Product *product, Affine batch, Affine k, Affine col)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	const InputPart *part = product->part;
	Affine image, group, out;
	Index p, q, at = {.rank = s.y->rank};
	LoopValue inside = -1;

	split_batch(lb, lw->m, &s, batch, &image, &group);
	split_two(lb, lw->m, k, s.out, part->taps, &out, &q);
	index_split(lb, part->places, col, &p);
	at.at[0] = image;
	at.at[1] = affine_add(lb, affine_scale(lb, group, s.out), out);
	for (int i = 0; i < p.rank; i++) {
		const InputAxis *a = &part->axes[i];
		Affine place = affine_add_scaled(lb, p.at[i], q.at[i], -a->step);

		place = affine_plus(place, a->base);
		if (a->divisor > 1)
			place = divided(lb, place, a->divisor, &inside);
		at.at[i + 2] = place;
		lb_and_inside(lb, place, s.y_space->dims[i], &inside);
	}
	at = index_in_memory(&s, &at);
	return lower_element_inside(lw, s.p, &at, inside);
}

static Affine
conv_grad_input_c(Lower *lw, const Product *product, Affine batch, Affine m, Affine col)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	const InputPart *part = product->part;
	Index p;

	if (part->places->n == s.x_space->n)
		return flat_in_memory(lw, &s, s.x_space, s.in, batch, m, col);
	index_split(lb, part->places, col, &p);
	for (int i = 0; i < p.rank; i++)
		p.at[i] = affine_plus(affine_scale(lb, p.at[i], part->axes[i].stride),
		                      part->axes[i].place);
	p.of = NULL;
	return flat_in_memory(lw, &s, s.x_space, s.in, batch, m, index_flat(lb, s.x_space, &p));
}

static int
conv_grad_input_products(Lower *lw, const Node *n, Product *out)
{
	ConvShape s = conv_shapes(lw->m, n);
	InputPart *parts = NEW_ARRAY(lw->lb->scratch, InputPart, MAX_PRODUCTS);
	int count = input_parts(lw->m, &s, parts);

	for (int i = 0; i < count; i++)
		out[i] = (Product){.node = n,
		                   .part = &parts[i],
		                   .type = accumulation_type(n),
		                   .batch = s.x->dims[0] * s.a->groups,
		                   .m = s.in,
		                   .n = ints_of_type(parts[i].places),
		                   .k = with_first(s.out, parts[i].taps),
		                   .a = conv_grad_input_a,
		                   .b = conv_grad_input_b,
		                   .c = conv_grad_input_c};
	return count;
}

/* conv_grad_weight: batch = group, rows = outputs, columns = (input channel, window position), k = (image,
 * position of y) */
static LoopValue
conv_grad_weight_a(Lower *lw, const Product *product, Affine batch, Affine m, Affine k)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	Index at = {.rank = s.y->rank}, p;

	split_two(lb, lw->m, k, s.x->dims[0], s.y_space, &at.at[0], &p);
	at.at[1] = affine_add(lb, affine_scale(lb, batch, s.out), m);
	memcpy(at.at + 2, p.at, sizeof(Affine) * (size_t)p.rank);
	at = index_in_memory(&s, &at);
	return lower_element(lw, s.q, &at);
}
static LoopValue
conv_grad_weight_b(Lower *lw, const Product *product, Affine batch, Affine k, Affine col)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	Affine image, in;
	Index p, q;

	split_two(lb, lw->m, k, s.x->dims[0], s.y_space, &image, &p);
	split_two(lb, lw->m, col, s.in, s.window, &in, &q);
	Affine channel = affine_add(lb, affine_scale(lb, batch, s.in), in);
	return patch_element(lw, &s, s.p, image, channel, &p, &q);
}
static Affine
conv_grad_weight_c(Lower *lw, const Product *product, Affine batch, Affine m, Affine col)
{
	LoopBuilder *lb = lw->lb;
	ConvShape s = conv_shapes(lw->m, product->node);
	Affine output = affine_add(lb, affine_scale(lb, batch, s.out), m);

	return affine_add(lb, affine_scale(lb, output, s.in * s.window->n), col);
}
static int
conv_grad_weight_products(Lower *lw, const Node *n, Product *out)
{
	ConvShape s = conv_shapes(lw->m, n);

	*out = (Product){.node = n,
	                 .type = accumulation_type(n),
	                 .batch = s.a->groups,
	                 .m = s.out,
	                 .n = with_first(s.in, s.window),
	                 .k = with_first(s.x->dims[0], s.y_space),
	                 .a_along_k = !s.a->channels_last,
	                 .a = conv_grad_weight_a,
	                 .b = conv_grad_weight_b,
	                 .c = conv_grad_weight_c};
	return 1;
}

/* ---- as a library's convolution */
/* t: the type as the library has it, with the channels as axis 1 */
static void
set_dims(LibraryOperand *o, Type t, bool channels_last)
{
	memcpy(o->dims, t->dims, sizeof(*o->dims) * (size_t)t->rank);
	if (channels_last)
		library_channels_last(o);
	else
		library_dense(o);
}

/* Describes v if it is a whole buffer, or a dense part of one. t: as in set_dims */
static bool
dense_operand(Lower *lw, const Value *v, Type t, bool channels_last, LibraryOperand *out)
{
	int64_t strides[MAX_RANK];
	Strided s;

	if (!lower_strided(lw, v, &s))
		return false;
	type_strides(v->type, strides);
	for (int i = 0; i < v->type->rank; i++)
		if (v->type->dims[i] > 1 && s.strides[i] != strides[i])
			return false;
	*out = library_operand(v->type->dtype, v->type->rank, s.buffer, s.offset);
	set_dims(out, t, channels_last);
	return true;
}

/* Which of x, w and y the operands and the result are, by op. */
static Type
type_in_library(const ConvShape *s, ConvTensor t)
{
	return t == CONV_X ? s->x : t == CONV_W ? s->w : s->y;
}

bool
conv_library(Lower *lw, const Node *n, LibraryCall *out)
{
	const LibraryLimits *l = &lw->target->tuning->library;
	ConvShape s = conv_shapes(lw->m, n);
	LibraryOperand *o = out->operands;
	const Value *operands[] = {s.p, s.q};

	library_call_begin(out, (LibraryKind)library_kind_find(op_row(n)->name));
	const ConvTensor *tensors = library_conv_operands[out->kind];
	if (!library_takes_dtypes(l, n) || s.y_space->rank > MAX_LIBRARY_SPATIAL ||
	    conv_cost_of(s.w, s.y) < l->least_flops || !library_put_added(lw, n, out))
		return false;
	for (int i = 0; i < COUNT(operands); i++)
		if (!dense_operand(lw, operands[i], type_in_library(&s, tensors[i]),
		                   s.a->channels_last && tensors[i] != CONV_W, &o[i]))
			return false;
	o[LIBRARY_RESULT] = library_result(lw, s.x->rank);
	set_dims(&o[LIBRARY_RESULT], type_in_library(&s, tensors[LIBRARY_RESULT]),
	         s.a->channels_last && tensors[LIBRARY_RESULT] != CONV_W);
	out->groups = s.a->groups;
	for (int i = 0; i < s.y_space->rank; i++) {
		if (s.a->low.at[i] < 0 || s.a->high.at[i] < 0)
			return false;
		out->stride[i] = s.a->stride.at[i];
		out->dilation[i] = s.a->dilation.at[i];
		out->low[i] = s.a->low.at[i];
	}
	return true;
}

/* Each element is read once for every window position that covers it, in vectors along the last axis. */
Reading
conv_reads(const Target *t, const Node *n, int i, Ints *axes)
{
	*axes = (Ints){.n = node_operand(n, i)->type->rank};
	for (int k = 0; k < axes->n; k++)
		axes->at[k] = k;
	return op_row(n)->flops(n) >= t->tuning->library.least_flops ? READ_DENSE : READ_ONCE;
}

/* False if a library may run the convolution, because cuDNN adds a bias in few layouts only. The
 * kernels that read the convolution's result then add the bias. */
static bool
conv_takes_bias(const Target *t, const Node *n)
{
	const LibraryLimits *l = &t->tuning->library;

	return op_row(n)->flops(n) < l->least_flops || !library_takes_dtypes(l, n);
}

const Strategy strategy_conv = {.op = OP_conv,
                                .kinds = ON(CPU),
                                .doc = "a blocked product over implicit patches (im2col)",
                                BY_PRODUCTS,
                                .products = conv_products,
                                .library = conv_library,
                                .reads = conv_reads};

const Strategy strategy_conv_grad_input = {
	.op = OP_conv_grad_input,
	.kinds = ON(CPU),
	.doc = "a blocked product per remainder of the place modulo the stride",
	BY_PRODUCTS,
	.products = conv_grad_input_products,
	.library = conv_library,
	.reads = conv_reads};

const Strategy strategy_conv_grad_weight = {.op = OP_conv_grad_weight,
                                            .kinds = ON(CPU),
                                            .doc = "a blocked product over implicit patches",
                                            BY_PRODUCTS,
                                            .products = conv_grad_weight_products,
                                            .library = conv_library,
                                            .reads = conv_reads};

const Strategy strategy_conv_team = {.op = OP_conv,
                                     .kinds = ON(TEAMS),
                                     .doc = "each team computes a block, or each member a column",
                                     BY_TEAM_PRODUCTS,
                                     .products = conv_products,
                                     .library = conv_library,
                                     .takes_bias = conv_takes_bias,
                                     .reads = conv_reads};

const Strategy strategy_conv_grad_input_team = {
	.op = OP_conv_grad_input,
	.kinds = ON(TEAMS),
	.doc = "each team computes a block, or each member a column",
	BY_TEAM_PRODUCTS,
	.products = conv_grad_input_products,
	.library = conv_library,
	.reads = conv_reads};

const Strategy strategy_conv_grad_weight_team = {
	.op = OP_conv_grad_weight,
	.kinds = ON(TEAMS),
	.doc = "each team computes a block, or each member a column",
	BY_TEAM_PRODUCTS,
	.products = conv_grad_weight_products,
	.library = conv_library,
	.reads = conv_reads};
