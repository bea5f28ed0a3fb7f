/* RECORD and WAIT between streams: conflicting instructions are ordered in every micro-batch in which both run. */
#include "codegen/schedule/schedule.h"
#include "tests/unit/runtime/runtime_tiny.h"

enum { BYTES = 64 };
enum { ROOM, GRADIENT, READ, WRITTEN, BUCKET, UNIT, N_TENSORS };

typedef struct {
	When bucket, gather;  /* when the bucket and the gather travel */
	int in_each, in_last; /* expected numbers of WAITs */
} Case;

/* A kernel reads a unit in its room, and another kernel makes a gradient. Then the gradient travels and the next unit comes
 * into the room. The next unit must wait for the first kernel even in micro-batches in which the gradient does not travel. */
static void
test_what_runs_in_the_last_micro_batch_orders_no_other(void **state)
{
	const Case cases[] = {
		{WHEN_LAST, WHEN_ALWAYS, 1, 1},
		{WHEN_ALWAYS, WHEN_ALWAYS, 1, 0},
		{WHEN_LAST, WHEN_LAST, 0, 1},
		{WHEN_ALWAYS, WHEN_LAST, 1, 0},
	};

	for (int i = 0; i < COUNT(cases); i++) {
		const Case *c = &cases[i];
		Arena *arena = arena_new();
		FormatWriter *w = format_writer_new(arena);
		uint32_t events = 0;
		int n[2] = {0};

		for (int t = 0; t < N_TENSORS; t++) {
			const Slot s = {.space = SPACE_WORKSPACE,
			                .dtype = F32,
			                .offset = t * BYTES,
			                .bytes = BYTES};
			vec_push(arena, &w->slots, s);
		}
		const Instruction compute = {.kind = COPY, .stream = STREAM_COMPUTE};
		tiny_add(w, compute, 2, (const uint32_t[]){READ, ROOM});
		tiny_add(w, compute, 2, (const uint32_t[]){GRADIENT, WRITTEN});
		const Instruction bucket = {
			.kind = COPY, .stream = STREAM_COMMUNICATION, .when = c->bucket};
		tiny_add(w, bucket, 2, (const uint32_t[]){BUCKET, GRADIENT});
		const Instruction gather = {
			.kind = COPY, .stream = STREAM_COMMUNICATION, .when = c->gather};
		tiny_add(w, gather, 2, (const uint32_t[]){ROOM, UNIT});

		Instructions list = {0};
		for (int k = 0; k < w->instructions.n; k++)
			vec_push(arena, &list, w->instructions.at[k]);
		Instructions all = streams_order(arena, w, &list, &events);
		for (int k = 0; k < all.n; k++)
			if (all.at[k].kind == WAIT) {
				assert_true(all.at[k].stream == STREAM_COMMUNICATION);
				n[all.at[k].when == WHEN_LAST]++;
			}
		assert_int_equal(n[0], c->in_each);
		assert_int_equal(n[1], c->in_last);
		assert_int_equal(all.n, 4 + 2 * (n[0] + n[1]));
		format_writer_free(w);
		arena_free(arena);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_runs_in_the_last_micro_batch_orders_no_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
