/* The pass `memory`: gives every value a place. States lie at fixed offsets. Parameters and
 * results of programs lie in the io region. All other values lie in one workspace, where two
 * values may share bytes if they are never needed at the same time. A value that becomes a
 * state's new content is computed in the state's place if nothing reads the old content later. A
 * result may take the place of an operand that is read for the last time, if the kernel allows
 * it. */
#include "codegen/codegen.h"
#include "codegen/legalize/legalize.h"
#include "codegen/schedule/order.h"
#include "codegen/schedule/place_blocks.h"

#include <limits.h>
#include <string.h>

enum { ALIGNMENT = 64 };
_Static_assert(UNIT_BLOCK % SUM_BLOCK == 0, "a unit's sums are whole blocks");

static int64_t
aligned(int64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- states */
/* A unit (the states of one layer block) may itself lie in a run of several units. */
static void
place_in_unit(State *s)
{
	if (!s->unit)
		return;
	place_in_unit(s->unit);
	s->offset = s->unit->offset + dtype_bytes(s->type->dtype, s->unit_offset);
}

/* Orders states by the mode that divides them: states that every rank always holds whole come
 * first, then those divided by ZeRO-3, ZeRO-2 and ZeRO-1. So every mode divides exactly the
 * states behind some offset. */
static void
place_states(Module *m)
{
	static const DataParallelMode order[] = {MODE_DDP, MODE_ZERO3, MODE_ZERO2, MODE_ZERO1};
	int64_t at = 0;

	for (int k = 0; k < COUNT(order); k++) {
		for (int i = 0; i < m->states.n; i++) {
			State *s = m->states.at[i];
			if (s->sharded != order[k] || s->unit || state_is_small_sum(s))
				continue;
			s->offset = at;
			at += aligned(state_place_bytes(s));
		}
		at = order[k] == MODE_DDP ? small_sums_place(m, at) : at;
	}
	for (int i = 0; i < m->states.n; i++)
		place_in_unit(m->states.at[i]);
	m->state_bytes = at;
}

/* ---- one function */
/* A body, whose values lie in a block of the workspace. */
typedef struct {
	Function *f;
	int block;
} Body;
typedef struct {
	Module *m;
	Function *f;
	Arena *arena;
	int *position; /* by node id */
	int *last_use; /* by value id */
	Storage storage;
	struct {
		VEC(Value *) values;
	} * in_state;           /* by state id: the values that are computed in the state's place */
	Blocks workspace, host; /* blocks of the workspace, and of the host's memory */
	int *block;             /* by value id: the value's block in one of them; -1: none */
	int64_t io;
	VEC(Body) bodies; /* of loops and branches */
	/* the loop or branch that runs the function; NULL: the function is a program */
	const Node *by;
} Plan;

static void
number_nodes(Plan *p)
{
	int at = 0;

	p->position = NEW_ARRAY(p->arena, int, p->f->next_node_id);
	p->last_use = NEW_ARRAY(p->arena, int, p->f->next_value_id);
	p->block = NEW_ARRAY(p->arena, int, p->f->next_value_id);
	for (uint32_t i = 0; i < p->f->next_value_id; i++)
		p->block[i] = -1;
	for_each_node(p->f, n) {
		p->position[n->id] = at;
		for (int i = 0; i < n->n_operands; i++)
			p->last_use[node_operand(n, i)->id] = at;
		at++;
	}
}

typedef struct {
	const Plan *plan;
	const State *state;
	const Value *fresh; /* value to be computed in the state's place */
} Overwrite;

static bool
old_read_later(void *ctx, const Value *old)
{
	const Overwrite *o = ctx;
	const Node *n = o->fresh->node;
	const Kernel *k = launched_kernel(n);

	for_each_use(old, u) {
		if (!(when_runs(u->user->when) & when_runs(n->when)))
			continue;
		if (o->plan->position[u->user->id] > o->plan->position[n->id])
			return true;
		if (u->user == n &&
		    (old->state != o->state || !k ||
		     !kernel_may_overwrite(k, use_index(u), k->n_inputs + o->fresh->index)))
			return true;
	}
	return false;
}

/* An empty tensor takes a byte, so that it has an address of its own. */
static int64_t
workspace_bytes(const Value *v)
{
	int64_t bytes = aligned(type_bytes(v->type));

	return bytes ? bytes : ALIGNMENT;
}

static bool
reads_once(const Node *n, const Value *v)
{
	int times = 0;

	for (int i = 0; i < n->n_operands; i++)
		times += node_operand(n, i) == v;
	return times == 1;
}

/* May node n write result r over operand i? A loop may, if operand i is the initial content of
 * the carried value r. */
static bool
may_overwrite(const Node *n, int i, int r)
{
	const Kernel *k = n->op == OP_launch ? ((LaunchAttr *)n->attr)->kernel : NULL;

	if (loop_of(n))
		return i == r && loop_part(n, i) == LOOP_CARRIED;
	return k && !k->moves && kernel_may_overwrite(k, i, k->n_inputs + r);
}

/* Is the value read by nothing but its store in the first micro-batch, and by one node that makes of it what later
 * micro-batches store (running_sums.c)? A store may be a copy, which would overwrite the value for other readers. */
static bool
is_added_later(const Value *v, const State *s)
{
	int additions = 0;

	for_each_use(v, u) {
		const Node *n = u->user, *later = NULL;
		if (stored_state(n) == s && n->when == WHEN_FIRST)
			continue;
		for (int i = 0; n->when == WHEN_LATER && i < n->n_results; i++)
			for_each_use(node_result(n, i), store)
				later = stored_state(store->user) == s ? store->user : later;
		if (!later)
			return false;
		additions++;
	}
	return additions == 1;
}

static bool
is_in_state(const Value *v, const State *s)
{
	return v->region == REGION_STATE && v->offset == s->offset;
}

/* Does a node read x, or store x, after y has overwritten x in the same micro-batch? */
static bool
is_read_behind(const Plan *p, const Value *x, const Value *y)
{
	for_each_use(x, u)
		if (p->position[u->user->id] > p->position[y->node->id] &&
		    (when_runs(u->user->when) & when_runs(y->node->when)))
			return true;
	return false;
}

/* May v be computed in the state's place: does nothing read the old content later, may v overwrite what its node reads
 * there, and is no other value that lies there read later? */
static bool
fits_in_state(const Plan *p, State *s, Value *v)
{
	const Node *n = v->node;

	if (!n || (n->op != OP_launch && !loop_of(n)) || v->region != REGION_NONE)
		return false;
	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i)->node && is_in_state(node_operand(n, i), s) &&
		    !may_overwrite(n, i, v->index))
			return false;
	for (int i = 0; i < p->in_state[s->id].values.n; i++) {
		const Value *u = p->in_state[s->id].values.at[i];
		bool before = p->position[u->node->id] < p->position[n->id];
		if (is_read_behind(p, before ? u : v, before ? v : u))
			return false;
	}
	return !storage_any_value(&p->storage, s, old_read_later, &(Overwrite){p, s, v});
}

/* An operand of v's node that the node may overwrite with v, and that no later node reads; NULL: the node has no such operand,
 * or another operand already lies in the state's place. */
static Value *
beginning_of(const Plan *p, const State *s, const Value *v)
{
	const Node *n = v->node;

	for (int i = 0; i < n->n_operands; i++)
		if (is_in_state(node_operand(n, i), s))
			return NULL;

	for (int i = 0; i < n->n_operands; i++) {
		Value *u = node_operand(n, i);
		if (u->region == REGION_NONE && p->last_use[u->id] == p->position[n->id] &&
		    workspace_bytes(u) == workspace_bytes(v) && reads_once(n, u) &&
		    may_overwrite(n, i, v->index))
			return u;
	}
	return NULL;
}

/* Lets the kernel write the stored value directly to the state's place, if nothing reads the old
 * content later. Otherwise the store will be a copy. A kernel may run in every micro-batch and
 * have two results, one stored in the first micro-batch and one in later ones. Then only the
 * result that later micro-batches store is written directly. The values that the stored value begins as lie in
 * the state's place, too. */
static void
place_in_state(Plan *p, Node *store)
{
	Value *v = node_operand(store, 0);
	State *s = ((StoreAttr *)store->attr)->state;

	if (v->node && store->when == WHEN_FIRST && v->node->when != WHEN_FIRST &&
	    !is_added_later(v, s))
		return;
	for (; v && fits_in_state(p, s, v); v = beginning_of(p, s, v)) {
		v->region = REGION_STATE;
		v->offset = s->offset;
		vec_push(p->arena, &p->in_state[s->id].values, v);
	}
}

/* ---- functions that loops and branches run */
/* Is the old value of a parameter read after v is computed, or by v's kernel in a way that forbids
 * overwriting it? */
static bool
param_read_later(const Plan *p, const Value *param, const Value *v)
{
	const Kernel *k = ((LaunchAttr *)v->node->attr)->kernel;

	for_each_use(param, u) {
		if (u->user == v->node
		            ? !kernel_may_overwrite(k, use_index(u), k->n_inputs + v->index)
		            : p->position[u->user->id] > p->position[v->node->id])
			return true;
	}
	return false;
}

/* Code for GPUs may read 16 bytes with one instruction; a row must then begin at a multiple of
 * 16. */
enum { ROW_ALIGNMENT = 16 };

static bool
row_is_aligned(const Plan *p, Type row)
{
	const Target *t = p->f->target ? target_find(p->f->target) : NULL;

	return type_bytes(row) % ROW_ALIGNMENT == 0 || (t && t->kind == TARGET_CPU);
}

/* A block that node `at` needs, and perhaps later nodes, too. */
static int
new_block(Plan *p, Blocks *blocks, int64_t bytes, int at)
{
	vec_push(p->arena, blocks, ((Block){.bytes = bytes, .begin = at, .end = at}));
	return blocks->n - 1;
}

static void
place_params(Plan *p)
{
	for (int i = 0; i < p->f->params.n; i++) {
		Value *v = p->f->params.at[i];
		bool row = loop_of(p->by) && i > 0 && loop_part(p->by, i - 1) == LOOP_SLICED;
		v->region = REGION_PARAM;
		v->offset = i;
		if (!row || row_is_aligned(p, v->type) || !value_used(v))
			continue;
		/* rows are not aligned, so each is copied to the workspace before the body runs */
		v->region = REGION_WORKSPACE;
		p->block[v->id] = new_block(p, &p->workspace, aligned(type_bytes(v->type)), 0);
		p->workspace.at[p->block[v->id]].end = INT_MAX - 1;
	}
}

static bool
may_be_placed(const Value *v)
{
	if (!v->node || v->node->op != OP_launch || v->region != REGION_NONE)
		return false;
	/* a row's place advances with one loop only, so no inner loop may read the row */
	for_each_use(v, u)
		if (op_row(u->user)->fuse == FUSE_CONTROL)
			return false;
	return true;
}

/* Lets kernels write a body's results directly to their final places, if possible. The final
 * place of a carried value is that of its old content; the final place of a row of a stacked
 * result is in the stack. */
static void
place_results(Plan *p)
{
	const Node *ret = function_return(p->f);
	const LoopAttr *loop = loop_of(p->by);
	int64_t carried = loop ? loop->carried : 0;
	int first = loop != NULL;

	for (int i = first; i < ret->n_operands; i++) {
		Value *v = node_operand(ret, i);
		bool carries = first && i <= carried;
		if (!may_be_placed(v) || (carries ? param_read_later(p, p->f->params.at[i], v)
		                                  : loop && !row_is_aligned(p, v->type)))
			continue;
		v->region = carries ? REGION_PARAM : REGION_RESULT;
		v->offset = carries ? i : i - first;
	}
}

static void
place_io(Plan *p, Value *v)
{
	v->region = REGION_IO;
	v->offset = p->io;
	p->io += aligned(type_bytes(v->type));
}

static Blocks *
blocks_of(Plan *p, const Value *v)
{
	return v->region == REGION_HOST ? &p->host : &p->workspace;
}

static void
allocate(Plan *p, Value *v)
{
	const Kernel *k = v->node->op == OP_launch ? ((LaunchAttr *)v->node->attr)->kernel : NULL;
	bool host = k && k->moves == MOVES_TO_HOST;

	v->region = host ? REGION_HOST : REGION_WORKSPACE;
	p->block[v->id] = new_block(p, blocks_of(p, v), workspace_bytes(v),
	                            p->position[v->node->id]);
}

/* Lets result v take the place of an operand that is read for the last time. False: no operand fits. */
static bool
overwrite(Plan *p, const Node *n, Value *v)
{
	for (int i = 0; i < n->n_operands; i++) {
		Value *u = node_operand(n, i);
		if (u->region != REGION_WORKSPACE || p->last_use[u->id] != p->position[n->id] ||
		    workspace_bytes(u) != workspace_bytes(v) || !reads_once(n, u) ||
		    !may_overwrite(n, i, v->index))
			continue;
		v->region = REGION_WORKSPACE;
		p->block[v->id] = p->block[u->id];
		p->last_use[u->id] = -1; /* v owns the operand's place now */
		return true;
	}
	return false;
}

static int64_t place_function(Pass *pass, Module *m, Function *f, const Node *by);

/* Moves the values of a body, and of the bodies inside, by `bytes` in the workspace. */
static void
move_body(Function *f, int64_t bytes)
{
	for (int i = 0; i < f->params.n; i++)
		if (f->params.at[i]->region == REGION_WORKSPACE)
			f->params.at[i]->offset += bytes;
	for_each_node(f, n) {
		Function *bodies[2] = {NULL, NULL};
		for (int i = 0; i < n->n_results; i++)
			if (node_result(n, i)->region == REGION_WORKSPACE)
				node_result(n, i)->offset += bytes;
		if (op_row(n)->fuse == FUSE_CONTROL)
			node_bodies(n, bodies);
		for (int i = 0; i < 2 && bodies[i]; i++)
			move_body(bodies[i], bytes);
	}
}

/* The values of the bodies of a loop or branch take a block of the workspace while the node runs. Only one of the bodies
 * runs at a time, so they share the block. */
static void
place_bodies(Pass *pass, Plan *p, const Node *n)
{
	Function *bodies[2] = {NULL, NULL};
	int64_t most = 0;

	node_bodies(n, bodies);
	for (int i = 0; i < 2 && bodies[i]; i++) {
		int64_t bytes = place_function(pass, p->m, bodies[i], n);
		most = bytes > most ? bytes : most;
	}
	if (most == 0)
		return;
	int block = new_block(p, &p->workspace, most, p->position[n->id]);
	for (int i = 0; i < 2 && bodies[i]; i++)
		vec_push(p->arena, &p->bodies, ((Body){bodies[i], block}));
}

/* The value's block is needed until the value is read for the last time. */
static void
keep_until_read(Plan *p, Value *v)
{
	Block *b = p->block[v->id] >= 0 ? &blocks_of(p, v)->at[p->block[v->id]] : NULL;

	if (b && value_used(v) && p->last_use[v->id] > b->end)
		b->end = p->last_use[v->id];
}

static void
find_blocks(Pass *pass, Plan *p)
{
	for_each_node(p->f, n) {
		for (int i = 0; i < n->n_results; i++) {
			Value *v = node_result(n, i);
			if (v->region == REGION_NONE && !overwrite(p, n, v))
				allocate(p, v);
			keep_until_read(p, v);
		}
		if (op_row(n)->fuse == FUSE_CONTROL)
			place_bodies(pass, p, n);
	}
}

static void
set_offset(Plan *p, Value *v)
{
	if (p->block[v->id] >= 0)
		v->offset = blocks_of(p, v)->at[p->block[v->id]].offset;
}

/* Returns the bytes of the workspace that the function needs. */
static int64_t
place_workspace(Pass *pass, Plan *p)
{
	find_blocks(pass, p);
	int64_t bytes = place_blocks(&p->workspace, pass->scratch);
	place_blocks(&p->host, pass->scratch);
	for (int i = 0; i < p->f->params.n; i++)
		set_offset(p, p->f->params.at[i]);
	for_each_node(p->f, n)
		for (int i = 0; i < n->n_results; i++)
			set_offset(p, node_result(n, i));
	for (int i = 0; i < p->bodies.n; i++)
		move_body(p->bodies.at[i].f, p->workspace.at[p->bodies.at[i].block].offset);
	return bytes;
}

static void
place_ports(Plan *p)
{
	const Node *ret = function_return(p->f);

	for (int i = 0; i < p->f->params.n; i++)
		if (p->f->params.at[i]->param != PARAM_HYPERPARAMETER)
			place_io(p, p->f->params.at[i]);
	for (int i = 0; i < ret->n_operands; i++)
		if (node_operand(ret, i)->region == REGION_NONE)
			place_io(p, node_operand(ret, i));
}

/* Gives all values of f their regions and offsets. Returns the bytes that f, its loops and
 * its branches need in the workspace. by: the loop or branch that runs f; NULL: f is
 * a program. */
static int64_t
place_function(Pass *pass, Module *m, Function *f, const Node *by)
{
	Plan p = {.m = m,
	          .f = f,
	          .arena = pass->scratch,
	          .by = by,
	          .storage = storage_of(pass->scratch, f),
	          .in_state = arena_alloc(pass->scratch,
	                                  sizeof(*p.in_state) * ((size_t)m->states.n + 1))};

	number_nodes(&p);
	for (int i = 0; i < f->states.n; i++) {
		f->states.at[i]->region = REGION_STATE;
		f->states.at[i]->offset = f->states.at[i]->state->offset;
	}
	if (by) {
		place_params(&p);
		place_results(&p);
	} else {
		place_ports(&p);
	}
	for_each_node(f, n)
		if (n->op == OP_store)
			place_in_state(&p, n);
	int64_t bytes = place_workspace(pass, &p);
	if (function_find_param(f, PARAM_HYPERPARAMETER, -1))
		p.io = aligned(p.io) + aligned(SCALARS_BYTES); /* scalars that kernels read */
	if (!by && (f->role != ROLE_FORWARD || !module_first(m, ROLE_ACCUMULATE))) {
		m->workspace_bytes = bytes > m->workspace_bytes ? bytes : m->workspace_bytes;
		m->io_bytes = p.io > m->io_bytes ? p.io : m->io_bytes;
	}
	return bytes;
}

/* Reads words such as "ddp+zero3" as bits, in the order of `known`. */
static bool
read_words(Pass *p, const char *option, const char *words, const char *const *known, uint32_t *out)
{
	char *copy = arena_strdup(p->scratch, words), *save = NULL;

	for (char *word = strtok_r(copy, "+", &save); word; word = strtok_r(NULL, "+", &save)) {
		int i = 0;
		while (known[i] && strcmp(word, known[i]) != 0)
			i++;
		if (!known[i]) {
			diag_error(p->diag, EXIT_USAGE, "pass memory: %s=%s: there is no \"%s\"",
			           option, words, word);
			return false;
		}
		*out |= 1u << i;
	}
	return true;
}

static bool
run_memory(Pass *p, Module *m)
{
	const MemoryOptions *o = p->options;
	uint32_t offload = 0;

	if (!read_words(p, "modes", o->modes, mode_names, &m->modes) ||
	    !read_words(p, "offload", o->offload, offload_names, &offload))
		return false;
	m->modes &= ~(1u << MODE_DDP); /* plain data parallelism is always allowed */
	if (m->modes && module_first(m, ROLE_UPDATE))
		shard_states(m, offload, p->scratch);
	place_states(m);
	IntMap *inner = functions_run_by_others(m, p->scratch);
	uint64_t seen;
	for_each_function(m, f)
		if (!intmap_get(inner, (uint64_t)(uintptr_t)f, &seen))
			place_function(p, m, f, NULL);
	rank_sums_add(p, m);
	p->changed = true;
	return true;
}

static const PassOption memory_options[] = {
	{"modes", "how ranks may share states; of ddp, zero1, zero2, zero3; example: ddp+zero3",
         OPTION_STRING, offsetof(MemoryOptions, modes)},
	{"offload", "which parts of the states lie in the host's memory: optimizer, params",
         OPTION_STRING, offsetof(MemoryOptions, offload)},
	{0},
};
static const MemoryOptions memory_defaults = {.modes = "ddp", .offload = ""};
const PassRow pass_memory = {.name = "memory",
                             .help = "give every value a place",
                             .needed = true,
                             .takes = STAGE_SCHEDULE,
                             .leaves = STAGE_MEMORY,
                             .options = memory_options,
                             .options_size = sizeof(MemoryOptions),
                             .defaults = &memory_defaults,
                             .run = run_memory};
