/* Predicts how long an instruction takes on a machine, from what the instruction asks of it (work.c). docs/cost-model.md
 * explains each formula, and says how well it fits measurements. Nothing is measured here; machines.c has the numbers of each
 * machine. */
#include "cost/cost.h"

#include <math.h>

const char *const bound_names[] = {"compute", "memory", "cache", "latency", "host", "link", NULL};

/* Seconds of work that overlaps in part. overlap 1: nothing overlaps, and the times add up; large: only the longest counts. */
static double
overlapped(double a, double b, double c, double overlap)
{
	return pow(pow(a, overlap) + pow(b, overlap) + pow(c, overlap), 1 / overlap);
}

static double
memory_rate(const Machine *m)
{
	return m->memory_rate * m->memory_reached;
}

/* Do earlier launches leave the bytes in the cache? */
static bool
is_cached(const Work *w, const Machine *m)
{
	return w->bytes <= m->chip->fit->cached_bytes;
}

/* ---- parts */
/* How many blocks a multiprocessor holds at the same time; at least one. */
static int64_t
resident_blocks(const Chip *c, int64_t threads, int64_t shared_bytes)
{
	int64_t n = c->most_threads / threads;
	int64_t by_memory = c->shared_bytes / (shared_bytes + c->block_shared_bytes);

	n = n < c->most_blocks ? n : c->most_blocks;
	n = n < by_memory ? n : by_memory;
	return n > 1 ? n : 1;
}

/* A wave is as many blocks as the machine holds at the same time. All waves but the last are full
 * and keep the machine busy. The last wave may have fewer blocks; its time is then in proportion
 * to its blocks, but at least the time of just enough blocks to give every multiprocessor
 * busy_threads threads. */
double
predict_utilization(const Chip *c, int busy_threads, int64_t blocks, int64_t threads,
                    int64_t shared_bytes)
{
	int64_t held = c->processors * resident_blocks(c, threads, shared_bytes);
	int64_t busy = c->processors * ceil_div(busy_threads, threads);
	int64_t last = blocks % held, time = blocks - last;

	busy = busy < held ? busy : held;
	if (last)
		time += last > busy ? last : busy;
	return time ? (double)blocks / (double)time : 1;
}

/* ---- the ideal: all bytes and operations at the peak rates */
/* Bytes move at the cache's rate if all bytes of the launch fit there, because earlier launches have left them in the cache. */
static void
set_roofline(Prediction *p, const Machine *m, double flops, double peak)
{
	bool cached = is_cached(&p->work, m);

	p->bound = cached ? BOUND_CACHE : BOUND_MEMORY;
	p->roofline = p->work.bytes / (cached ? m->chip->cache_rate : m->memory_rate);
	if (flops / peak <= p->roofline)
		return;
	p->bound = BOUND_COMPUTE;
	p->roofline = flops / peak;
}

/* ---- loops */
/* The time of the instructions, or of matrix products. */
static double
computing_seconds(const Work *w, const Chip *c)
{
	if (w->matrix_flops > 0)
		return w->matrix_flops / (c->products[w->math].peak * c->fit->tile_reached);
	double used = predict_utilization(c, c->sum_threads, w->blocks, w->block_threads,
	                                  w->shared_bytes);
	return w->instructions / (c->loop_rate[w->math] / 2) / used;
}

/* Attention. Its instructions and its products of tiles run in turn within a warp, but other warps' run meanwhile. */
static void
predict_attention(Prediction *p, const Machine *m)
{
	const Work *w = &p->work;
	const Chip *c = m->chip;
	double used = predict_utilization(c, c->sum_threads, w->blocks, w->block_threads,
	                                  w->shared_bytes);
	double instructions = w->instructions / (c->loop_rate[MATH_F32] / 2) / used;
	double products = w->matrix_flops / (c->products[w->math].peak * c->sync_reached) / used;
	double computing = overlapped(products, instructions, 0, c->fit->overlap);
	double moving = w->bytes / memory_rate(m);

	set_roofline(p, m, w->matrix_flops, c->products[w->math].peak);
	p->bound = computing > moving ? BOUND_COMPUTE : BOUND_MEMORY;
	p->busy = overlapped(moving, computing, 0, c->fit->overlap);
	p->start = c->fit->start_seconds;
}

static void
predict_loops(Prediction *p, const Machine *m)
{
	const Work *w = &p->work;
	const Chip *c = m->chip;
	int64_t held = resident_blocks(c, w->block_threads, w->shared_bytes);
	double waves = (double)ceil_div(w->blocks, c->processors * held);
	double peak = w->matrix_flops > 0 ? c->products[w->math].peak : c->loop_rate[w->math];

	set_roofline(p, m, w->matrix_flops > 0 ? w->matrix_flops : w->flops, peak);
	bool cached = is_cached(w, m);
	p->utilization = predict_utilization(c, cached ? c->sum_threads : c->busy_threads,
	                                     w->blocks, w->block_threads, w->shared_bytes);
	double moving = w->bytes / (cached ? c->cache_rate : memory_rate(m)) / p->utilization;
	double computing = computing_seconds(w, c);
	double step = c->fit->step_seconds * (cached ? c->fit->cached_step : 1);
	double waiting = held == 1 ? 0 : (double)w->steps * waves * step;
	p->bound = waiting > moving && waiting > computing ? BOUND_LATENCY
	           : computing > moving                    ? BOUND_COMPUTE
	           : cached                                ? BOUND_CACHE
	                                                   : BOUND_MEMORY;
	/* If a single block fits on a processor, nobody computes while it waits for memory. */
	p->busy = held == 1 ? moving + computing * c->fit->alone_slowdown
	                    : overlapped(moving, computing, waiting, c->fit->overlap);
	p->start = c->fit->start_seconds;
}

/* ---- products of a library */
/* Libraries cut a product into tiles, one for each processor at a time. They may cut the sum over k, too, so that whole waves of
 * tiles keep all processors busy. The slowdown says how far smaller tiles stay behind. */
static const struct {
	int64_t rows, columns;
	double slowdown;
} tiles[] = {{128, 256, 1}, {128, 128, 1.05}, {64, 128, 1.15}, {64, 64, 1.3}, {32, 32, 2}};

/* Seconds with tiles of kind i, and sums cut into `splits`. */
static double
tile_seconds(const Work *w, const Chip *c, int i, int64_t splits)
{
	const ProductSizes *s = &w->product;
	const ProductRate *rate = &c->products[w->math];
	int64_t n = ceil_div(s->m, tiles[i].rows) * ceil_div(s->n, tiles[i].columns) * s->batch;
	double speed = rate->peak * rate->reached / c->processors / tiles[i].slowdown;
	double k = (double)s->k / (double)splits + rate->begin_k;

	speed *= s->transposed ? rate->transposed : 1;
	speed *= s->alignment < rate->alignment ? rate->unaligned : 1;
	return (double)ceil_div(n * splits, c->processors) * k * 2 *
	               (double)(tiles[i].rows * tiles[i].columns) / speed +
	       (splits > 1 ? c->fit->split_seconds : 0);
}

/* Seconds of the best tiles. */
static double
product_seconds(const Work *w, const Chip *c)
{
	enum { SHORTEST = 512, MOST_SPLITS = 16 }; /* elements of a part of a cut sum */
	double best = INFINITY;

	for (int i = 0; i < COUNT(tiles); i++)
		for (int64_t splits = 1;
		     splits <= MOST_SPLITS && (splits == 1 || w->product.k >= splits * SHORTEST);
		     splits++)
			best = fmin(best, tile_seconds(w, c, i, splits));
	return best;
}

static void
predict_product(Prediction *p, const Machine *m)
{
	const Work *w = &p->work;
	const ProductRate *rate = &m->chip->products[w->math];
	double runs = (double)w->product.runs, computing = product_seconds(w, m->chip);
	double moving = w->bytes / runs / memory_rate(m);

	set_roofline(p, m, w->flops, rate->peak);
	if (w->product.alignment < rate->alignment)
		moving /= m->chip->fit->unaligned_memory;
	p->bound = computing > moving ? BOUND_COMPUTE : BOUND_MEMORY;
	p->busy = runs * overlapped(moving, computing, 0, m->chip->fit->call_overlap);
	p->launch *= runs;
	p->start = runs * m->chip->fit->call_seconds;
}

/* Which algorithm a library takes for a convolution is not known: its best rate is assumed. */
static void
predict_convolution(Prediction *p, const Machine *m)
{
	const ProductRate *rate = &m->chip->products[p->work.math];

	set_roofline(p, m, p->work.flops, rate->peak);
	p->busy = p->roofline / (p->bound == BOUND_COMPUTE ? rate->reached : 1);
	p->start = m->chip->fit->call_seconds;
}

/* ---- copies and fills */
static void
predict_copy(Prediction *p, const Machine *m)
{
	set_roofline(p, m, 0, 1);
	p->busy = p->work.bytes / (p->bound == BOUND_CACHE ? m->chip->cache_rate : memory_rate(m));
	p->start = m->chip->fit->start_seconds;
}

static void
predict_host_copy(Prediction *p, const Machine *m)
{
	p->bound = BOUND_HOST;
	p->launch = m->host_latency;
	p->roofline = p->busy = p->work.bytes / m->host_rate;
}

static void (*const predict_class[N_WORK_CLASSES])(Prediction *, const Machine *) = {
	[WORK_LOOPS] = predict_loops,         [WORK_ATTENTION] = predict_attention,
	[WORK_PRODUCT] = predict_product,     [WORK_CONVOLUTION] = predict_convolution,
	[WORK_COPY] = predict_copy,           [WORK_FILL] = predict_copy,
	[WORK_HOST_COPY] = predict_host_copy,
};

Prediction
predict_work(const Work *w, const Machine *m)
{
	Prediction p = {.work = *w, .utilization = 1};

	if (!predict_class[w->class])
		return p;
	p.launch = m->launch;
	predict_class[w->class](&p, m);
	p.seconds = p.launch + p.start + p.busy;
	return p;
}

/* ---- collectives, in a ring of n ranks: in each hop a rank sends one n-th of the whole to the
 * next rank */
static const struct {
	bool whole; /* every byte passes through every rank, not only the rank's part */
	bool once;  /* done in a single hop, not in hops around the ring */
	int rounds; /* times around the ring */
} rings[N_COLLECTIVES] = {
	[COMM_ALL_REDUCE] = {.rounds = 2}, /* reduce_scatter, then all_gather */
	[COMM_ALL_GATHER] = {.rounds = 1},
	[COMM_REDUCE_SCATTER] = {.rounds = 1},
	[COMM_ALL_TO_ALL] = {.rounds = 1, .once = true},
	[COMM_BROADCAST] = {.rounds = 1, .whole = true},
	[COMM_SEND] = {.rounds = 1, .whole = true, .once = true},
	[COMM_RECV] = {.rounds = 1, .whole = true, .once = true},
};

/* The number of ranks of a group. Tensor and pipeline groups have one rank, because tensor and
 * pipeline parallelism do not exist yet. */
static int
group_ranks(uint32_t group, const Outlook *o)
{
	RunFacts facts = predict_facts(o);

	return group == GROUP_TENSOR || group == GROUP_PIPELINE ? 1 : run_group(&facts, group).n;
}

static void
predict_collective(Prediction *p, const Format *f, const Outlook *o)
{
	const CollectiveRecord *c = &f->collectives[p->instruction->what];
	const Machine *m = o->machine;
	int n = group_ranks(c->group, o);
	double hop = o->network_rate > 0 ? m->network_hop : m->link_hop;
	double rate = o->network_rate > 0 ? o->network_rate : m->link_rate;

	if (n < 2)
		return;
	p->bound = BOUND_LINK;
	p->launch = m->collective_latency +
	            hop * rings[c->kind].rounds * (rings[c->kind].once ? 1 : n - 1);
	p->busy = p->roofline = rings[c->kind].rounds * p->work.bytes / rate *
	                        (rings[c->kind].whole ? 1 : (n - 1) / (double)n);
	p->seconds = p->launch + p->busy;
}

/* ---- any instruction */
Prediction
predict_instruction(const Format *f, const Instruction *in, const Outlook *o)
{
	Work w = work_of_instruction(f, in, o);
	Prediction p = predict_work(&w, o->machine);

	p.instruction = in;
	if (w.class == WORK_COLLECTIVE)
		predict_collective(&p, f, o);
	return p;
}

/* The predicted step has a single micro-batch, which is both the first and the last one. */
void
predict_times(const Format *f, const ProgramRecord *p, const Outlook *o, int64_t *times)
{
	RunFacts facts = predict_facts(o);
	int64_t around[MAX_LOOPS + 1] = {1};
	int depth = 0;

	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *in = &f->instructions[p->first_instruction + i];

		depth -= in->kind == END;
		times[i] = in->when != WHEN_LATER && only_applies(in->only, &facts) ? around[depth]
		                                                                    : 0;
		if (instruction_opens(in->kind)) {
			int64_t count = in->kind == BRANCH ? 1
			                                   : format_loop_count(in->what, &facts);
			if (!size_mul(around[depth], count, &around[depth + 1]))
				around[depth + 1] = INT64_MAX;
			depth++;
		}
	}
}

double
prediction_total(const Prediction *p)
{
	return (double)p->times * p->seconds;
}

double
prediction_of_roofline(const Prediction *p)
{
	return p->busy > 0 ? p->roofline / p->busy : 1;
}

bool
prediction_is_measured(const Prediction *p, const Machine *m)
{
	/* classes, and the types of operands, of the launches in bench/results that the numbers were fitted to */
	static const bool measured[N_WORK_CLASSES][N_MATHS] = {
		[WORK_LOOPS] = {[MATH_F32] = true, [MATH_TF32] = true, [MATH_16_BITS] = true},
		[WORK_PRODUCT] = {[MATH_TF32] = true, [MATH_16_BITS] = true},
		[WORK_COPY] = {[MATH_F32] = true},
	};

	return m->chip->measured && measured[p->work.class][p->work.math];
}
