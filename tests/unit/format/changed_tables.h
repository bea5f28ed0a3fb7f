/* Changed copies of the tables of the tiny executable. */
#ifndef GRADC_CHANGED_TABLES_H
#define GRADC_CHANGED_TABLES_H

#include "cost/cost.h"
#include "tests/unit/runtime/runtime_tiny.h"

/* Reads a changed copy and prints it if it is accepted. The sanitizers find wrong accesses. */
static void
read_changed(const char *blob, int64_t bytes, int64_t at, char flip)
{
	char *copy = aligned_alloc(16, (size_t)(bytes + 15) / 16 * 16);
	Format f;

	memcpy(copy, blob, (size_t)bytes);
	copy[at] ^= flip;
	Status status = format_read(copy, bytes, &f);
	if (!status) {
		Text text = {0};
		format_print(&text, &f, "schedule");
		format_print(&text, &f, "memory");
		format_print_predictions(&text, &f,
		                         &(Outlook){.machine = machine_table[0], .ranks = 3});
		text_free(&text);
	} else {
		assert_int_equal(status->exit_code, EXIT_SYSTEM);
		assert_non_null(strstr(status->message, "executable tables: "));
	}
	status_free(status);
	free(copy);
}

/* A writer with all tables of the tiny executable. */
static FormatWriter *
tiny_writer(Arena *arena)
{
	FormatWriter *w = format_writer_new(arena);

	tiny_memory(w);
	tiny_programs(w, true);
	tiny_facts(w);
	w->state_bytes = TINY_STATE_BYTES;
	w->weights_bytes = 8;
	return w;
}

/* Faults that a random flip would hardly hit; each is refused with its own message. */
static void
expect_fault(void (*spoil)(FormatWriter *w), const char *words)
{
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	Format f;

	spoil(w);
	expect_status(tiny_read(w, &f), EXIT_SYSTEM, words);
	arena_free(arena);
}

#endif
