/* Names the modules that read an adapted weight, as PEFT does: "model.layers.0.self_attn.q_proj".
 * Three names are tried in this order: the weight's name, or the name of the parameter that the
 * exporter computed the weight from, if that name ends in .weight; the scope of the node that reads
 * the weight (metadata, or "/mlp/fc/MatMul"); the name of the bias added to this node's result
 * (mlp.fc.bias). */
#include "frontend/import/import.h"

#include <string.h>

static const char *
module_by_name(Arena *arena, const State *weight)
{
	const char *own = name_is_generated(weight->name)
	                          ? NULL
	                          : text_before_ending(arena, weight->name, ".weight");

	return own ? own : text_before_ending(arena, weight->path, ".weight");
}

/* "mlp.fc", from metadata or from "/mlp/fc". */
static const char *
module_by_scope(Arena *arena, const NodeProto *reader)
{
	const char *path;
	size_t n = node_module(reader, &path), slash = n && *path == '/';

	if (n <= slash)
		return NULL;
	char *module = arena_strndup(arena, path + slash, n - slash);
	for (char *c = module; *c; c++)
		*c = *c == '/' ? '.' : *c;
	return module;
}

/* The module from the name of the bias: an operand of the Add that reads the product, or the
 * product's third input. */
static const char *
module_by_bias(Arena *arena, const Repairs *r, const NodeProto *reader)
{
	const Reader *next;
	const char *module = reader->n_input > 2
	                             ? text_before_ending(arena, reader->input[2], ".bias")
	                             : NULL;
	int n = all_readers(r, reader->output[0], &next);

	for (int i = 0; i < n && !module; i++)
		for (size_t k = 0; k < next[i].node->proto->n_input && !module; k++)
			module = text_before_ending(arena, next[i].node->proto->input[k], ".bias");
	return module;
}

static const char *
module_of_reader(Arena *arena, const Repairs *r, const NodeProto *reader)
{
	const char *module = module_by_scope(arena, reader);

	return module ? module : module_by_bias(arena, r, reader);
}

/* Collects the modules of all nodes that read the weight's tensors. */
static void
modules_of_readers(Arena *arena, const Repairs *r, const State *weight, AdapterModules *out)
{
	const Reader *readers;

	for (int i = 0; i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		if ((w->tied ? w->tied : w)->state != weight)
			continue;
		int n = all_readers(r, w->name, &readers);
		for (int k = 0; k < n; k++) {
			const NodeProto *reader = readers[k].node->proto;
			const char **module = is_op(reader, "Gather") ? &out->table : &out->product;
			if (!*module && reader->n_output)
				*module = module_of_reader(arena, r, reader);
		}
	}
}

AdapterModules
model_adapter_modules(const Module *m, const Adapter *a)
{
	const ImportInfo *info = m->import;
	const char *named = module_by_name(m->arena, a->weight);
	AdapterModules out = {0};

	modules_of_readers(m->arena, info->repairs, a->weight, &out);
	if (a->readers == ADAPTS_PRODUCTS)
		return (AdapterModules){.product = named ? named : out.product};
	if (a->readers == ADAPTS_TABLES)
		return (AdapterModules){.table = named ? named : out.table};
	return out;
}
