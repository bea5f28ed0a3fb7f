/* Checks before the first step that all ranks agree on everything on which results and collectives depend: executable, options,
 * data and weights. Such a thing is a "fact", a name with a 64-bit number or hash. An error names the first fact that differs,
 * with both values. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

#include <string.h>

typedef enum { SAME_EXECUTABLE, SAME_OPTIONS, SAME_DATA, SAME_STATES } Same;
static const char *const same_names[] = {"another executable", "other options", "other data",
                                         "other initial weights"};

/* How a fact's 64 bits are printed. */
typedef enum {
	FACT_INTEGER,
	FACT_UNSIGNED,
	FACT_GIVEN,
	FACT_REAL,
	FACT_HASH,
	FACT_MODE,
	FACT_SUMS
} FactKind;

typedef struct {
	Same of;
	const char *name;
	FactKind kind;
	int64_t bits;
} Fact;

enum { MOST_FACTS = 32 + N_SCALARS };

typedef struct {
	Fact at[MOST_FACTS];
	int n;
} Facts;

static void
add(Facts *f, Same of, const char *name, FactKind kind, int64_t bits)
{
	f->at[f->n++] = (Fact){of, name, kind, bits};
}

static void
add_hash(Facts *f, Same of, const char *name, uint64_t hash)
{
	add(f, of, name, FACT_HASH, (int64_t)hash);
}

/* 0 for NULL */
static uint64_t
text_hash(const char *text)
{
	return text ? hash_bytes(text, strlen(text), 0) : 0;
}

static void
add_options(Facts *f, const Gradc *run)
{
	const GradcOptions *o = &run->options;
	const Hyper *h = &run->hyper;

	add(f, SAME_OPTIONS, "--accumulate", FACT_INTEGER, o->accumulate);
	add(f, SAME_OPTIONS, "--seed", FACT_UNSIGNED, (int64_t)o->seed);
	add(f, SAME_OPTIONS, "--shuffle", FACT_GIVEN, o->shuffle);
	add(f, SAME_OPTIONS, "--keep-last", FACT_GIVEN, o->keep_last);
	add(f, SAME_OPTIONS, "steps in all", FACT_INTEGER, run->total_steps);
	add(f, SAME_OPTIONS, "--warmup", FACT_INTEGER, o->warmup);
	add_hash(f, SAME_OPTIONS, "--lr-schedule",
	         hash_bytes(h->lr_schedule, strlen(h->lr_schedule), 0));
	for (int i = 0; i < N_SCALARS; i++) {
		int64_t bits;

		memcpy(&bits, &h->values[i], sizeof(bits));
		add(f, SAME_OPTIONS, scalar_names[i], FACT_REAL, bits);
	}
	add(f, SAME_OPTIONS, "--save", FACT_GIVEN, o->save != NULL);
	add(f, SAME_OPTIONS, "--resume", FACT_GIVEN, o->resume != NULL);
	add(f, SAME_OPTIONS, "--keep-best", FACT_GIVEN, o->keep_best);
	add_hash(f, SAME_OPTIONS, "--split, by its checksum", text_hash(o->split));
	add_hash(f, SAME_OPTIONS, "--metric, by its checksum", text_hash(o->metric));
	add_hash(f, SAME_OPTIONS, "--early-stop, by its checksum", text_hash(o->early_stop));
	add(f, SAME_OPTIONS, "evaluation data", FACT_GIVEN, gradc_has_eval(run));
	add(f, SAME_OPTIONS, "every metric", FACT_GIVEN, o->every_metric);
	add(f, SAME_OPTIONS, "--find-nan", FACT_GIVEN, o->find_nan);
	add(f, SAME_OPTIONS, "--reduce", FACT_SUMS, run->reduce_ordered);
	add(f, SAME_OPTIONS, "--shard-bytes", FACT_INTEGER, o->shard_bytes);
}

/* Hashes blocks of each data file. */
static Status
add_data(Facts *f, const Gradc *run)
{
	const Dataset *first = run->train ? run->train : predict_data(run);
	const Dataset *d = first ? first : run->eval;
	uint64_t train = 0, eval = 0;

	if (first)
		RETURN_IF_ERROR(facts_data(first, &train));
	if (run->eval)
		RETURN_IF_ERROR(facts_data(run->eval, &eval));
	add(f, SAME_DATA, "samples", FACT_INTEGER, d->rows);
	add(f, SAME_DATA, "rows of a micro-batch", FACT_INTEGER, d->micro_rows);
	add(f, SAME_DATA, "binding", FACT_INTEGER, d->binding);
	add_hash(f, SAME_DATA, "checksum", train);
	add_hash(f, SAME_DATA, "checksum of the evaluation's", eval);
	return NULL;
}

/* Hashes blocks that are spread evenly over the region of weights. Ranks may have different weights, for example if they were
 * given different files with --load. */
static Status
add_states(Facts *f, Gradc *run)
{
	enum { BLOCKS = 64, BLOCK = 4096 };
	int64_t n = format_state_bytes(&run->format, run->mode), last = n > BLOCK ? n - BLOCK : 0;
	char block[BLOCK];
	Span from = executor_region(&run->executor, SPACE_STATE);
	uint64_t hash = 0;

	for (int i = 0; i < BLOCKS; i++) {
		Span piece = {from.at + last / (BLOCKS - 1) * i, n < BLOCK ? n : BLOCK};

		RETURN_IF_ERROR(executor_read(&run->executor, block, piece));
		hash = hash_bytes(block, (size_t)piece.bytes, hash);
	}
	add_hash(f, SAME_STATES, "checksum", hash);
	return NULL;
}

static Status
add_file(Facts *f, const char *option, const char *path)
{
	uint64_t hash = 0;

	if (path)
		RETURN_IF_ERROR(facts_file(path, &hash));
	add_hash(f, SAME_STATES, option, hash);
	return NULL;
}

/* Compares the files of --load and similar options, not the loaded weights: no rank holds the whole of a divided weight. */
static Status
collect_weights(Facts *f, Gradc *run)
{
	const GradcOptions *o = &run->options;
	const char *peft = o->load_adapter;

	RETURN_IF_ERROR(add_file(f, "--load, by its checksum", o->load));
	RETURN_IF_ERROR(add_file(f, "--load-adapter, by its checksum",
	                         peft ? path_join(run->arena, peft, PEFT_TENSORS) : NULL));
	RETURN_IF_ERROR(add_file(f, "settings of --load-adapter, by their checksum",
	                         peft ? path_join(run->arena, peft, PEFT_CONFIG) : NULL));
	add_hash(f, SAME_STATES, "--adapter, by its checksum", text_hash(o->adapter));
	add(f, SAME_STATES, "--merge", FACT_GIVEN, o->merge);
	add(f, SAME_STATES, "--unmerge", FACT_GIVEN, o->unmerge);
	return NULL;
}

static Status
collect(Facts *f, Gradc *run)
{
	add(f, SAME_EXECUTABLE, "bytes of its tables", FACT_INTEGER, run->model.bytes);
	add_hash(f, SAME_EXECUTABLE, "their checksum",
	         hash_bytes(run->model.blob, (size_t)run->model.bytes, 0));
	add_options(f, run);
	RETURN_IF_ERROR(add_data(f, run));
	return add_states(f, run);
}

/* ---- messages */
static const char *
value_text(Arena *arena, FactKind kind, int64_t bits)
{
	Text text = {0};
	double real;

	switch (kind) {
	case FACT_INTEGER: return arena_printf(arena, "%lld", (long long)bits);
	case FACT_UNSIGNED: return arena_printf(arena, "%llu", (unsigned long long)bits);
	case FACT_GIVEN: return bits ? "on" : "off";
	case FACT_SUMS: return bits ? "ordered" : "fast";
	case FACT_MODE: return bits >= 0 && bits < N_MODES ? mode_names[bits] : "?";
	case FACT_HASH: return arena_printf(arena, "%016llx", (unsigned long long)bits);
	case FACT_REAL: break;
	}
	memcpy(&real, &bits, sizeof(real));
	text_add_double(&text, real);
	const char *copy = arena_strdup(arena, text.at);
	text_free(&text);
	return copy;
}

static Status
differs(Gradc *run, int rank, const Fact *fact, int64_t theirs)
{
	run->fault_is_shared = true;
	if (gradc_rank(run) > 0)
		return status_error(EXIT_COMM, "%s", "");
	return status_error(EXIT_COMM, "rank %d has %s than rank 0: %s %s, not %s", rank,
	                    same_names[fact->of], fact->name,
	                    value_text(run->arena, fact->kind, theirs),
	                    value_text(run->arena, fact->kind, fact->bits));
}

/* Compares the facts of all ranks with those of rank 0. Rank 0 prints the difference. */
static Status
compare(Gradc *run, const Facts *own)
{
	int64_t bits[MOST_FACTS], *all;

	for (int i = 0; i < own->n; i++)
		bits[i] = own->at[i].bits;
	RETURN_IF_ERROR(ranks_gather(run, bits, own->n, &all));
	for (int r = 1; r < run->comm.size; r++)
		for (int i = 0; i < own->n; i++)
			if (all[r * own->n + i] != all[i])
				return differs(run, r, &own->at[i], all[r * own->n + i]);
	return NULL;
}

Status
ranks_compare(Gradc *run)
{
	Facts own = {0};

	if (run->comm.size == 1)
		return NULL;
	RETURN_IF_ERROR(ranks_share(run, collect(&own, run)));
	return compare(run, &own);
}

Status
ranks_compare_parts(Gradc *run)
{
	Facts own = {0};

	if (run->comm.size == 1)
		return NULL;
	add(&own, SAME_OPTIONS, "--data-parallel", FACT_MODE, run->mode);
	add(&own, SAME_OPTIONS, "--shard-size", FACT_INTEGER, run->options.shard_size);
	return compare(run, &own);
}

Status
ranks_compare_weights(Gradc *run)
{
	Facts own = {0};

	if (run->comm.size == 1)
		return NULL;
	RETURN_IF_ERROR(ranks_share(run, collect_weights(&own, run)));
	return compare(run, &own);
}

/* Rank 0 writes all outputs. A rank with another path for one of them says that its own path is not used. */
Status
ranks_compare_output(Gradc *run, const char *option, const char *path)
{
	int64_t own = path ? (int64_t)(hash_bytes(path, strlen(path), 0) | 1) : 0, *all;

	if (run->comm.size == 1)
		return NULL;
	RETURN_IF_ERROR(ranks_gather(run, &own, 1, &all));
	for (int r = 1; r < run->comm.size; r++) {
		if (all[0] || !all[r])
			continue;
		run->fault_is_shared = true;
		if (gradc_rank(run) > 0)
			return status_error(EXIT_COMM, "%s", "");
		return status_error(EXIT_COMM,
		                    "rank %d has %s than rank 0: %s is given there only, but rank "
		                    "0 writes it: start all ranks with the same options",
		                    r, same_names[SAME_OPTIONS], option);
	}
	if (path && own != all[0] && run->diag)
		diag_warning(run->diag,
		             "rank %d: %s=%s: not used: rank 0 writes this output, to the path of "
		             "its own option",
		             gradc_rank(run), option, plain_text(run->arena, path));
	return NULL;
}

Status
ranks_compare_option(Gradc *run, const char *name, int64_t value)
{
	Facts own = {0};

	if (run->comm.size == 1)
		return NULL;
	add(&own, SAME_OPTIONS, name, FACT_INTEGER, value);
	return compare(run, &own);
}
