/* The pass `offload` (--offload=activations): values that the forward pass computes for the
 * backward pass wait in the host's memory. Each value is copied to the host while the device
 * computes. It is copied back before its first reader in the backward pass. In between, the
 * device's memory is free:
 *
 *	copy_out               COPY a -> host
 *	compute   run a = ...  run b ... run c ...   | backward ...                run (reads a')
 *	copy_in                                      |         COPY a' <- host
 *
 * Values are copied back before they are needed. But the values that are back and not yet read
 * take at most twice the bytes of the largest moved value. Values stay on the device if they are
 * small, or if the backward pass reads them soon. Changes no number. Takes linear time in nodes,
 * and n log n in values. */
#include "codegen/codegen.h"
#include "codegen/target/target.h"
#include "ir/loop/loop.h"

#include <stdlib.h>

typedef struct {
	int64_t least;
} OffloadOptions;

/* a value moves only if there are at least this many nodes between its last reader in the
 * forward pass and its first reader in the backward pass */
enum { NEAR = 16 };

typedef struct {
	Value *value;
	/* positions of the value's last reader in the forward pass and of its first reader in
	 * the backward pass */
	int leaves, returns;
	Node *reader; /* the first reader in the backward pass */
} Crossing;

typedef struct {
	Pass *pass;
	Function *f;
	int64_t least;
	int *position; /* by node id */
	VEC(Crossing) crossings;
	VEC(Kernel *) kernels; /* the copy kernels: one for each type and direction */
} Offloading;

/* ---- which values */
static bool
is_backward(const Node *n)
{
	return n->phase == PHASE_BACKWARD;
}

/* May v move? It must be a large result of the forward pass in every micro-batch, and only kernels may read
 * it. */
static bool
may_move(const Offloading *o, const Value *v)
{
	const Node *n = v->node;

	if (n->op != OP_launch || is_backward(n) || n->when != WHEN_ALWAYS ||
	    type_bytes(v->type) < o->least)
		return false;
	for_each_use(v, u)
		if (u->user->op != OP_launch)
			return false;
	return true;
}

static void
find_crossing(Offloading *o, Value *v)
{
	Crossing c = {.value = v, .leaves = o->position[v->node->id]};

	for_each_use(v, u) {
		int at = o->position[u->user->id];
		if (!is_backward(u->user))
			c.leaves = at > c.leaves ? at : c.leaves;
		else if (!c.reader || at < c.returns) {
			c.reader = u->user;
			c.returns = at;
		}
	}
	if (c.reader && c.returns - c.leaves >= NEAR)
		vec_push(o->pass->scratch, &o->crossings, c);
}

static int
by_return(const void *a, const void *b)
{
	const Crossing *x = a, *y = b;

	if (x->returns != y->returns)
		return x->returns < y->returns ? -1 : 1;
	return x->value->id < y->value->id ? -1 : x->value->id > y->value->id;
}

/* ---- copies */
static Kernel *
make_kernel(const Offloading *o, Type type, KernelMoves moves)
{
	Module *m = o->f->module;
	Kernel *k = kernel_new(o->pass->scratch, "", loc_name(m, "offload"));
	LoopBuilder *lb = loop_builder(k, m, o->pass->scratch);
	int x = lb_buffer(lb, "x0", BUFFER_IN, type), y = lb_buffer(lb, "y0", BUFFER_OUT, type);
	LoopValue i = lb_for(lb, LOOP_PARALLEL, type->n);
	Affine at = affine_scalar(lb, i);

	lb_store(lb, y, at, lb_load(lb, x, at));
	lb_end(lb);
	kernel_close(lb);
	k->moves = moves;
	return kernel_add(m, k,
	                  arena_printf(m->arena, "%s_%d",
	                               moves == MOVES_TO_HOST ? "to_host" : "to_device",
	                               m->kernels.n));
}

static Kernel *
copy_kernel(Offloading *o, Type type, KernelMoves moves)
{
	for (int i = 0; i < o->kernels.n; i++)
		if (o->kernels.at[i]->moves == moves &&
		    o->kernels.at[i]->buffers.at[0].type == type)
			return o->kernels.at[i];
	vec_push(o->pass->scratch, &o->kernels, make_kernel(o, type, moves));
	return o->kernels.at[o->kernels.n - 1];
}

static Value *
copy_before(Offloading *o, Node *before, Value *v, KernelMoves moves, const Node *of)
{
	LaunchAttr attr = {.kernel = copy_kernel(o, v->type, moves)};
	Node *n = node_insert(o->f, before, OP_launch, 1, &v, &attr, 1, &v->type, of->loc);

	n->phase = of->phase;
	return node_result(n, 0);
}

static void
move(Offloading *o, const Crossing *c, Node *back_before)
{
	Value *v = c->value, *host = copy_before(o, v->node->next, v, MOVES_TO_HOST, v->node);
	Value *back = copy_before(o, back_before, host, MOVES_TO_DEVICE, c->reader);
	VEC(const Use *) readers = {0};

	for_each_use(v, u)
		if (is_backward(u->user))
			vec_push(o->pass->scratch, &readers, u);
	for (int i = 0; i < readers.n; i++)
		node_set_operand(readers.at[i]->user, use_index(readers.at[i]), back);
}

/* Moves all values. The copy back of a value stands before the reader of an earlier value, as
 * long as the values that wait for their readers take at most twice the bytes of the largest
 * value. */
static void
move_all(Offloading *o)
{
	int64_t most = 0, waiting = 0;
	int first = 0;

	for (int i = 0; i < o->crossings.n; i++) {
		int64_t bytes = type_bytes(o->crossings.at[i].value->type);
		most = bytes > most ? bytes : most;
	}
	for (int i = 0; i < o->crossings.n; i++) {
		waiting += type_bytes(o->crossings.at[i].value->type);
		for (; waiting > 2 * most; first++)
			waiting -= type_bytes(o->crossings.at[first].value->type);
		move(o, &o->crossings.at[i], o->crossings.at[first].reader);
	}
}

static void
offload_function(Pass *p, Function *f)
{
	Offloading o = {.pass = p,
	                .f = f,
	                .least = ((const OffloadOptions *)p->options)->least,
	                .position = NEW_ARRAY(p->scratch, int, f->next_node_id)};
	int at = 0;

	for_each_node(f, n)
		o.position[n->id] = at++;
	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++)
			if (may_move(&o, node_result(n, i)))
				find_crossing(&o, node_result(n, i));
	if (o.crossings.n == 0)
		return;
	qsort(o.crossings.at, (size_t)o.crossings.n, sizeof(*o.crossings.at), by_return);
	move_all(&o);
	p->changed = true;
}

/* Does every program run on a CPU? Then the host's memory is all there is. */
static bool
only_cpus(const Module *m)
{
	for_each_function(m, f)
		if (f->target && target_find(f->target)->kind != TARGET_CPU)
			return false;
	return true;
}

static bool
run_offload(Pass *p, Module *m)
{
	for_each_function(m, f)
		if (f->role == ROLE_ACCUMULATE || f->role == ROLE_ESTIMATE)
			offload_function(p, f);
	if (p->changed && only_cpus(m))
		diag_warning(
			p->diag,
			"--offload=activations takes time and saves no memory here: no target is a GPU, and on a CPU activations already lie in the host's memory");
	if (!p->changed)
		diag_warning(
			p->diag,
			"--offload=activations changes nothing: no activation of %lld bytes or more waits long enough for the backward pass",
			(long long)((const OffloadOptions *)p->options)->least);
	return true;
}

static const PassOption options[] = {
	{"least", "bytes of an activation that is worth a copy", OPTION_INT,
         offsetof(OffloadOptions, least)},
	{0},
};
static const OffloadOptions defaults = {.least = 1 << 16};
const PassRow pass_offload = {.name = "offload",
                              .help = "activations wait in the host's memory for the backward pass",
                              .takes = STAGE_SCHEDULE,
                              .leaves = STAGE_SCHEDULE,
                              .when = PASS_WHEN_ASKED,
                              .options = options,
                              .options_size = sizeof(OffloadOptions),
                              .defaults = &defaults,
                              .run = run_offload};
