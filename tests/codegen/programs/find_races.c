/* find_races EXE together|apart|direct RANKS ordered|fast ACCUMULATE [MODE] [every]: looks for races in a schedule. It
 * walks the tables as the trainer would, for some steps, and checks whether two accesses to the same bytes, at least one of
 * them a write, may happen at the same time. The host is one more stream: it fills images, waits for events and reads reports.
 * No kernel runs.
 *
 * Prints "no race", or the first race. With `every`, leaves out each WAIT in turn and prints a line for each WAIT that is not
 * needed,
 * i.e. without which there is still no race. */
#include "base/files/files.h"
#include "format/format.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS = 5, HOST = N_STREAMS, N_ACTORS };

/* An actor's knowledge: for each actor, the number of the last action that is known to be finished. */
typedef struct {
	int64_t of[N_ACTORS];
} Known;
typedef struct {
	uint32_t space;
	int turn;
	int64_t begin, end, number;
	bool writes;
	const char *what;
	int64_t instruction;
} Access;
typedef VEC(Access) Accesses;

typedef struct {
	Arena *arena;
	const Format *f;
	RunFacts facts;
	int64_t accumulate, without; /* number of the WAIT to leave out; -1: no WAIT */
	uint8_t turns[N_TURNS];
	Known now[N_ACTORS];
	Known *events;
	bool *recorded;
	int64_t number;
	Accesses done[N_ACTORS];
	const Access *first, *second; /* the two accesses of a race; NULL: no race yet */
	bool used;                    /* true: the WAIT to leave out was due */
} Walk;

static void
learn(Known *k, const Known *from)
{
	for (int a = 0; a < N_ACTORS; a++)
		if (from->of[a] > k->of[a])
			k->of[a] = from->of[a];
}

static void
look_for_race(Walk *w, int actor, const Access *x)
{
	for (int a = 0; a < N_ACTORS && !w->first; a++) {
		const Accesses *list = &w->done[a];
		for (int i = list->n - 1; a != actor && i >= 0; i--) {
			const Access *y = &list->at[i];
			if (y->number <= w->now[actor].of[a])
				break; /* earlier accesses are ordered, too */
			if (x->space == y->space && x->turn == y->turn && x->begin < y->end &&
			    y->begin < x->end && (x->writes || y->writes)) {
				w->first = arena_copy(w->arena, y, sizeof(*y));
				w->second = arena_copy(w->arena, x, sizeof(*x));
				break;
			}
		}
	}
}

/* If the host's memory is not apart, the host's twin of a space is the space itself. */
static uint32_t
space_of(const Walk *w, uint32_t space)
{
	bool apart = (w->facts.holds & ONLY_APART) != 0;

	return apart || space != SPACE_IO_HOST
	               ? apart || space != SPACE_STEP_HOST ? space : SPACE_STEP
	               : SPACE_IO;
}

static void
touch(Walk *w, int actor, const Slot *s, const SlotPlace *at, bool writes, const char *what,
      int64_t instruction)
{
	uint32_t space = space_of(w, s->space);
	Access x = {.space = space,
	            .turn = w->turns[space_table[space].turn],
	            .begin = at->offset,
	            .end = at->offset + at->bytes,
	            .number = w->number,
	            .writes = writes,
	            .what = what,
	            .instruction = instruction};

	look_for_race(w, actor, &x);
	vec_push(w->arena, &w->done[actor], x);
}

/* ---- instructions */
static bool
is_due(const Walk *w, const Instruction *n, int64_t micro)
{
	const bool due[N_WHEN] = {[WHEN_ALWAYS] = true,
	                          [WHEN_FIRST] = micro == 0,
	                          [WHEN_LATER] = micro > 0,
	                          [WHEN_LAST] = micro == w->accumulate - 1};

	return due[n->when] && only_applies(n->only, &w->facts);
}

static bool
is_written(const Walk *w, const Instruction *n, uint32_t i)
{
	if (n->kind != RUN_KERNEL)
		return i % 2 == 0;
	uint32_t first = w->f->kernels[n->what].first_argument;
	return (w->f->kernel_arguments[first + i].access & ACCESS_WRITE) != 0;
}

static void
touch_arguments(Walk *w, const Instruction *n, int64_t index, int64_t iteration)
{
	bool staged = n->kind == COLLECTIVE && n->n_args == 4;
	uint32_t begin = staged && (w->facts.holds & ONLY_STAGED) ? 2 : 0;
	uint32_t end = staged ? begin + 2 : n->n_args;

	for (uint32_t i = begin; i < end; i++) {
		const Argument *a = &w->f->arguments[n->args + i];
		const Slot *s = &w->f->slots[a->slot];
		SlotPlace at;
		format_place(s, &w->facts, iteration, &at);
		touch(w, n->stream, s, &at, is_written(w, n, i), instruction_names[n->kind], index);
	}
}

static void
touch_scalars(Walk *w, const ProgramRecord *p, const Instruction *n, int64_t index)
{
	if (n->kind != RUN_KERNEL || !p->scalars)
		return;
	const Slot *s = &w->f->slots[p->scalars - 1];
	touch(w, n->stream, s, &(SlotPlace){s->offset, s->bytes}, false, "a kernel's scalars",
	      index);
}

static void
run_one(Walk *w, const ProgramRecord *p, const Instruction *n, int64_t index, int64_t iteration)
{
	Known *now = &w->now[n->stream];
	uint32_t event = format_event(n->what, w->turns);

	learn(now, &w->now[HOST]); /* the host had queued the instruction by then */
	if (n->kind == WAIT && index == w->without) {
		w->used = true;
		return;
	}
	w->number++;
	if (n->kind == WAIT && w->recorded[event])
		learn(now, &w->events[event]);
	if (n->kind != WAIT && n->kind != RECORD)
		touch_arguments(w, n, index, iteration);
	touch_scalars(w, p, n, index);
	now->of[n->stream] = w->number;
	if (n->kind == RECORD) {
		w->events[event] = *now;
		w->recorded[event] = true;
	}
}

static void
run_program(Walk *w, const ProgramRecord *p, int64_t micro)
{
	int64_t loop = -1, iteration = 0;

	for (int64_t i = 0; i < p->n_instructions; i++) {
		int64_t index = p->first_instruction + i;
		const Instruction *n = &w->f->instructions[index];
		bool due = is_due(w, n, micro);

		if (n->kind == LOOP) { /* a loop over the later ranks */
			loop = i;
			iteration = 0;
			for (; (!due || format_loop_count(n->what, &w->facts) == 0) &&
			       w->f->instructions[index].kind != END;
			     index++)
				i++;
		} else if (n->kind == END && loop >= 0 &&
		           ++iteration <
		                   format_loop_count(
					   w->f->instructions[p->first_instruction + loop].what,
					   &w->facts)) {
			i = loop;
		} else if (n->kind != END && due) {
			run_one(w, p, n, index, iteration);
		}
	}
}

/* ---- the host */
static void
host_waits(Walk *w, SharedEvent event, int turn)
{
	const uint8_t turns[N_TURNS] = {0, (uint8_t)turn, (uint8_t)turn};
	uint32_t e = format_event(event, turns);

	if (w->recorded[e])
		learn(&w->now[HOST], &w->events[e]);
}

/* The host writes inputs before a run, or reads results after it, in its own twin of the space. */
static void
host_touches(Walk *w, uint32_t slot, bool writes)
{
	Slot s = w->f->slots[slot];
	SlotPlace at = {s.offset, s.bytes};

	w->number++;
	s.space = space_table[s.space].twin;
	touch(w, HOST, &s, &at, writes, writes ? "the host fills" : "the host reads", -1);
	w->now[HOST].of[HOST] = w->number;
}

static void
host_fills(Walk *w, const ProgramRecord *p)
{
	if (p->scalars)
		host_touches(w, p->scalars - 1, true);
	for (uint32_t i = 0; i < p->n_inputs; i++)
		host_touches(w, w->f->ports[p->first_input + i].slot, true);
}

static void
host_reads_report(Walk *w, const ProgramRecord *update, int turn)
{
	uint8_t now = w->turns[TURN_STEP];

	host_waits(w, EVENT_REPORT, turn);
	w->turns[TURN_STEP] = (uint8_t)turn;
	for (uint32_t i = 0; i < update->n_outputs; i++)
		host_touches(w, w->f->ports[update->first_output + i].slot, false);
	w->turns[TURN_STEP] = now;
}

/* Queues steps as runtime/train/step.c does, one ahead of the results that it reads. */
static void
train(Walk *w, const ProgramRecord *micro_batch, const ProgramRecord *update)
{
	bool apart = (w->facts.holds & ONLY_APART) != 0;

	for (int64_t s = 0; s < STEPS && !w->first; s++) {
		int step_turn = (int)(s % 2);
		w->turns[TURN_STEP] = (uint8_t)step_turn;
		for (int64_t j = 0; j < w->accumulate; j++) {
			w->turns[TURN_MICRO] ^= 1;
			host_waits(w, apart ? EVENT_IO_FILLED : EVENT_IO_FREE,
			           w->turns[TURN_MICRO]);
			host_fills(w, micro_batch);
			run_program(w, micro_batch, j);
		}
		host_fills(w, update);
		run_program(w, update, 0);
		if (s > 0)
			host_reads_report(w, update, !step_turn);
	}
}

/* ---- the search */
static bool
find(const Format *f, const RunFacts *facts, int64_t accumulate, int64_t without, bool *used)
{
	Walk w = {.arena = arena_new(),
	          .f = f,
	          .facts = *facts,
	          .accumulate = accumulate,
	          .without = without};
	const ProgramKey keys[] = {{.role = ROLE_ACCUMULATE, .mode = facts->mode},
	                           {.role = ROLE_UPDATE, .mode = facts->mode}};
	const ProgramRecord *micro_batch = format_program_in(f, &keys[0]);
	const ProgramRecord *update = format_program_in(f, &keys[1]);

	w.events = NEW_ARRAY(w.arena, Known, N_DEVICE_EVENTS);
	w.recorded = NEW_ARRAY(w.arena, bool, N_DEVICE_EVENTS);
	if (micro_batch && update)
		train(&w, micro_batch, update);
	bool found = w.first;
	if (found && without < 0)
		printf("race: %s (instruction %lld) and %s (instruction %lld), %s bytes %lld..%lld\n",
		       w.first->what, (long long)w.first->instruction, w.second->what,
		       (long long)w.second->instruction, space_table[w.second->space].name,
		       (long long)w.second->begin, (long long)w.second->end);
	*used = w.used;
	arena_free(w.arena);
	return found;
}

static Status
read_tables(Arena *arena, const char *path, Format *f)
{
	FormatTail tail;
	void *bytes;
	int64_t n;

	RETURN_IF_ERROR(file_read(arena, path, INT64_MAX / 2, &bytes, &n));
	memcpy(&tail, (char *)bytes + n - (int64_t)sizeof(tail), sizeof(tail));
	void *blob = arena_copy(arena, (char *)bytes + tail.blob_offset, (size_t)tail.blob_bytes);
	return format_read(blob, tail.blob_bytes, f);
}

int
main(int argc, char **argv)
{
	Arena *arena = arena_new();
	RunFacts facts = {.rank = 0};
	bool used;
	Format f;

	if (argc < 6)
		return 2;
	Status status = read_tables(arena, argv[1], &f);
	if (status) {
		fprintf(stderr, "%s\n", status->message);
		return status->exit_code;
	}
	bool staged = strcmp(argv[2], "apart") ==
	              0; /* with `direct` the communicator reads the device's memory */
	bool apart = staged || strcmp(argv[2], "direct") == 0,
	     ordered = strcmp(argv[4], "ordered") == 0;
	facts.ranks = atoi(argv[3]);
	bool every = argc > 6 && strcmp(argv[argc - 1], "every") == 0;
	for (int mode = 0; argc > 6 && mode < N_MODES; mode++)
		facts.mode = strcmp(argv[6], mode_names[mode]) == 0 ? mode : facts.mode;
	int64_t *shard_at = NEW_ARRAY(arena, int64_t, f.n[SECTION_STATES] + 1);
	format_shard_places(&f, &facts, SPACE_SHARD, shard_at);
	facts.shard_at = shard_at;
	facts.holds = apart ? ONLY_APART : 0;
	if (facts.ranks > 1 || facts.mode)
		facts.holds |= run_holds(&facts, ordered, staged && facts.ranks > 1);
	int64_t accumulate = atoll(argv[5]);
	bool found = find(&f, &facts, accumulate, -1, &used);
	if (!found)
		printf("no race\n");
	for (int64_t i = 0; every && !found && i < f.n[SECTION_INSTRUCTIONS]; i++)
		if (f.instructions[i].kind == WAIT && !find(&f, &facts, accumulate, i, &used) &&
		    used)
			printf("not needed: instruction %lld\n", (long long)i);
	arena_free(arena);
	return found;
}
