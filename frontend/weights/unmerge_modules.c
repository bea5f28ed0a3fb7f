/* Finds lost tensors by the names of modules, for nodes whose traced Python call is not stored in
 * the file. A node of layers.1.norm that reads layers.0.norm.weight should read the lost
 * layers.1.norm.weight. Three kinds of evidence are used, strongest first:
 * 1. PyTorch's name for the operator's input: BatchNormalization's input 3 is running_mean;
 * 2. the last part of the read tensor's name, if exactly one lost tensor has the same last part;
 * 3. a single lost parameter that is left.
 * If a stored call names a value that the exporter folded, the sources of this value are judged
 * here, too.
 *
 * If two tensors are equal and their elements are not all the same number, they are one parameter
 * that the module has twice (ties/ties.c). Tensors that the module ties are also one parameter. The
 * order of the signature tells tied names from merged tensors: of tied names the exporter keeps the
 * last, of merged tensors the first. If a tied name claims a tensor, all the tensor's readers stay
 * unchanged, because the file does not tell which other names are tied. */
#include "frontend/weights/judge.h"
#include "frontend/weights/unmerge.h"

#include <string.h>

typedef struct {
	/* in_module: a node of the tensor's module reads it; in_parent: a node of the parent module
	 * reads it, as in F.linear(x, self.child.weight) */
	bool in_module, in_parent;
	bool is_judged, is_fresh; /* all elements are equal */
} Home;

bool
unmerge_is_in_module(const NodeProto *p, const char *tensor)
{
	const char *path;
	size_t n = node_module(p, &path);

	return n == name_module_length(tensor) && !strncmp(path, tensor, n);
}

/* Length of the path of the tensor's parent module: of "a" for "a.fc.weight". */
static size_t
parent_length(const char *tensor)
{
	size_t n = name_module_length(tensor);

	while (n > 0 && tensor[n - 1] != '.')
		n--;
	return n > 0 ? n - 1 : 0;
}

bool
unmerge_is_in_parent(const NodeProto *p, const char *tensor)
{
	const char *path;
	size_t n = node_module(p, &path);

	return name_module_length(tensor) > 0 && n == parent_length(tensor) &&
	       !strncmp(path, tensor, n);
}

static void
add_home(Unmerge *u, const NodeProto *p, const char *initializer)
{
	const char *source = unmerge_source(u->r, initializer);
	Home *home = strmap_get(u->homes, initializer);

	if (!source || !strmap_get(u->r->model->initializers, initializer))
		return;
	if (!home) {
		home = NEW(u->r->arena, Home);
		strmap_put(u->homes, initializer, home);
	}
	home->in_module |= unmerge_is_in_module(p, source);
	home->in_parent |= unmerge_is_in_parent(p, source);
}

static void
index_homes(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;

	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_input; k++)
			add_home(u, g->node[i], g->node[i]->input[k]);
}

static bool
is_fresh(const Unmerge *u, Home *home, const char *name)
{
	const TensorProto *t = strmap_get(u->r->model->initializers, name);
	double value;

	if (!home->is_judged)
		home->is_fresh = unmerge_one_value(u->r, t, &value);
	home->is_judged = true;
	return home->is_fresh;
}

/* ---- reads of another module's tensor */
static const char *
now_read(const Read *read)
{
	return read->node->input[read->input];
}

bool
unmerge_is_foreign(Unmerge *u, const Read *read)
{
	const char *source = unmerge_source(u->r, now_read(read));
	Home *home = strmap_get(u->homes, now_read(read));

	if (!source || !home)
		return false;
	bool elsewhere = home->in_module
	                         ? !unmerge_is_in_module(read->node, source)
	                         : home->in_parent && !unmerge_is_in_parent(read->node, source);
	return elsewhere && is_fresh(u, home, now_read(read));
}

/* Does the operator's name for the input differ from the tensor's name? For example a batch norm
 * that reads its own weight as running variance. */
static bool
is_of_another_kind(const Unmerge *u, const Read *read)
{
	const char *source = unmerge_source(u->r, now_read(read));
	Home *home = strmap_get(u->homes, now_read(read));

	return read->by_operator && source && home &&
	       strcmp(read->called, name_last_part(source)) && is_fresh(u, home, now_read(read));
}

/* Does the text of the node's call decide this input? A name that the file lacks is a folded value.
 * The numbers of such a value are unknown unless the value is a view. */
static bool
is_told(const Unmerge *u, const NodeProto *p, const char *initializer)
{
	const Origin *o = strmap_get(u->r->origins, initializer);
	Call call;

	return unmerge_call(u, p, &call) &&
	       (call.is_known || !(call.has_views || (o && o->folded)));
}

static Reads
foreign_reads(Unmerge *u, const ModuleNodes *nodes)
{
	Reads reads = {0};

	for (int i = 0; i < nodes->n; i++) {
		NodeProto *p = nodes->at[i];
		for (size_t k = 0; k < p->n_input && !node_callee(u->r->model, p); k++) {
			const Read read = unmerge_read(u, p, k);
			if ((unmerge_is_foreign(u, &read) || is_of_another_kind(u, &read)) &&
			    !is_told(u, p, p->input[k]))
				vec_push(u->r->arena, &reads, read);
		}
	}
	return reads;
}

static uint64_t
key_of(const Read *read)
{
	return (uint64_t)(uintptr_t)&read->node->input[read->input];
}

/* Do all the reads have the same tensor, operator and input number? Then they are repeated calls of
 * one layer. */
static bool
are_repeated(const Reads *reads)
{
	for (int i = 1; i < reads->n; i++)
		if (reads->at[i].input != reads->at[0].input ||
		    !is_same_op(reads->at[i].node, reads->at[0].node) ||
		    strcmp(now_read(&reads->at[i]), now_read(&reads->at[0])))
			return false;
	return reads->n > 0;
}

void
unmerge_claim_repeated(Unmerge *u, const Reads *reads, const char *name)
{
	if (!are_repeated(reads))
		return;
	unmerge_claim(u, reads, name);
	for (int i = 0; i < reads->n; i++)
		intmap_put(u->claimed_reads, key_of(&reads->at[i]), 1);
}

static bool
is_parameter(const Repairs *r, const char *name)
{
	const char *kind = strmap_get(r->signature, name);

	return kind && !strcmp(kind, ORIGIN_PARAMETER);
}

/* Reads with the same `called`, and the lost tensor whose name ends in it. */
typedef struct {
	Reads reads;
	const char *name; /* NULL: no such tensor */
	bool is_open;     /* several tensors match */
} Match;
typedef struct {
	StrMap *by_name; /* `called` -> Match */
	VEC(const char *) names;
} Matches;

static Matches
match_reads(const Unmerge *u, const Reads *reads, bool by_operator)
{
	Arena *arena = u->r->arena;
	Matches all = {.by_name = strmap_new(arena)};

	for (int i = 0; i < reads->n; i++) {
		const Read *read = &reads->at[i];
		Match *match = strmap_get(all.by_name, read->called);
		if (read->by_operator != by_operator ||
		    intmap_get(u->claimed_reads, key_of(read), NULL))
			continue;
		if (!match) {
			match = NEW(arena, Match);
			strmap_put(all.by_name, read->called, match);
			vec_push(arena, &all.names, read->called);
		}
		vec_push(arena, &match->reads, *read);
	}
	return all;
}

/* Matches reads with lost tensors by name. Buffers match only by the operator's name: any other
 * read may be of a number in the module's code, not of a buffer. */
static void
match_names(Unmerge *u, const StringList *lost, const Reads *reads, bool by_operator)
{
	const Matches all = match_reads(u, reads, by_operator);

	for (int i = 0; i < lost->n; i++) {
		const char *name = lost->at[i];
		Match *match = strmap_get(all.by_name, name_last_part(name));
		if (!match || !unmerge_is_lost(u, name) ||
		    (!by_operator && !is_parameter(u->r, name)))
			continue;
		match->is_open |= match->name != NULL;
		match->name = name;
	}
	for (int i = 0; i < all.names.n; i++) {
		const Match *match = strmap_get(all.by_name, all.names.at[i]);
		if (match->name && !match->is_open)
			unmerge_claim_repeated(u, &match->reads, match->name);
	}
}

/* If a single lost parameter is left, it claims the remaining reads of other modules' tensors. */
static void
match_the_last(Unmerge *u, const StringList *lost, const Reads *all)
{
	const char *last = NULL;
	Reads reads = {0};
	int n = 0;

	for (int i = 0; i < lost->n; i++)
		if (is_parameter(u->r, lost->at[i]) && unmerge_is_lost(u, lost->at[i])) {
			last = lost->at[i];
			n++;
		}
	for (int i = 0; i < all->n; i++)
		if (!all->at[i].by_operator &&
		    !intmap_get(u->claimed_reads, key_of(&all->at[i]), NULL))
			vec_push(u->r->arena, &reads, all->at[i]);
	if (n == 1)
		unmerge_claim_repeated(u, &reads, last);
}

/* The module whose nodes should read the tensor: the tensor's module; the parent module if the
 * tensor's module has no nodes. */
static const char *
reading_module(const Unmerge *u, const char *name)
{
	const char *own = arena_strndup(u->r->arena, name, name_module_length(name));

	return strmap_get(u->modules, own) ? own
	                                   : arena_strndup(u->r->arena, name, parent_length(name));
}

/* Drops claims on tensors that a tied name claims. Claims before `first` come from texts of calls
 * and stay. */
static void
drop_tied(Unmerge *u, int first)
{
	StrMap *tied = strmap_new(u->r->arena); /* set of initializers */
	int n = first;

	for (int i = first; i < u->claims.n; i++) {
		const Claim *claim = &u->claims.at[i];
		if (unmerge_is_before(u, claim->name, unmerge_source(u->r, claim->from)))
			strmap_put(tied, claim->from, u);
	}
	for (int i = first; i < u->claims.n; i++)
		if (!strmap_get(tied, u->claims.at[i].from))
			u->claims.at[n++] = u->claims.at[i];
	u->claims.n = n;
}

void
unmerge_claim_by_modules(Unmerge *u)
{
	Arena *arena = u->r->arena;
	const StringList *names = &u->r->signed_tensors;
	StrMap *lost = strmap_new(arena); /* path -> StringList of lost names */
	StringList modules = {0};
	int first = u->claims.n;

	index_homes(u);
	unmerge_claim_biases(u);
	for (int i = 0; i < names->n; i++) {
		if (!unmerge_is_lost(u, names->at[i]))
			continue;
		const char *module = reading_module(u, names->at[i]);
		StringList *of = strmap_get(lost, module);
		if (!of) {
			of = NEW(arena, StringList);
			strmap_put(lost, module, of);
			vec_push(arena, &modules, module);
		}
		vec_push(arena, of, names->at[i]);
	}
	for (int i = 0; i < modules.n; i++) {
		const ModuleNodes *nodes = strmap_get(u->modules, modules.at[i]);
		const StringList *of = strmap_get(lost, modules.at[i]);
		const Reads reads = nodes ? foreign_reads(u, nodes) : (Reads){0};
		match_names(u, of, &reads, true);
		match_names(u, of, &reads, false);
		match_the_last(u, of, &reads);
	}
	drop_tied(u, first);
}
