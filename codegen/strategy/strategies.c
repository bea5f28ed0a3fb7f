/* Chooses the strategy (code that emits a kind of kernel, strategy.h) that computes a node, and
 * checks the table of strategies. */
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

#define STRATEGY(name) extern const Strategy strategy_##name;
#include "codegen/strategy/strategy_list.def"
#undef STRATEGY

static const Strategy *const strategies[] = {
#define STRATEGY(name) &strategy_##name,
#include "codegen/strategy/strategy_list.def"
#undef STRATEGY
};

#define GROUP_STRATEGY(name) extern const GroupStrategy group_strategy_##name;
#include "codegen/strategy/group_strategy_list.def"
#undef GROUP_STRATEGY

static const GroupStrategy *const group_strategies[] = {
#define GROUP_STRATEGY(name) &group_strategy_##name,
#include "codegen/strategy/group_strategy_list.def"
#undef GROUP_STRATEGY
};

const GroupStrategy *
group_strategy(const Target *t, const Function *body)
{
	for (int i = 0; i < COUNT(group_strategies); i++) {
		const GroupStrategy *s = group_strategies[i];
		if (s->group == body->group && s->kinds >> t->kind & 1 &&
		    (!s->takes || s->takes(t, body)))
			return s;
	}
	return NULL;
}

bool
group_has_strategy(const Target *t, const GroupRow *row)
{
	for (int i = 0; i < COUNT(group_strategies); i++)
		if (group_strategies[i]->group == row && group_strategies[i]->kinds >> t->kind & 1)
			return true;
	return false;
}

const Strategy *
strategy_of(const Target *t, const Node *n)
{
	for (int i = 0; i < COUNT(strategies); i++) {
		const Strategy *s = strategies[i];
		if (s->op == n->op && s->kinds >> t->kind & 1 && (!s->takes || s->takes(t, n)))
			return s;
	}
	return NULL;
}

bool
team_stores(const Target *t, const Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		if (dtype_info[node_result(n, i)->type->dtype].bits < 8)
			return false;
	return t->team > 1;
}

/* ---- checks when the program starts */
static bool
is_first_of_kind(int target)
{
	for (int i = 0; i < target; i++)
		if (target_table[i]->kind == target_table[target]->kind)
			return false;
	return true;
}

static bool
has_strategy(const Target *t, OpKind op)
{
	for (int i = 0; i < COUNT(strategies); i++)
		if (strategies[i]->op == op && strategies[i]->kinds >> t->kind & 1 &&
		    !strategies[i]->takes)
			return true;
	return false;
}

/* For every opaque op, at least one strategy for the target's kind takes all nodes of the op. */
static bool
check_ops(const Target *t, Diag *diag)
{
	bool sound = true;

	for (int op = 0; op < N_OPS; op++) {
		if (op_table[op]->fuse != FUSE_OPAQUE || has_strategy(t, (OpKind)op))
			continue;
		diag_error(diag, EXIT_UNSUPPORTED,
		           "op \"%s\": no strategy takes every node for target %s",
		           op_table[op]->name, t->name);
		sound = false;
	}
	return sound;
}

static bool
is_team(int members)
{
	return members >= 0 && members <= MAX_PARTIALS && (members & (members - 1)) == 0;
}

static bool
check_target(const Target *t, Diag *diag)
{
	bool cuts = t->kind != TARGET_CPU ||
	            (t->product && t->product->rows >= 1 && t->product->rows <= MOST_PRODUCT_ROWS);
	bool team = is_team(t->team) && is_team(t->most_team);

	if (!cuts)
		diag_error(diag, EXIT_UNSUPPORTED,
		           "target \"%s\": rows of a product are not 1 to %d", t->name,
		           MOST_PRODUCT_ROWS);
	if (!team)
		diag_error(diag, EXIT_UNSUPPORTED,
		           "target \"%s\": a team of %d is not a power of two up to %d", t->name,
		           t->team, MAX_PARTIALS);
	return cuts && team;
}

static bool
check_strategy(const Strategy *st, Diag *diag)
{
	const char *hole = !st->emit                      ? "emit"
	                   : !st->doc                     ? "doc"
	                   : !st->scratch != !st->prepare ? "scratch or prepare"
	                                                  : NULL;

	if (hole)
		diag_error(diag, EXIT_UNSUPPORTED, "strategy of op \"%s\": column %s is missing",
		           op_table[st->op]->name, hole);
	return !hole;
}

static bool
check_group_strategy(const GroupStrategy *st, Diag *diag)
{
	RowCheck c = {
		.table = "strategy of group", .name = st->group->name, .diag = diag, .sound = true};

	row_needs(&c, "kinds", st->kinds != 0);
	row_needs(&c, "doc", st->doc != NULL);
	row_needs(&c, "emit or expand", !st->emit != !st->expand);
	return c.sound;
}

bool
strategy_table_check(Diag *diag)
{
	bool sound = true;

	for (int i = 0; target_table[i]; i++) {
		sound &= check_target(target_table[i], diag);
		if (is_first_of_kind(i))
			sound &= check_ops(target_table[i], diag);
	}
	for (int i = 0; i < COUNT(strategies); i++)
		sound &= check_strategy(strategies[i], diag);
	for (int i = 0; i < COUNT(group_strategies); i++)
		sound &= check_group_strategy(group_strategies[i], diag);
	return sound;
}

bool
library_takes_dtypes(const LibraryLimits *l, const Node *n)
{
	DType x = node_operand(n, 0)->type->dtype, z = node_result(n, 0)->type->dtype;

	if (node_operand(n, 1)->type->dtype != x)
		return false;
	return (x == F32 && z == F32) ||
	       ((x == BF16 || (x == F16 && l->f16)) && (z == x || z == F32));
}

bool
library_row_is_odd(const LibraryLimits *l, DType dtype, int64_t elements)
{
	int64_t bytes = dtype_bytes(dtype, elements);

	return l->row_alignment > 0 && bytes % l->row_alignment != 0 &&
	       bytes >= l->least_pitched_row;
}

bool
library_axis_is_odd(const LibraryLimits *l, const LibraryCall *product, ProductAxis axis)
{
	int64_t size = library_axis_size(product, axis);
	DType dtype = (DType)product->operands[LIBRARY_FIRST].dtype;

	return l->row_alignment > 0 &&
	       library_axis_padded(product, axis, l->row_alignment) != size &&
	       dtype_bytes(dtype, size) >= l->least_pitched_row;
}
