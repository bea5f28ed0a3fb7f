/* Functions that append statements to a kernel of loop IR. If an equal statement without side
 * effects already stands in a block that is still open, its scalar is used again, so emitters
 * may ask for the same element as often as they like. */
#include "ir/loop/loop.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const LoopOpInfo loop_ops[N_LOOP_OPS] = {
#define LOOP_OP(name, arity, c, result) {#name, arity, c, RESULT_##result},
#include "ir/loop/ops.def"
#undef LOOP_OP
};

static void
open_block(LoopBuilder *lb)
{
	vec_push(lb->scratch, &lb->blocks, lb->block_open.n);
	vec_push(lb->scratch, &lb->block_open, true);
}

LoopBuilder *
loop_builder(Kernel *k, Module *m, Arena *scratch)
{
	LoopBuilder *lb = NEW(scratch, LoopBuilder);

	lb->m = m;
	lb->k = k;
	lb->scratch = scratch;
	lb->memo = intmap_new(scratch);
	open_block(lb);
	return lb;
}

int
lb_buffer(LoopBuilder *lb, const char *name, BufferKind kind, Type type)
{
	LoopBuffer b = {.name = arena_strdup(lb->scratch, name), .kind = kind, .type = type};

	vec_push(lb->scratch, &lb->k->buffers, b);
	lb->k->n_inputs += kind == BUFFER_IN;
	lb->k->n_outputs += kind == BUFFER_OUT || kind == BUFFER_INOUT;
	return lb->k->buffers.n - 1;
}

int
lb_buffer_from(LoopBuilder *lb, const char *name, int input)
{
	int i = lb_buffer(lb, name, BUFFER_INOUT, lb->k->buffers.at[input].type);

	lb->k->buffers.at[i].from = 1 + input;
	return i;
}

DType
compute_type(DType storage)
{
	switch (dtype_info[storage].class) {
	case CLASS_FLOAT: return storage == F64 ? F64 : F32;
	case CLASS_SIGNED: return storage == S64 ? S64 : S32;
	case CLASS_UNSIGNED: return storage == U64 ? U64 : U32;
	default: return BOOL;
	}
}

static LoopValue
add_scalar(LoopBuilder *lb, DType type, int64_t extent, int definition)
{
	vec_push(lb->scratch, &lb->types, type);
	vec_push(lb->scratch, &lb->extents, extent);
	vec_push(lb->scratch, &lb->bounds, NULL);
	vec_push(lb->scratch, &lb->definitions, definition);
	vec_push(lb->scratch, &lb->scopes, lb->blocks.at[lb->blocks.n - 1]);
	return lb->k->n_scalars++;
}

LoopValue
lb_param(LoopBuilder *lb, DType type)
{
	return add_scalar(lb, type, 0, -1);
}

static LoopStatement *
add_statement(LoopBuilder *lb, LoopStatementKind kind)
{
	LoopStatement s = {.kind = kind, .result = -1, .buffer = -1, .match = -1};

	vec_push(lb->scratch, &lb->k->body, s);
	return &lb->k->body.at[lb->k->body.n - 1];
}

/* The scalar of a pure statement: the scalar of an earlier equal statement if it is still
 * visible, otherwise a new scalar. */
static LoopValue
pure_statement(LoopBuilder *lb, const LoopStatement *key)
{
	uint64_t h = statement_hash(key), found;

	if (intmap_get(lb->memo, h, &found)) {
		LoopValue old = (LoopValue)(found - 1);
		if (lb->block_open.at[lb->scopes.at[old]] &&
		    statement_equal(&lb->k->body.at[lb->definitions.at[old]], key))
			return old;
	}
	LoopStatement *s = add_statement(lb, key->kind);
	*s = *key;
	s->match = -1;
	s->result = add_scalar(lb, key->type, 0, lb->k->body.n - 1);
	intmap_put(lb->memo, h, (uint64_t)s->result + 1);
	return s->result;
}

LoopValue
lb_op(LoopBuilder *lb, LoopOp op, DType type, const LoopValue *x)
{
	if (lb->fast && type == F32)
		op = op == LOOP_exp ? LOOP_exp_fast : op == LOOP_tanh ? LOOP_tanh_fast : op;
	LoopStatement s = {.kind = LOOP_STATEMENT_OP,
	                   .op = op,
	                   .type = type,
	                   .buffer = -1,
	                   .n_operands = loop_ops[op].arity};

	memcpy(s.operands, x, sizeof(LoopValue) * (size_t)s.n_operands);
	return pure_statement(lb, &s);
}

LoopValue
lb_unary(LoopBuilder *lb, LoopOp op, LoopValue x)
{
	return lb_op(lb, op, lb_type(lb, x), &x);
}

LoopValue
lb_binary(LoopBuilder *lb, LoopOp op, LoopValue x, LoopValue y)
{
	assert(lb_type(lb, x) == lb_type(lb, y));
	return lb_op(lb, op, lb_type(lb, x), (LoopValue[]){x, y});
}

LoopValue
lb_compare(LoopBuilder *lb, LoopOp op, LoopValue x, LoopValue y)
{
	assert(lb_type(lb, x) == lb_type(lb, y));
	return lb_op(lb, op, BOOL, (LoopValue[]){x, y});
}

LoopValue
lb_select(LoopBuilder *lb, LoopValue cond, LoopValue x, LoopValue y)
{
	assert(lb_type(lb, x) == lb_type(lb, y));
	return lb_op(lb, LOOP_select, lb_type(lb, x), (LoopValue[]){cond, x, y});
}

LoopValue
lb_float(LoopBuilder *lb, DType type, double value)
{
	return pure_statement(
		lb, &(LoopStatement){
			    .kind = LOOP_STATEMENT_CONST, .type = type, .buffer = -1, .f = value});
}

LoopValue
lb_int(LoopBuilder *lb, DType type, int64_t value)
{
	return pure_statement(
		lb, &(LoopStatement){
			    .kind = LOOP_STATEMENT_CONST, .type = type, .buffer = -1, .i = value});
}

LoopValue
lb_number(LoopBuilder *lb, DType type, double value)
{
	return dtype_is_float(type) ? lb_float(lb, type, value) : lb_int(lb, type, (int64_t)value);
}

/* Converts x as memory of the storage type would (s8 wraps, f16 rounds). The result is in the compute type; `i` holds
 * the storage type. */
LoopValue
lb_cast(LoopBuilder *lb, DType type, LoopValue x)
{
	if (lb_type(lb, x) == type)
		return x;
	return pure_statement(lb, &(LoopStatement){.kind = LOOP_STATEMENT_CAST,
	                                           .buffer = -1,
	                                           .type = compute_type(type),
	                                           .i = type,
	                                           .n_operands = 1,
	                                           .operands = {x}});
}

LoopValue
lb_cast_as(LoopBuilder *lb, DType type, Conversion how, LoopValue x, LoopValue random)
{
	bool stochastic = how.round == ROUND_STOCHASTIC;

	return pure_statement(lb, &(LoopStatement){.kind = LOOP_STATEMENT_CAST,
	                                           .buffer = -1,
	                                           .type = compute_type(type),
	                                           .i = type,
	                                           .how = how,
	                                           .n_operands = stochastic ? 2 : 1,
	                                           .operands = {x, stochastic ? random : 0}});
}

LoopValue
lb_scalar(LoopBuilder *lb, ScalarIndex index)
{
	return pure_statement(lb, &(LoopStatement){.kind = LOOP_STATEMENT_SCALAR,
	                                           .type = scalar_dtypes[index],
	                                           .buffer = (int)index});
}

static const Affine *
keep_place(LoopBuilder *lb, Affine place)
{
	return arena_copy(lb->scratch, &place, sizeof(place));
}

static LoopValue
add_load(LoopBuilder *lb, const LoopStatement *load)
{
	if (lb->k->buffers.at[load->buffer].kind == BUFFER_IN)
		return pure_statement(lb, load);
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_LOAD);
	*s = *load;
	s->match = -1;
	s->result = add_scalar(lb, load->type, 0, lb->k->body.n - 1);
	return s->result;
}

LoopValue
lb_load(LoopBuilder *lb, int buffer, Affine place)
{
	return add_load(
		lb, &(LoopStatement){.kind = LOOP_STATEMENT_LOAD,
	                             .type = compute_type(lb->k->buffers.at[buffer].type->dtype),
	                             .buffer = buffer,
	                             .place = keep_place(lb, place)});
}

LoopValue
lb_load_if(LoopBuilder *lb, int buffer, Affine place, LoopValue inside)
{
	return add_load(
		lb, &(LoopStatement){.kind = LOOP_STATEMENT_LOAD,
	                             .type = compute_type(lb->k->buffers.at[buffer].type->dtype),
	                             .buffer = buffer,
	                             .place = keep_place(lb, place),
	                             .n_operands = 1,
	                             .operands = {inside}});
}

void
lb_store(LoopBuilder *lb, int buffer, Affine place, LoopValue x)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_STORE);

	s->buffer = buffer;
	s->place = keep_place(lb, place);
	s->n_operands = 1;
	s->operands[0] = x;
}

static int
add_array(LoopBuilder *lb, const char *name, BufferKind kind, Type type, int64_t pad)
{
	LoopBuffer b = {.name = arena_printf(lb->scratch, "%s%d", name, lb->k->buffers.n),
	                .kind = kind,
	                .type = type,
	                .pad = pad};

	vec_push(lb->scratch, &lb->k->buffers, b);
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_LOCAL);
	s->buffer = lb->k->buffers.n - 1;
	s->extent = type->n;
	return s->buffer;
}

int
lb_local(LoopBuilder *lb, DType dtype, int64_t extent)
{
	return add_array(lb, "local", BUFFER_LOCAL, type_new(lb->m, dtype, 1, &extent), 0);
}

int
lb_private(LoopBuilder *lb, DType dtype, int64_t extent)
{
	return add_array(lb, "private", BUFFER_PRIVATE, type_new(lb->m, dtype, 1, &extent), 0);
}

int
lb_padded(LoopBuilder *lb, const char *name, Type type, int64_t pad)
{
	return add_array(lb, name, BUFFER_LOCAL, type, pad);
}

void
lb_team(LoopBuilder *lb, int n_levels, const int *members)
{
	lb->k->n_team = n_levels;
	memcpy(lb->k->team, members, sizeof(*members) * (size_t)n_levels);
}

void
lb_barrier(LoopBuilder *lb)
{
	if (lb->k->n_team)
		add_statement(lb, LOOP_STATEMENT_BARRIER);
}

/* ---- work that the threads of a team do together, and copies */
int
lb_tile(LoopBuilder *lb, const char *name, DType dtype, int64_t rows, int64_t columns)
{
	Type type = type_new(lb->m, dtype, 2, (int64_t[]){rows, columns});

	return add_array(lb, name, BUFFER_TILE, type, 0);
}

int
lb_row_tile(LoopBuilder *lb, const char *name, DType dtype, int64_t rows)
{
	return add_array(lb, name, BUFFER_TILE, type_new(lb->m, dtype, 1, &rows), 0);
}

TileElement
lb_each(LoopBuilder *lb, int tile)
{
	Type t = lb->k->buffers.at[tile].type;
	bool rows = t->rank == 1;
	int at = lb->k->body.n;

	add_statement(lb, LOOP_STATEMENT_EACH)->buffer = tile;
	vec_push(lb->scratch, &lb->open, at);
	open_block(lb);
	TileElement e = {.row = add_scalar(lb, S64, t->dims[0], at),
	                 .column = rows ? -1 : add_scalar(lb, S64, t->dims[1], at)};
	lb->k->body.at[at].type = S64;
	lb->k->body.at[at].result = e.row;
	lb->k->body.at[at].column = e.column;
	e.place = affine_scalar(lb, e.row);
	if (!rows)
		e.place = affine_add(lb, affine_scale(lb, e.place, t->dims[1]),
		                     affine_scalar(lb, e.column));
	return e;
}

static const LoopWindow *
keep_windows(LoopBuilder *lb, const LoopWindow *windows, int n)
{
	LoopWindow *kept = NEW_ARRAY(lb->scratch, LoopWindow, n);

	for (int i = 0; i < n; i++) {
		kept[i] = windows[i];
		kept[i].place = windows[i].place ? keep_place(lb, *windows[i].place) : NULL;
	}
	return kept;
}

void
lb_mma(LoopBuilder *lb, int tile, const LoopWindow windows[2], int64_t k, bool tf32)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_MMA);

	s->buffer = tile;
	s->windows = keep_windows(lb, windows, 2);
	s->extent = k;
	s->tf32 = tf32;
}

void
lb_copy(LoopBuilder *lb, int array, Affine place, int from, Affine source, int64_t n,
        LoopValue inside)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_COPY);

	s->buffer = array;
	s->place = keep_place(lb, place);
	s->windows = keep_windows(lb, &(LoopWindow){.buffer = from, .place = &source}, 1);
	s->extent = n;
	s->n_operands = inside >= 0;
	s->operands[0] = inside >= 0 ? inside : 0;
}

void
lb_commit(LoopBuilder *lb)
{
	add_statement(lb, LOOP_STATEMENT_COMMIT);
}

void
lb_wait(LoopBuilder *lb, int64_t groups)
{
	add_statement(lb, LOOP_STATEMENT_WAIT)->i = groups;
}

LoopValue
lb_affine(LoopBuilder *lb, Affine place)
{
	if (place.n == 0)
		return lb_int(lb, S64, place.constant);
	if (place.n == 1 && place.constant == 0 && place.terms[0].coefficient == 1)
		return place.terms[0].scalar;
	return pure_statement(lb, &(LoopStatement){.kind = LOOP_STATEMENT_AFFINE,
	                                           .type = S64,
	                                           .buffer = -1,
	                                           .place = keep_place(lb, place)});
}

LoopValue
lb_inside(LoopBuilder *lb, Affine place, int64_t size)
{
	LoopValue at = lb_affine(lb, place);

	/* One comparison is enough: read as an unsigned number, a negative number is large. */
	return lb_compare(lb, LOOP_lt, lb_op(lb, LOOP_bits, U64, &at), lb_int(lb, U64, size));
}

void
lb_and_inside(LoopBuilder *lb, Affine place, int64_t size, LoopValue *inside)
{
	LoopValue in = lb_inside(lb, place, size);

	*inside = *inside < 0 ? in : lb_binary(lb, LOOP_and, *inside, in);
}

void
lb_within(LoopBuilder *lb, LoopValue x, int64_t extent)
{
	if (lb->extents.at[x] == 0)
		lb->extents.at[x] = extent;
}

LoopValue
lb_for_below(LoopBuilder *lb, LoopMode mode, int64_t extent, Affine bound)
{
	LoopValue v = lb_for(lb, mode, extent);

	assert(mode != LOOP_PARALLEL);
	lb->bounds.at[v] = keep_place(lb, bound);
	lb->k->body.at[lb->definitions.at[v]].place = lb->bounds.at[v];
	return v;
}

Affine
lb_open_below(LoopBuilder *lb, Affine place, int64_t end)
{
	Affine left = affine_plus(affine_scale(lb, place, -1), end);

	return affine_add(lb, place, affine_scalar(lb, lb_for_below(lb, LOOP_PLAIN, 1, left)));
}

LoopValue
lb_for(LoopBuilder *lb, LoopMode mode, int64_t extent)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_FOR);
	int at = lb->k->body.n - 1;

	s->mode = mode;
	s->extent = extent;
	s->type = S64;
	vec_push(lb->scratch, &lb->open, at);
	open_block(lb);
	LoopValue v = add_scalar(lb, S64, extent, at);
	lb->k->body.at[at].result = v;
	return v;
}

/* Adds an accumulator to the innermost open statement. */
static Accumulator *
add_accumulator(LoopBuilder *lb, AccumulateKind kind, DType type)
{
	LoopStatement *s = &lb->k->body.at[lb->open.at[lb->open.n - 1]];
	int inner = lb->blocks.at[lb->blocks.n - 1];

	Accumulator *list = NEW_ARRAY(lb->scratch, Accumulator, s->n_accumulators + 1);
	if (s->n_accumulators)
		memcpy(list, s->accumulators, sizeof(*list) * (size_t)s->n_accumulators);
	s->accumulators = list;
	/* The scalar belongs to the block around the loop. */
	lb->blocks.at[lb->blocks.n - 1] = lb->blocks.at[lb->blocks.n - 2];
	LoopValue v = add_scalar(lb, type, 0, -1);
	lb->blocks.at[lb->blocks.n - 1] = inner;
	Accumulator *a = &s->accumulators[s->n_accumulators++];
	*a = (Accumulator){.scalar = v, .kind = kind, .type = type, .number = 1};
	return a;
}

LoopValue
lb_accumulator(LoopBuilder *lb, AccumulateKind kind, DType type)
{
	const LoopStatement *s = &lb->k->body.at[lb->open.at[lb->open.n - 1]];

	assert(s->kind == LOOP_STATEMENT_FOR);
	Accumulator *a = add_accumulator(lb, kind, type);
	if (s->mode == LOOP_VECTOR) {
		a->level = ACC_LANES;
		a->number = LOOP_LANES;
	} else if (s->mode == LOOP_TEAM) {
		a->level = ACC_TEAM;
		a->number = (int)s->extent;
	}
	return a->scalar;
}

LoopValue
lb_row_accumulator(LoopBuilder *lb, AccumulateKind kind, int tile)
{
	assert(lb->k->body.at[lb->open.at[lb->open.n - 1]].kind == LOOP_STATEMENT_EACH);
	Accumulator *a = add_accumulator(lb, kind,
	                                 compute_type(lb->k->buffers.at[tile].type->dtype));
	a->level = ACC_ROW;
	a->number = ROW_PARTIALS;
	a->tile = tile;
	return a->scalar;
}

void
lb_accumulate(LoopBuilder *lb, LoopValue accumulator, LoopValue x)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_ACCUMULATE);

	assert(lb_type(lb, accumulator) == lb_type(lb, x));
	s->n_operands = 2;
	s->operands[0] = x;
	s->operands[1] = accumulator;
}

void
lb_if(LoopBuilder *lb, LoopValue cond)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_IF);

	s->n_operands = 1;
	s->operands[0] = cond;
	vec_push(lb->scratch, &lb->open, lb->k->body.n - 1);
	open_block(lb);
}

void
lb_end(LoopBuilder *lb)
{
	int opener = lb->open.at[--lb->open.n];

	add_statement(lb, LOOP_STATEMENT_END)->match = opener;
	lb->k->body.at[opener].match = lb->k->body.n - 1;
	lb->block_open.at[lb->blocks.at[--lb->blocks.n]] = false;
}

void
lb_forget(LoopBuilder *lb, int first)
{
	lb->k->body.n = first;
}

static bool
is_pure(const Kernel *k, const LoopStatement *s)
{
	return s->kind <= LOOP_STATEMENT_SCALAR ||
	       (s->kind == LOOP_STATEMENT_LOAD && k->buffers.at[s->buffer].kind == BUFFER_IN);
}

void
kernel_drop_unused(Kernel *k, Arena *scratch)
{
	bool *used = NEW_ARRAY(scratch, bool, k->n_scalars);
	bool *drop = NEW_ARRAY(scratch, bool, k->body.n);
	int *moved = NEW_ARRAY(scratch, int, k->body.n);
	int n = 0;

	for (int i = k->body.n - 1; i >= 0; i--) {
		const LoopStatement *s = &k->body.at[i];
		drop[i] = is_pure(k, s) && !used[s->result];
		if (drop[i])
			continue;
		for (int o = 0; o < s->n_operands; o++)
			used[s->operands[o]] = true;
		const Affine *places[MAX_PLACES];
		for (int p = statement_places(s, places) - 1; p >= 0; p--)
			for (int t = 0; t < places[p]->n; t++)
				used[places[p]->terms[t].scalar] = true;
	}
	for (int i = 0; i < k->body.n; i++) {
		moved[i] = n;
		if (!drop[i])
			k->body.at[n++] = k->body.at[i];
	}
	k->body.n = n;
	for (int i = 0; i < n; i++)
		if (k->body.at[i].match >= 0)
			k->body.at[i].match = moved[k->body.at[i].match];
}

void
kernel_close(LoopBuilder *lb)
{
	/* emitters also ask for what they do not use, such as axes of an index whose flat number was known */
	kernel_drop_unused(lb->k, lb->scratch);
	kernel_finish(lb->k);
}
