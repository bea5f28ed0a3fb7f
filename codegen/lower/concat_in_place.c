/* Lets kernels write their results where a concat would copy them to:
 *
 *	%1 = launch .. {kernel = @k} : f32[16,768]          %1 = launch .. {kernel = @k_concat} : f32[16,1536]
 *	%2 = launch .. {kernel = @l} : f32[16,768]     =>   %2 = launch .., %1 {kernel = @l_concat} : f32[16,1536]
 *	%3 = call %1, %2 {callee = @concat} : f32[16,1536]
 *
 * @k_concat writes columns 0 to 767 of 1536. The result of @l_concat begins as %1; @l_concat writes the other columns. For
 * example, an attention's gradient writes the gradients of q, k and v where the next products read them.
 *
 * A concat stays a kernel if an operand has another reader, if an operand is no kernel's result, or if the elements of a result
 * cannot move. */
#include "codegen/fuse/fuse.h"
#include "codegen/lower/nest.h"

/* An operand of the concat: result number `result` of a launch. Its rows become a part of the concat's rows. */
typedef struct {
	Node *launch;
	int result;
	RowMove rows;
} Piece;

typedef struct {
	const Lowering *l;
	Sharing *sh;
	Node *call;
	VEC(Piece) pieces;
} Concat;

/* The concat, if f computes nothing else: only reshapes stand around it. */
static const Node *
only_concat(const Function *f)
{
	const Node *ret = function_return(f);
	const Node *n = ret->n_operands == 1 ? behind_reshapes(node_operand(ret, 0))->node : NULL;

	if (!n || n->op != OP_concat)
		return NULL;
	for (int i = 0; i < f->params.n; i++)
		if (!value_used_once(f->params.at[i]))
			return NULL;
	for_each_node(f, m)
		if (m != ret && !value_used_once(node_result(m, 0)))
			return NULL;
	return n;
}

/* Can the kernel write this result into longer rows? */
static bool
can_move(const Concat *c, const Kernel *k, int result, int64_t row)
{
	const LoopBuffer *b = &k->buffers.at[k->n_inputs + result];

	return b->kind == BUFFER_OUT && !k->serves && !k->all_reduces && !k->sums && !k->moves &&
	       places_can_move(c->l->arena, k, k->n_inputs + result, row);
}

/* Are rows of n elements long enough for a kernel's vectors, and can the next row begin where a library's may? */
static bool
is_long(const Concat *c, DType dtype, int64_t n)
{
	int64_t alignment = c->l->target->tuning->library.row_alignment;
	int64_t bits = dtype_info[dtype].bits;

	return bits >= 8 && n >= LOOP_LANES && (!alignment || n * bits / 8 % alignment == 0);
}

/* Adds the launch that computes operand v of the concat; false: there is no launch that could write into the concat. */
static bool
add_piece(Concat *c, Value *v, RowMove rows)
{
	const Function *f = called_function(c->call);
	int i = 0;

	while (i < f->params.n && f->params.at[i] != v)
		i++;
	Value *x = i < f->params.n ? node_operand(c->call, i) : NULL;
	const Kernel *k = x && x->node ? launched_kernel(x->node) : NULL;
	if (!k || !value_used_once(x) || !can_move(c, k, x->index, rows.row))
		return false;
	vec_push(c->l->arena, &c->pieces, ((Piece){x->node, x->index, rows}));
	return true;
}

/* Adds a piece for each operand of the concat n; false: some operand cannot be one. */
static bool
find_pieces(Concat *c, const Node *n)
{
	Type t = node_result(n, 0)->type;
	int64_t axis = ((const AxisAttr *)n->attr)->axis, inside = 1, outside = 1, done = 0;

	for (int i = 0; i < t->rank; i++) {
		inside *= i > axis ? t->dims[i] : 1;
		outside *= i < axis ? t->dims[i] : 1;
	}
	for (int i = 0; i < n->n_operands; i++) {
		Value *x = node_operand(n, i);
		int64_t row = x->type->dims[axis] * inside, pitch = t->dims[axis] * inside;
		/* a single row need not move, only its beginning */
		RowMove rows = {outside == 1 ? pitch : row, pitch, done};
		if (!is_long(c, t->dtype, row) || !add_piece(c, behind_reshapes(x), rows))
			return false;
		done += row;
	}
	return true;
}

/* ---- kernels and launches */
/* The piece that this result of the launch writes, or NULL. */
static const Piece *
piece_of(const Concat *c, const Node *launch, int result)
{
	for (int i = 0; i < c->pieces.n; i++)
		if (c->pieces.at[i].launch == launch && c->pieces.at[i].result == result)
			return &c->pieces.at[i];
	return NULL;
}

static bool
writes_all_pieces(const Concat *c, const Node *launch)
{
	for (int i = 0; i < c->pieces.n; i++)
		if (c->pieces.at[i].launch != launch)
			return false;
	return true;
}

/* Gives k, a copy of the launch's kernel, its new buffers: `before`, the concat as earlier launches have left it, becomes the last
 * input, and all pieces become one output. results: gets the new number of each result. */
static void
join_outputs(const Concat *c, const Node *launch, const Value *before, Kernel *k, int *results)
{
	Arena *arena = c->l->arena;
	Type joined = node_result(c->call, 0)->type;
	int *to = NEW_ARRAY(arena, int, k->buffers.n), inputs = k->n_inputs, output = -1;
	VEC(LoopBuffer) list = {0};

	for (int b = 0; b < k->buffers.n; b++) {
		bool is_result = b >= inputs && b < inputs + k->n_outputs;
		bool is_piece = is_result && piece_of(c, launch, b - inputs);
		if (b == inputs && before)
			vec_push(arena, &list, ((LoopBuffer){"", BUFFER_IN, joined}));
		to[b] = is_piece && output >= 0 ? output : list.n;
		if (is_result)
			results[b - inputs] = to[b] - inputs - (before != NULL);
		if (to[b] < list.n)
			continue;
		vec_push(arena, &list, k->buffers.at[b]);
		if (!is_piece)
			continue;
		output = to[b];
		list.at[output].type = joined;
		list.at[output].kind = before ? BUFFER_INOUT : BUFFER_OUT;
		list.at[output].part = !writes_all_pieces(c, launch);
	}
	k->n_outputs -= k->buffers.n + (before != NULL) - list.n;
	k->n_inputs += before != NULL;
	k->buffers.at = list.at;
	k->buffers.n = k->buffers.cap = list.n;
	kernel_renumber_buffers(k, arena, to);
	if (before)
		list.at[output].from = k->n_inputs;
	for (int b = 0; b < k->n_inputs; b++)
		list.at[b].name = arena_printf(arena, "x%d", b);
	for (int b = 0; b < k->n_outputs; b++)
		list.at[k->n_inputs + b].name = arena_printf(arena, "y%d", b);
}

static Kernel *
add_kernel(const Concat *c, const Kernel *k, const char *name)
{
	Module *m = c->l->m;
	const char *fresh = arena_printf(c->l->arena, "%s_concat", name);
	Kernel *found = sharing_find(m, c->sh, k);

	for (int i = 2; !found && strmap_get(m->kernel_names, fresh); i++)
		fresh = arena_printf(c->l->arena, "%s_concat%d", name, i);
	return found ? found : kernel_add(m, k, fresh);
}

/* The kernel that writes the launch's pieces where the concat has them. */
static Kernel *
joined_kernel(const Concat *c, const Node *launch, const Value *before, int *results)
{
	const Kernel *from = launched_kernel(launch);
	Arena *arena = c->l->arena;
	Kernel k = *from;

	k.buffers.at = arena_copy(arena, from->buffers.at,
	                          sizeof(LoopBuffer) * (size_t)from->buffers.n);
	k.body.at = arena_copy(arena, from->body.at, sizeof(LoopStatement) * (size_t)from->body.n);
	k.body.cap = k.body.n;
	for (int i = 0; i < c->pieces.n; i++)
		if (c->pieces.at[i].launch == launch)
			places_move(arena, &k, k.n_inputs + c->pieces.at[i].result,
			            &c->pieces.at[i].rows);
	join_outputs(c, launch, before, &k, results);
	kernel_finish(&k);
	return add_kernel(c, &k, from->name);
}

/* Launches the new kernel in place of the old one. Returns the concat as the launch leaves it. */
static Value *
join_launch(const Concat *c, Node *launch, Value *before)
{
	Arena *arena = c->l->arena;
	int *results = NEW_ARRAY(arena, int, launch->n_results), joined = 0;
	Kernel *k = joined_kernel(c, launch, before, results);
	Value **operands = NEW_ARRAY(arena, Value *, k->n_inputs);
	Type *types = NEW_ARRAY(arena, Type, k->n_outputs);

	for (int i = 0; i < k->n_inputs; i++)
		operands[i] = i < launch->n_operands ? node_operand(launch, i) : before;
	for (int i = 0; i < k->n_outputs; i++)
		types[i] = k->buffers.at[k->n_inputs + i].type;
	Node *n = lower_insert_launch(launch, k, k->n_inputs, operands, k->n_outputs, types);
	lower_serve_instead(c->sh, n, launched_kernel(launch));
	for (int i = 0; i < launch->n_results; i++) {
		joined = piece_of(c, launch, i) ? results[i] : joined;
		value_replace_uses(node_result(launch, i), node_result(n, results[i]));
	}
	node_erase(launch);
	return node_result(n, joined);
}

static bool
writes_piece(const Concat *c, const Node *launch)
{
	for (int i = 0; i < c->pieces.n; i++)
		if (c->pieces.at[i].launch == launch)
			return true;
	return false;
}

/* All launches that write a piece, in the order of the function. */
static void
join_launches(const Concat *c)
{
	VEC(Node *) launches = {0};
	int left = c->pieces.n;
	Value *joined = NULL;

	for (Node *n = c->call->prev; left > 0; n = n->prev) {
		if (!writes_piece(c, n))
			continue;
		vec_push(c->l->arena, &launches, n);
		for (int i = 0; i < n->n_results; i++)
			left -= piece_of(c, n, i) != NULL;
	}
	for (int i = launches.n - 1; i >= 0; i--)
		joined = join_launch(c, launches.at[i], joined);
	value_replace_uses(node_result(c->call, 0), joined);
}

bool
lower_concat_in_place(const Lowering *l, Sharing *sh, Node *call)
{
	Concat c = {.l = l, .sh = sh, .call = call};
	const Node *n = only_concat(called_function(call));

	if (!n || !find_pieces(&c, n))
		return false;
	join_launches(&c);
	return true;
}
