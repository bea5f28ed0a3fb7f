/* Rewrites what kernels cannot compute as it stands. A constant other than a splat becomes data of the state region. A
 * reduction to one number becomes sums of blocks, so that its order of addition is fixed, and sums of small floats are
 * made in f32. Operands of products and convolutions are copied to memory where their views would be computed again
 * for every element. Control flow is refused. Keeps: every value, up to the order of addition. Linear in nodes. */
#include "codegen/codegen.h"

/* Parts of a large reduction have so many rows at least, and so many columns. */
enum { LEAST_ROWS = 8, COLUMNS = 64 };

/* The state that holds t, made at first use: equal tensors share theirs. */
static State *
constant_state(Module *m, const Tensor *t, Loc loc)
{
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind == STATE_CONSTANT && s->data && tensor_equal(s->data, t))
			return s;
	}
	const char *name = arena_printf(m->arena, "constant.%016llx", (unsigned long long)t->hash);
	State *s = state_new(m, module_fresh_name(m, name), t->type, STATE_CONSTANT, LIFE_CONSTANT);
	s->init = INIT_DATA;
	s->data = t;
	s->loc = loc;
	return s;
}

static void
store_constant(Node *n)
{
	Function *f = n->function;
	Module *m = f->module;
	Value *v = node_result(n, 0);
	double splat;

	if (!value_used(v) || tensor_is_splat(value_constant(v), &splat))
		return;
	const Tensor *t = value_constant(v);
	value_replace_uses(v, function_state(f, constant_state(m, t, n->loc)));
	node_erase(n);
}

/* The block length for a reduction to a scalar: 4096 where that divides, else what gives the most
 * blocks up to 64; 0: not worth it. */
static int64_t
block_length(int64_t n)
{
	if (n < 256)
		return 0;
	if (n % 4096 == 0 && n > 4096)
		return 4096;
	for (int64_t blocks = 64; blocks > 1; blocks--)
		if (n % blocks == 0 && n / blocks > 1)
			return n / blocks;
	return 0;
}

/* reduce to a scalar = partials per block, then their sum */
static void
split_full_reduce(Node *n)
{
	Value *x = node_operand(n, 0);
	const ReduceAttr *a = n->attr;
	int64_t block = block_length(x->type->n);

	if (block == 0)
		return;
	Builder b = {.m = n->function->module,
	             .f = n->function,
	             .before = n,
	             .loc = n->loc,
	             .phase = n->phase};
	Ints two = {.n = 2, .at = {x->type->n / block, block}};
	/* The sums of blocks are not rounded to fewer bits before they are added. */
	DType dtype = x->type->dtype, wide = float_format(dtype) ? F32 : dtype;
	Value *blocks = b_cast(&b, b_reshape(&b, x, two), wide);
	Value *partial = b_reduce(&b, a->kind, blocks, (Ints){.n = 1, .at = {1}});
	Value *sum = b_cast(&b, b_reduce(&b, a->kind, partial, (Ints){.n = 1, .at = {0}}), dtype);
	value_replace_uses(node_result(n, 0),
	                   b_reshape(&b, sum, ints_of_type(node_result(n, 0)->type)));
	node_erase(n);
}

/* ---- sums with few results, each over much */
/* A divisor of n that is at least `wanted`, and less than twice that; 0: none. */
static int64_t
divisor_from(int64_t n, int64_t wanted)
{
	for (int64_t d = wanted; d < 2 * wanted && d < n; d++)
		if (n % d == 0)
			return d;
	return 0;
}

/* How a reduction is cut: axes that were one become two, of which the partial sums keep the first. */
typedef struct {
	Ints shape;        /* of the operand */
	Ints inner, outer; /* axes that the first and the second reduction add up */
	int64_t chunks;
} ReduceCut;

/* From the outermost reduced axis on, until there are chunks enough. */
static ReduceCut
cut_axes(Type x, const Ints *axes, int64_t wanted)
{
	ReduceCut cut = {.chunks = 1};
	int kept = 0; /* axes of the partial sums so far */

	for (int i = 0, a = 0; i < x->rank; i++) {
		int64_t extent = x->dims[i], missing = (wanted + cut.chunks - 1) / cut.chunks;
		bool reduced = a < axes->n && axes->at[a] == i;
		a += reduced;
		int64_t chunks = !reduced || missing <= 1 ? 1
		                 : extent < 2 * missing   ? extent
		                                          : divisor_from(extent, missing);
		if (reduced && chunks > 1 && cut.shape.n + x->rank - i < MAX_RANK) {
			cut.chunks *= chunks;
			cut.shape.at[cut.shape.n++] = chunks;
			cut.outer.at[cut.outer.n++] = kept++;
			extent /= chunks;
			if (extent == 1)
				continue;
		}
		if (reduced)
			cut.inner.at[cut.inner.n++] = cut.shape.n;
		else
			kept++;
		cut.shape.at[cut.shape.n++] = extent;
	}
	return cut;
}

/* A reduction that has too few parts = partial results per chunk, and these added in order. */
static void
split_reduce(Node *n, int64_t parts)
{
	Value *x = node_operand(n, 0);
	const ReduceAttr *a = n->attr;
	Type y = node_result(n, 0)->type;
	bool by_column = a->axes.n && a->axes.at[a->axes.n - 1] < x->type->rank - 1;
	int64_t own = by_column ? (y->n + COLUMNS - 1) / COLUMNS : y->n;

	if (x->type->n < LARGE_KERNEL || own >= parts)
		return;
	int64_t wanted = (parts + own - 1) / own, most = x->type->n / y->n / LEAST_ROWS;
	ReduceCut cut = cut_axes(x->type, &a->axes, wanted < most ? wanted : most);
	if (cut.chunks == 1 || cut.inner.n == 0)
		return;
	Builder b = {.m = n->function->module,
	             .f = n->function,
	             .before = n,
	             .loc = n->loc,
	             .phase = n->phase};
	DType dtype = x->type->dtype, wide = float_format(dtype) ? F32 : dtype;
	Value *chunks = b_cast(&b, b_reshape(&b, x, cut.shape), wide);
	Value *partial = b_reduce(&b, a->kind, chunks, cut.inner);
	Value *sum = b_cast(&b, b_reduce(&b, a->kind, partial, cut.outer), dtype);
	value_replace_uses(node_result(n, 0), b_reshape(&b, sum, ints_of_type(y)));
	node_erase(n);
}

/* A node whose kernel adds in memory, in f32. */
static void
sum_in_f32(Pass *p, Node *n)
{
	const OpRow *row = op_row(n);
	DType dtype = n->n_results ? node_result(n, 0)->type->dtype : BOOL;
	if (!float_format(dtype) || !row->sums_in_memory || !row->sums_in_memory(n))
		return;
	Builder b = {.m = n->function->module,
	             .f = n->function,
	             .before = n,
	             .loc = n->loc,
	             .phase = n->phase};
	Value **operands = NEW_ARRAY(p->scratch, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		operands[i] = v && dtype_is_float(v->type->dtype) ? b_cast(&b, v, F32) : v;
	}
	Value *wide = build(&b, n->op, n->n_operands, operands, n->attr);
	value_replace_uses(node_result(n, 0), b_cast(&b, wide, dtype));
	node_erase(n);
}

/* ---- views without strides: windows of an image, heads between positions */

static bool
is_one_of(LoopValue x, const LoopValue *list, int n)
{
	while (n > 0 && list[n - 1] != x)
		n--;
	return n > 0;
}

/* Do the views of v leave the memory that they start from readable so? */
static bool
reads_well(Pass *p, Module *m, const Value *v, Reading how, const Ints *axes)
{
	LoopBuilder *lb = loop_builder(kernel_new(p->scratch, "", v->node->loc), m, p->scratch);
	Index at = {.rank = v->type->rank};
	LoopValue steps[MAX_RANK];
	Type t = v->type;

	for (int i = 0; i < at.rank; i++)
		at.at[i] = affine_constant(0);
	for (int i = 0; i < axes->n; i++) {
		steps[i] = lb_for(lb, LOOP_PLAIN, t->dims[axes->at[i]]);
		at.at[axes->at[i]] = affine_scalar(steps[i]);
	}
	Affine dense = index_flat(t, &at);
	for (; v->node && op_row(v->node)->fuse == FUSE_VIEW; v = node_operand(v->node, 0)) {
		Index from = {0};
		op_row(v->node)->map(lb, v->node, &at, &from);
		at = from;
	}
	Affine place = index_flat(v->type, &at);
	bool strided = true;
	for (int i = 0; i < place.n; i++)
		strided &= is_one_of(place.terms[i].scalar, steps, axes->n);
	for (int i = 0; i < axes->n; i++)
		lb_end(lb);
	dense.constant = place.constant; /* a part of it */
	return how == READ_DENSE ? affine_equal(&place, &dense) : strided;
}

/* One copy for the readers of a phase: for the backward pass it is made again, not kept. */
static void
copy_views(Pass *p, Node *n, Value **copies)
{
	Module *m = n->function->module;
	Builder b = {.m = m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};
	Ints axes;

	for (int i = 0; op_row(n)->reads && i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		if (!v->node || op_row(v->node)->fuse != FUSE_VIEW)
			continue;
		Reading how = op_row(n)->reads(n, i, &axes);
		if (how == READ_ONCE || reads_well(p, m, v, how, &axes))
			continue;
		Value **copy = &copies[v->id];
		if (!*copy || (*copy)->node->phase != n->phase)
			*copy = b_unary(&b, OP_copy, v);
		node_set_operand(n, i, *copy);
	}
}

static bool
refuse_control(const Pass *p, const Node *n)
{
	FuseClass c = op_row(n)->fuse;

	if (c != FUSE_NONE || n->op == OP_store || n->op == OP_return || n->op == OP_launch)
		return false;
	diag_error(p->diag, EXIT_UNSUPPORTED,
	           "%s: node \"%s\" (%s): no compiled form in this build; the interpreter runs it",
	           n->function->module->name, loc_origin(n->loc), op_row(n)->name);
	return true;
}

static bool
run_legalize(Pass *p, Module *m)
{
	const LegalizeOptions *o = p->options;
	bool refused = false;

	for_each_function(m, f) {
		Value **copies = NEW_ARRAY(p->scratch, Value *, f->next_value_id);
		for_each_node(f, n)
			copy_views(p, n, copies);
		for_each_node(f, n) {
			refused |= refuse_control(p, n);
			if (n->op == OP_constant)
				store_constant(n);
			else if (op_row(n)->fuse == FUSE_REDUCE && node_result(n, 0)->type->n == 1)
				split_full_reduce(n);
			else if (op_row(n)->fuse == FUSE_REDUCE)
				split_reduce(n, PARTS_A_CORE * o->cores);
			else
				sum_in_f32(p, n);
		}
	}
	p->changed = true;
	return !refused;
}

static const PassOption legalize_options[] = {
	{"cores", "that reductions are cut for", OPTION_INT, offsetof(LegalizeOptions, cores)},
	{0},
};

const PassRow pass_legalize = {.name = "legalize",
                               .help = "turn what kernels cannot take into what they can",
                               .needed = true,
                               .takes = STAGE_TRAIN,
                               .leaves = STAGE_ANY,
                               .options = legalize_options,
                               .options_size = sizeof(LegalizeOptions),
                               .defaults = &(LegalizeOptions){.cores = DEFAULT_CORES},
                               .run = run_legalize};
