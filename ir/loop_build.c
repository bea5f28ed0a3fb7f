/* Building loop IR. Pure statements that were already made in an open block are not made again, so
 * that emitters may ask for the same element as often as they like. */
#include "ir/loop.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const LoopOpInfo loop_ops[N_LOOP_OPS] = {
#define LOOP_OP(name, arity, c, result) {#name, arity, c, RESULT_##result},
#include "ir/loop_ops.def"
#undef LOOP_OP
};

Kernel *
kernel_new(Arena *arena, const char *name, Loc loc)
{
	Kernel *k = NEW(arena, Kernel);

	k->name = arena_strdup(arena, name);
	k->loc = loc;
	k->iterations = 1;
	return k;
}

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

static uint64_t
statement_hash(const LoopStatement *s)
{
	uint64_t h = hash_mix(((uint64_t)s->kind << 32) | (uint64_t)s->op, (uint64_t)s->type);

	h = hash_bytes(s->operands, sizeof(LoopValue) * (size_t)s->n_operands, h);
	h = hash_mix(h, (uint64_t)s->buffer);
	h = hash_bytes(&s->f, sizeof(s->f), h);
	h = hash_mix(h, (uint64_t)s->i);
	h = hash_mix(h, (uint64_t)s->how.round << 8 | (uint64_t)s->how.overflow);
	if (!s->place)
		return h;
	h = hash_mix(h, (uint64_t)s->place->constant);
	for (int i = 0; i < s->place->n; i++)
		h = hash_mix(h, hash_mix((uint64_t)s->place->terms[i].coefficient,
		                         (uint64_t)s->place->terms[i].scalar));
	return h;
}

bool
affine_equal(const Affine *a, const Affine *b)
{
	if (!a || !b)
		return a == b;
	if (a->constant != b->constant || a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (a->terms[i].coefficient != b->terms[i].coefficient ||
		    a->terms[i].scalar != b->terms[i].scalar)
			return false;
	return true;
}

static bool
statement_equal(const LoopStatement *a, const LoopStatement *b)
{
	return a->kind == b->kind && a->op == b->op && a->type == b->type &&
	       a->n_operands == b->n_operands && a->buffer == b->buffer && a->i == b->i &&
	       a->how.round == b->how.round && a->how.overflow == b->how.overflow &&
	       memcmp(&a->f, &b->f, sizeof(a->f)) == 0 &&
	       memcmp(a->operands, b->operands, sizeof(LoopValue) * (size_t)a->n_operands) == 0 &&
	       affine_equal(a->place, b->place);
}

/* The scalar of a pure statement: an earlier equal one that is still visible, else a new one. */
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

/* x as the storage type sees it (s8 wraps, f16 rounds), in that type's compute type: `i` holds the
 * storage type. */
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
	                             .place = affine_keep(lb->scratch, &place)});
}

LoopValue
lb_load_if(LoopBuilder *lb, int buffer, Affine place, LoopValue inside)
{
	return add_load(
		lb, &(LoopStatement){.kind = LOOP_STATEMENT_LOAD,
	                             .type = compute_type(lb->k->buffers.at[buffer].type->dtype),
	                             .buffer = buffer,
	                             .place = affine_keep(lb->scratch, &place),
	                             .n_operands = 1,
	                             .operands = {inside}});
}

void
lb_store(LoopBuilder *lb, int buffer, Affine place, LoopValue x)
{
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_STORE);

	s->buffer = buffer;
	s->place = affine_keep(lb->scratch, &place);
	s->n_operands = 1;
	s->operands[0] = x;
}

static int
add_array(LoopBuilder *lb, BufferKind kind, DType dtype, int64_t extent)
{
	LoopBuffer b = {.name = arena_printf(lb->scratch, "%s%d",
	                                     kind == BUFFER_LOCAL ? "local" : "private",
	                                     lb->k->buffers.n),
	                .kind = kind,
	                .type = type_new(lb->m, dtype, 1, &extent)};

	vec_push(lb->scratch, &lb->k->buffers, b);
	LoopStatement *s = add_statement(lb, LOOP_STATEMENT_LOCAL);
	s->buffer = lb->k->buffers.n - 1;
	s->extent = extent;
	return s->buffer;
}

int
lb_local(LoopBuilder *lb, DType dtype, int64_t extent)
{
	return add_array(lb, BUFFER_LOCAL, dtype, extent);
}

int
lb_private(LoopBuilder *lb, DType dtype, int64_t extent)
{
	return add_array(lb, BUFFER_PRIVATE, dtype, extent);
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
	                                           .place = affine_keep(lb->scratch, &place)});
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
	lb->bounds.at[v] = affine_keep(lb->scratch, &bound);
	lb->k->body.at[lb->definitions.at[v]].place = lb->bounds.at[v];
	return v;
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

LoopValue
lb_accumulator(LoopBuilder *lb, AccumulateKind kind, DType type)
{
	LoopStatement *s = &lb->k->body.at[lb->open.at[lb->open.n - 1]];
	int inner = lb->blocks.at[lb->blocks.n - 1];

	assert(s->kind == LOOP_STATEMENT_FOR);
	Accumulator *list = NEW_ARRAY(lb->scratch, Accumulator, s->n_accumulators + 1);
	if (s->n_accumulators)
		memcpy(list, s->accumulators, sizeof(*list) * (size_t)s->n_accumulators);
	s->accumulators = list;
	/* The scalar belongs to the block around the loop. */
	lb->blocks.at[lb->blocks.n - 1] = lb->blocks.at[lb->blocks.n - 2];
	LoopValue v = add_scalar(lb, type, 0, -1);
	lb->blocks.at[lb->blocks.n - 1] = inner;
	Accumulator *a = &s->accumulators[s->n_accumulators++];
	*a = (Accumulator){v, kind, type, ACC_IN_ORDER, 1};
	if (s->mode == LOOP_VECTOR) {
		a->level = ACC_LANES;
		a->number = LOOP_LANES;
	} else if (s->mode == LOOP_TEAM) {
		a->level = ACC_TEAM;
		a->number = (int)s->extent;
	}
	return v;
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

LoopOp
accumulate_op(AccumulateKind kind)
{
	static const LoopOp ops[] = {LOOP_add, LOOP_mul, LOOP_max, LOOP_min};

	return ops[kind];
}

static void
resolve_accumulates(Kernel *k, const LoopStatement *loop)
{
	for (LoopStatement *s = k->body.at; s < k->body.at + k->body.n; s++) {
		if (s->kind != LOOP_STATEMENT_ACCUMULATE)
			continue;
		for (int a = 0; a < loop->n_accumulators; a++) {
			if (loop->accumulators[a].scalar == s->operands[1]) {
				s->op = accumulate_op(loop->accumulators[a].kind);
				s->type = loop->accumulators[a].type;
			}
		}
	}
}

static uint64_t
library_hash(const LibraryCall *c)
{
	return c ? hash_bytes(c->at, sizeof(*c->at) * (size_t)c->n,
	                      hash_bytes(c->kind, strlen(c->kind), 0))
	         : 0;
}

static bool
library_equal(const LibraryCall *a, const LibraryCall *b)
{
	if (!a || !b)
		return a == b;
	return strcmp(a->kind, b->kind) == 0 && a->n == b->n &&
	       memcmp(a->at, b->at, sizeof(*a->at) * (size_t)a->n) == 0;
}

static bool
is_pure(const Kernel *k, const LoopStatement *s)
{
	return s->kind <= LOOP_STATEMENT_SCALAR ||
	       (s->kind == LOOP_STATEMENT_LOAD && k->buffers.at[s->buffer].kind == BUFFER_IN);
}

/* Emitters ask for more than they use (axes of an index whose flat number was known). */
static void
drop_unused(Kernel *k, Arena *scratch)
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
		for (int t = 0; s->place && t < s->place->n; t++)
			used[s->place->terms[t].scalar] = true;
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
	drop_unused(lb->k, lb->scratch);
	kernel_finish(lb->k);
}

void
kernel_finish(Kernel *k)
{
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].n_accumulators)
			resolve_accumulates(k, &k->body.at[i]);
	uint64_t h = hash_mix((uint64_t)k->n_inputs, (uint64_t)k->n_outputs);

	h = hash_bytes(k->team, sizeof(*k->team) * (size_t)k->n_team, h);
	for (int i = 0; i < k->buffers.n; i++) {
		const LoopBuffer *b = &k->buffers.at[i];
		h = hash_mix(h, hash_mix((uint64_t)b->kind, (uint64_t)(uintptr_t)b->type));
		h = hash_mix(h, (uint64_t)b->pad << 1 | b->swizzle);
	}
	k->iterations = 1;
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		h = hash_mix(h, statement_hash(s));
		h = hash_mix(h, hash_mix((uint64_t)s->extent, (uint64_t)s->mode));
		for (int a = 0; a < s->n_accumulators; a++)
			h = hash_mix(h, hash_bytes(&s->accumulators[a], sizeof(Accumulator), 0));
		if (s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_PARALLEL &&
		    !size_mul(k->iterations, s->extent, &k->iterations))
			k->iterations = INT64_MAX; /* a fault to the checker */
	}
	h = hash_mix(h, k->serves ? k->serves->hash + 1 : 0);
	k->hash = hash_mix(h, library_hash(k->library));
}

int
parallel_depth(const Kernel *k, int at)
{
	int n = 0;

	while (at + n < k->body.n && k->body.at[at + n].kind == LOOP_STATEMENT_FOR &&
	       k->body.at[at + n].mode == LOOP_PARALLEL)
		n++;
	return n;
}

void
kernel_scalar_types(const Kernel *k, DType *types)
{
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->result >= 0)
			types[s->result] = s->type;
		for (int a = 0; a < s->n_accumulators; a++)
			types[s->accumulators[a].scalar] = s->accumulators[a].type;
	}
}

bool
kernel_equal(const Kernel *a, const Kernel *b)
{
	if (a->hash != b->hash || a->body.n != b->body.n || a->buffers.n != b->buffers.n ||
	    a->n_inputs != b->n_inputs || a->n_outputs != b->n_outputs || a->flops != b->flops ||
	    a->serves != b->serves || !library_equal(a->library, b->library) ||
	    a->n_team != b->n_team ||
	    memcmp(a->team, b->team, sizeof(*a->team) * (size_t)a->n_team) != 0)
		return false;
	for (int i = 0; i < a->buffers.n; i++) {
		const LoopBuffer *x = &a->buffers.at[i], *y = &b->buffers.at[i];
		if (x->kind != y->kind || x->type != y->type || x->pad != y->pad ||
		    x->swizzle != y->swizzle)
			return false;
	}
	for (int i = 0; i < a->body.n; i++) {
		const LoopStatement *x = &a->body.at[i], *y = &b->body.at[i];
		if (!statement_equal(x, y) || x->result != y->result || x->extent != y->extent ||
		    x->mode != y->mode || x->match != y->match ||
		    x->n_accumulators != y->n_accumulators ||
		    (x->n_accumulators && memcmp(x->accumulators, y->accumulators,
		                                 sizeof(Accumulator) * (size_t)x->n_accumulators)))
			return false;
	}
	return true;
}

Kernel *
kernel_add(Module *m, const Kernel *k, const char *name)
{
	Kernel *copy = arena_copy(m->arena, k, sizeof(*k));

	copy->name = arena_strdup(m->arena, name);
	if (k->library)
		copy->library = arena_copy(m->arena, k->library, sizeof(*k->library));
	copy->buffers.at = arena_copy(m->arena, k->buffers.at,
	                              sizeof(LoopBuffer) * (size_t)k->buffers.n);
	copy->buffers.cap = copy->buffers.n;
	for (int i = 0; i < copy->buffers.n; i++)
		copy->buffers.at[i].name = arena_strdup(m->arena, k->buffers.at[i].name);
	copy->body.at = arena_copy(m->arena, k->body.at, sizeof(LoopStatement) * (size_t)k->body.n);
	copy->body.cap = copy->body.n;
	for (int i = 0; i < copy->body.n; i++) {
		LoopStatement *s = &copy->body.at[i];
		if (s->place)
			s->place = affine_keep(m->arena, s->place);
		if (s->n_accumulators)
			s->accumulators = arena_copy(m->arena, s->accumulators,
			                             sizeof(Accumulator) *
			                                     (size_t)s->n_accumulators);
	}
	strmap_put(m->kernel_names, copy->name, copy);
	vec_push(m->arena, &m->kernels, copy);
	return copy;
}
