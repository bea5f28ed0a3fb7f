/* The list of targets (kinds of CPU and GPU that gradc compiles for), a check of their rows, and
 * functions that find the target for which a pass works. */
#include "format/format.h"
#include "codegen/codegen.h"
#include "codegen/target/target.h"

#include <string.h>

#define TARGET(name) extern const Target target_##name;
#include "codegen/target/target_list.def"
#undef TARGET

const Target *const target_table[] = {
#define TARGET(name) &target_##name,
#include "codegen/target/target_list.def"
#undef TARGET
	NULL,
};

_Static_assert(COUNT(target_table) - 1 <= MAX_TARGETS, "a kernel's record has a bit for each");

const Target *
target_find(const char *name)
{
	for (int i = 0; target_table[i]; i++)
		if (strcmp(target_table[i]->name, name) == 0)
			return target_table[i];
	return NULL;
}

const Target *
target_of_vectors(int bits)
{
	const Target *widest = NULL, *narrowest = NULL;

	for (int i = 0; target_table[i]; i++) {
		const Target *t = target_table[i];
		if (t->kind != TARGET_CPU)
			continue;
		if (32 * t->lanes <= bits && (!widest || t->lanes > widest->lanes))
			widest = t;
		if (!narrowest || t->lanes < narrowest->lanes)
			narrowest = t;
	}
	return widest ? widest : narrowest;
}

static const Tuning *
tuning_of_kind(TargetKind kind)
{
	for (int i = 0; target_table[i]; i++)
		if (target_table[i]->kind == kind)
			return target_table[i]->tuning;
	return NULL;
}

/* The name of the first number in the table that is below 1; NULL if all numbers are valid.
 * Every number of the table is a count: with a zero, loops would divide by zero or never end. Strategies for CPUs alone
 * read some of the numbers. */
static const char *
missing_of(const Tuning *t, bool cpu)
{
#define NUMBER(field)                     \
	{                                 \
#field, (int64_t)t->field \
	}
#define CPU_NUMBER(field)                           \
	{                                           \
#field, cpu ? (int64_t)t->field : 1 \
	}
	const struct {
		const char *name;
		int64_t value;
	} numbers[] = {
		NUMBER(grains.large),
		NUMBER(grains.parts),
		NUMBER(grains.least_part),
		NUMBER(grains.most_block),
		NUMBER(reduce.chunk_rows),
		NUMBER(reduce.chunk_columns),
		NUMBER(reduce.few_rows),
		NUMBER(reduce.much),
		NUMBER(reduce.least_columns),
		NUMBER(reduce.most_columns),
		NUMBER(reduce.near_row),
		NUMBER(reduce.long_row),
		NUMBER(reduce.expensive),
		NUMBER(reduce.sums),
		NUMBER(reduce.team_row),
		NUMBER(reduce.row_members),
		NUMBER(reduce.own_numbers),
		NUMBER(reduce.all_own_numbers),
		NUMBER(repeats.most),
		NUMBER(planes.block),
		NUMBER(planes.most_planes),
		NUMBER(planes.most_bytes),
		NUMBER(planes.most_outputs),
		NUMBER(planes.least_parts),
		NUMBER(planes.most_sums),
		NUMBER(pool.most_unrolled),
		NUMBER(scatter.least_keys),
		NUMBER(scatter.most_sorting_parts),
		NUMBER(scatter.most_width),
		NUMBER(scatter.least_width),
		NUMBER(scatter.least_elements),
		NUMBER(lines.least_block),
		NUMBER(lines.least_merged),
		NUMBER(lines.most_merged),
		NUMBER(lines.merged_by_member),
		NUMBER(lines.near),
		CPU_NUMBER(attention.queries),
		CPU_NUMBER(attention.keys),
		CPU_NUMBER(attention.grad_queries),
		CPU_NUMBER(attention.grad_keys),
		CPU_NUMBER(attention.least_keys),
		CPU_NUMBER(attention.most_width),
		CPU_NUMBER(attention_chunks.queries),
		CPU_NUMBER(attention_chunks.least_queries),
		CPU_NUMBER(loss.rows),
		CPU_NUMBER(loss.least_bytes),
		NUMBER(library.least_flops),
		NUMBER(library.least_size),
		NUMBER(library.least_reads),
		NUMBER(library.most_scratch),
		NUMBER(library.most_conv_scratch),
		NUMBER(recompute.next.additions),
		NUMBER(recompute.next.least_bytes),
		NUMBER(recompute.backward.additions),
		NUMBER(recompute.backward.least_bytes),
	};
#undef NUMBER
#undef CPU_NUMBER

	for (int i = 0; i < COUNT(numbers); i++)
		if (numbers[i].value < 1)
			return numbers[i].name;
	return NULL;
}

static bool
is_power_of_two(int n)
{
	return n > 0 && (n & (n - 1)) == 0;
}

/* What kernels/product/blocks.c assumes: each member copies whole rows of an array, or all members together
 * copy one row, and each copy has at least 4 bytes. */
static bool
is_sound_block(const TeamTiles *t, const TeamBlock *b)
{
	int narrow = b->rows < b->columns ? b->rows : b->columns;
	int wide = b->rows > b->columns ? b->rows : b->columns;

	return is_power_of_two(b->rows) && is_power_of_two(b->columns) &&
	       is_power_of_two(b->team) && b->team <= MAX_PARTIALS && wide <= b->team &&
	       2 * t->depth <= b->team && narrow * t->depth >= b->team;
}

static const char *
fault_of_tiles(const Target *target)
{
	const TeamTiles *t = target->tiles, *kind = NULL;

	if (t->processors < 1 || !is_power_of_two(t->depth) || t->blocks[0].rows == 0 ||
	    t->blocks[MAX_TEAM_BLOCKS - 1].rows)
		return "its tiles lack processors, depth or blocks";
	if (target->tuning->splits)
		kind = target->tuning->splits->tiles;
	if (!kind || kind->depth != t->depth || kind->few_rows != t->few_rows)
		return "its tiles add sums in another order than its kind's other targets";
	const TeamBlock *b = t->blocks;
	for (; b->rows; b++)
		if (!is_sound_block(t, b))
			return "a block of its tiles does not deal out whole units to all members";
	if (8ll * b[-1].rows * b[-1].columns / b[-1].team > t->most_sums)
		return "a member has too many sums of f64 in the last block of its tiles";
	if (16ll * (b[-1].rows + b[-1].columns) * (t->depth + 2) > target->shared_bytes)
		return "its shared_bytes are too few for two f64 stages of its last block";
	return NULL;
}

bool
target_row_check(const Target *t, Diag *diag)
{
	const char *missing = t->tuning ? missing_of(t->tuning, t->kind == TARGET_CPU) : NULL;
	bool cpu = t->kind == TARGET_CPU;
	const char *fault =
		t->lanes < 1 || (cpu && (t->registers < 1 || t->line < 1))
			? "lanes, registers or line are missing"
		: !t->tuning ? "column tuning is missing"
		: missing    ? "a number is missing in its tuning"
		: t->tuning != tuning_of_kind(t->kind)
			? "its tuning is not its kind's, so its sums would have other bits"
		: t->tiles ? fault_of_tiles(t)
			   : NULL;

	if (fault)
		diag_error(diag, EXIT_UNSUPPORTED, "target \"%s\": %s%s%s", t->name, fault,
		           missing ? ": " : "", missing ? missing : "");
	return !fault;
}

bool
target_table_check(Diag *diag)
{
	bool sound = true;

	for (int i = 0; target_table[i]; i++)
		sound &= target_row_check(target_table[i], diag);
	return sound;
}

const PassOption target_options[] = {
	{"target",
         "the target that runs the loops, whatever the program says: a row of codegen/target/",
         OPTION_STRING, offsetof(TargetOptions, target)},
	{"cores", "cores that loops are cut for", OPTION_INT, offsetof(TargetOptions, cores)},
	{0},
};
const TargetOptions target_defaults = {.cores = DEFAULT_CORES};

const Target *
pass_find_target(const Pass *p, const char *name)
{
	const Target *t = target_find(name);
	Text known = {0};

	for (int i = 0; !t && target_table[i]; i++)
		text_printf(&known, "%s%s", i ? ", " : "", target_table[i]->name);
	if (!t)
		diag_error(p->diag, EXIT_USAGE, "pass %s: no target %s (there are %s)",
		           p->row->name, name, known.at);
	text_free(&known);
	return t;
}

bool
pass_check_cores(const Pass *p)
{
	int64_t cores = ((const TargetOptions *)p->options)->cores;

	if (cores >= 1 && cores <= MAX_CORES)
		return true;
	diag_error(p->diag, EXIT_USAGE, "pass %s: cores=%lld is not in 1..%d", p->row->name,
	           (long long)cores, MAX_CORES);
	return false;
}

const Target *
pass_target(const Pass *p, const Function *f)
{
	const char *asked = ((const TargetOptions *)p->options)->target;

	return pass_find_target(p, asked ? asked : f->target ? f->target : target_table[0]->name);
}
