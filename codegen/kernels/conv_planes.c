/* The gradient of a convolution's weights where groups have few outputs, as depthwise ones have: a matrix product would
 * copy a patch of x for each place of y, and multiply it once. Here an image's plane of x, and of dy, is copied once,
 * to rows of one pitch. Then what a place of the window multiplies are two runs of memory, one of them shifted:
 *
 *	dw[q] = sum_j dy[j] * x[j + shift(q)]
 *
 * Behind its rows dy is 0. With a stride x is dealt out to several planes, by what is left of a place divided by the
 * stride: within one, neighbours are a stride apart. A sum has a lane for every 16th product, which are added last. */
#include "codegen/kernels/conv.h"
#include "codegen/kernels/tiles.h"

/* Elements of dy in a block: the first cache holds them and x's. Sums of so many places of the window are in
 * registers at most. A local array has so many bytes at most. */
enum { BLOCK = 2048, MAX_AXES = 3, MAX_PLANES = 16, MAX_SUMS = 8, MAX_BYTES = 1 << 18 };
/* Outputs of a group, at most, times what is computed for an element of dy: between rows, too. Parallel parts, at
 * least. */
enum { MOST_PRODUCTS = 10, ENOUGH_PARTS = 16 };

/* A spatial axis. Place k = first + period * u of the window reads the plane of `first`, moved by first * dilation /
 * stride + step * u. */
typedef struct {
	int64_t period, step;
	int64_t shift; /* the most that a place moves */
	int64_t block; /* of dy's places, in the block at hand */
	int64_t pitch; /* elements of a plane from one step to the next */
} PlaneAxis;

typedef struct {
	Lower *lw;
	ConvShape s;
	DType type;
	Tiling blocks; /* of dy's places */
	PlaneAxis axes[MAX_RANK];
	int n_planes;
	int x, y;  /* local: the planes, and dy's */
	int total; /* local: the sums of all places of the window */
	int sums[MAX_SUMS];
	int most_sums; /* that fit in registers */
	/* of the part, and of the image and output at hand */
	Affine group, x_channel, image, output;
	/* of the block at hand */
	Index first;    /* its first place of dy */
	int64_t x_size; /* elements of a plane */
	int64_t run;    /* products of a place of the window, in whole vectors */
	/* of the plane at hand: its number, and each axis' `first` */
	int64_t plane, place[MAX_RANK];
	/* of places of the window along its last axis: the first one, how far it moves, and how many go together */
	Affine tap, shift;
	int64_t together;
} Planes;

/* ---- the shape */
/* Fills in what the block decides: `count` steps along the tiling's axis, one along those before. */
static void
set_block(Planes *p, int64_t count)
{
	int rank = p->s.y_space->rank;
	int64_t pitch = 1, last = 0;

	for (int i = rank - 1; i >= 0; i--) {
		PlaneAxis *a = &p->axes[i];
		a->block = i < p->blocks.axis    ? 1
		           : i == p->blocks.axis ? count
		                                 : p->s.y_space->dims[i];
		a->pitch = pitch;
		pitch *= a->block + a->shift;
		last += (a->block - 1) * a->pitch;
	}
	p->x_size = pitch;
	p->run = (last + LOOP_LANES) / LOOP_LANES * LOOP_LANES;
}

static int64_t
y_size(const Planes *p)
{
	return p->axes[0].block * p->axes[0].pitch;
}

/* False: one moves further than a block is long, or there are too many planes. */
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
		if (a->shift > BLOCK || a->period > MAX_PLANES)
			return false;
		p->n_planes *= (int)a->period;
	}
	return p->n_planes <= MAX_PLANES;
}

/* Whether to do it so: not for many outputs, for which a product's patches are worth their copies, nor where the rows
 * are so short that most of what is computed lies between them. */
static bool
set_shape(Planes *p)
{
	const ConvShape *s = &p->s;
	Ints y = ints_of_type(s->y_space);
	int64_t n = 1;

	p->blocks = tile_evenly(&y, BLOCK, 1);
	if (y.n > MAX_AXES || s->window->n == 0 || tiling_size(&p->blocks) == 0 || !set_axes(p))
		return false;
	set_block(p, p->blocks.count);
	for (int i = 0; i < y.n; i++)
		n *= p->axes[i].block;
	int64_t x_size = p->x_size * p->n_planes, sums = s->out * s->window->n * LOOP_LANES;
	return s->in * s->a->groups >= ENOUGH_PARTS && s->out * p->run <= MOST_PRODUCTS * n &&
	       dtype_bytes(p->type, x_size > sums ? x_size : sums) <= MAX_BYTES;
}

/* ---- the planes */
static void
clear(const Planes *p, int local, int64_t from, int64_t n)
{
	LoopBuilder *lb = p->lw->lb;

	if (n <= 0)
		return;
	Affine j = affine_scalar(lb_for(lb, LOOP_VECTOR, n));
	lb_store(lb, local, affine_add(affine_constant(from), j), lb_number(lb, p->type, 0));
	lb_end(lb);
}

/* Opens loops over the elements of a plane with so many steps along its first axis; the element's place in the plane.
 * */
static Affine
open_plane(const Planes *p, int64_t steps, Index *at)
{
	Affine place = affine_constant(0);

	at->rank = p->s.y_space->rank;
	for (int i = 0; i < at->rank; i++) {
		const PlaneAxis *a = &p->axes[i];
		LoopMode mode = i == at->rank - 1 ? LOOP_VECTOR : LOOP_PLAIN;
		int64_t n = i ? a->block + a->shift : steps;

		at->at[i] = affine_scalar(lb_for(p->lw->lb, mode, n));
		place = affine_add(place, affine_scale(at->at[i], a->pitch));
	}
	return place;
}

static void
close_plane(const Planes *p)
{
	for (int i = 0; i < p->s.y_space->rank; i++)
		lb_end(p->lw->lb);
}

/* x's places in one of its planes; outside of x 0 */
static void
fill_x(Planes *p)
{
	LoopBuilder *lb = p->lw->lb;
	const ConvShape *s = &p->s;
	Index g, at = {.rank = s->x->rank, .at = {p->image, p->x_channel}};
	Affine place = open_plane(p, p->axes[0].block + p->axes[0].shift, &g);
	LoopValue inside = -1;

	for (int i = 0; i < g.rank; i++) {
		int64_t stride = s->a->stride.at[i], size = s->x_space->dims[i];
		int64_t low = p->place[i] * s->a->dilation.at[i] % stride - s->a->low.at[i];
		int64_t last = stride * (s->y_space->dims[i] - 1 + p->axes[i].shift) + low;
		Affine step = affine_add(p->first.at[i], g.at[i]);
		Affine from = affine_add(affine_scale(step, stride), affine_constant(low));

		at.at[i + 2] = clamp_place(lb, from, size, low >= 0 && last < size, &inside);
	}
	place = affine_add(place, affine_constant(p->plane * p->x_size));
	lb_store(lb, p->x, place, lb_cast(lb, p->type, load_inside(p->lw, s->p, &at, inside)));
	close_plane(p);
}

/* dy's places of the block; behind its rows 0 */
static void
fill_y(const Planes *p)
{
	LoopBuilder *lb = p->lw->lb;
	const ConvShape *s = &p->s;
	Index g, at = {.rank = s->y->rank, .at = {p->image}};
	Affine place = open_plane(p, p->axes[0].block, &g);
	LoopValue inside = -1;

	at.at[1] = affine_add(affine_scale(p->group, s->out), p->output);
	for (int i = 0; i < g.rank; i++) {
		const PlaneAxis *a = &p->axes[i];
		Affine step = clamp_place(lb, g.at[i], a->block, i == 0 || a->shift == 0, &inside);

		at.at[i + 2] = affine_add(p->first.at[i], step);
	}
	lb_store(lb, p->y, place, lb_cast(lb, p->type, load_inside(p->lw, s->q, &at, inside)));
	close_plane(p);
}

/* ---- the sums */
static LoopValue
lane(const Planes *p, int local, Affine first, LoopValue j)
{
	return lb_load(p->lw->lb, local, affine_add(first, affine_scalar(j)));
}

/* So many places of the window side by side. */
static void
multiply(void *ctx, Affine number, int64_t size)
{
	const Planes *p = ctx;
	LoopBuilder *lb = p->lw->lb;
	const PlaneAxis *a = &p->axes[p->s.y_space->rank - 1];
	Affine done = affine_scale(number, p->together);
	Affine shift = affine_add(p->shift, affine_scale(done, a->step)), total[MAX_SUMS];

	for (int i = 0; i < size; i++) {
		Affine tap = affine_scale(affine_add(done, affine_constant(i)), a->period);
		total[i] = affine_scale(affine_add(p->tap, tap), LOOP_LANES);
	}
	LoopValue j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	for (int i = 0; i < size; i++)
		lb_store(lb, p->sums[i], affine_scalar(j), lane(p, p->total, total[i], j));
	lb_end(lb);
	Affine at = affine_scale(affine_scalar(lb_for(lb, LOOP_PLAIN, p->run / LOOP_LANES)),
	                         LOOP_LANES);
	j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	LoopValue y = lane(p, p->y, at, j);
	for (int i = 0; i < size; i++) {
		Affine moved = affine_add(shift, affine_constant(i * a->step));
		LoopValue x = lane(p, p->x, affine_add(at, moved), j);
		LoopValue sum = lb_load(lb, p->sums[i], affine_scalar(j));

		sum = lb_op(lb, LOOP_fma, p->type, (LoopValue[]){y, x, sum});
		lb_store(lb, p->sums[i], affine_scalar(j), sum);
	}
	lb_end(lb);
	lb_end(lb);
	j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	for (int i = 0; i < size; i++)
		lb_store(lb, p->total, affine_add(total[i], affine_scalar(j)),
		         lb_load(lb, p->sums[i], affine_scalar(j)));
	lb_end(lb);
}

/* All places of the window that read the plane: place[i] + period * u along each axis. */
static void
multiply_plane(Planes *p)
{
	LoopBuilder *lb = p->lw->lb;
	const ConvShape *s = &p->s;
	int last = s->window->rank - 1;
	int64_t strides[MAX_RANK];

	type_strides(s->window, strides);
	p->shift = affine_constant(p->plane * p->x_size);
	p->tap = affine_scale(p->output, s->window->n);
	for (int i = 0; i <= last; i++) {
		const PlaneAxis *a = &p->axes[i];
		int64_t moved = p->place[i] * s->a->dilation.at[i] / s->a->stride.at[i];
		int64_t n = (s->window->dims[i] - p->place[i] + a->period - 1) / a->period;

		p->shift = affine_add(p->shift, affine_constant(moved * a->pitch));
		p->tap = affine_add(p->tap, affine_constant(p->place[i] * strides[i]));
		if (i == last) {
			int64_t pieces = (n + p->most_sums - 1) / p->most_sums;
			p->together = (n + pieces - 1) / pieces;
			for_pieces(lb, n, p->together, multiply, p);
			break;
		}
		Affine u = affine_scalar(lb_for(lb, LOOP_PLAIN, n));
		p->shift = affine_add(p->shift, affine_scale(u, a->step * a->pitch));
		p->tap = affine_add(p->tap, affine_scale(u, a->period * strides[i]));
	}
	for (int i = 0; i < last; i++)
		lb_end(lb);
}

static void
for_planes(Planes *p, void (*body)(Planes *p))
{
	for (p->plane = 0; p->plane < p->n_planes; p->plane++) {
		int64_t rest = p->plane;

		for (int i = p->s.window->rank - 1; i >= 0; i--) {
			p->place[i] = rest % p->axes[i].period;
			rest /= p->axes[i].period;
		}
		body(p);
	}
}

/* ---- the kernel */
static void
block(void *ctx, Affine first, int64_t count)
{
	Planes *p = ctx;

	set_block(p, count);
	index_split(p->lw->lb, p->s.y_space, first, &p->first);
	for_planes(p, fill_x);
	/* what last vectors read beyond the planes, and have beyond dy's rows */
	clear(p, p->x, p->n_planes * p->x_size, LOOP_LANES);
	clear(p, p->y, y_size(p), p->run - y_size(p));
	p->output = affine_scalar(lb_for(p->lw->lb, LOOP_PLAIN, p->s.out));
	fill_y(p);
	for_planes(p, multiply_plane);
	lb_end(p->lw->lb);
}

/* dw[output, input, place] = the lanes' sum */
static void
add_lanes(const Planes *p, Affine input)
{
	LoopBuilder *lb = p->lw->lb;
	const ConvShape *s = &p->s;
	int64_t n = s->window->n;
	Affine output = affine_scalar(lb_for(lb, LOOP_PLAIN, s->out));
	Affine tap = affine_scalar(lb_for(lb, LOOP_PLAIN, n));
	Affine from = affine_scale(affine_add(affine_scale(output, n), tap), LOOP_LANES);
	Affine to = affine_add(affine_scale(p->group, s->out), output);
	LoopValue j = lb_for(lb, LOOP_VECTOR, LOOP_LANES);
	LoopValue sum = lb_accumulator(lb, ACC_ADD, p->type);

	lb_accumulate(lb, sum, lane(p, p->total, from, j));
	lb_end(lb);
	to = affine_add(affine_scale(to, s->in), input);
	lb_store(lb, lower_buffer(p->lw, lower_stored(p->lw)), affine_add(affine_scale(to, n), tap),
	         result_of_sum(lb, p->lw->node, sum));
	lb_end(lb);
	lb_end(lb);
}

/* For how many places of the window registers hold the sums, beside dy's elements. */
static int
most_sums(const Target *t, DType type)
{
	int n = (LOOP_LANES * dtype_info[type].bits / 32 + t->lanes - 1) / t->lanes;
	int fit = (t->registers - n) / n;

	return fit < 1 ? 1 : fit < MAX_SUMS ? fit : MAX_SUMS;
}

static bool
planes_take(const Target *t, const Node *n)
{
	Planes p = {.s = conv_shapes(n->function->module, n), .type = accumulation_type(n)};

	(void)t;
	return dtype_is_float(p.type) && set_shape(&p);
}

static void
planes_kernel(Lower *lw, const Node *n)
{
	LoopBuilder *lb = lw->lb;
	Planes p = {.lw = lw, .s = conv_shapes(lw->m, n), .type = accumulation_type(n)};
	const ConvShape *s = &p.s;
	int64_t dims[] = {s->a->groups, s->in}, n_sums = s->out * s->window->n * LOOP_LANES;
	Index part;

	p.most_sums = most_sums(lw->target, p.type);
	set_shape(&p);
	p.x = lb_local(lb, p.type, p.n_planes * p.x_size + LOOP_LANES);
	p.y = lb_local(lb, p.type, y_size(&p) > p.run ? y_size(&p) : p.run);
	p.total = lb_local(lb, p.type, n_sums);
	for (int i = 0; i < p.most_sums; i++)
		p.sums[i] = lb_local(lb, p.type, LOOP_LANES);
	LoopValue v = lb_for(lb, LOOP_PARALLEL, dims[0] * dims[1]);
	index_split(lb, type_new(lw->m, S64, COUNT(dims), dims), affine_scalar(v), &part);
	p.group = part.at[0];
	p.x_channel = affine_scalar(v);
	clear(&p, p.total, 0, n_sums);
	p.image = affine_scalar(lb_for(lb, LOOP_PLAIN, s->x->dims[0]));
	for_blocks(lb, &p.blocks, block, &p);
	lb_end(lb);
	add_lanes(&p, part.at[1]);
	lb_end(lb);
}

const Strategy strategy_conv_planes_grad_weight = {.op = OP_conv_grad_weight,
                                                   .kinds = ON(CPU),
                                                   .doc = "groups with few outputs: shifted planes",
                                                   .takes = planes_take,
                                                   .emit = planes_kernel,
                                                   .library = conv_library,
                                                   .reads = conv_reads};
