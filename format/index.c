/* An index of the tables' records by their key. Checks look up another record for each record; with a linear search for
 * each, tables of many records would be slow to check. */
#include "format/checks.h"

#include <stdlib.h>
#include <string.h>

static int
compare_keys(const ProgramRecord *a, const ProgramRecord *b)
{
	const uint32_t x[] = {a->target, a->mode, a->stage, a->binding, a->role};
	const uint32_t y[] = {b->target, b->mode, b->stage, b->binding, b->role};

	for (int i = 0; i < COUNT(x); i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

/* Compares by key; among equal keys the first record comes first. */
static int
compare_programs(const void *a, const void *b)
{
	const ProgramRecord *x = *(const ProgramRecord *const *)a,
			    *y = *(const ProgramRecord *const *)b;
	int order = compare_keys(x, y);

	return order ? order : (x > y) - (x < y);
}

static int
find_key(const void *key, const void *at)
{
	return compare_keys(key, *(const ProgramRecord *const *)at);
}

FormatIndex
format_index_open(const Format *f)
{
	int n_states = f->n[SECTION_STATES], n_programs = f->n[SECTION_PROGRAMS];
	FormatIndex x = {.f = f,
	                 .four_bit = memory_zeroed((size_t)n_states + 1, sizeof(*x.four_bit)),
	                 .programs = memory_zeroed((size_t)n_programs + 1, sizeof(*x.programs))};

	for (int i = f->n[SECTION_FOUR_BIT] - 1; i >= 0;
	     i--) /* downwards: the first record of a state counts */
		if (f->four_bit[i].codes < (uint32_t)n_states)
			x.four_bit[f->four_bit[i].codes] = &f->four_bit[i];
	for (int i = 0; i < n_programs; i++)
		x.programs[i] = &f->programs[i];
	qsort(x.programs, (size_t)n_programs, sizeof(*x.programs), compare_programs);
	return x;
}

void
format_index_close(FormatIndex *x)
{
	memory_free(x->four_bit);
	memory_free(x->programs);
}

const ProgramRecord *
format_index_program(const FormatIndex *x, const ProgramKey *key)
{
	const ProgramRecord wanted = {.role = key->role,
	                              .binding = (uint32_t)key->binding,
	                              .stage = (uint32_t)key->stage,
	                              .mode = (uint32_t)key->mode,
	                              .target = (uint32_t)key->target};
	const ProgramRecord **found = bsearch(&wanted, x->programs,
	                                      (size_t)x->f->n[SECTION_PROGRAMS],
	                                      sizeof(*x->programs), find_key);

	return found ? *found : NULL;
}

FormatType
format_index_weight_type(const FormatIndex *x, int state)
{
	const FourBitRecord *r = x->four_bit[state];
	const StateRecord *s = &x->f->states[state];

	return r ? (FormatType){(DType)r->dtype, r->rank, r->first_dim}
	         : (FormatType){(DType)s->dtype, s->rank, s->first_dim};
}

const ProgramRecord *
format_index_twin(const FormatIndex *x, int *program)
{
	for (int i = 1; i < x->f->n[SECTION_PROGRAMS]; i++)
		if (compare_keys(x->programs[i - 1], x->programs[i]) == 0) {
			*program = (int)(x->programs[i] - x->f->programs);
			return x->programs[i - 1];
		}
	return NULL;
}
