/* The pass `ungroup`: decides how groups are computed. Finds groups that span the forward and the backward pass, if the
 * program's target computes them as a whole. Then puts the nodes of a group in place of its call, if no
 * strategy of the target computes the group; or the nodes that a strategy makes of it, such as a
 * loop over chunks. Then drops the functions that no program reaches: bodies
 * of opened groups, and gradients of groups, which have become part of the backward pass. Changes numbers by
 * rounding only. Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

typedef VEC(Function *) Functions;

static void
reach(Pass *p, Function *f, bool *reached, Functions *todo)
{
	if (!f || reached[f->index])
		return;
	reached[f->index] = true;
	vec_push(p->scratch, todo, f);
}

/* Reaches the functions that f's nodes name. */
static void
reach_named(Pass *p, const Function *f, bool *reached, Functions *todo)
{
	for_each_node(f, n)
		for (const Field *field = op_row(n)->fields; field && field->name; field++)
			if (field->kind == FIELD_FUNC)
				reach(p, *(Function **)((char *)n->attr + field->offset), reached,
				      todo);
	reach(p, f->surrogate, reached, todo);
}

/* Drops the functions that the programs (functions with a role) do not reach. A module without
 * programs, as in a test, keeps all functions. */
static void
drop_unreached(Pass *p, Module *m)
{
	bool *reached = NEW_ARRAY(p->scratch, bool, m->functions.n);
	Functions todo = {0};

	for_each_function(m, f)
		if (f->role != ROLE_HELPER)
			reach(p, f, reached, &todo);
	for (int i = 0; i < todo.n; i++)
		reach_named(p, todo.at[i], reached, &todo);
	for (int i = m->functions.n - 1; i >= 0 && todo.n > 0; i--)
		if (!reached[i])
			function_remove(m->functions.at[i]);
}

/* Notes, once for each kind of target, what a target stores that has no strategy for the group. */
static void
note_stored(Pass *p, const Target *target, const Node *call, StrMap *said)
{
	const GroupRow *row = called_group(call);
	const char *key = arena_printf(p->scratch, "%s %d", row->name, target->kind);

	if (!row->stored || group_has_strategy(target, row) || strmap_get(said, key))
		return;
	strmap_put(said, key, (void *)(uintptr_t)row);
	diag_remark(
		p->diag,
		"%s: node \"%s\" is a %s, which target %s does not compute in parts: %s are stored",
		call->function->module->name, loc_origin(call->loc), row->name, target->name,
		row->stored);
}

/* A call that stays needs no gradient any more: autograd has run. */
static void
open_or_keep(const Target *target, Node *call, IntMap *opened)
{
	CallAttr *a = call->attr;
	const GroupStrategy *s = group_strategy(target, a->callee);

	a->gradient = s ? NULL : a->gradient;
	if (!s || (s->expand && !s->expand(target, call)))
		group_open(call, opened);
}

typedef struct {
	TargetOptions target; /* first: pass_target reads it */
	int64_t loss_rows, attention_queries;
} UngroupOptions;
static const PassOption ungroup_options[] = {
	{"target",
         "the target that runs the loops, whatever the program says: a row of codegen/target/",
         OPTION_STRING, offsetof(UngroupOptions, target.target)},
	{"loss_rows",
         "rows of a chunk of the loss, however few logits there are; 0: as the target's table says",
         OPTION_INT, offsetof(UngroupOptions, loss_rows), 0, 1ll << 31},
	{"attention_queries",
         "queries of a chunk of attention that has no kernel, however few queries there are; 0: as the target's table says",
         OPTION_INT, offsetof(UngroupOptions, attention_queries), 0, 1ll << 31},
	{0},
};

/* The target's table with the numbers that the options give. */
static Tuning
tuning_with(const Target *t, const UngroupOptions *o)
{
	Tuning tuning = *t->tuning;

	if (o->loss_rows)
		tuning.loss = (LossChunks){.rows = o->loss_rows, .least_bytes = 1};
	if (o->attention_queries)
		tuning.attention_chunks = (AttentionChunks){.queries = o->attention_queries,
		                                            .least_queries = 1};
	return tuning;
}

static bool
takes(void *ctx, const Function *body)
{
	return group_strategy(ctx, body) != NULL;
}

/* By value id: does a product, a loop or a group of the forward pass depend on the value? */
static bool *
lead_to_products(Pass *p, const Function *f)
{
	bool *leads = NEW_ARRAY(p->scratch, bool, f->next_value_id);

	for_each_node_reverse(f, n) {
		bool ends = op_row(n)->precision == PRECISION_LOW ||
		            op_row(n)->fuse == FUSE_CONTROL || called_group(n);
		bool any = ends && n->phase != PHASE_BACKWARD;
		for (int i = 0; i < n->n_results; i++)
			any |= leads[node_result(n, i)->id];
		for (int i = 0; any && i < n->n_operands; i++)
			if (node_operand(n, i))
				leads[node_operand(n, i)->id] = true;
	}
	return leads;
}

/* Finds groups that span both passes. The model's user may read all values of a program that has no loss. */
static void
find_groups(Pass *p, Function *f, Target *target, StrMap *said)
{
	Recognition r = {.m = f->module,
	                 .scratch = p->scratch,
	                 .diag = p->diag,
	                 .f = f,
	                 .n_values = f->next_value_id,
	                 .by_hash = intmap_new(p->scratch),
	                 .said = said,
	                 .takes = takes,
	                 .ctx = target,
	                 .leads_to_product = lead_to_products(p, f)};

	p->changed |= groups_recognize(&r);
}

/* Nodes that take a call's place may call groups, too. */
static void
open_groups(Pass *p, const Function *f, const Target *target, IntMap *opened, StrMap *said)
{
	for (Node *n = f->first; n;) {
		Node *before = n->prev, *next = n->next;
		uint32_t made = f->next_node_id;
		if (called_group(n)) {
			note_stored(p, target, n, said);
			open_or_keep(target, n, opened);
			p->changed = true;
		}
		n = made == f->next_node_id ? next : before ? before->next : f->first;
	}
}

static bool
run_ungroup(Pass *p, Module *m)
{
	IntMap *opened = intmap_new(p->scratch);
	StrMap *said = strmap_new(p->scratch); /* the notes so far, of all functions */
	int n_functions = m->functions.n;

	for (int i = 0; i < n_functions; i++) {
		Function *f = m->functions.at[i];
		const Target *found = pass_target(p, f);
		if (!found)
			return false;
		Tuning tuning = tuning_with(found, p->options);
		Target own = *found, *target = &own;
		own.tuning = &tuning;
		if (f->kind != FUNCTION_PLAIN)
			continue;
		if (f->role != ROLE_FORWARD && f->role != ROLE_INFERENCE)
			find_groups(p, f, target, said);
		open_groups(p, f, target, opened, said);
	}
	drop_unreached(p, m);
	return true;
}

static PassFinding
group_finding(int i)
{
	const GroupRow *row = group_row(i, true);

	return row ? (PassFinding){row->name, row->doc} : (PassFinding){0};
}

const PassRow pass_ungroup = {
	.name = "ungroup",
	.help = "decide how groups are computed; find those that span both passes",
	.needed = true,
	.takes = STAGE_TRAIN,
	.leaves = STAGE_ANY,
	.finding = group_finding,
	.options = ungroup_options,
	.options_size = sizeof(UngroupOptions),
	.run = run_ungroup};
