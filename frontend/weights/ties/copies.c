/* Recognizes layers that began as copies of one layer, for example made by Python's deepcopy. Their
 * weights are equal but train separately. Two layers are copies if all their tensors are equal and
 * some tensors still hold their first values, ones or zeros. Layers with tied weights differ in
 * other tensors. */
#include "frontend/weights/ties/ties.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The name of the weight in the module: layers.0.fc.weight; else the path of its reader, with dots. */
static const char *
module_name(const Repairs *r, const Weight *w)
{
	char *name = arena_strdup(r->arena,
	                          name_is_generated(w->name) && w->path ? w->path : w->name);

	for (char *at = name; *at; at++)
		*at = *at == '/' ? '.' : *at;
	return name;
}

/* The length of the common prefix before the number, if two names differ only in one number; else 0. */
static size_t
numbered_prefix(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] && a[n] == b[n])
		n++;
	while (n && isdigit((unsigned char)a[n - 1]))
		n--;
	size_t in_a = strspn(a + n, "0123456789"), in_b = strspn(b + n, "0123456789");
	return in_a && in_b && !strcmp(a + n + in_a, b + n + in_b) ? n : 0;
}

/* A pair of layers, by the names of their modules. */
typedef struct {
	bool differ;
	/* number of equal tensors whose elements are all one number (fresh), and whose elements
	 * vary */
	int fresh, varied;
} LayerPair;
struct LayerCopies {
	const Repairs *r;
	const Weight **by_name; /* r's list sorted by name; NULL: not sorted so far */
	StrMap *pairs;          /* names of both layers -> LayerPair */
};

LayerCopies *
layer_copies_new(const Repairs *r)
{
	LayerCopies *c = NEW(r->arena, LayerCopies);

	*c = (LayerCopies){.r = r, .pairs = strmap_new(r->arena)};
	return c;
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp((*(const Weight *const *)a)->name, (*(const Weight *const *)b)->name);
}

static void
sort_by_name(LayerCopies *c)
{
	c->by_name = NEW_ARRAY(c->r->arena, const Weight *, c->r->list.n);
	for (int i = 0; i < c->r->list.n; i++)
		c->by_name[i] = c->r->list.at[i];
	qsort(c->by_name, (size_t)c->r->list.n, sizeof(*c->by_name), compare_names);
}

/* The number of weights whose names sort before `name`. */
static int
names_before(const LayerCopies *c, const char *name)
{
	int low = 0, high = c->r->list.n;

	while (low < high) {
		int middle = low + (high - low) / 2;
		if (strcmp(c->by_name[middle]->name, name) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The range of a layer's weights, with names from "layers.0." to before "layers.0/". */
static int
find_layer(const LayerCopies *c, const char *layer, int *first)
{
	char *end = arena_strdup(c->r->arena, layer);

	end[strlen(end) - 1] = '.' + 1;
	*first = names_before(c, layer);
	return names_before(c, end) - *first;
}

static const Weight *
twin_of(const LayerCopies *c, const Weight *w, const char *layer, const char *other)
{
	return repairs_weight(c->r,
	                      arena_printf(c->r->arena, "%s%s", other, w->name + strlen(layer)));
}

/* Compares the weights that both layers have, by a walk over the smaller layer. */
static LayerPair
compare_layers(LayerCopies *c, const char *x, const char *y)
{
	LayerPair pair = {0};
	double value;
	int in_x, in_y;

	if (!c->by_name)
		sort_by_name(c);
	int n_x = find_layer(c, x, &in_x), n_y = find_layer(c, y, &in_y);
	const Weight **at = c->by_name + (n_x < n_y ? in_x : in_y);
	for (int i = 0; i < (n_x < n_y ? n_x : n_y) && !pair.differ; i++) {
		const Weight *twin = n_x < n_y ? twin_of(c, at[i], x, y) : twin_of(c, at[i], y, x);
		if (!twin)
			continue;
		bool constant = tensor_constant_valued(&twin->data, &value);
		pair.differ = !tensor_data_equal(&at[i]->data, &twin->data);
		pair.fresh += constant;
		pair.varied += !constant;
	}
	return pair;
}

static const LayerPair *
layer_pair(LayerCopies *c, const char *x, const char *y)
{
	const char *key = arena_printf(c->r->arena, "%zu %s%s", strlen(x), x, y);
	LayerPair *pair = strmap_get(c->pairs, key);

	if (!pair) {
		pair = NEW(c->r->arena, LayerPair);
		*pair = compare_layers(c, x, y);
		strmap_put(c->pairs, key, pair);
	}
	return pair;
}

bool
weights_of_copied_layers(LayerCopies *c, const Weight *a, const Weight *b)
{
	const char *x = module_name(c->r, a), *y = module_name(c->r, b);
	size_t n = numbered_prefix(x, y);

	if (n == 0 && !isdigit((unsigned char)*x))
		return false;
	x = arena_printf(c->r->arena, "%.*s.", (int)(n + strspn(x + n, "0123456789")), x);
	y = arena_printf(c->r->arena, "%.*s.", (int)(n + strspn(y + n, "0123456789")), y);
	const LayerPair *pair = layer_pair(c, x, y);
	bool has_a = !strncmp(a->name, x, strlen(x)) && twin_of(c, a, x, y);
	int others = pair->varied - has_a; /* a equals b anyway, so it does not count */
	return !pair->differ && pair->fresh > 0 && others > 0;
}
