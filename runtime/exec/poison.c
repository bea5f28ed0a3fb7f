/* For tests: fills memory without a live value with 0xff, which is NaN in every float type. If the compiled program reads
 * memory after its value was dropped, or reads weights before they are gathered, then the result is NaN and not a number that
 * is right by luck. Bytes are dead if no later instruction of the program reads them before they are overwritten. */
#include "runtime/exec/walk.h"

#include <stdlib.h>
#include <string.h>

static Status
fill_poison(Executor *x, Span span)
{
	char *bytes = malloc((size_t)span.bytes + 1);

	if (!bytes)
		return status_error(EXIT_SYSTEM, "no memory to poison %lld bytes",
		                    (long long)span.bytes);
	memset(bytes, 0xff, (size_t)span.bytes);
	Status status = executor_write(x, span, bytes);
	free(bytes);
	return status;
}

/* Spaces whose values end with the program. */
static const Space poisoned[] = {SPACE_WORKSPACE, SPACE_GATHERED};

Status
poison_before(Executor *x, const ProgramRecord *p)
{
	for (int i = 0; i < COUNT(poisoned); i++) {
		Span region = x->regions[poisoned[i]][0];
		if (poisoned[i] == SPACE_WORKSPACE)
			region.bytes = p->bytes[SPACE_WORKSPACE];
		if (region.bytes > 0)
			RETURN_IF_ERROR(fill_poison(x, region));
	}
	return NULL;
}

static bool
overlaps(const Slot *a, const Slot *b)
{
	return a->space == b->space && a->offset < b->offset + b->bytes &&
	       b->offset < a->offset + a->bytes;
}

static bool
covers(const Slot *a, const Slot *b)
{
	return a->space == b->space && a->share == SLOT_WHOLE && a->offset <= b->offset &&
	       b->offset + b->bytes <= a->offset + a->bytes;
}

/* A collective may write into the operand that it reads, so all its arguments count as read. */
static bool
is_read(const Format *f, const Instruction *n, uint32_t i)
{
	if (n->kind == RUN_KERNEL)
		return (f->kernel_arguments[f->kernels[n->what].first_argument + i].access &
		        ACCESS_READ) != 0;
	return n->kind == COLLECTIVE || (n->kind == COPY && i == 1) || instruction_asks(n->kind);
}

static bool
is_written(const Format *f, const Instruction *n, uint32_t i)
{
	if (n->kind == RUN_KERNEL)
		return (f->kernel_arguments[f->kernels[n->what].first_argument + i].access &
		        ACCESS_WRITE) != 0;
	return n->kind == FILL_ZERO || (n->kind == COPY && i == 0);
}

static const Slot *
slot_of(const Format *f, const Instruction *n, uint32_t i)
{
	return &f->slots[f->arguments[n->args + i].slot];
}

/* May the argument read some of these bytes? If the argument's address changes with a loop, it may read any bytes of its
 * space. */
static bool
may_read(const Format *f, const Instruction *n, uint32_t i, const Slot *s)
{
	const Slot *t = slot_of(f, n, i);
	bool moves = f->arguments[n->args + i].stride != 0;

	return is_read(f, n, i) && (moves ? t->space == s->space : overlaps(t, s));
}

/* Does an instruction at or after `from`, or the program's caller, read these bytes before all of them are overwritten? */
static bool
is_wanted(const Format *f, const ProgramRecord *p, const Slot *s, uint32_t from)
{
	/* number of LOOP and BRANCH blocks that were opened after `from`, less those that were closed; a
	 * write inside a block may be skipped */
	int depth = 0;

	for (uint32_t i = from; i < p->n_instructions; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];
		bool anew = false;

		depth += instruction_opens(n->kind) - (n->kind == END);
		for (uint32_t a = 0; a < n->n_args; a++) {
			if (may_read(f, n, a, s))
				return true;
			anew |= depth <= 0 && is_written(f, n, a) && covers(slot_of(f, n, a), s);
		}
		if (anew && n->when == WHEN_ALWAYS && n->only == ONLY_ALWAYS)
			return false;
	}
	for (uint32_t i = 0; i < p->n_outputs; i++)
		if (overlaps(&f->slots[f->ports[p->first_output + i].slot], s))
			return true;
	return false;
}

static bool
is_poisoned(uint32_t space)
{
	for (int i = 0; i < COUNT(poisoned); i++)
		if (space == poisoned[i])
			return true;
	return false;
}

Status
poison_after(Executor *x, const ProgramRecord *p, uint32_t at)
{
	const Format *f = x->format;
	const Instruction *n = &f->instructions[p->first_instruction + at];

	for (uint32_t a = 0; a < n->n_args; a++) {
		const Slot *s = slot_of(f, n, a);

		if (!is_poisoned(s->space) || s->share > SLOT_PART || is_wanted(f, p, s, at + 1))
			continue;
		RETURN_IF_ERROR(fill_poison(x, executor_slot(x, f->arguments[n->args + a].slot)));
	}
	return NULL;
}
