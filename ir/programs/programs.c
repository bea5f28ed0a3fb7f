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

void
program_sort_travels(Program *p)
{
	if (p->travels.n == 0)
		return;
	Arena *scratch = arena_new();
	Travel *old = arena_copy(scratch, p->travels.at, sizeof(Travel) * (size_t)p->travels.n);
	/* place[1 + i]: where the next travel behind instruction i goes; i = -1: before the first */
	int *place = NEW_ARRAY(scratch, int, p->instructions.n + 2);

	for (int i = 0; i < p->travels.n; i++)
		place[old[i].behind + 2]++;
	for (int i = 1; i < p->instructions.n + 2; i++)
		place[i] += place[i - 1];
	for (int i = 0; i < p->travels.n; i++)
		p->travels.at[place[old[i].behind + 1]++] = old[i];
	arena_free(scratch);
}

const char *const travel_words[] = {"sum", "reduce", "gather", "fill", NULL};
const char *const loop_words[] = {"later_ranks", "later_shards", NULL};
