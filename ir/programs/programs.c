/* Builds programs: names, slots and arguments get numbers in the order in which they are added. */
#include "ir/programs/programs.h"
#include "ir/programs/words.h"

Program *
program_append(Module *m, Role role, int binding)
{
	Program *p = NEW(m->arena, Program);

	*p = (Program){.arena = m->arena, .role = role, .binding = binding};
	p->known = strmap_new(m->arena);
	vec_push(m->arena, &p->names, "");
	vec_push(m->arena, &m->programs, p);
	return p;
}

StrRef
program_name(Program *p, const char *text)
{
	if (!text || !*text)
		return 0;
	uintptr_t number = (uintptr_t)strmap_get(p->known, text);

	if (number)
		return (StrRef)number;
	const char *copy = arena_strdup(p->arena, text);
	number = (uintptr_t)p->names.n;
	vec_push(p->arena, &p->names, copy);
	strmap_put(p->known, copy, (void *)number);
	return (StrRef)number;
}

uint32_t
program_slot(Program *p, Slot slot)
{
	vec_push(p->arena, &p->slots, slot);
	return (uint32_t)p->slots.n - 1;
}

uint32_t
program_arguments(Program *p, int n, const uint32_t *slots)
{
	uint32_t first = (uint32_t)p->arguments.n;

	for (int i = 0; i < n; i++)
		vec_push(p->arena, &p->arguments, ((Argument){.slot = slots[i]}));
	return first;
}

const char *const travel_words[] = {"sum", "reduce", "gather", "fill", NULL};
const char *const loop_words[] = {"later_ranks", "later_shards", NULL};
