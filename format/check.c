/* Checks the tables of an executable (format.h) when they are opened: every string, enum, index, size and overlap of
 * the records. Afterwards readers may trust the tables. An error names the record and the value. */
#include "format/checks.h"

#include <stdlib.h>
#include <math.h>
#include <string.h>

Status
format_check_string(const Format *f, StrRef s, const char *what, int index)
{
	if (s >= (uint32_t)f->n[SECTION_STRINGS])
		return FAULT("%s %d: string reference %u of %d bytes", what, index, s,
		             f->n[SECTION_STRINGS]);
	return NULL;
}

static Status
check_pool(const Format *f)
{
	int n = f->n[SECTION_STRINGS];

	if (n < 1 || f->strings[0] != 0 || f->strings[n - 1] != 0)
		return FAULT("the string pool does not start and end with a NUL");
	return NULL;
}

/* Checks that a shape lies within the dims table, has no negative dimension, and that its bytes do not overflow. */
Status
format_check_shape(const Format *f, const char *what, int index, const uint32_t shape[3],
                   int64_t *bytes)
{
	uint32_t dtype = shape[0], rank = shape[1], first = shape[2];
	int64_t n = 1;

	if (dtype >= N_DTYPES)
		return FAULT("%s %d: dtype %u", what, index, dtype);
	if (rank > MAX_RANK || !in_range(first, rank, f->n[SECTION_DIMS]))
		return FAULT("%s %d: rank %u at dimension %u", what, index, rank, first);
	for (uint32_t i = 0; i < rank; i++) {
		int64_t dim = f->dims[first + i];

		if (dim < 0 || !size_mul(n, dim, &n) || n > INT64_MAX / 64)
			return FAULT("%s %d: dimension %u is %lld", what, index, i, (long long)dim);
	}
	*bytes = dtype_bytes((DType)dtype, n);
	return NULL;
}

/* The number of elements of a state that may not have been checked yet; -1: its shape is invalid. */
static int64_t
state_elements(const Format *f, int i)
{
	const StateRecord *s = &f->states[i];
	int64_t bytes;
	Status fault = format_check_shape(f, "state", i,
	                                  (uint32_t[]){s->dtype, s->rank, s->first_dim}, &bytes);
	int64_t n = fault ? -1 : format_elements(f, s->first_dim, s->rank);

	status_free(fault);
	return n;
}

static Status
check_state(const FormatIndex *x, int i)
{
	const Format *f = x->f;
	const StateRecord *s = &f->states[i];
	const FormatHeader *h = f->header;
	int n = f->n[SECTION_STATES];
	int64_t bytes;

	RETURN_IF_ERROR(format_check_string(f, s->name, "state", i));
	RETURN_IF_ERROR(format_check_string(f, s->why, "state", i));
	RETURN_IF_ERROR(format_check_string(f, s->path, "state", i));
	RETURN_IF_ERROR(format_check_string(f, s->parameter, "state", i));
	if (s->transposed > 1 || (s->transposed && format_index_weight_type(x, i).rank != 2))
		return FAULT("state %d: transposed %u, rank %u", i, s->transposed, s->rank);
	RETURN_IF_ERROR(format_check_shape(f, "state", i,
	                                   (uint32_t[]){s->dtype, s->rank, s->first_dim}, &bytes));
	if (s->kind >= N_STATE_KINDS || s->lifetime >= N_LIFETIMES || s->init >= N_INITS)
		return FAULT("state %d: kind %u, lifetime %u, init %u", i, s->kind, s->lifetime,
		             s->init);
	if (s->rank != 0 && state_kinds[s->kind].scalar != ANY_SHAPE)
		return FAULT("state %d: a %s of rank %u", i, state_kind_names[s->kind], s->rank);
	if (s->file_dtype >= N_DTYPES)
		return FAULT("state %d: file dtype %u", i, s->file_dtype);
	if (s->of > (uint32_t)n || s->unit > (uint32_t)n)
		return FAULT("state %d: of %u, unit %u, with %d states", i, s->of, s->unit, n);
	if (s->kind == STATE_AVERAGE &&
	    (!s->of ||
	     format_elements(f, s->first_dim, s->rank) != state_elements(f, (int)s->of - 1) ||
	     !dtype_is_float((DType)s->dtype) || x->four_bit[s->of - 1]))
		return FAULT("state %d: an average of %d", i, (int)s->of - 1);
	if (s->init == INIT_COPY && (!s->of || format_elements(f, s->first_dim, s->rank) !=
	                                               state_elements(f, (int)s->of - 1)))
		return FAULT("state %d: a copy of %d", i, (int)s->of - 1);
	if (s->bytes != bytes || s->offset < 0 || s->bytes > h->state_bytes ||
	    s->offset > h->state_bytes - s->bytes)
		return FAULT("state %d: %lld bytes at %lld need %lld and have a region of %lld", i,
		             (long long)s->bytes, (long long)s->offset, (long long)bytes,
		             (long long)h->state_bytes);
	if (s->offset * 8 % dtype_info[s->dtype].bits != 0)
		return FAULT("state %d: offset %lld is unaligned", i, (long long)s->offset);
	if (s->sharded >= N_MODES || (s->block && (!s->sharded || bytes == 0)) ||
	    s->block > INT32_MAX || s->offloaded > (s->sharded != 0))
		return FAULT("state %d: sharded %u by %u, offloaded %u", i, s->sharded, s->block,
		             s->offloaded);
	if (s->sharded && !state_kinds[s->kind].divided)
		return FAULT("state %d: ranks have parts of a %s", i, state_kind_names[s->kind]);
	if (s->init == INIT_DATA && (s->data_offset < 0 || bytes > h->weights_bytes ||
	                             s->data_offset > h->weights_bytes - bytes))
		return FAULT("state %d: data at %lld of %lld bytes of weights", i,
		             (long long)s->data_offset, (long long)h->weights_bytes);
	return NULL;
}

static int
by_offset(const void *a, const void *b)
{
	const StateRecord *x = *(const StateRecord *const *)a, *y = *(const StateRecord *const *)b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* States outside units may not overlap. The members of a unit lie inside it by design. */
static Status
check_state_overlap(const Format *f)
{
	int n = 0;
	const StateRecord **order = memory_get(sizeof(*order) * ((size_t)f->n[SECTION_STATES] + 1));
	Status status = NULL;

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].unit == 0 && f->states[i].bytes > 0)
			order[n++] = &f->states[i];
	if (n > 0)
		qsort(order, (size_t)n, sizeof(*order), by_offset);
	for (int i = 1; i < n && !status; i++)
		if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
			status = FAULT("states \"%s\" and \"%s\" overlap",
			               format_text(f, order[i - 1]->name),
			               format_text(f, order[i]->name));
	memory_free(order);
	return status;
}

/* A slot of a state that never changes must lie inside the state. */
static Status
check_constant_slot(const Format *f, int i)
{
	const Slot *s = &f->slots[i];
	const StateRecord *t;

	if (s->state > (uint32_t)f->n[SECTION_STATES])
		return FAULT("slot %d: state %u of %d", i, s->state, f->n[SECTION_STATES]);
	if (s->state == 0)
		return NULL;
	t = &f->states[s->state - 1];
	if (t->lifetime != LIFE_CONSTANT || s->offset < t->offset ||
	    s->offset + s->bytes > t->offset + t->bytes)
		return FAULT("slot %d: %lld bytes at %lld are no part of constant state %u", i,
		             (long long)s->bytes, (long long)s->offset, s->state - 1);
	return NULL;
}

static Status check_shard_slot(const Format *f, int i);

static Status
check_slot(const Format *f, int i)
{
	const Slot *s = &f->slots[i];

	RETURN_IF_ERROR(format_check_string(f, s->name, "slot", i));
	if (s->space >= N_SPACES || s->dtype >= N_DTYPES)
		return FAULT("slot %d: space %u, dtype %u", i, s->space, s->dtype);
	if (s->offset < 0 || s->bytes < 0 || s->bytes > INT64_MAX / 16 ||
	    s->offset > INT64_MAX / 16)
		return FAULT("slot %d: %lld bytes at %lld", i, (long long)s->bytes,
		             (long long)s->offset);
	if (s->offset * 8 % dtype_info[s->dtype].bits != 0)
		return FAULT("slot %d: offset %lld is unaligned", i, (long long)s->offset);
	if (s->share >= N_SLOT_SHARES || (s->share > SLOT_PART && !space_table[s->space].by_slots))
		return FAULT("slot %d: share %u in %s", i, s->share, space_table[s->space].name);
	if ((s->share == SLOT_WHOLE) != (s->block == 0))
		return FAULT("slot %d: %s in blocks of %u", i, share_names[s->share], s->block);
	if (s->before < 0 || s->before > INT64_MAX / 16 || (s->before && s->share != SLOT_PART))
		return FAULT("slot %d: %s with %lld bytes before it", i, share_names[s->share],
		             (long long)s->before);
	if (s->mode >= N_MODES || s->only >= N_ONLY || s->group >= N_GROUPS)
		return FAULT("slot %d: mode %u, only %u, group %u", i, s->mode, s->only, s->group);
	return s->space == SPACE_STATE ? check_constant_slot(f, i) : check_shard_slot(f, i);
}

/* A slot in a region for parts must belong to a state that its mode divides, and cover the whole state. */
static Status
check_shard_slot(const Format *f, int i)
{
	const Slot *s = &f->slots[i];
	bool is_shard = space_has_parts(s->space);

	if (is_shard != (s->state != 0) || s->state > (uint32_t)f->n[SECTION_STATES])
		return FAULT("slot %d: state %u in %s", i, s->state, space_table[s->space].name);
	if (!is_shard)
		return NULL;
	const StateRecord *state = &f->states[s->state - 1];
	if (s->share != SLOT_PART || s->offset != 0 || s->space != state_space(state) ||
	    !state_is_sharded(state, (int)s->mode) || s->group != GROUP_SHARD ||
	    s->block != state->block || s->dtype != state->dtype || s->bytes != state->bytes)
		return FAULT(
			"slot %d: %lld bytes of %s by %u, a part of state %u, which has %lld by %u",
			i, (long long)s->bytes, dtype_info[s->dtype].name, s->block, s->state - 1,
			(long long)state->bytes, state->block);
	return NULL;
}

static Status
check_kernel_name(const Format *f, int i)
{
	RETURN_IF_ERROR(format_check_string(f, f->kernels[i].name, "kernel", i));
	for (const char *c = format_text(f, f->kernels[i].name); *c;
	     c++) /* the name is a symbol and is printed without quotes */
		if (*c != '_' && !(*c >= '0' && *c <= '9') &&
		    !((*c | 32) >= 'a' && (*c | 32) <= 'z'))
			return FAULT("kernel %d: byte %02x in its name", i, (unsigned char)*c);
	return NULL;
}

static Status
check_kernel_argument(const Format *f, int i)
{
	const KernelArgument *a = &f->kernel_arguments[i];

	if (a->bytes < 0 || a->each < 0 || a->each > a->bytes || a->dtype >= N_DTYPES ||
	    a->access & ~(uint32_t)(ACCESS_READ | ACCESS_WRITE | ACCESS_PART))
		return FAULT("argument %d of kernels: %lld bytes, dtype %u, access %u", i,
		             (long long)a->bytes, a->dtype, a->access);
	return NULL;
}

/* The operands of a library call must lie inside the kernel's arguments. */
static Status
check_library_arguments(const Format *f, int i)
{
	const KernelRecord *k = &f->kernels[i];
	const LibraryCall *c = &f->library[k->library - 1].call;

	if (!library_writes_apart(c))
		return FAULT("kernel %d: library call %u writes two operands into one buffer", i,
		             k->library - 1);
	for (int o = 0; o < N_LIBRARY_OPERANDS; o++) {
		const LibraryOperand *x = &c->operands[o];
		if (!library_has_operand(c, o))
			continue;
		if (x->buffer >= (int64_t)k->n_arguments)
			return FAULT("kernel %d: library call %u: argument %lld of %u", i,
			             k->library - 1, (long long)x->buffer, k->n_arguments);
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + x->buffer];
		uint32_t access = library_writes(c, o) ? ACCESS_WRITE : ACCESS_READ;
		if (x->dtype != a->dtype || library_reach(x) > a->bytes || access & ~a->access)
			return FAULT("kernel %d: library call %u: %lld bytes of %s, access %u; "
			             "argument %lld has %lld of %s, access %u",
			             i, k->library - 1, (long long)library_reach(x),
			             dtype_info[x->dtype].name, access, (long long)x->buffer,
			             (long long)a->bytes, dtype_info[a->dtype].name, a->access);
	}
	return NULL;
}

enum { MAX_TEAM_MEMBERS = 1024, MAX_SHARED_BYTES = 1 << 30 };

/* Does each iteration touch an equal share of every argument? */
static bool
is_cut(const Format *f, const KernelRecord *k)
{
	if (k->iterations < 1 || k->elements % k->iterations != 0 || k->n_arguments == 0)
		return false;
	for (uint32_t i = 0; i < k->n_arguments; i++)
		if (f->kernel_arguments[k->first_argument + i].bytes % k->iterations != 0)
			return false;
	return true;
}

/* Does the chain of `serves` end? The longest valid chain has two links: a kernel packs an operand for a product's kernel, and the
 * product's kernel serves the kernel that reads the product. */
static bool
serves_ends(const Format *f, const KernelRecord *k)
{
	enum { MOST_SERVED = 2 };
	int n = 0;

	while (k->serves && k->serves <= (uint32_t)f->n[SECTION_KERNELS] && n++ <= MOST_SERVED)
		k = &f->kernels[k->serves - 1];
	return n <= MOST_SERVED;
}

static Status
check_kernel(const Format *f, int i)
{
	const KernelRecord *k = &f->kernels[i];

	RETURN_IF_ERROR(check_kernel_name(f, i));
	if (!in_range(k->first_argument, k->n_arguments, f->n[SECTION_KERNEL_ARGUMENTS]))
		return FAULT("kernel %d: arguments %u + %u of %d", i, k->first_argument,
		             k->n_arguments, f->n[SECTION_KERNEL_ARGUMENTS]);
	if (k->team < 1 || k->team > MAX_TEAM_MEMBERS || (k->team & (k->team - 1)) != 0 ||
	    k->shared_bytes < 0 || k->shared_bytes > MAX_SHARED_BYTES)
		return FAULT("kernel %d: team of %u with %lld bytes", i, k->team,
		             (long long)k->shared_bytes);
	if (k->targets & ~(uint32_t)((1ull << f->n[SECTION_TARGETS]) - 1))
		return FAULT("kernel %d: targets %x of %d", i, k->targets, f->n[SECTION_TARGETS]);
	if (k->library > (uint32_t)f->n[SECTION_LIBRARY])
		return FAULT("kernel %d: library call %u of %d", i, k->library,
		             f->n[SECTION_LIBRARY]);
	if (k->serves > (uint32_t)f->n[SECTION_KERNELS])
		return FAULT("kernel %d: serves kernel %u of %d", i, k->serves,
		             f->n[SECTION_KERNELS]);
	if (!serves_ends(f, k))
		return FAULT("kernel %d: kernels serve each other", i);
	if (k->elements < 0 || (k->elements > 0 && (k->library || !is_cut(f, k))))
		return FAULT("kernel %d: %lld elements in %lld iterations", i,
		             (long long)k->elements, (long long)k->iterations);
	if (k->iterations < 0 || k->grain < 0)
		return FAULT("kernel %d: %lld iterations in grains of %lld", i,
		             (long long)k->iterations, (long long)k->grain);
	if (k->flops < 0 || k->bytes < 0 || k->instructions < 0 || k->matrix_flops < 0 ||
	    k->steps < 0)
		return FAULT(
			"kernel %d: %lld flops, %lld bytes, %lld instructions, %lld matrix flops, "
			"%lld steps",
			i, (long long)k->flops, (long long)k->bytes, (long long)k->instructions,
			(long long)k->matrix_flops, (long long)k->steps);
	return k->library ? check_library_arguments(f, i) : NULL;
}

static Status
check_library(const Format *f, int i)
{
	Text why = {0};
	Status status = NULL;

	if (f->library[i].scratch_limit < 0)
		return FAULT("library call %d: %lld bytes of scratch", i,
		             (long long)f->library[i].scratch_limit);
	if (!library_call_check(&f->library[i].call, &why))
		status = FAULT("library call %d: %s", i, why.at);
	text_free(&why);
	return status;
}

/* Refuses plans whose bytes changed: libraries execute a plan without checking it. */
static Status
check_plan(const Format *f, int i)
{
	const PlanRecord *p = &f->plans[i];

	RETURN_IF_ERROR(format_check_string(f, p->gpu, "plan", i));
	RETURN_IF_ERROR(format_check_string(f, p->version, "plan", i));
	RETURN_IF_ERROR(format_check_string(f, p->text, "plan", i));
	if (p->library >= (uint32_t)f->n[SECTION_LIBRARY])
		return FAULT("plan %d: library call %u of %d", i, p->library,
		             f->n[SECTION_LIBRARY]);
	if (p->scratch < 0 || p->scratch > f->library[p->library].scratch_limit)
		return FAULT("plan %d: %lld bytes of scratch, its call may have %lld", i,
		             (long long)p->scratch,
		             (long long)f->library[p->library].scratch_limit);
	if (p->facts != plan_facts(&f->library[p->library], p, f->strings))
		return FAULT("plan %d: changed since it was made for library call %u", i,
		             p->library);
	return NULL;
}

static Status
check_collective(const Format *f, int i)
{
	const CollectiveRecord *c = &f->collectives[i];

	if (c->kind >= N_COLLECTIVES || c->group >= N_GROUPS || c->dtype >= N_DTYPES ||
	    c->reduction >= N_COMM_REDUCTIONS)
		return FAULT("collective %d: kind %u, group %u, dtype %u, reduction %u", i, c->kind,
		             c->group, c->dtype, c->reduction);
	if (c->group > GROUP_REPLICATE)
		return FAULT("collective %d: group %s: no run divides its ranks by it yet", i,
		             comm_group_names[c->group]);
	if (c->peer > INT32_MAX)
		return FAULT("collective %d: rank %u", i, c->peer);
	if (c->block == 0 || c->block > INT32_MAX)
		return FAULT("collective %d: blocks of %u elements", i, c->block);
	if (c->of_part > 1)
		return FAULT("collective %d: of part %u", i, c->of_part);
	if (c->n < 0 || c->n > INT64_MAX / 64)
		return FAULT("collective %d: %lld elements", i, (long long)c->n);
	return NULL;
}

static Status
check_binding(const Format *f, int i)
{
	RETURN_IF_ERROR(format_check_string(f, f->bindings[i].text, "binding", i));
	if (f->bindings[i].rows < 1)
		return FAULT("binding %d: %lld rows", i, (long long)f->bindings[i].rows);
	return NULL;
}

static Status
check_target(const Format *f, int i)
{
	if (i >= MAX_TARGETS)
		return FAULT("%d targets, at most %d", f->n[SECTION_TARGETS], MAX_TARGETS);
	return format_check_string(f, f->targets[i].name, "target", i);
}

/* The class axis of an output may not be its row axis. */
static Status
check_port_rows(const Format *f, const PortRecord *p, int i)
{
	bool classes = p->compared == COMPARED_LOGITS || p->compared == COMPARED_LOG_PROBABILITIES;

	if (p->repeats > INT32_MAX || (p->repeats && p->row_axis >= p->rank))
		return FAULT("port %d: row axis %u of rank %u, %u times", i, p->row_axis, p->rank,
		             p->repeats);
	if (p->compared >= N_COMPARED || (p->compared && !p->repeats))
		return FAULT("port %d: compared %u, without a row axis", i, p->compared);
	if (classes && (p->class_axis >= p->rank || p->class_axis == p->row_axis ||
	                f->dims[p->first_dim + p->class_axis] <= 0))
		return FAULT("port %d: class axis %u of rank %u", i, p->class_axis, p->rank);
	return NULL;
}

static Status
check_port(const Format *f, int i)
{
	const PortRecord *p = &f->ports[i];
	int64_t bytes;

	RETURN_IF_ERROR(format_check_string(f, p->name, "port", i));
	RETURN_IF_ERROR(format_check_shape(f, "port", i,
	                                   (uint32_t[]){p->dtype, p->rank, p->first_dim}, &bytes));
	if (p->kind >= N_PORT_KINDS || p->file_dtype >= N_DTYPES)
		return FAULT("port %d: kind %u, file dtype %u", i, p->kind, p->file_dtype);
	if (p->slot >= (uint32_t)f->n[SECTION_SLOTS])
		return FAULT("port %d: slot %u of %d", i, p->slot, f->n[SECTION_SLOTS]);
	if (f->slots[p->slot].share != SLOT_WHOLE)
		return FAULT("port %d: slot %u is %s", i, p->slot,
		             share_names[f->slots[p->slot].share]);
	if (f->slots[p->slot].bytes < bytes)
		return FAULT("port %d: %lld bytes in slot %u of %lld", i, (long long)bytes, p->slot,
		             (long long)f->slots[p->slot].bytes);
	if (p->sample_axis < -1 || p->sample_axis >= (int32_t)p->rank)
		return FAULT("port %d: sample axis %d of rank %u", i, p->sample_axis, p->rank);
	if (p->bounded > 2 || (p->bounded && p->min > p->max))
		return FAULT("port %d: bounds %u, %lld to %lld", i, p->bounded, (long long)p->min,
		             (long long)p->max);
	return check_port_rows(f, p, i);
}

static Status
check_info(const Format *f, int i)
{
	RETURN_IF_ERROR(format_check_string(f, f->info[i].key, "info", i));
	return format_check_string(f, f->info[i].value, "info", i);
}

enum { MOST_INPUTS = 1 << 16, MOST_CHANNELS = 1 << 24 };

static Status
check_axes(int i, const ExportRecord *e)
{
	uint32_t seen = 0;

	for (uint32_t k = 0; k < e->rank; k++)
		if (e->perm[k] < e->rank)
			seen |= 1u << e->perm[k];
	return seen == (1u << e->rank) - 1 ? NULL
	                                   : FAULT("export %d: the axes are no permutation", i);
}

static bool
is_code_type(uint32_t dtype)
{
	return dtype < N_DTYPES && dtype_info[dtype].bits <= 32 &&
	       (dtype_info[dtype].class == CLASS_SIGNED ||
	        dtype_info[dtype].class == CLASS_UNSIGNED);
}

static Status
check_hole(const FormatIndex *x, int i)
{
	const Format *f = x->f;
	const ExportRecord *e = &f->exports[i];

	if (e->state >= (uint32_t)f->n[SECTION_STATES] || e->dtype >= N_DTYPES)
		return FAULT("export %d: state %u of %d, dtype %u", i, e->state,
		             f->n[SECTION_STATES], e->dtype);
	if (e->times > 1u << 20)
		return FAULT("export %d: %u times", i, e->times);
	FormatType of = format_index_weight_type(x, (int)e->state);
	if (e->rank != of.rank)
		return FAULT("export %d: rank %u, its state has %u", i, e->rank, of.rank);
	if (e->block < 1 || format_elements(f, of.first_dim, e->rank) % e->block != 0)
		return FAULT("export %d: blocks of %lld elements", i, (long long)e->block);
	return check_axes(i, e);
}

static Status
check_codes(const Format *f, int i)
{
	const ExportRecord *e = &f->exports[i];
	const StateRecord *s = e->state < (uint32_t)f->n[SECTION_STATES] ? &f->states[e->state]
	                                                                 : NULL;

	if (!s || !is_code_type(e->dtype) || e->rank != s->rank || !dtype_is_float((DType)s->dtype))
		return FAULT("export %d: state %u of %d as codes of dtype %u, rank %u", i, e->state,
		             f->n[SECTION_STATES], e->dtype, e->rank);
	RETURN_IF_ERROR(check_axes(i, e));
	for (uint32_t k = 0; k < e->rank; k++) {
		if (e->group[k] < 1)
			return FAULT("export %d: groups of %lld", i, (long long)e->group[k]);
	}
	int64_t dims[MAX_RANK];
	Groups shared = format_groups(f, e, dims);
	int64_t groups = groups_count(&shared); /* at most the state's elements */
	if (e->scale == NO_SCALE && dtype_info[e->dtype].bits > 16)
		return FAULT("export %d: computed scales of %s", i, dtype_info[e->dtype].name);
	if (e->scale == NO_SCALE)
		return e->zero == -1 ? NULL : FAULT("export %d: zero points without scales", i);
	if (e->kind == EXPORT_SCALES)
		return FAULT("export %d: computed scales, but also a state with scales, %u", i,
		             e->scale);
	if (e->scale >= (uint32_t)f->n[SECTION_STATES] ||
	    !dtype_is_float((DType)f->states[e->scale].dtype) ||
	    format_elements(f, f->states[e->scale].first_dim, f->states[e->scale].rank) != groups)
		return FAULT("export %d: state %u has no scale for each of %lld groups", i,
		             e->scale, (long long)groups);
	if (e->zero != -1 &&
	    (e->zero < 0 || groups > INT64_MAX / 4 ||
	     !in_range((uint64_t)e->zero, (uint64_t)groups * 4, f->n[SECTION_LITERAL])))
		return FAULT("export %d: zero points at %lld of %d", i, (long long)e->zero,
		             f->n[SECTION_LITERAL]);
	return NULL;
}

static bool
is_one_float(const Format *f, uint32_t state)
{
	return state < (uint32_t)f->n[SECTION_STATES] &&
	       dtype_is_float((DType)f->states[state].dtype) &&
	       format_elements(f, f->states[state].first_dim, f->states[state].rank) == 1;
}

static Status
check_range(const Format *f, int i)
{
	const ExportRecord *e = &f->exports[i];

	if (is_code_type(e->dtype) && dtype_info[e->dtype].bits <= 16 &&
	    is_one_float(f, e->state) && is_one_float(f, e->high) &&
	    (e->scale == NO_SCALE || is_one_float(f, e->scale)))
		return NULL;
	return FAULT("export %d: codes of dtype %u for the range from state %u to state %u", i,
	             e->dtype, e->state, e->high);
}

/* Checks what --export-preprocessing reads: the input's number, and its type or numbers. */
static Status
check_preprocessing(const Format *f, int i)
{
	const ExportRecord *e = &f->exports[i];
	bool is_type = e->kind == EXPORT_INPUT_TYPE;
	bool is_number = e->kind >= EXPORT_MUL && e->kind <= EXPORT_STD;

	RETURN_IF_ERROR(format_check_string(f, e->name, "export", i));
	if (e->input > MOST_INPUTS || e->when > ALL_PREPROCESSINGS ||
	    ((is_type || is_number) && (e->input == 0 || e->when == 0)) ||
	    (is_number && (e->when & NO_PREPROCESSING)))
		return FAULT("export %d: preprocessings %x of input %u", i, e->when, e->input);
	if (is_type && (e->dtype >= N_DTYPES || e->bytes != N_DTYPES || e->offset < 0 ||
	                !in_range((uint64_t)e->offset, N_DTYPES, f->n[SECTION_LITERAL])))
		return FAULT("export %d: types at %lld of %d", i, (long long)e->offset,
		             f->n[SECTION_LITERAL]);
	if (is_number && (e->block < 0 || e->block > MOST_CHANNELS ||
	                  e->bytes != e->block * (int64_t)sizeof(double)))
		return FAULT("export %d: %lld numbers in %lld bytes", i, (long long)e->block,
		             (long long)e->bytes);
	return NULL;
}

static Status
check_export(const FormatIndex *x, int i)
{
	const Format *f = x->f;
	const ExportRecord *e = &f->exports[i];

	if (e->kind >= N_EXPORT_KINDS || e->file > 1 || e->of >= N_EXPORTED || e->form >= N_FORMS)
		return FAULT("export %d: kind %u, file %u, of model %u, form %u", i, e->kind,
		             e->file, e->of, e->form);
	if (e->kind == EXPORT_LITERAL &&
	    (e->offset < 0 || e->bytes < 0 ||
	     !in_range((uint64_t)e->offset, (uint64_t)e->bytes, f->n[SECTION_LITERAL])))
		return FAULT("export %d: %lld literal bytes at %lld of %d", i, (long long)e->bytes,
		             (long long)e->offset, f->n[SECTION_LITERAL]);
	if (e->kind == EXPORT_LENGTH &&
	    (e->offset < 0 || e->offset >= 1ll << 34 || e->times > 1u << 20))
		return FAULT("export %d: length %lld + %u times", i, (long long)e->offset,
		             e->times);
	if (e->kind == EXPORT_ALIGN && (e->bytes < 1 || e->bytes > 1 << 20))
		return FAULT("export %d: alignment %lld", i, (long long)e->bytes);
	if (!(e->least >= 0) ||
	    (e->least > 0 && e->kind == EXPORT_TENSOR &&
	     (e->state >= (uint32_t)f->n[SECTION_STATES] ||
	      !dtype_is_float(format_index_weight_type(x, (int)e->state).dtype))))
		return FAULT("export %d: a least scale of %g", i, e->least);
	RETURN_IF_ERROR(check_preprocessing(f, i));
	if (e->kind == EXPORT_CODES || e->kind == EXPORT_SCALES)
		return check_codes(f, i);
	if (e->kind == EXPORT_RANGE_SCALE || e->kind == EXPORT_RANGE_ZERO)
		return check_range(f, i);
	return e->kind == EXPORT_TENSOR ? check_hole(x, i) : NULL;
}

static const struct {
	Section section;
	Status (*check)(const Format *f, int i);
	Status (*check_by)(const FormatIndex *x, int i);
} record_checks[] = {
	{SECTION_INFO, check_info},
	{SECTION_STATES, NULL, check_state},
	{SECTION_SLOTS, check_slot},
	{SECTION_LIBRARY, check_library},
	{SECTION_PLANS, check_plan},
	{SECTION_COLLECTIVES, check_collective},
	{SECTION_TARGETS, check_target},
	{SECTION_KERNEL_ARGUMENTS, check_kernel_argument},
	{SECTION_KERNELS, check_kernel},
	{SECTION_BINDINGS, check_binding},
	{SECTION_PORTS, check_port},
	{SECTION_FOUR_BIT, NULL, format_check_four_bit},
	{SECTION_EXPORT, NULL, check_export},
	{SECTION_ADAPTERS, NULL, format_check_adapter},
	{SECTION_KEPT_ADAPTERS, format_check_kept_adapter},
};

/* Checks that modes are valid and that no two programs have the same key. check_worlds then checks each program in its mode. */
static Status
check_keys_of_programs(const FormatIndex *x)
{
	const Format *f = x->f;
	int twin;

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		if (f->programs[i].mode >= N_MODES)
			return FAULT("program %d: mode %u", i, f->programs[i].mode);
	if (format_index_twin(x, &twin))
		return FAULT("program %d: an earlier program has the same role, binding, "
		             "stage, mode and target",
		             twin);
	return NULL;
}

/* Checks that every instruction belongs to one program: the programs' instructions follow each other without gaps. */
static Status
check_instructions_of_programs(const Format *f)
{
	uint64_t end = 0;

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		if (f->programs[i].first_instruction != end)
			return FAULT(
				"program %d: first instruction %u, the previous program ends at %llu",
				i, f->programs[i].first_instruction, (unsigned long long)end);
		end += f->programs[i].n_instructions;
	}
	if (end != (uint64_t)f->n[SECTION_INSTRUCTIONS])
		return FAULT("%d instructions, the programs have %llu", f->n[SECTION_INSTRUCTIONS],
		             (unsigned long long)end);
	return NULL;
}

/* In each mode, states that are not divided among ranks must lie before divided states. A state in a unit (a flat state
 * that holds several) must be divided like the unit. */
static Status
check_order_of_states(const Format *f)
{
	for (int mode = 0; mode < N_MODES; mode++) {
		int64_t whole = format_state_bytes(f, mode);
		for (int i = 0; i < f->n[SECTION_STATES]; i++) {
			const StateRecord *s = &f->states[i];
			if (!state_is_sharded(s, mode) && s->bytes > 0 &&
			    s->offset + s->bytes > whole)
				return FAULT(
					"state %d: %lld bytes at %lld, behind states that ranks "
					"have parts of in mode %s",
					i, (long long)s->bytes, (long long)s->offset,
					mode_names[mode]);
			if (s->unit && (s->sharded != f->states[s->unit - 1].sharded ||
			                s->offloaded != f->states[s->unit - 1].offloaded))
				return FAULT("state %d: sharded %u, offloaded %u in a unit that is "
				             "%u, %u",
				             i, s->sharded, s->offloaded,
				             f->states[s->unit - 1].sharded,
				             f->states[s->unit - 1].offloaded);
		}
	}
	return NULL;
}

/* Checks all programs in a run of three ranks for each mode, with all conditions true. So every instruction is checked, and every
 * shared slot has parts. */
static Status
check_worlds(const FormatIndex *x)
{
	const Format *f = x->f;
	int64_t *at = memory_get(sizeof(*at) * ((size_t)f->n[SECTION_STATES] + 1));
	Status status = NULL;

	for (int mode = 0; mode < N_MODES && !status; mode++) {
		if (!format_has_mode(f, mode))
			continue;
		RunFacts facts = {.holds = N_ONLY - 1, .ranks = 3, .mode = mode, .shard_at = at};
		status = format_shard_places(f, &facts, SPACE_SHARD, at) == INT64_MAX
		                 ? FAULT("the parts of states in mode %s are too large",
		                         mode_names[mode])
		                 : format_check_world_by(x, &facts);
	}
	memory_free(at);
	return status;
}

static Status
check_records(const FormatIndex *x)
{
	const Format *f = x->f;

	for (int c = 0; c < COUNT(record_checks); c++)
		for (int i = 0; i < f->n[record_checks[c].section]; i++)
			RETURN_IF_ERROR(record_checks[c].check ? record_checks[c].check(f, i)
			                                       : record_checks[c].check_by(x, i));
	RETURN_IF_ERROR(format_check_adapters_apart(f));
	RETURN_IF_ERROR(format_check_factors(f));
	RETURN_IF_ERROR(check_keys_of_programs(x));
	RETURN_IF_ERROR(check_instructions_of_programs(f));
	RETURN_IF_ERROR(check_state_overlap(f));
	RETURN_IF_ERROR(check_order_of_states(f));
	return check_worlds(x);
}

Status
format_check(const Format *f)
{
	RETURN_IF_ERROR(check_pool(f));
	RETURN_IF_ERROR(format_check_totals(f));
	FormatIndex x = format_index_open(f);
	Status status = check_records(&x);

	format_index_close(&x);
	return status;
}
