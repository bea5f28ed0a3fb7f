/* Which strategy computes a node. */
#include "codegen/codegen.h"
#include "codegen/kernels/kernels.h"

#define STRATEGY(name) extern const Strategy strategy_##name;
#include "codegen/kernels/strategy_list.def"
#undef STRATEGY

static const Strategy *const strategies[] = {
#define STRATEGY(name) &strategy_##name,
#include "codegen/kernels/strategy_list.def"
#undef STRATEGY
};

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

static const char *
kind_name(TargetKind kind)
{
	for (int i = 0; target_table[i]; i++)
		if (target_table[i]->kind == kind)
			return target_table[i]->name;
	return "?";
}

static bool
takes_every_node(const Strategy *s, OpKind op, TargetKind kind)
{
	return s->op == op && s->kinds >> kind & 1 && !s->takes;
}

bool
strategy_table_check(Diag *diag)
{
	bool sound = true;

	for (int op = 0; op < N_OPS; op++)
		for (int kind = 0; kind < N_TARGET_KINDS && op_table[op]->fuse == FUSE_OPAQUE;
		     kind++) {
			bool found = false;
			for (int i = 0; i < COUNT(strategies) && !found; i++)
				found = takes_every_node(strategies[i], (OpKind)op,
				                         (TargetKind)kind);
			if (!found)
				diag_error(
					diag, EXIT_UNSUPPORTED,
					"op \"%s\": no strategy takes every node for targets like %s",
					op_table[op]->name, kind_name((TargetKind)kind));
			sound &= found;
		}
	for (int i = 0; target_table[i]; i++) {
		const Target *t = target_table[i];
		if (t->product && t->product->rows >= 1 && t->product->rows <= MOST_PRODUCT_ROWS)
			continue;
		diag_error(diag, EXIT_UNSUPPORTED,
		           "target \"%s\": rows of a product are not 1 to %d", t->name,
		           MOST_PRODUCT_ROWS);
		sound = false;
	}
	for (int i = 0; i < COUNT(strategies); i++) {
		const Strategy *st = strategies[i];
		const char *hole = !st->emit                      ? "emit"
		                   : !st->doc                     ? "doc"
		                   : !st->scratch != !st->prepare ? "scratch or prepare"
		                                                  : NULL;
		if (hole)
			diag_error(diag, EXIT_UNSUPPORTED,
			           "strategy of op \"%s\": column %s is missing",
			           op_table[st->op]->name, hole);
		sound &= !hole;
	}
	return sound;
}
