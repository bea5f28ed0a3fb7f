/* Predicts the time of an instruction on a machine, from the executable's tables only.
 * docs/cost-model.md derives each formula. Nothing is measured here; machines.c has the numbers
 * of each machine. */
#include "cost/cost.h"

#include <string.h>

const char *const bound_names[] = {"compute", "memory", "cache", "host", "link", NULL};

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

/* ---- kernels */
/* The time to move the bytes: at the cache's rate if all bytes of the launch fit there, because
 * earlier launches have left the bytes in the cache; otherwise at the memory's rate. */
static void
move_bytes(Prediction *p, const Machine *m)
{
	bool near = p->bytes <= (double)m->chip->cache_bytes;

	p->bound = near ? BOUND_CACHE : BOUND_MEMORY;
	p->roofline = p->bytes / (near ? m->chip->cache_rate : m->memory_rate);
}

static void
compute_flops(Prediction *p, double rate)
{
	if (p->flops / rate <= p->roofline)
		return;
	p->bound = BOUND_COMPUTE;
	p->roofline = p->flops / rate;
}

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

/* Predicts a library call. How well a library cuts a product for the machine is part of the
 * published rates. The sizes come from the library call, because the kernel's record describes
 * the loops that the call replaces. */
static void
predict_product(Prediction *p, const Format *f, const LibraryCall *c, const Machine *m)
{
	Math math = product_math[c->operands[LIBRARY_FIRST].dtype];
	const ProductRate *rate;

	if (math == MATH_F32 && format_info_is(f, "allow_tf32", "1"))
		math = MATH_TF32;
	p->flops = library_flops(c);
	p->bytes = library_bytes(c);
	move_bytes(p, m);
	rate = &m->chip->products[math];
	compute_flops(p, rate->peak);
	p->reached = p->bound == BOUND_COMPUTE ? rate->reached : 1;
}

static void
predict_loops(Prediction *p, const Format *f, const KernelRecord *k, const Machine *m)
{
	int64_t threads = kernel_block_threads(k);
	int64_t blocks = k->team > 1 ? p->parts : ceil_div(p->parts, threads);

	move_bytes(p, m);
	compute_flops(p, m->chip->loop_rate[loop_math(f, k)]);
	int busy = p->bound == BOUND_COMPUTE ? m->chip->sum_threads : m->chip->busy_threads;
	p->utilization = predict_utilization(m->chip, busy, blocks, threads, k->shared_bytes);
}

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
predict_kernel(Prediction *p, const Format *f, const Outlook *o)
{
	const Instruction *in = p->instruction;
	const KernelRecord *k = &f->kernels[in->what];
	double share = 1;

	p->parts = k->iterations;
	if (k->elements) {
		format_launch_end(f, k, argument_bytes(f, in, in->n_args - 1u, o), &p->parts);
	} else {
		p->parts = part_iterations(f, in, k, o);
	}
	if (k->iterations)
		share = (double)p->parts / (double)k->iterations;
	if (p->parts == 0 || serves_library(f, k))
		return;
	p->launch = o->machine->launch;
	if (k->library) {
		predict_product(p, f, &f->library[k->library - 1].call, o->machine);
		return;
	}
	p->flops = share * (double)k->flops;
	p->bytes = share * (double)k->bytes;
	predict_loops(p, f, k, o->machine);
}

/* ---- copies and fills */
static bool
is_on_host(const Format *f, const Instruction *in, uint32_t i)
{
	return space_table[f->slots[f->arguments[in->args + i].slot].space].on_host;
}

static void
predict_fill(Prediction *p, const Format *f, const Outlook *o)
{
	p->bytes = (double)argument_bytes(f, p->instruction, 0, o);
	p->launch = o->machine->launch;
	move_bytes(p, o->machine);
}

/* A copy within the device reads and writes every byte. */
static void
predict_copy(Prediction *p, const Format *f, const Outlook *o)
{
	const Machine *m = o->machine;
	double bytes = (double)argument_bytes(f, p->instruction, 0, o);

	if (is_on_host(f, p->instruction, 0) || is_on_host(f, p->instruction, 1)) {
		p->bytes = bytes;
		p->bound = BOUND_HOST;
		p->launch = m->host_latency;
		p->roofline = bytes / m->host_rate;
	} else {
		p->bytes = 2 * bytes;
		p->launch = m->launch;
		move_bytes(p, m);
	}
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
	p->bytes = (double)dtype_bytes((DType)c->dtype, c->n);
	p->bound = BOUND_LINK;
	p->launch = m->collective_latency +
	            hop * rings[c->kind].rounds * (rings[c->kind].once ? 1 : n - 1);
	p->roofline = rings[c->kind].rounds * p->bytes / rate *
	              (rings[c->kind].whole ? 1 : (n - 1) / (double)n);
}

/* ---- any instruction */
static void (*const predict_kind[N_INSTRUCTIONS])(Prediction *, const Format *, const Outlook *) = {
	[RUN_KERNEL] = predict_kernel,
	[COPY] = predict_copy,
	[FILL_ZERO] = predict_fill,
	[COLLECTIVE] = predict_collective,
};

Prediction
predict_instruction(const Format *f, const Instruction *in, const Outlook *o)
{
	Prediction p = {.instruction = in, .parts = 1, .utilization = 1, .reached = 1};

	if (predict_kind[in->kind])
		predict_kind[in->kind](&p, f, o);
	p.seconds = p.launch + p.roofline / p.utilization / p.reached;
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
	return p->utilization * p->reached;
}
