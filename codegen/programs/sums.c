/* The pass `sums`: adds the sums over ranks to programs, as travels (exchanges of data between
 * ranks). The gradients of a step are summed in buckets, in the last micro-batch: a bucket's sum
 * starts after the last instruction that touches the bucket, while earlier layers are still
 * computed. A value that a kernel marks with `all_reduces` is summed where it is made:
 *
 *	run @k7 (%3, %4) phase backward          %4 = slot state+64 f32 bytes 1024 "grad.w"
 *	travel sum when last state+64 f32 bytes 1024 "grad.w", state+64 ... share part group data block 256
 *
 * Takes linear time in instructions for each bucket. */
#include "codegen/codegen.h"
#include "codegen/programs/blocks.h"
#include "codegen/schedule/schedule.h"

#include "ir/loop/loop.h"

static bool
touches(const Program *p, const Instruction *n, const Bucket *b)
{
	int64_t end = b->offset + dtype_bytes(b->dtype, b->n);

	for (uint32_t i = 0; i < n->n_args; i++) {
		const Slot *slot = &p->slots.at[p->arguments.at[n->args + i].slot];
		if (slot->space == SPACE_STATE && slot->offset < end &&
		    slot->offset + slot->bytes > b->offset)
			return true;
	}
	return false;
}

/* The last instruction that touches the bucket, or the end of the loop or branch around it; -1: no
 * instruction touches it. */
static int
last_touch(const Program *p, const OuterBlocks *blocks, const Bucket *b)
{
	int last = -1;

	for (int i = 0; i < p->instructions.n; i++)
		if (touches(p, &p->instructions.at[i], b))
			last = blocks->last[i];
	return last;
}

/* Adds a travel of `whole`, of which each rank of the data axis has a part. */
static void
add_travel(Program *p, TravelKind kind, int behind, When when, Slot whole)
{
	Slot part = whole;

	part.share = SLOT_PART;
	part.group = GROUP_DATA;
	part.block = SUM_BLOCK;
	vec_push(p->arena, &p->travels,
	         ((Travel){kind, behind, when, .whole = whole, .part = part}));
}

/* Buckets are summed in place. A bucket that no instruction touches holds zeros on all ranks, or
 * values that another program sums. */
static void
add_buckets(Program *p, const Buckets *all, Arena *scratch)
{
	OuterBlocks blocks = outermost_blocks(scratch, p->instructions.n, p->instructions.at);

	for (int k = 0; k < all->n; k++) {
		const Bucket *b = &all->at[k];
		int last = last_touch(p, &blocks, b);
		add_travel(p, TRAVEL_SUM, last < 0 ? p->instructions.n - 1 : last, WHEN_LAST,
		           (Slot){.space = SPACE_STATE,
		                  .dtype = b->dtype,
		                  .offset = b->offset,
		                  .bytes = dtype_bytes(b->dtype, b->n),
		                  .name = program_name(p, b->name)});
	}
}

/* If a kernel makes a value that all ranks must add up, adds a travel after the kernel. Later
 * kernels read the sum. */
static void
add_sums(Program *p, const Module *m)
{
	for (int i = 0; i < p->instructions.n; i++) {
		const Instruction *n = &p->instructions.at[i];
		if (n->kind != RUN_KERNEL || !m->kernels.at[n->what]->all_reduces || !n->n_args)
			continue;
		Slot whole = p->slots.at[p->arguments.at[n->args + n->n_args - 1u].slot];
		if (whole.bytes > 0)
			add_travel(p, TRAVEL_FILL, i, (When)n->when, whole);
	}
}

static bool
makes_gradients(const Program *p)
{
	return p->role == ROLE_ACCUMULATE || p->role == ROLE_ESTIMATE;
}

static bool
has_update(const Module *m)
{
	for_each_program(m, p)
		if (p->role == ROLE_UPDATE)
			return true;
	return false;
}

static bool
run_sums(Pass *pass, Module *m)
{
	Buckets buckets[N_MODES] = {0};

	for (int mode = 0; mode < N_MODES && has_update(m); mode++)
		buckets[mode] = buckets_of(pass->scratch, m, (DataParallelMode)mode);
	for_each_program(m, p) {
		if (makes_gradients(p))
			add_buckets(p, &buckets[p->mode], pass->scratch);
		add_sums(p, m);
		program_sort_travels(p);
	}
	pass->changed = true;
	return true;
}

const PassRow pass_sums = {.name = "sums",
                           .help = "add the sums over ranks: of gradients, in buckets",
                           .needed = true,
                           .takes = STAGE_SHARD,
                           .leaves = STAGE_SUMS,
                           .run = run_sums};
