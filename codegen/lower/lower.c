/* The pass `lower`: gives every fused function its loops. Each call of a fused function becomes
 * the launch of a kernel; calls with equal kernels share one kernel. */
#include "codegen/codegen.h"
#include "codegen/fuse/fuse.h"
#include "codegen/lower/nest.h"

#include <string.h>

/* ---- equal calls and equal kernels */
static uint64_t
call_hash(const Node *call, const Target *target)
{
	uint64_t h = hash_mix((uint64_t)(uintptr_t)called_function(call),
	                      (uint64_t)(uintptr_t)target);

	for (int i = 0; i < call->n_operands; i++)
		h = hash_mix(h, (uint64_t)hyperparameter(node_operand(call, i)) + 2);
	return h;
}

/* Can `l` use the kernel of an earlier call? An epilogue is an operation that a library applies
 * while it stores a product. Either all calls of a function have an epilogue or none has, so
 * comparing the library calls of `l` and of the earlier call is enough. */
static bool
call_equal(const Lowered *done, const Lowering *l)
{
	const Node *a = done->call, *b = l->call;

	if (done->target != l->target || called_function(a) != called_function(b) ||
	    (l->library && memcmp(done->library, l->library, sizeof(*l->library)) != 0))
		return false;
	for (int i = 0; i < a->n_operands; i++)
		if (hyperparameter(node_operand(a, i)) != hyperparameter(node_operand(b, i)))
			return false;
	return true;
}

Kernel *
sharing_find(const Module *m, Sharing *sh, const Kernel *k)
{
	uint64_t i, h = k->hash;

	for (; intmap_get(sh->by_kernel, h, &i); h++)
		if (kernel_equal(m->kernels.at[i], k))
			return m->kernels.at[i];
	intmap_put(sh->by_kernel, h, (uint64_t)m->kernels.n);
	return NULL;
}

/* Returns a kernel of the module that equals k; if there is none, adds k to the module and
 * returns k. */
static Kernel *
share_kernel(const Lowering *l, Sharing *sh, const Kernel *k)
{
	Module *m = l->m;
	Kernel *found = sharing_find(m, sh, k);
	const char *name;

	if (found)
		return found;
	int number = m->kernels.n;
	do
		name = lower_kernel_name(l->arena, l->f, l->call->phase, k->serves != NULL,
		                         number++);
	/* a module read from text may already use any name */
	while (strmap_get(m->kernel_names, name));
	return kernel_add(m, k, name);
}

static bool
lower_call(Sharing *sh, const Lowering *l, Lowered *done)
{
	const Kernel *k = lower_function(l);

	if (!k)
		return false;
	*done = (Lowered){.call = l->call, .target = l->target, .scratch = l->scratch};
	done->kernel = share_kernel(l, sh, k);
	done->library = done->kernel->library;
	if (l->scratch)
		done->before = share_kernel(l, sh, lower_before(l, done->kernel));
	return true;
}

/* Returns false after reporting an error. */
static bool
kernels_for(Sharing *sh, Lowering l, Arena *arena, Lowered *done)
{
	uint64_t i, h = call_hash(l.call, l.target);

	for (; intmap_get(sh->by_call, h, &i); h++)
		if (call_equal(&sh->done.at[i], &l)) {
			*done = sh->done.at[i];
			return true;
		}
	l.arena = arena_new();
	l.strategy = lower_strategy(l.target, l.f);
	bool ok = lower_check(&l);
	if (ok) {
		l.scratch = lower_needs(&l);
		ok = lower_call(sh, &l, done);
	}
	arena_free(l.arena);
	if (ok) {
		intmap_put(sh->by_call, h, (uint64_t)sh->done.n);
		vec_push(arena, &sh->done, *done);
	}
	return ok;
}

Node *
lower_insert_launch(Node *call, Kernel *k, int n_operands, Value *const *operands, int n_results,
                    const Type *types)
{
	Node *launch = node_insert(call->function, call, OP_launch, n_operands, operands,
	                           &(LaunchAttr){k}, n_results, types, call->loc);

	launch->phase = call->phase;
	return launch;
}

/* Inserts the launch before the call. The call itself stays until all calls are lowered, because later calls
 * are compared with it. */
static void
launch_instead(Node *call, const Lowered *l)
{
	Module *m = call->function->module;
	VEC(Value *) operands = {0};

	for (int i = 0; i < call->n_operands; i++)
		if (hyperparameter(node_operand(call, i)) < 0)
			vec_push(m->arena, &operands, node_operand(call, i));
	Type *types = NEW_ARRAY(m->arena, Type, call->n_results);
	for (int i = 0; i < call->n_results; i++)
		types[i] = node_result(call, i)->type;
	if (l->before) {
		Node *n = lower_insert_launch(call, l->before, operands.n, operands.at, 1,
		                              &l->scratch);
		vec_push(m->arena, &operands, node_result(n, 0));
	}
	Node *launch = lower_insert_launch(call, l->kernel, operands.n, operands.at,
	                                   call->n_results, types);
	for (int i = 0; i < call->n_results; i++)
		value_replace_uses(node_result(call, i), node_result(launch, i));
}

static bool
lower_reader(Sharing *sh, Lowering l, Arena *arena, Node *call, const Epilogue *e)
{
	Lowered done;

	l.call = e->call;
	l.f = called_function(e->call);
	l.library = &e->library;
	if (!kernels_for(sh, l, arena, &done))
		return false;
	launch_instead(e->call, &done);
	value_replace_uses(node_result(call, 0), node_result(e->call->prev, 0));
	lower_serve_reader(l.m, sh, e, done.kernel);
	return true;
}

static bool
lower_calls(Pass *p, Function *f, Sharing *sh)
{
	Lowering l = {.m = f->module,
	              .target = pass_target(p, f),
	              .cores = ((const TargetOptions *)p->options)->cores,
	              .diag = p->diag};
	Lowered done;
	Epilogue e;

	if (!l.target)
		return false;
	for_each_node(f, n) {
		if (!called_function(n))
			continue;
		if (epilogue_open(l.target, n, &sh->readers, &e)) {
			if (!lower_reader(sh, l, p->scratch, n, &e))
				return false;
			continue;
		}
		l.call = n;
		l.f = called_function(n);
		l.arena = p->scratch;
		if (lower_concat_in_place(&l, sh, n))
			continue;
		if (!kernels_for(sh, l, p->scratch, &done))
			return false;
		launch_instead(n, &done);
	}
	return true;
}

static void
drop_calls(Module *m)
{
	for_each_function(m, g)
		if (g->kind == FUNCTION_PLAIN)
			for_each_node_reverse(g, n)
				if (called_function(n))
					node_erase(n);
}

static void
drop_lowered_functions(Module *m)
{
	int kept = 0;

	for (int i = 0; i < m->functions.n; i++) {
		Function *f = m->functions.at[i];
		if (f->kind != FUNCTION_PLAIN) {
			strmap_put(m->function_names, f->name, NULL);
			continue;
		}
		f->index = kept;
		m->functions.at[kept++] = f;
	}
	m->functions.n = kept;
}

/* Drops kernels that this pass has added (from number `first` on) and that no launch uses. That
 * happens if a launch was changed to use a copy of its kernel with Kernel.serves set. */
static void
drop_unlaunched(Pass *p, Module *m, int first)
{
	IntMap *launched = intmap_new(p->scratch);
	int kept = first;
	uint64_t found;

	for_each_function(m, f)
		for_each_node(f, n)
			if (launched_kernel(n))
				intmap_put(launched, (uint64_t)(uintptr_t)launched_kernel(n), 1);
	for (int i = first; i < m->kernels.n; i++) {
		Kernel *k = m->kernels.at[i];
		if (intmap_get(launched, (uint64_t)(uintptr_t)k, &found)) {
			k->id = kept;
			m->kernels.at[kept++] = k;
		} else
			strmap_put(m->kernel_names, k->name, NULL);
	}
	m->kernels.n = kept;
}

static bool
run_lower(Pass *p, Module *m)
{
	int first = m->kernels.n;
	Sharing sh = {.by_call = intmap_new(p->scratch),
	              .by_kernel = intmap_new(p->scratch),
	              .readers = {.by_hash = intmap_new(p->scratch), .arena = p->scratch}};

	if (!pass_check_cores(p))
		return false;
	for_each_function(m, f)
		if (f->kind == FUNCTION_PLAIN && !lower_calls(p, f, &sh))
			return false;
	drop_calls(m);
	drop_lowered_functions(m);
	drop_unlaunched(p, m, first);
	p->changed = true;
	return true;
}

const PassRow pass_lower = {.name = "lower",
                            .help = "give every kernel its loops",
                            .needed = true,
                            .takes = STAGE_FUSED,
                            .leaves = STAGE_LOWERED,
                            .options = target_options,
                            .options_size = sizeof(TargetOptions),
                            .defaults = &target_defaults,
                            .run = run_lower};
