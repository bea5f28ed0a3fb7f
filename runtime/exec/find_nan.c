/* Finds the instruction that made the first NaN or infinity of a failed step, for the error message. step.c runs the failed
 * step again, one instruction at a time, and the finder looks at the operands and results of each instruction. A failed step
 * changes none of its inputs, so the second run has the same numbers. A step that does not fail costs nothing.
 *
 * A finding is an instruction that made NaN or an infinity from operands without them, or a tensor that held them before the
 * step. A mark is a range of memory that holds NaN or infinities now, with the finding that these numbers come from. For
 * example, with h = exp(x) and y = h / h:
 *
 * exp   x: 1 .. 100      h: inf              finding 0; mark on h: inf from finding 0
 * div   h: inf from 0    y: NaN              finding 1, whose operand has infinities from 0; mark on y: NaN from 1
 *
 * A NaN in an operand explains a NaN in the result. An infinity explains an infinity, preferably of the same sign. An infinity
 * does not explain a NaN: a mask of -inf is ordinary, inf - inf is not. The answer is the origin of the NaN or infinity in the
 * loss or in the norm of the gradients: if one of these two is not finite, the program @update skips the update. A NaN that
 * reaches neither the loss nor the norm is harmless.
 *
 * Memory without a value may hold any bytes: for example gaps between padded rows, or a kernel's result that is not written
 * because a library replaces the kernel. So a NaN counts as a result only if its bytes are new, and as an operand only if
 * the memory has a mark or is a state or an input. Zeros are written before the first instruction, so that old bytes are
 * never NaN. */
#include "runtime/exec/walk.h"

#include <string.h>
#include <math.h>

enum { WINDOW = 1 << 20 };
enum { FORWARD_PHASE = 1 }; /* Instruction.phase of a forward pass */

struct Finder {
	Arena *arena;
	VEC(Finding *) findings;
	VEC(Mark) marks;
	Watched *watched; /* arguments of the current instruction */
	Finding *made;    /* finding of the current instruction; NULL if it made none */
	/* the finding that explains the NaN or infinity in this rank's contribution to a sum over ranks; NO_FINDING if the
	 * contribution is finite */
	int sent;
	char *window; /* host buffer through which the device's memory is read */
};

static const int no_findings[GRADC_N_UNFIT] = {NO_FINDING, NO_FINDING, NO_FINDING};

/* ---- opening: zeros in memory that a step writes before it reads */
static Status
clear(Executor *x, Span span)
{
	return span.bytes > 0 ? x->ops->fill_zero(x->device, STREAM_COMPUTE, span) : NULL;
}

static Status
clear_all(Executor *x)
{
	static const Space spaces[] = {SPACE_WORKSPACE, SPACE_STEP, SPACE_GATHERED};
	const Format *f = x->format;

	for (int i = 0; i < COUNT(spaces); i++)
		RETURN_IF_ERROR(clear(x, executor_region(x, spaces[i])));
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].lifetime == LIFE_STEP && !state_has_parts(x, i))
			RETURN_IF_ERROR(clear(x, executor_state(x, i)));
	return executor_drain(x);
}

Status
finder_open(Arena *arena, Executor *x)
{
	Finder *finder = NEW(arena, Finder);

	RETURN_IF_ERROR(executor_drain(x));
	RETURN_IF_ERROR(clear_all(x));
	*finder = (Finder){.arena = arena, .sent = NO_FINDING};
	finder->watched = NEW_ARRAY(arena, Watched, x->most_arguments);
	finder->window = arena_alloc(arena, WINDOW);
	x->spans = NEW_ARRAY(arena, Span, x->most_arguments);
	x->finder = finder;
	return NULL;
}

void
finder_close(Executor *x)
{
	for (uint32_t i = 0; x->finder && i < x->most_arguments; i++)
		memory_free(x->finder->watched[i].bytes);
	x->finder = NULL;
}

/* ---- findings */
/* Is the finding a likely cause? An infinity that a tensor held before the step is not a likely cause: it may be a mask. Such a
 * finding is named only if there is no other finding. */
static bool
is_suspect(const Finder *finder, int finding, int kind)
{
	return kind == GRADC_NAN || finder->findings.at[finding]->cause != CAUSE_HELD;
}

/* Which of two findings should be named as the cause: a likely one first, then the earlier one. */
static int
better(const Finder *finder, int a, int b, int kind)
{
	if (a == NO_FINDING || b == NO_FINDING)
		return a == NO_FINDING ? b : a;
	bool suspect = is_suspect(finder, a, kind);
	if (suspect != is_suspect(finder, b, kind))
		return suspect ? a : b;
	return a < b ? a : b;
}

static int
add_finding(Finder *finder, const FinderCall *call, FindingCause cause)
{
	Finding *found = NEW(finder->arena, Finding);

	*found = (Finding){.cause = cause,
	                   .program = call->program,
	                   .instruction = call->instruction,
	                   .micro = *call->micro};
	vec_push(finder->arena, &finder->findings, found);
	return finder->findings.n - 1;
}

const Finding *
finder_get(const Finder *finder, int finding)
{
	return finding == NO_FINDING ? NULL : finder->findings.at[finding];
}

/* ---- marks */
static bool
overlap(Span a, Span b)
{
	return a.at < b.at + b.bytes && b.at < a.at + a.bytes;
}

/* Removes marks from overwritten memory. If only a part of a mark is overwritten, the rest of the mark stays. */
static void
remove_marks(Finder *finder, Span span)
{
	for (int i = finder->marks.n - 1; i >= 0; i--) {
		Mark m = finder->marks.at[i], rest = m;
		char *end = m.span.at + m.span.bytes, *span_end = span.at + span.bytes;

		if (!overlap(m.span, span))
			continue;
		finder->marks.at[i] = finder->marks.at[--finder->marks.n];
		rest.span.bytes = span.at - m.span.at;
		if (rest.span.bytes > 0)
			vec_push(finder->arena, &finder->marks, rest);
		rest.span = (Span){span_end, end - span_end};
		if (rest.span.bytes > 0)
			vec_push(finder->arena, &finder->marks, rest);
	}
}

static void
add_mark(Finder *finder, Span span, const int from[GRADC_N_UNFIT])
{
	Mark m = {.span = span};

	remove_marks(finder, span);
	memcpy(m.from, from, sizeof(m.from));
	if (memcmp(from, no_findings, sizeof(no_findings)) != 0)
		vec_push(finder->arena, &finder->marks, m);
}

static int
marked(const Finder *finder, Span span, int kind)
{
	int found = NO_FINDING;

	for (int i = 0; i < finder->marks.n; i++)
		if (overlap(finder->marks.at[i].span, span))
			found = better(finder, found, finder->marks.at[i].from[kind], kind);
	return found;
}

/* ---- arguments */
static const Slot *
slot_of(const Format *f, const Instruction *n, int i)
{
	return &f->slots[f->arguments[n->args + (uint32_t)i].slot];
}

/* Does an instruction read or write its i-th argument? A kernel's record says it for each argument. A collective with four
 * arguments uses the last two. */
static uint32_t
access_of(const Executor *x, const Instruction *n, int i)
{
	const KernelRecord *k = &x->format->kernels[n->kind == RUN_KERNEL ? n->what : 0];
	int first = n->kind == COLLECTIVE && (x->facts.holds & ONLY_STAGED) ? n->n_args - 2 : 0;

	if (n->kind == RUN_KERNEL)
		return x->format->kernel_arguments[k->first_argument + (uint32_t)i].access;
	if (i < first || i > first + 1)
		return 0;
	return i == first ? ACCESS_WRITE : ACCESS_READ;
}

/* The argument's memory, limited to the bytes that the kernel may touch. */
static Span
span_of(const Executor *x, const FinderCall *call, int i)
{
	const Instruction *n = call->instruction;
	Span span = call->spans[i];

	if (n->kind == RUN_KERNEL) {
		const KernelRecord *k = &x->format->kernels[n->what];
		int64_t most = x->format->kernel_arguments[k->first_argument + (uint32_t)i].bytes;
		span.bytes = most < span.bytes ? most : span.bytes;
	}
	return span;
}

static bool
is_on_host(const Executor *x, const Watched *w)
{
	return !executor_is_apart(x) || space_table[w->slot->space].on_host;
}

/* Computes the range of an argument's numbers. before: the memory's earlier bytes: a NaN or infinity that was there already
 * does not count, and of an argument that is written in part, no number that was there counts. NULL: every number counts. */
static Status
measure(Executor *x, const Watched *w, const char *before, GradcRange *out)
{
	DType t = (DType)w->slot->dtype;

	*out = range_of_nothing();
	for (int64_t done = 0; done < w->span.bytes; done += WINDOW) {
		Span piece = {w->span.at + done, w->span.bytes - done};
		const char *values = piece.at;

		piece.bytes = piece.bytes < WINDOW ? piece.bytes : WINDOW;
		if (!is_on_host(x, w)) {
			RETURN_IF_ERROR(executor_read(x, x->finder->window, piece));
			values = x->finder->window;
		}
		int64_t n = piece.bytes / dtype_bytes(t, 1);
		if (before && (w->access & ACCESS_PART))
			range_add_changed(out, t, values, n, before + done);
		else
			range_add(out, t, values, n, before ? before + done : NULL);
	}
	return NULL;
}

static Status
keep_bytes(Executor *x, Watched *w)
{
	w->bytes = memory_get((size_t)w->span.bytes);
	if (!is_on_host(x, w))
		return executor_read(x, w->bytes, w->span);
	memcpy(w->bytes, w->span.at, (size_t)w->span.bytes);
	return NULL;
}

static bool
is_input(const Format *f, const ProgramRecord *p, const Slot *s)
{
	for (uint32_t i = 0; i < p->n_inputs; i++) {
		const Slot *input = &f->slots[f->ports[p->first_input + i].slot];
		if (input->offset == s->offset &&
		    (input->space == s->space || space_table[input->space].twin == s->space))
			return true;
	}
	return false;
}

/* Adds a finding for an operand with NaN or infinities that no instruction has made. */
static void
find_held(Executor *x, const FinderCall *call, Watched *w)
{
	Finder *finder = x->finder;
	int from[GRADC_N_UNFIT];

	if (w->slot->space != SPACE_STATE && !is_input(x->format, call->program, w->slot))
		return;
	int found = add_finding(finder, call, CAUSE_HELD);
	finder->findings.at[found]->args = arena_copy(finder->arena, w, sizeof(*w));
	finder->findings.at[found]->n_args = 1;
	for (int k = 0; k < GRADC_N_UNFIT; k++)
		from[k] = w->before.n[k] > 0 ? found : NO_FINDING;
	add_mark(finder, w->span, from);
	memcpy(w->from, from, sizeof(from));
}

static void
find_origins(Executor *x, const FinderCall *call, Watched *w)
{
	bool known = false;

	for (int k = 0; k < GRADC_N_UNFIT; k++)
		if (w->before.n[k] > 0) {
			w->from[k] = marked(x->finder, w->span, k);
			known |= w->from[k] != NO_FINDING;
		}
	if (!known && !range_is_finite(&w->before))
		find_held(x, call, w);
	for (int k = 0; k < GRADC_N_UNFIT; k++)
		if (w->from[k] == NO_FINDING)
			w->before.n[k] = 0; /* the memory holds no value */
}

/* Notes the findings that explain this rank's contribution to a collective. The contribution's NaN appear in the sums of all
 * ranks, this rank's included. */
static void
note_sent(Finder *finder, const FinderCall *call, const Watched *w)
{
	for (int k = 0; call->instruction->kind == COLLECTIVE && k < GRADC_N_UNFIT; k++) {
		const Finding *found = finder_get(finder, w->from[k]);

		if (found && found->cause != CAUSE_RECEIVED)
			finder->sent = better(finder, finder->sent, w->from[k], k);
	}
}

Status
finder_before(Executor *x, const FinderCall *call)
{
	const Instruction *n = call->instruction;
	Finder *finder = x->finder;

	finder->made = NULL;
	for (int i = 0; i < n->n_args; i++) {
		Watched *w = &finder->watched[i];

		*w = (Watched){.slot = slot_of(x->format, n, i), .span = span_of(x, call, i)};
		memcpy(w->from, no_findings, sizeof(w->from));
		if (dtype_is_float((DType)w->slot->dtype) && dtype_info[w->slot->dtype].bits >= 8)
			w->access = access_of(x, n, i);
		if (!w->access)
			continue;
		RETURN_IF_ERROR(measure(x, w, NULL, &w->before));
		if (n->kind == RUN_KERNEL && (w->access & ACCESS_WRITE) &&
		    (!range_is_finite(&w->before) || (w->access & ACCESS_PART)))
			RETURN_IF_ERROR(keep_bytes(x, w));
		if (w->access & ACCESS_READ)
			find_origins(x, call, w);
		note_sent(finder, call, w);
	}
	return NULL;
}

/* ---- results */
/* explains[k]: the kinds in operands that explain kind k in a result, best first. */
static const int explains[GRADC_N_UNFIT][2] = {
	[GRADC_NAN] = {GRADC_NAN, GRADC_NAN},
	[GRADC_PLUS_INFINITY] = {GRADC_PLUS_INFINITY, GRADC_MINUS_INFINITY},
	[GRADC_MINUS_INFINITY] = {GRADC_MINUS_INFINITY, GRADC_PLUS_INFINITY},
};

static int
find_explained(const Finder *finder, const FinderCall *call, int kind)
{
	int found = NO_FINDING;

	for (int e = 0; e < COUNT(explains[kind]) && found == NO_FINDING; e++)
		for (int i = 0; i < call->instruction->n_args; i++)
			found = better(finder, found, finder->watched[i].from[explains[kind][e]],
			               explains[kind][e]);
	return found;
}

static int
find_made(Finder *finder, const FinderCall *call, int kind)
{
	bool collective = call->instruction->kind == COLLECTIVE;

	if (!finder->made) {
		int found = add_finding(finder, call, collective ? CAUSE_RECEIVED : CAUSE_MADE);
		finder->made = finder->findings.at[found];
	}
	finder->made->kinds[kind] = true;
	return finder->findings.n - 1;
}

/* Finds the finding that each kind in a result came from. A number with unchanged bytes counts only if an operand explains
 * it. */
static void
find_result(Finder *finder, const FinderCall *call, const Watched *result, int from[GRADC_N_UNFIT])
{
	for (int k = 0; k < GRADC_N_UNFIT; k++) {
		bool is_new = result->after.n[k] > 0;

		from[k] = NO_FINDING;
		if (is_new || result->before.n[k] > 0)
			from[k] = find_explained(finder, call, k);
		if (is_new && from[k] == NO_FINDING)
			from[k] = find_made(finder, call, k);
	}
}

Status
finder_after(Executor *x, const FinderCall *call)
{
	Finder *finder = x->finder;
	int n = call->instruction->n_args, from[GRADC_N_UNFIT];
	Status status = executor_drain(x);

	for (int i = 0; i < n; i++) {
		Watched *w = &finder->watched[i];

		if (!status && (w->access & ACCESS_WRITE))
			status = measure(x, w, w->bytes, &w->after);
		memory_free(w->bytes);
		w->bytes = NULL;
	}
	for (int i = 0; i < n && !status; i++) {
		const Watched *w = &finder->watched[i];

		if (!(w->access & ACCESS_WRITE))
			continue;
		find_result(finder, call, w, from);
		add_mark(finder, w->span, from);
	}
	if (finder->made) {
		finder->made->args = arena_copy(finder->arena, finder->watched,
		                                sizeof(Watched) * (size_t)n);
		finder->made->n_args = n;
	}
	return status;
}

/* ---- what counts */
static bool
is_trained(const Format *f, const Slot *s)
{
	for (int i = 0; i < f->n[SECTION_STATES] && s->space == SPACE_STATE; i++)
		if (f->states[i].offset == s->offset && f->states[i].trainable)
			return true;
	return false;
}

/* Is the infinity surely a fault? Yes if it is positive, was made in a backward pass, or is in a weight. A -inf of a forward
 * pass, of a constant or of an input may be a mask. */
static bool
is_unwanted(const Format *f, const Finding *found)
{
	bool positive = found->kinds[GRADC_PLUS_INFINITY];

	if (found->cause == CAUSE_HELD)
		return found->args[0].before.n[GRADC_PLUS_INFINITY] > 0 ||
		       is_trained(f, found->args[0].slot);
	return found->cause == CAUSE_MADE &&
	       (positive || found->instruction->phase != FORWARD_PHASE);
}

/* For NaN that an instruction made from infinities: the finding of the infinities, if they are surely a fault; otherwise
 * NO_FINDING. */
static int
find_infinity(const Executor *x, int finding)
{
	const Finder *finder = x->finder;
	const Finding *nan = finder->findings.at[finding];
	int found = NO_FINDING;

	for (int i = 0; nan->cause == CAUSE_MADE && i < nan->n_args; i++)
		for (int k = GRADC_PLUS_INFINITY; k < GRADC_N_UNFIT; k++)
			found = better(finder, found, nan->args[i].from[k], k);
	if (found == NO_FINDING || !is_unwanted(x->format, finder->findings.at[found]))
		return NO_FINDING;
	return found;
}

static bool
decides(const PortRecord *port)
{
	return port->kind == PORT_LOSS_SUM || port->kind == PORT_LOSS_COUNT ||
	       port->kind == PORT_NORM;
}

Cause
finder_result(const Executor *x, const ProgramRecord *update)
{
	const Finder *finder = x->finder;
	Cause c = {NO_FINDING, NO_FINDING};

	for (uint32_t i = 0; i < update->n_outputs; i++) {
		const PortRecord *port = &x->format->ports[update->first_output + i];

		for (int k = 0; decides(port) && k < GRADC_N_UNFIT; k++)
			c.first = better(finder, c.first,
			                 marked(finder, executor_slot(x, port->slot), k), k);
	}
	if (c.first != NO_FINDING && finder->findings.at[c.first]->cause == CAUSE_RECEIVED)
		c.first = finder->sent;
	int infinity = c.first == NO_FINDING ? NO_FINDING : find_infinity(x, c.first);
	if (infinity != NO_FINDING)
		c = (Cause){infinity, c.first};
	return c;
}
