/* Emits weight gradients of convolutions whose groups have few outputs, such as depthwise
 * convolutions. A matrix product would copy a patch of x for each position of y, only to multiply
 * the copy once. Here one channel of x and one channel of dy (planes) are copied once per image,
 * to rows of equal length (the pitch). To get dw[q], the gradient for window position q, the
 * plane of dy is multiplied with a shifted plane of x, element by element:
 *
 *	dw[q] = sum_j dy[j] * x[j + shift(q)]
 *
 * Between its rows, dy is padded with 0. With a stride, x is copied to several planes, one per
 * remainder of the position modulo the stride; neighbours within a plane are one stride apart in
 * x. Each sum is made as LOOP_LANES partial sums, one per lane of a vector; these are added up at
 * the end. */
#include "codegen/kernels/conv.h"
#include "codegen/lower/lower.h"

enum { MAX_AXES = 3 }; /* most spatial axes; convolutions with more axes are products */

/* A spatial axis. Along it, window positions `first` + period * u, with u = 0, 1, ..., read the
 * plane number `first`, each with its own shift:
 *
 *	shift = first * dilation / stride + step * u */
typedef struct {
	int64_t period, step;
	int64_t shift; /* most shift of a window position */
} PlaneAxis;

/* The plan for a weight gradient. */
typedef struct {
	const PlaneTiles *tiles; /* the target's */
	ConvShape s;
	DType type;
	Tiling blocks; /* of the positions of dy */
	PlaneAxis axes[MAX_AXES];
	int n_planes;
} Planes;

/* A block of dy's positions, in rows of one pitch, and the planes of x for this block. */
typedef struct {
	int64_t size[MAX_AXES];  /* positions of dy */
	int64_t pitch[MAX_AXES]; /* elements of a plane from one position to the next */
	int64_t plane;           /* elements of a plane */
	int64_t run;             /* products for a window position, in whole vectors */
} BlockShape;

/* The arrays of the kernel, and the current part. */
typedef struct {
	Lower *lw;
	const Planes *p;
	int x, y;  /* arrays of x's planes and of dy's plane */
	int total; /* array with the sums of all window positions */
	int *sums;
	int most_sums; /* sums that fit in registers */
	Affine group, channel, image;
} Emit;

/* ---- the shape */
/* The shape of a block of dy that has `count` positions along the tiling's axis and one position
 * along the axes before it. */
static BlockShape
block_shape(const Planes *p, int64_t count)
{
	int64_t pitch = 1, last = 0;
	BlockShape b = {0};

	for (int i = p->s.y_space->rank - 1; i >= 0; i--) {
		b.size[i] = i < p->blocks.axis    ? 1
		            : i == p->blocks.axis ? count
		                                  : p->s.y_space->dims[i];
		b.pitch[i] = pitch;
		pitch *= b.size[i] + p->axes[i].shift;
		last += (b.size[i] - 1) * b.pitch[i];
	}
	b.plane = pitch;
	b.run = (last + LOOP_LANES) / LOOP_LANES * LOOP_LANES;
	return b;
}

static int64_t
y_size(const BlockShape *b)
{
	return b->size[0] * b->pitch[0];
}

/* Fills p->axes and p->n_planes. False: do not use planes, because a shift is longer than a
 * block, or there are too many planes. */
static bool
set_axes(Planes *p)
{
	const ConvShape *s = &p->s;

	p->n_planes = 1;
	for (int i = 0; i < s->window->rank; i++) {
		PlaneAxis *a = &p->axes[i];
		int64_t stride = s->a->stride.at[i], dilation = s->a->dilation.at[i];
		int64_t window = s->window->dims[i];

		a->period = conv_period(stride, dilation, window);
		a->step = a->period * dilation / stride;
		a->shift = (window - 1) * dilation / stride;
		if (a->shift > p->tiles->block || a->period > p->tiles->most_planes)
			return false;
		p->n_planes *= (int)a->period;
	}
	return p->n_planes <= p->tiles->most_planes;
}

/* Plans the gradient. False: do not use planes. With many outputs per group, a matrix product is
 * faster, because each copied patch is used many times. With very short rows, most of the work
 * would be padding. */
static bool
planes_of(const Target *target, const Node *n, Planes *p)
{
	const PlaneTiles *t = &target->tuning->planes;

	*p = (Planes){
		.tiles = t, .s = conv_shapes(n->function->module, n), .type = accumulation_type(n)};
	const ConvShape *s = &p->s;
	Ints y = ints_of_type(s->y_space);
	int64_t places = 1;

	p->blocks = tile_evenly(&y, t->block, 1);
	if (!dtype_is_float(p->type) || y.n > MAX_AXES || s->window->n == 0 ||
	    tiling_size(&p->blocks) == 0 || !set_axes(p))
		return false;
	BlockShape b = block_shape(p, p->blocks.count);
	for (int i = 0; i < y.n; i++)
		places *= b.size[i];
	int64_t x_size = b.plane * p->n_planes, sums = s->out * s->window->n * LOOP_LANES;
	return s->in * s->a->groups >= t->least_parts &&
	       s->out * b.run <= t->most_outputs * places &&
	       dtype_bytes(p->type, x_size > sums ? x_size : sums) <= t->most_bytes;
}

/* The first window position along each axis that reads plane number `plane`. */
static void
first_places(const Planes *p, int64_t plane, int64_t place[MAX_AXES])
{
	for (int i = p->s.window->rank - 1; i >= 0; i--) {
		place[i] = plane % p->axes[i].period;
		plane /= p->axes[i].period;
	}
}

/* ---- the planes */
static void
clear(const Emit *e, int array, int64_t from, int64_t n)
{
	LoopBuilder *lb = e->lw->lb;

	if (n <= 0)
		return;
	Affine j = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n));
	lb_store(lb, array, affine_plus(j, from), lb_number(lb, e->p->type, 0));
	lb_end(lb);
}

/* Opens loops over the elements of a plane with `steps` steps along its first axis. Returns the element's
 * place in the plane. */
static Affine
open_plane(const Emit *e, const BlockShape *b, int64_t steps, Index *at)
{
	LoopBuilder *lb = e->lw->lb;
	Affine place = affine_constant(0);

	at->rank = e->p->s.y_space->rank;
	for (int i = 0; i < at->rank; i++) {
		LoopMode mode = i == at->rank - 1 ? LOOP_VECTOR : LOOP_PLAIN;
		int64_t n = i ? b->size[i] + e->p->axes[i].shift : steps;

		at->at[i] = affine_scalar(lb, lb_for(lb, mode, n));
		place = affine_add_scaled(lb, place, at->at[i], b->pitch[i]);
	}
	return place;
}

static void
close_plane(const Emit *e)
{
	for (int i = 0; i < e->p->s.y_space->rank; i++)
		lb_end(e->lw->lb);
}

/* Copies x into one of its planes, for the block that begins at `first`; 0 outside of x. */
static void
fill_x(const Emit *e, const BlockShape *b, const Index *first, int64_t plane)
{
	LoopBuilder *lb = e->lw->lb;
	const ConvShape *s = &e->p->s;
	Index g, at = {.rank = s->x->rank, .at = {e->image, e->channel}};
	Affine place = open_plane(e, b, b->size[0] + e->p->axes[0].shift, &g);
	LoopValue inside = -1;
	int64_t from_place[MAX_AXES];

	first_places(e->p, plane, from_place);
	for (int i = 0; i < g.rank; i++) {
		int64_t stride = s->a->stride.at[i], size = s->x_space->dims[i];
		int64_t low = from_place[i] * s->a->dilation.at[i] % stride - s->a->low.at[i];
		int64_t last = stride * (s->y_space->dims[i] - 1 + e->p->axes[i].shift) + low;
		Affine step = affine_add(lb, first->at[i], g.at[i]);
		Affine from = affine_plus(affine_scale(lb, step, stride), low);

		at.at[i + 2] = from;
		if (low < 0 || last >= size)
			lb_and_inside(lb, from, size, &inside);
	}
	place = affine_plus(place, plane * b->plane);
	lb_store(lb, e->x, place,
	         lb_cast(lb, e->p->type, lower_element_inside(e->lw, s->p, &at, inside)));
	close_plane(e);
}

/* Copies dy's block for one output of the group; 0 after each row. */
static void
fill_y(const Emit *e, const BlockShape *b, const Index *first, Affine output)
{
	LoopBuilder *lb = e->lw->lb;
	const ConvShape *s = &e->p->s;
	Index g, at = {.rank = s->y->rank, .at = {e->image}};
	Affine place = open_plane(e, b, b->size[0], &g);
	LoopValue inside = -1;

	at.at[1] = affine_add(lb, affine_scale(lb, e->group, s->out), output);
	for (int i = 0; i < g.rank; i++) {
		at.at[i + 2] = affine_add(lb, first->at[i], g.at[i]);
		if (i > 0 && e->p->axes[i].shift > 0)
			lb_and_inside(lb, g.at[i], b->size[i], &inside);
	}
	lb_store(lb, e->y, place,
	         lb_cast(lb, e->p->type, lower_element_inside(e->lw, s->q, &at, inside)));
	close_plane(e);
}

/* ---- the sums */
static LoopValue
lane(const Emit *e, int array, Affine first, LoopValue j)
{
	LoopBuilder *lb = e->lw->lb;

	return lb_load(lb, array, affine_add(lb, first, affine_scalar(lb, j)));
}

/* Adds the products for n window positions that are neighbours along the last axis. The first of
 * them has number `tap` and reads the plane of x from element `shift` on. */
static void
multiply(const Emit *e, const BlockShape *b, Affine tap, Affine shift, int64_t n)
{
	LoopBuilder *lb = e->lw->lb;
	const PlaneAxis *a = &e->p->axes[e->p->s.y_space->rank - 1];
	Affine *total = NEW_ARRAY(lb->scratch, Affine, n);

	for (int i = 0; i < n; i++) {
		Affine own = affine_plus(tap, i * a->period);
		total[i] = affine_scale(lb, own, LOOP_LANES);
	}
	LoopValue j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	for (int i = 0; i < n; i++)
		lb_store(lb, e->sums[i], affine_scalar(lb, j), lane(e, e->total, total[i], j));
	lb_end(lb);
	LoopValue run = lb_for(lb, LOOP_PLAIN, b->run / LOOP_LANES);
	Affine at = affine_scale(lb, affine_scalar(lb, run), LOOP_LANES);
	j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	LoopValue y = lane(e, e->y, at, j);
	for (int i = 0; i < n; i++) {
		Affine moved = affine_plus(shift, i * a->step);
		LoopValue x = lane(e, e->x, affine_add(lb, at, moved), j);
		LoopValue sum = lb_load(lb, e->sums[i], affine_scalar(lb, j));

		sum = lb_op(lb, LOOP_fma, e->p->type, (LoopValue[]){y, x, sum});
		lb_store(lb, e->sums[i], affine_scalar(lb, j), sum);
	}
	lb_end(lb);
	lb_end(lb);
	j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	for (int i = 0; i < n; i++)
		lb_store(lb, e->total, affine_add(lb, total[i], affine_scalar(lb, j)),
		         lb_load(lb, e->sums[i], affine_scalar(lb, j)));
	lb_end(lb);
}

/* Multiplies for all window positions that read the plane: place[i] + period * u along each axis. */
static void
multiply_plane(const Emit *e, const BlockShape *b, Affine output, int64_t plane)
{
	LoopBuilder *lb = e->lw->lb;
	const ConvShape *s = &e->p->s;
	int last = s->window->rank - 1;
	int64_t strides[MAX_RANK], place[MAX_AXES], n[MAX_AXES];
	Affine shift = affine_constant(plane * b->plane);
	Affine tap = affine_scale(lb, output, s->window->n);

	type_strides(s->window, strides);
	first_places(e->p, plane, place);
	for (int i = 0; i <= last; i++) {
		const PlaneAxis *a = &e->p->axes[i];
		int64_t moved = place[i] * s->a->dilation.at[i] / s->a->stride.at[i];

		n[i] = (s->window->dims[i] - place[i] + a->period - 1) / a->period;
		shift = affine_plus(shift, moved * b->pitch[i]);
		tap = affine_plus(tap, place[i] * strides[i]);
		if (i == last)
			break;
		Affine u = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, n[i]));
		shift = affine_add_scaled(lb, shift, u, a->step * b->pitch[i]);
		tap = affine_add_scaled(lb, tap, u, a->period * strides[i]);
	}
	const PlaneAxis *a = &e->p->axes[last];
	int64_t groups = (n[last] + e->most_sums - 1) / e->most_sums;
	int64_t together = (n[last] + groups - 1) / groups;
	for (Pieces t = pieces(lb, n[last], together); t.size; pieces_next(&t)) {
		Affine done = affine_scale(lb, t.number, together);
		multiply(e, b, affine_add_scaled(lb, tap, done, a->period),
		         affine_add_scaled(lb, shift, done, a->step), t.size);
	}
	for (int i = 0; i < last; i++)
		lb_end(lb);
}

/* ---- the kernel */
/* dw[output, input, position] = the sum of the lanes */
static void
add_lanes(const Emit *e, Affine input)
{
	LoopBuilder *lb = e->lw->lb;
	const ConvShape *s = &e->p->s;
	int64_t n = s->window->n;
	Affine output = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, s->out));
	Affine tap = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, n));
	Affine from = affine_scale(lb, affine_add(lb, affine_scale(lb, output, n), tap),
	                           LOOP_LANES);
	Affine to = affine_add(lb, affine_scale(lb, e->group, s->out), output);
	LoopValue j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	LoopValue sum = lb_accumulator(lb, ACC_ADD, e->p->type);

	lb_accumulate(lb, sum, lane(e, e->total, from, j));
	lb_end(lb);
	to = affine_add(lb, affine_scale(lb, to, s->in), input);
	lb_store(lb, lower_buffer(e->lw, lower_stored(e->lw)),
	         affine_add(lb, affine_scale(lb, to, n), tap), result_of_sum(lb, e->lw->node, sum));
	lb_end(lb);
	lb_end(lb);
}

/* How many window positions can have their sums in registers, in addition to dy's elements. */
static int
most_sums(const Target *t, DType type)
{
	int n = (LOOP_LANES * dtype_info[type].bits / 32 + t->lanes - 1) / t->lanes;
	int fit = (t->registers - n) / n, most = t->tuning->planes.most_sums;

	return fit < 1 ? 1 : fit < most ? fit : most;
}

static bool
planes_take(const Target *t, const Node *n)
{
	Planes p;

	return planes_of(t, n, &p) && !p.s.a->channels_last;
}

static void
declare_arrays(Emit *e)
{
	LoopBuilder *lb = e->lw->lb;
	const Planes *p = e->p;
	BlockShape b = block_shape(p, p->blocks.count);

	e->x = lb_local(lb, p->type, p->n_planes * b.plane + LOOP_LANES);
	e->y = lb_local(lb, p->type, y_size(&b) > b.run ? y_size(&b) : b.run);
	e->total = lb_local(lb, p->type, p->s.out * p->s.window->n * LOOP_LANES);
	e->sums = NEW_ARRAY(lb->scratch, int, e->most_sums);
	for (int i = 0; i < e->most_sums; i++)
		e->sums[i] = lb_local(lb, p->type, LOOP_LANES);
}

/* Each channel of x is one part (one parallel iteration). */
static void
planes_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Planes p;

	planes_of(lw->target, n, &p);
	const ConvShape *s = &p.s;
	Emit e = {.lw = lw, .p = &p, .most_sums = most_sums(lw->target, p.type)};
	declare_arrays(&e);
	e.group = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, s->a->groups));
	Affine input = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, s->in));
	e.channel = affine_add(lb, affine_scale(lb, e.group, s->in), input);
	clear(&e, e.total, 0, s->out * s->window->n * LOOP_LANES);
	e.image = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, s->x->dims[0]));
	for (Blocks k = blocks(lb, &p.blocks); k.count; blocks_next(&k)) {
		BlockShape b = block_shape(&p, k.count);
		Index first;
		index_split(lb, s->y_space, k.first, &first);
		for (int64_t plane = 0; plane < p.n_planes; plane++)
			fill_x(&e, &b, &first, plane);
		/* vectors at the end read beyond x's planes and dy's rows: zeros there */
		clear(&e, e.x, p.n_planes * b.plane, LOOP_LANES);
		clear(&e, e.y, y_size(&b), b.run - y_size(&b));
		Affine output = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, s->out));
		fill_y(&e, &b, &first, output);
		for (int64_t plane = 0; plane < p.n_planes; plane++)
			multiply_plane(&e, &b, output, plane);
		lb_end(lb);
	}
	lb_end(lb);
	add_lanes(&e, input);
	lb_end(lb);
	lb_end(lb);
}

const Strategy strategy_conv_planes_grad_weight = {.op = OP_conv_grad_weight,
                                                   .kinds = ON(CPU),
                                                   .doc = "groups with few outputs: shifted planes",
                                                   .takes = planes_take,
                                                   .emit = planes_kernel,
                                                   .library = conv_library,
                                                   .reads = conv_reads};
