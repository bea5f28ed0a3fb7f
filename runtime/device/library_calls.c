/* Prepares and runs library calls: kernels that a library (such as oneDNN) runs in place of the generated code. Packing an
 * operand means copying it into the library's own layout. An operand is packed once for the whole run if every launch of its
 * kernel reads it from a constant state. Equal layers share a kernel and its call, so a call may have several packed operands:
 * one for the weight of each layer. */
#include "runtime/device/library_calls.h"

#include <stdlib.h>
#include <string.h>

enum { N_READ = 2, MAX_PACKED = 64 << 20 /* bytes of all packed operands */ };

/* A state, packed in a call's own layout. */
typedef struct {
	int64_t state;    /* offset of the state in the state region */
	const void *from; /* address at the first run; NULL before packing */
	char *at;
} Packed;
typedef struct {
	const LibraryCall *record;
	const LibraryOps *ops; /* the library that takes the call */
	PreparedCall *call;    /* NULL: the kernel's generated loops run */
	int64_t launches;      /* in a micro-batch of training */
	unsigned fixed;
	Packed *packed[N_READ];
	int n_packed[N_READ];
	char *remark; /* for people, if MAX_PACKED prevents packing; else NULL */
} Call;
struct LibraryCalls {
	const Format *tables;
	Call *at; /* indexed by library record */
	int n;
	int64_t scratch, packed; /* bytes: the largest scratch of a call; all packed operands */
	char *memory;
};

/* ---- operands that never change */
static bool
lies_in_constant(const Slot *s)
{
	return s->space == SPACE_STATE && s->state;
}

static Status
add_packed(Call *c, int i, int64_t state)
{
	for (int k = 0; k < c->n_packed[i]; k++)
		if (c->packed[i][k].state == state)
			return NULL;
	c->packed[i] = memory_resize(c->packed[i], sizeof(Packed) * (size_t)(c->n_packed[i] + 1));
	c->packed[i][c->n_packed[i]++] = (Packed){.state = state};
	return NULL;
}

static Status
look_at_launch(const LibraryCalls *calls, const ProgramRecord *p, const Instruction *n)
{
	const Format *f = calls->tables;
	uint32_t record = n->kind == RUN_KERNEL ? f->kernels[n->what].library : 0;

	if (!record)
		return NULL;
	Call *c = &calls->at[record - 1];
	c->launches += p->role == ROLE_ACCUMULATE;
	for (int i = 0; i < N_READ; i++) {
		const Slot *s =
			&f->slots[f->arguments[n->args + (uint32_t)c->record->operands[i].buffer]
		                          .slot];
		if (!lies_in_constant(s))
			c->fixed &= ~(1u << i);
		else if (c->fixed >> i & 1)
			RETURN_IF_ERROR(add_packed(c, i, s->offset));
	}
	return NULL;
}

/* Looks at the programs that the run may use: the programs of the run's mode, and the programs of MODE_DDP, which a mode uses
 * if it has no program of its own. */
static Status
look_at_programs(const LibraryCalls *calls, const CodeSource *source)
{
	const Format *f = calls->tables;

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];
		if ((int)p->target != source->target ||
		    (p->mode != MODE_DDP && (int)p->mode != source->mode))
			continue;
		for (uint32_t k = 0; k < p->n_instructions; k++)
			RETURN_IF_ERROR(look_at_launch(calls, p,
			                               &f->instructions[p->first_instruction + k]));
	}
	return NULL;
}

/* ---- preparing calls */
static int64_t
packed_bytes(const Call *c)
{
	int64_t bytes = 0;

	for (int i = 0; i < N_READ; i++)
		bytes += c->n_packed[i] * c->ops->packed_bytes(c->call, i);
	return bytes;
}

static void
release_call(Call *c)
{
	if (c->call)
		c->ops->release(c->call);
	c->call = NULL;
	memory_free(c->remark);
	c->remark = NULL;
}

/* People see the remark beside the implementation's name in --info. */
static void
remark_unpacked(Call *c)
{
	Text t = {0};

	text_printf(
		&t,
		"packs constant operands at each run: with them, more than %d MiB would stay packed",
		MAX_PACKED >> 20);
	c->remark = memory_zeroed(t.n + 1, 1);
	memcpy(c->remark, t.at, t.n);
	text_free(&t);
}

/* Returns false if the library refuses the call, or is slower than the generated loops. */
static bool
try_library(const LibraryCalls *calls, const OpenedLibrary *l, Call *c, int64_t limit)
{
	unsigned fixed = c->fixed;

	c->ops = l->ops;
	status_free(l->ops->prepare(l->library, c->record, fixed, limit, &c->call));
	if (c->call && fixed && calls->packed + packed_bytes(c) > MAX_PACKED) {
		release_call(c);
		fixed = 0;
		status_free(l->ops->prepare(l->library, c->record, fixed, limit, &c->call));
		if (c->call)
			remark_unpacked(c);
	}
	if (c->call && !l->ops->pays(c->call))
		release_call(c);
	if (c->call)
		c->fixed = fixed;
	return c->call != NULL;
}

/* Prepares the call with the first plan in the tables that fits; leaves c->call NULL if no plan fits. */
static void
try_plans(const LibraryCalls *calls, const OpenedLibrary *l, Call *c, int record)
{
	const Format *f = calls->tables;

	for (int i = 0; l->ops->rebuild && i < f->n[SECTION_PLANS] && !c->call; i++) {
		const PlanRecord *p = &f->plans[i];
		const LibraryPlan plan = {format_text(f, p->version), format_text(f, p->text),
		                          (int)p->capability, (int)p->processors};
		if (p->library != (uint32_t)record)
			continue;
		c->ops = l->ops;
		status_free(l->ops->rebuild(l->library, c->record, &plan,
		                            f->library[record].scratch_limit, &c->call));
	}
}

/* Prepares the call by the own first choice of the first library that takes it. */
static void
take_first(LibraryCalls *calls, const Libraries *libraries, int record)
{
	int64_t limit = calls->tables->library[record].scratch_limit;
	Call *c = &calls->at[record];

	for (int i = 0; i < libraries->n && !c->call; i++)
		if (libraries->at[i].library)
			try_library(calls, &libraries->at[i], c, limit);
}

static Status
make_call(LibraryCalls *calls, const Libraries *libraries, Tuner *tuner, int record)
{
	int64_t limit = calls->tables->library[record].scratch_limit;
	Call *c = &calls->at[record];

	for (int i = 0; i < libraries->n && !c->call; i++)
		if (libraries->at[i].library)
			try_plans(calls, &libraries->at[i], c, record);
	TunedCall tuned = {.ops = c->ops, .call = c->call};
	c->call = NULL;
	if (tuner)
		RETURN_IF_ERROR(
			tuner_pick(tuner, libraries, c->record, c->launches, limit, &tuned));
	c->ops = tuned.ops;
	c->call = tuned.call;
	if (!c->call && !tuned.none)
		take_first(calls, libraries, record);
	if (!c->call)
		return NULL;
	if (tuner)
		tuner_note(tuner, libraries, c->record, limit, c->ops, c->call);
	calls->packed += packed_bytes(c);
	if (c->ops->scratch(c->call) > calls->scratch)
		calls->scratch = c->ops->scratch(c->call);
	return NULL;
}

/* Calls are prepared only for kernels of programs that run here. */
static bool
is_called(const KernelRecord *k, int target)
{
	return k->library && k->targets >> target & 1;
}

/* A call, and the operations of all its launches. */
typedef struct {
	int record;
	double flops;
} Weighed;

static int
by_weight(const void *a, const void *b)
{
	const Weighed *x = a, *y = b;

	return x->flops != y->flops ? (x->flops < y->flops) - (x->flops > y->flops)
	                            : x->record - y->record;
}

/* Makes the calls of the programs that run here. With a tuner the heaviest is first: the time for trials may not suffice for all. */
static Status
make_calls(LibraryCalls *calls, const Libraries *libraries, Tuner *tuner, int target)
{
	const Format *f = calls->tables;
	Weighed *list = memory_zeroed((size_t)calls->n + 1, sizeof(*list));
	bool *called = memory_zeroed((size_t)calls->n + 1, sizeof(*called));
	Status status = NULL;
	int n = 0;

	for (int i = 0; i < f->n[SECTION_KERNELS]; i++)
		if (is_called(&f->kernels[i], target))
			called[f->kernels[i].library - 1] = true;
	for (int i = 0; i < calls->n; i++)
		if (called[i])
			list[n++] = (Weighed){i, library_flops(calls->at[i].record) *
			                                 (double)calls->at[i].launches};
	if (tuner)
		qsort(list, (size_t)n, sizeof(*list), by_weight);
	for (int i = 0; i < n && !status; i++)
		status = make_call(calls, libraries, tuner, list[i].record);
	memory_free(called);
	memory_free(list);
	return status;
}

static void
close_calls(void *calls)
{
	library_calls_close(calls);
}

Status
library_calls_open(Libraries *libraries, const CodeSource *source, Tuner *tuner, LibraryCalls **out)
{
	const Format *tables = source->tables;
	LibraryCalls *calls = memory_zeroed(1, sizeof(*calls));
	int n = tables ? tables->n[SECTION_LIBRARY] : 0;

	*out = NULL;
	calls->at = memory_zeroed((size_t)n + 1, sizeof(*calls->at));
	calls->tables = tables;
	calls->n = n;
	memory_hold(close_calls, calls);
	for (int i = 0; i < n; i++)
		calls->at[i] = (Call){.record = &tables->library[i].call,
		                      .fixed = (1u << N_READ) - 1};
	Status status = n ? look_at_programs(calls, source) : NULL;
	if (n && !status)
		status = make_calls(calls, libraries, tuner, source->target);
	libraries_look_again(libraries);
	memory_let_go();
	if (status)
		library_calls_close(calls);
	else
		*out = calls;
	return status;
}

void
library_calls_close(LibraryCalls *calls)
{
	if (!calls)
		return;
	for (int i = 0; i < calls->n; i++) {
		release_call(&calls->at[i]);
		for (int k = 0; k < N_READ; k++)
			memory_free(calls->at[i].packed[k]);
	}
	memory_free(calls->at);
	memory_free(calls);
}

int64_t
library_calls_bytes(const LibraryCalls *calls)
{
	return calls->scratch + calls->packed;
}

void
library_calls_place(LibraryCalls *calls, char *memory)
{
	calls->memory = memory;
	memory += calls->scratch;
	for (int i = 0; i < calls->n; i++) {
		Call *c = &calls->at[i];
		for (int k = 0; c->call && k < N_READ; k++)
			for (int p = 0; p < c->n_packed[k]; p++) {
				c->packed[k][p].at = memory;
				memory += c->ops->packed_bytes(c->call, k);
			}
	}
}

/* ---- running */
static Call *
call_of(const LibraryCalls *calls, uint32_t kernel)
{
	uint32_t i = calls->n ? calls->tables->kernels[kernel].library : 0;

	return i && calls->at[i - 1].call ? &calls->at[i - 1] : NULL;
}

const char *
library_calls_implementation(const LibraryCalls *calls, uint32_t kernel)
{
	const Call *c = call_of(calls, kernel);

	return c ? c->ops->implementation(c->call) : NULL;
}

const char *
library_calls_remark(const LibraryCalls *calls, uint32_t kernel)
{
	const Call *c = call_of(calls, kernel);

	return c ? c->remark : NULL;
}

bool
library_calls_cover(const LibraryCalls *calls, uint32_t kernel)
{
	uint32_t serves = calls->tables ? calls->tables->kernels[kernel].serves : 0;

	return serves && (call_of(calls, serves - 1) || library_calls_cover(calls, serves - 1));
}

const char *
library_calls_describe(const LibraryCalls *calls, uint32_t kernel)
{
	const char *name = library_calls_implementation(calls, kernel);

	return name ? name : library_calls_cover(calls, kernel) ? "left out" : "generated";
}

/* Finds the packed form of operand i, which lies in `buffer`. The first run that reads it packs it. */
static Status
find_packed(Call *c, int i, const void *buffer, char **out)
{
	*out = NULL;
	if (c->ops->packed_bytes(c->call, i) == 0)
		return NULL;
	for (int k = 0; k < c->n_packed[i]; k++) {
		Packed *p = &c->packed[i][k];
		if (p->from && p->from != buffer)
			continue;
		*out = p->at;
		if (!p->from)
			RETURN_IF_ERROR(c->ops->pack(c->call, i, buffer, p->at));
		p->from = buffer;
		return NULL;
	}
	return NULL;
}

Status
library_calls_run(LibraryCalls *calls, uint32_t kernel, void *const *buffers, void *stream)
{
	Call *c = call_of(calls, kernel);
	void *operands[N_LIBRARY_OPERANDS] = {0};
	char *packed[N_READ];

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		if (library_has_operand(c->record, i))
			operands[i] = buffers[c->record->operands[i].buffer];
	for (int i = 0; i < N_READ; i++)
		RETURN_IF_ERROR(find_packed(c, i, operands[i], &packed[i]));
	return c->ops->run(c->call, operands, packed, calls->memory, stream);
}
