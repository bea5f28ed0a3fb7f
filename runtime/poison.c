/* For tests: memory without a live value is filled with 0xff, which is NaN in every float type.
 * A plan that frees a value too early then gives NaN instead of luck. A slot is dead after the
 * last instruction that touches it, unless another live slot shares its bytes. */
#include "runtime/runtime_impl.h"

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

Status
poison_before(Executor *x, const ProgramRecord *p)
{
	Span workspace = x->regions[SPACE_WORKSPACE][0];

	workspace.bytes = p->bytes[SPACE_WORKSPACE];
	return fill_poison(x, workspace);
}

/* Does an instruction of [from, n) or an output of the program touch the slot's bytes? */
static bool
is_touched(const Format *f, const ProgramRecord *p, const Slot *s, uint32_t from)
{
	for (uint32_t i = from; i < p->n_instructions; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];

		for (uint32_t a = 0; a < n->n_args; a++) {
			const Slot *t = &f->slots[f->arguments[n->args + a].slot];
			if (t->space == s->space && t->offset < s->offset + s->bytes &&
			    s->offset < t->offset + t->bytes)
				return true;
		}
	}
	for (uint32_t i = 0; i < p->n_outputs; i++) {
		const Slot *t = &f->slots[f->ports[p->first_output + i].slot];
		if (t->space == s->space && t->offset < s->offset + s->bytes &&
		    s->offset < t->offset + t->bytes)
			return true;
	}
	return false;
}

/* The slot itself again, by number? Then its value is still wanted. Memory that is only written
 * anew by another slot may be poisoned in between. */
static bool
is_live(const Format *f, const ProgramRecord *p, uint32_t slot, uint32_t from)
{
	for (uint32_t i = from; i < p->n_instructions; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];

		for (uint32_t a = 0; a < n->n_args; a++)
			if (f->arguments[n->args + a].slot == slot)
				return true;
	}
	return false;
}

/* Slots that share bytes with this one and are used both before and after `at`. */
static bool
has_live_alias(const Format *f, const ProgramRecord *p, uint32_t slot, uint32_t at)
{
	const Slot *s = &f->slots[slot];

	if (!is_touched(f, p, s, at + 1))
		return false;
	for (uint32_t i = 0; i <= at; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];

		for (uint32_t a = 0; a < n->n_args; a++) {
			uint32_t other = f->arguments[n->args + a].slot;
			const Slot *t = &f->slots[other];
			if (other != slot && t->space == s->space &&
			    t->offset < s->offset + s->bytes && s->offset < t->offset + t->bytes &&
			    is_live(f, p, other, at + 1))
				return true;
		}
	}
	return false;
}

static bool
is_output(const Format *f, const ProgramRecord *p, const Slot *s)
{
	Slot own = *s;

	return is_touched(f, p, &own, p->n_instructions);
}

Status
poison_after(Executor *x, const ProgramRecord *p, uint32_t at)
{
	const Format *f = x->format;
	const Instruction *n = &f->instructions[p->first_instruction + at];

	for (uint32_t a = 0; a < n->n_args; a++) {
		uint32_t slot = f->arguments[n->args + a].slot;
		const Slot *s = &f->slots[slot];

		if (s->space != SPACE_WORKSPACE || is_live(f, p, slot, at + 1) ||
		    is_output(f, p, s) || has_live_alias(f, p, slot, at))
			continue;
		RETURN_IF_ERROR(fill_poison(x, executor_slot(x, slot)));
	}
	return NULL;
}
