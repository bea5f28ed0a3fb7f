/* Finds weights that are the same parameter, for example an embedding that the head reads
 * transposed. Two weights are tied if they have rank 2 or more, their elements vary, and the two
 * are bitwise equal or transposes of each other. Training never leaves two matrices equal by
 * accident. But layers may begin as copies of one layer: such weights are only noted. An Identity
 * that gives a tensor a second name is a tie at any rank. Of tied weights, the home gives name and
 * layout to the parameter: the weight that Gather reads, else the first in the file. */
#include "frontend/weights/ties/ties.h"
#include "frontend/weights/judge.h"
#include "frontend/weights/values.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COPIES = 1 << 20 };

typedef struct {
	Weight *weight;
	int place;     /* index in the list */
	uint64_t hash; /* hash of the elements, equal for the transpose */
} TieEntry;

/* Reads an integer at an address that may be unaligned. The compiler turns a memcpy of constant
 * size into one load. */
static uint64_t
element_bits(const TensorData *t, int64_t i)
{
	int bits = dtype_info[t->dtype].bits;
	const char *at = (const char *)t->data + i * (bits / 8);
	uint64_t x = 0;

	if (bits == 8)
		memcpy(&x, at, 1);
	else if (bits == 16)
		memcpy(&x, at, 2);
	else if (bits == 32)
		memcpy(&x, at, 4);
	else
		memcpy(&x, at, 8);
	return x;
}

/* A hash that is equal for a tensor and its transpose: the sum over all elements of a hash of bits,
 * row and column that is symmetric in row and column. */
static uint64_t
turned_hash(const TensorData *t)
{
	uint64_t sum = (uint64_t)t->n;
	int64_t columns = t->rank == 2 ? t->dims[1] : t->n;
	int64_t rows = columns ? t->n / columns : 0;

	for (int64_t i = 0; i < rows; i++)
		for (int64_t k = 0; k < columns; k++) {
			uint64_t x = element_bits(t, i * columns + k) ^ (uint64_t)(i + k) << 32;
			x *= 0x9e3779b97f4a7c15ull;
			sum += (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
		}
	return sum;
}

static int
compare_entries(const void *a, const void *b)
{
	const TieEntry *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->place - y->place;
}

static bool
read_by(const Repairs *r, const Weight *w, const char *const *ops)
{
	const Reader *readers;
	int n = all_readers(r, w->value, &readers);

	for (int i = 0; i < n; i++)
		for (const char *const *op = ops; *op; op++)
			if (is_op(readers[i].node->proto, *op))
				return true;
	return false;
}

static bool
read_by_gather(const Repairs *r, const Weight *w)
{
	static const char *const ops[] = {"Gather", NULL};

	return read_by(r, w, ops);
}

/* Are both weights read by the same module, one under a generated name? Exporters transpose a matrix
 * again for each call of its layer, under a new name. */
static bool
read_by_one_module(const Repairs *r, const Weight *a, const Weight *b)
{
	Reader x, y;

	if (!name_is_generated(a->name) && !name_is_generated(b->name))
		return false;
	return final_readers(r, a->value, &x, 1) && final_readers(r, b->value, &y, 1) &&
	       node_same_module(x.node->proto, y.node->proto);
}

/* Does --no-tie keep the weight from being tied? Notes that the option had an effect. */
static bool
untied(Repairs *r, const char *name)
{
	if (!strmap_get(r->apart, name))
		return false;
	strmap_put(r->untied, name, r);
	return true;
}

static void
tie(Weight *home, Weight *copy, bool transposed)
{
	copy->tied = home->tied ? home->tied : home;
	copy->expanded_to = copy->expanded_from = 0;
	copy->tied->expanded_to = copy->tied->expanded_from = 0;
	copy->transposed = transposed != home->transposed;
}

static const Weight *
home_of(const Weight *w)
{
	while (w->tied)
		w = w->tied;
	return w;
}

/* A home may itself have become a copy of another weight. Then the copies of this home share the
 * other weight's state, too. */
static void
settle_homes(Repairs *r)
{
	for (int i = 0; i < r->list.n; i++)
		for (Weight *w = r->list.at[i]; w->tied && w->tied->tied; w->tied = w->tied->tied)
			w->transposed = w->transposed != w->tied->transposed;
}

typedef enum {
	PAIR_IS_TWO,
	PAIR_IS_COPIED, /* in layers that began as copies */
	PAIR_IS_APART,  /* --no-tie keeps b apart */
	PAIR_IS_ONE
} PairVerdict;

static PairVerdict
try_pair(Repairs *r, LayerCopies *layers, Weight *a, Weight *b)
{
	bool equal = tensor_data_equal(&a->data, &b->data);
	bool transposed = !equal && tensor_is_transpose(&a->data, &b->data);

	if (a->tied || b->tied || (!equal && !transposed))
		return PAIR_IS_TWO;
	bool told = transposed || read_by_one_module(r, a, b) || a->tensor == b->tensor;
	if (!told && (!values_are_wide(&a->data) || (a->is_asked_for && b->is_asked_for)))
		return PAIR_IS_TWO; /* --train names both, so they are two */
	if (!transposed && !read_by_one_module(r, a, b) && weights_of_copied_layers(layers, a, b))
		return PAIR_IS_COPIED;
	bool a_apart = untied(r, a->name), b_apart = untied(r, b->name);
	if (a_apart || b_apart)
		return b_apart ? PAIR_IS_APART : PAIR_IS_TWO;
	if (read_by_gather(r, b) && !read_by_gather(r, a))
		tie(b, a, transposed);
	else
		tie(a, b, transposed);
	return PAIR_IS_ONE;
}

/* Ties equal weights; entries are sorted by hash. */
static void
tie_equal(Repairs *r, const TieEntry *entries, int n, CopiedWeights *copies)
{
	TieCandidates *c = tie_candidates_new(r);
	LayerCopies *layers = layer_copies_new(r);

	for (int i = 0; i < n; i++) {
		Weight *a, *b = entries[i].weight;
		bool is_alone = (i == 0 || entries[i - 1].hash != entries[i].hash) &&
		                (i == n - 1 || entries[i + 1].hash != entries[i].hash);
		if (is_alone || b->tied)
			continue;
		tie_candidates_begin(c, entries[i].hash, b);
		while (!b->tied && (a = tie_candidates_next(c))) {
			PairVerdict verdict = try_pair(r, layers, a, b);
			if (verdict == PAIR_IS_COPIED && !a->identity && !b->identity)
				vec_push(r->arena, copies, ((CopiedWeight){a, b}));
			if (verdict == PAIR_IS_COPIED || verdict == PAIR_IS_APART)
				tie_candidates_stand_for(c);
		}
		tie_candidates_end(c);
	}
}

static bool
can_tie(const Weight *w)
{
	double value;

	return w->kind == WEIGHT_PARAMETER && !w->expanded_to && w->data.rank >= 1 &&
	       w->data.data && !w->codes && w->data.n > 1 && dtype_info[w->data.dtype].bits >= 8 &&
	       !tensor_constant_valued(&w->data, &value);
}

static void
tie_asked(Repairs *r, const TieOption *t)
{
	Weight *a = repairs_weight(r, t->a), *b = repairs_weight(r, t->b);
	int64_t *x, *y;

	if (!a || !b || a == b || a->kind != WEIGHT_PARAMETER || b->kind != WEIGHT_PARAMETER) {
		diag_error(r->diag, EXIT_USAGE, "--tie %s=%s: both must be parameters", t->a, t->b);
		return;
	}
	if (a->codes || b->codes) {
		diag_error(r->diag, EXIT_USAGE, "--tie %s=%s: weights in codes train by themselves",
		           t->a, t->b);
		return;
	}
	x = a->data.dims;
	y = b->data.dims;
	bool same = a->data.dtype == b->data.dtype && a->data.rank == b->data.rank;
	bool equal = same && !memcmp(x, y, sizeof(*x) * (size_t)a->data.rank);
	bool turned = same && a->data.rank == 2 && x[0] == y[1] && x[1] == y[0];
	if (!equal && !turned)
		diag_error(r->diag, EXIT_USAGE, "--tie %s=%s: their shapes do not fit", t->a, t->b);
	else if (!a->tied && home_of(b) != a)
		tie(b, a,
		    !equal || (turned && tensor_is_transpose(&a->data, &b->data) &&
		               !tensor_data_equal(&a->data, &b->data)));
}

/* Does the file declare an input with n elements along the axis? */
static bool
inputs_have(const Repairs *r, int axis, int64_t n)
{
	const GraphProto *g = r->model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++) {
		const Onnx__TypeProto__Tensor *t = tensor_type(g->input[i]);
		if (t && t->shape && axis < (int)t->shape->n_dim &&
		    !dim_symbol(t->shape->dim[axis]) && t->shape->dim[axis]->dim_value == n)
			return true;
	}
	return false;
}

/* Is the weight an expansion along the axis? If the exporter says that it is expanded, equal
 * elements count only along the rows. If it says nothing, n must be the size of an input's axis.
 * Then a matrix counts only along the first axis, since its rows may be equal for other reasons. A
 * tensor with equal elements must also be named by --train. */
static bool
is_expanded_along(const Repairs *r, const Weight *w, int axis, bool constant)
{
	int64_t n = w->data.dims[axis];

	if (!values_repeat(&w->data, axis))
		return false;
	if (w->origin && w->origin->folded)
		return w->origin->expanded && (!constant || inputs_have(r, 0, n));
	if (r->tells_folding || axis == w->data.rank - 1 || !inputs_have(r, axis, n))
		return false;
	return constant ? w->is_asked_for && axis == 0 && w->data.rank > 2
	                : w->data.rank > 2 || axis == 0;
}

/* PyTorch expands a class token or a first state over the batch, and a token type over the sequence.
 * If these have fixed sizes, the exporter folds the expansion. */
static void
find_expanded(Repairs *r, Weight *w)
{
	static const Doubt doubt = {"computed by the exporter",
	                            "its rows are equal: taken for one that was repeated"};
	const TensorData *t = &w->data;
	int64_t copies = 1;
	int from = 0, to;
	bool constant = true, told = w->origin && w->origin->folded;

	if (w->kind != WEIGHT_PARAMETER || w->codes || !t->data)
		return;
	for (int i = 0; i < t->rank; i++)
		constant &= t->dims[i] == 1 || values_repeat(t, i);
	if (!weight_made_by_exporter(r, w) &&
	    !(constant && w->is_asked_for && !weight_is_named(r, w)))
		return;
	while (told && from < t->rank && !is_expanded_along(r, w, from, constant))
		from++;
	for (to = from; to < t->rank; to++) {
		if (t->dims[to] != 1 && !is_expanded_along(r, w, to, constant))
			break;
		copies *= t->dims[to];
		if (constant && copies > 1) {
			to++;
			break;
		}
	}
	if (copies <= 1 || copies > MAX_COPIES || untied(r, w->name))
		return;
	w->expanded_from = from;
	w->expanded_to = to;
	if (!told)
		w->doubt = &doubt;
}

static void
warn_idle(Repairs *r)
{
	for (int i = 0; i < r->options->n_ties; i++) {
		const TieOption *t = &r->options->ties[i];
		if (!t->untie || !repairs_weight(r, t->a) || strmap_get(r->untied, t->a))
			continue;
		const char *why =
			readers_of(r, t->a).n > 1
				? "its readers stay together: calls of one module, or nodes "
				  "of branches, loops and functions"
				: "nothing shares that parameter";
		diag_warning(r->diag, "%s: --no-tie %s: %s", r->model->path, t->a, why);
	}
}

/* Collects the names to keep apart: names of --no-tie, and copies that repairs made. */
static void
index_apart(Repairs *r)
{
	for (int i = 0; i < r->options->n_ties; i++)
		if (r->options->ties[i].untie)
			strmap_put(r->apart, r->options->ties[i].a, r);
	for (int i = 0; i < r->model->restored.n; i++) {
		const Restored *restored = r->model->restored.at[i];
		strmap_put(r->apart, restored->name, r);
		if (restored->kind == RESTORED_UNTIED)
			strmap_put(r->untied, restored->from, r);
	}
}

static bool
are_equal(const Repairs *r, const TieOption *t)
{
	const Weight *a = repairs_weight(r, t->a), *b = repairs_weight(r, t->b);

	return a && b &&
	       (tensor_data_equal(&a->data, &b->data) || tensor_is_transpose(&a->data, &b->data));
}

/* The weight that --no-tie keeps apart although --tie ties it to an equal one; NULL: there is no
 * contradiction. --tie with an unequal weight is allowed. */
static const char *
contradiction(const Repairs *r, const TieOption *t)
{
	for (int i = 0; i < r->options->n_ties; i++) {
		const TieOption *other = &r->options->ties[i];
		if (other->untie && (!strcmp(other->a, t->a) || !strcmp(other->a, t->b)))
			return are_equal(r, t) ? other->a : NULL;
	}
	return NULL;
}

static void
take_options(Repairs *r)
{
	for (int i = 0; i < r->options->n_ties; i++) {
		const TieOption *t = &r->options->ties[i];
		if (t->untie && !repairs_weight(r, t->a))
			diag_error(r->diag, EXIT_USAGE, "--no-tie %s: no such parameter", t->a);
		else if (!t->untie && contradiction(r, t))
			diag_error(r->diag, EXIT_USAGE, "--tie %s=%s: --no-tie keeps %s apart",
			           t->a, t->b, contradiction(r, t));
		else if (!t->untie)
			tie_asked(r, t);
	}
}

static void
tie_found(Repairs *r, CopiedWeights *copies)
{
	TieEntry *entries = NEW_ARRAY(r->arena, TieEntry, r->list.n);
	IntMap *counts = intmap_new(r->arena);
	int n = 0;

	for (int i = 0; i < r->list.n; i++) {
		uint64_t count = 0;
		Weight *w = r->list.at[i];
		if (!can_tie(w))
			continue;
		intmap_get(counts, (uint64_t)w->data.n, &count);
		intmap_put(counts, (uint64_t)w->data.n, count + 1);
		entries[n++] = (TieEntry){w, i, 0};
	}
	for (int i = 0; i < n; i++) {
		uint64_t count = 0;
		intmap_get(counts, (uint64_t)entries[i].weight->data.n, &count);
		entries[i].hash = count > 1 ? turned_hash(&entries[i].weight->data)
		                            : hash_mix(0, (uint64_t)entries[i].place);
	}
	qsort(entries, (size_t)n, sizeof(*entries), compare_entries);
	tie_equal(r, entries, n, copies);
}

void
repairs_tie(Repairs *r)
{
	bool finds = repair_enabled(r->options, "ties");
	CopiedWeights copies = {0};

	index_apart(r);
	for (int i = 0; i < r->list.n && finds; i++)
		find_expanded(r, r->list.at[i]);
	take_options(r);
	if (finds)
		tie_found(r, &copies);
	settle_homes(r);
	tie_notes(r, &copies);
	warn_idle(r);
}
