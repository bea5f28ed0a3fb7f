/* --layer-decay X: earlier layers learn more slowly, each layer by the factor X (ELECTRA,
 * arXiv:2003.10555, in BEiT's form). The number of a layer is found in the graph, not in names.
 * layer_blocks.c divides the forward pass into blocks, which end where only one activation is
 * read later:
 *
 *	wte | wpe | attention | mlp | attention | mlp | norm | head
 *	 0     0       1         1        2        2      3      3      number of the layer; n = 3
 *
 * If a sequence of blocks, such as attention | mlp, repeats and the repetitions are most of the
 * model, each repetition is a layer. Blocks count as equal if their parameters have the same
 * shapes. Blocks before the first repetition are layer 0; blocks after the last repetition, such
 * as the head, are layer n. Otherwise each block is a layer, but blocks with vectors alone, such
 * as biases and norms, belong to the block before them. The factor of a parameter in layer l is
 * X^(n - l) times its --lr-scale. Time: quadratic in blocks. */
#include "passes/units/units.h"

#include <math.h>

typedef struct {
	uint64_t signature; /* of the shapes of its parameters, in any order */
	bool has_matrix;    /* has a parameter of more than one dimension */
	int layer;          /* out: number of the layer */
} Block;
typedef struct {
	const Module *m;
	const int *of;     /* by state id: number of the block */
	VEC(Block) blocks; /* blocks with parameters, in the order of the forward pass */
	int *place;        /* by number of the block: place in `blocks` */
} Layers;
/* A run: blocks [first, first + n), in which each block equals the block `period` places before. */
typedef struct {
	int first, n, period;
} Run;

static uint64_t
shape_hash(Type t)
{
	return hash_bytes(t->dims, sizeof(*t->dims) * (size_t)t->rank, (uint64_t)t->rank);
}

/* Does the parameter count when blocks are compared? A frozen vector, such as the frequencies of positions, does
 * not. */
static bool
is_counted(const State *s)
{
	return s->kind == STATE_PARAMETER && (s->trainable || s->type->rank > 1);
}

static void
collect_blocks(Layers *l, Arena *arena)
{
	int n = 0;

	for (int i = 0; i < l->m->states.n; i++)
		n = l->of[i] >= n ? l->of[i] + 1 : n;
	Block *all = NEW_ARRAY(arena, Block, n);
	bool *used = NEW_ARRAY(arena, bool, n);
	l->place = NEW_ARRAY(arena, int, n);
	for (int i = 0; i < l->m->states.n; i++) {
		const State *s = l->m->states.at[i];
		if (!is_counted(s))
			continue;
		used[l->of[i]] = true;
		all[l->of[i]].signature += shape_hash(s->type);
		all[l->of[i]].has_matrix |= s->type->rank > 1;
	}
	for (int b = 0; b < n; b++) {
		l->place[b] = l->blocks.n;
		if (used[b])
			vec_push(arena, &l->blocks, all[b]);
	}
}

static bool
is_alike(const Layers *l, int a, int b)
{
	return l->blocks.at[a].signature == l->blocks.at[b].signature;
}

/* The longest run with the given period; of several longest runs, the first. */
static Run
longest_run(const Layers *l, int period)
{
	Run best = {0}, run = {.period = period};

	for (int i = 0; i + period < l->blocks.n; i++) {
		if (!is_alike(l, i, i + period)) {
			run.n = 0;
			continue;
		}
		if (run.n == 0)
			run = (Run){i, period, period};
		run.n++;
		if (run.n >= 2 * period && run.n > best.n)
			best = run;
	}
	return best;
}

/* Are two neighbouring blocks equal? Networks whose layers have several widths (stages) have equal neighbours outside
 * the longest stage, too. */
static bool
has_twins(const Layers *l, int first, int end)
{
	for (int i = first; i + 1 < end; i++)
		if (l->blocks.at[i].has_matrix && is_alike(l, i, i + 1))
			return true;
	return false;
}

static int
count_matrices(const Layers *l, int first, int end)
{
	int n = 0;

	for (int i = first; i < end; i++)
		n += l->blocks.at[i].has_matrix;
	return n;
}

/* Are the blocks of the run the model's layers? Yes, if at least half of the model's blocks with
 * matrices are in the run. In a model of few layers the run may be smaller: then each layer must
 * have several such blocks (attention, mlp), and at most MOST_OUTSIDE such blocks (embeddings, a
 * head) may lie outside of the run. */
static bool
is_of_layers(const Layers *l, const Run *r)
{
	enum { MOST_OUTSIDE = 8 };
	int n = l->blocks.n, end = r->first + r->n;
	int inside = count_matrices(l, r->first, end), outside = count_matrices(l, 0, n) - inside;
	bool few = count_matrices(l, end - r->period, end) > 1 && outside <= MOST_OUTSIDE;

	return (inside >= outside || few) && !has_twins(l, 0, r->first) && !has_twins(l, end, n);
}

/* The longest run, with the shortest period. n is 0 if no run has the model's layers. An incomplete period is left
 * out at the run's beginning: after embeddings there may be a norm like those of the layers. */
static Run
find_run(const Layers *l)
{
	Run best = {0};
	int n = l->blocks.n;

	for (int period = 1; 2 * period <= n; period++) {
		Run run = longest_run(l, period);
		if (run.n > best.n)
			best = run;
	}
	if (best.n == 0 || !is_of_layers(l, &best))
		return (Run){0};
	int rest = best.n % best.period;
	return (Run){best.first + rest, best.n - rest, best.period};
}

/* Returns the number of the last layer. */
static int
number_run(Layers *l, const Run *run)
{
	int layers = run->n / run->period;

	for (int i = run->first; i < l->blocks.n; i++) {
		int at = (i - run->first) / run->period;
		l->blocks.at[i].layer = 1 + (at < layers ? at : layers);
	}
	return layers + 1;
}

static int
number_blocks(Layers *l)
{
	int layer = 0;
	bool begun = false; /* a block with a matrix was seen */

	for (int i = 0; i < l->blocks.n; i++) {
		Block *b = &l->blocks.at[i];
		layer += begun && b->has_matrix;
		begun |= b->has_matrix;
		b->layer = layer;
	}
	return layer;
}

static bool
run_layer_decay(Pass *p, Module *m)
{
	const LayerDecayOptions *o = p->options;
	const Function *f = module_first(m, ROLE_FORWARD);

	if (!f || o->factor == 1)
		return true;
	Layers l = {.m = m, .of = layer_blocks_of(f, p->scratch)};
	collect_blocks(&l, p->scratch);
	Run run = find_run(&l);
	int last = run.n ? number_run(&l, &run) : number_blocks(&l);
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind == STATE_PARAMETER && s->trainable)
			s->lr_scale *= pow(o->factor, last - l.blocks.at[l.place[l.of[i]]].layer);
	}
	p->changed = true;
	return true;
}

static const PassOption layer_decay_options[] = {
	{"factor", "factor of the learning rate from one layer to the layer before", OPTION_DOUBLE,
         offsetof(LayerDecayOptions, factor), 0, 1, .above = true,
         .flag = {"layer-decay", "X",
                  "multiplies the learning rate of a layer by X^n if n layers follow it; X above 0, "
                  "up to 1",
                  "Training", "0.65 to 0.9 are usual; 1 changes nothing"}},
	{0}};
static const LayerDecayOptions layer_decay_defaults = {.factor = 1};
const PassRow pass_layer_decay = {.name = "layer_decay",
                                  .help = "let earlier layers learn more slowly",
                                  .takes = STAGE_ANY,
                                  .until = STAGE_FORWARD,
                                  .leaves = STAGE_ANY,
                                  .when = PASS_WHEN_ASKED,
                                  .options = layer_decay_options,
                                  .options_size = sizeof(LayerDecayOptions),
                                  .defaults = &layer_decay_defaults,
                                  .run = run_layer_decay};
