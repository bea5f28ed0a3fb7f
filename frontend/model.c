/* Opens a model: read, scan, unpack with a capped allocator, check, inline functions. */
#include "frontend/import/import.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER = 16 }; /* in front of each block, for its size; keeps malloc's alignment */

static void *
capped_alloc(void *data, size_t size)
{
	Budget *b = data;

	if (size > b->limit - b->used || b->limit - b->used - size < HEADER)
		return NULL;
	char *block = memory_get(size + HEADER);
	b->used += size + HEADER;
	memcpy(block, &size, sizeof(size));
	return block + HEADER;
}

static void
capped_free(void *data, void *at)
{
	Budget *b = data;
	size_t size;

	if (!at)
		return;
	memcpy(&size, (char *)at - HEADER, sizeof(size));
	b->used -= size + HEADER;
	memory_free((char *)at - HEADER);
}

static Status
unpack_model(Model *model, ModelFile *file)
{
	model->budget.limit = 4 * (size_t)file->n + (256u << 20);
	model->allocator = (ProtobufCAllocator){capped_alloc, capped_free, &model->budget};
	model->proto = onnx__model_proto__unpack(&model->allocator, (size_t)file->n, file->bytes);
	if (!model->proto)
		return status_error(
			EXIT_INVALID,
			"%s: not a valid ONNX model, or it needs more than the %zu bytes "
			"of memory allowed for its size",
			model->path, model->budget.limit);
	model_file_drop(file);
	return fill_tensors(file, &model->proto->base);
}

static bool
read_model(Model *model, Diag *diag)
{
	ModelFile file;
	int64_t n_nodes;
	Status status = model_file_open(model->path, &file);

	if (!status)
		status = scan_model(&file, &n_nodes);
	bool ok = !diag_status(diag, status) && nodes_in_budget(model, n_nodes, diag) &&
	          !diag_status(diag, unpack_model(model, &file));
	model_file_close(&file);
	return ok;
}

/* Reports every operator without an importer. */
static void
check_supported(Model *model, Diag *diag)
{
	bool missing = false;

	for (int i = 0; i < model->nodes.n; i++) {
		const FlatNode *n = &model->nodes.at[i];
		const char *fault = importer_missing(n), *hint = fault ? importer_hint(n) : NULL;
		if (!fault)
			continue;
		node_error(model, diag, n, EXIT_UNSUPPORTED, "%s", fault);
		if (hint)
			diag_hint(diag, "%s", hint);
		else
			missing = true;
	}
	if (missing)
		diag_hint(diag, "`gradc ops` lists what can be read; model-local functions are "
		                "inlined by themselves");
}

/* Reports inputs of strings: there are no strings at run time. */
static void
check_inputs(Model *model, Diag *diag)
{
	const GraphProto *g = model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++) {
		const Onnx__TypeProto *t = g->input[i]->type;
		if (!t || t->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
		    t->tensor_type->elem_type != ONNX__TENSOR_PROTO__DATA_TYPE__STRING)
			continue;
		model_error(model, diag, EXIT_UNSUPPORTED, "input %s is of strings",
		            quoted(model, g->input[i]->name));
		diag_hint(diag, "turn text into numbers (a tokenizer's ids) before the model");
	}
}

static void
check_all(Model *model, Diag *diag)
{
	const GraphProto *g = model->proto->graph;

	model->opset = opset_version(model->proto->n_opset_import, model->proto->opset_import, "");
	bool functions = check_functions(model, diag);
	check_model(model, diag);
	if (!functions || !g)
		return;
	for (size_t i = 0; i < g->n_initializer; i++)
		if (g->initializer[i]->name)
			strmap_put(model->initializers, g->initializer[i]->name, g->initializer[i]);
	inline_functions(model);
	check_supported(model, diag);
	check_inputs(model, diag);
}

Model *
model_open(const char *path, Diag *diag)
{
	Arena *arena = arena_new();
	Model *model = NEW(arena, Model);
	int before = diag_errors(diag);

	model->arena = arena;
	model->path = arena_strdup(arena, path);
	model->folders = external_folders(model->arena, model->path);
	model->functions = strmap_new(arena);
	model->operators = importer_facts(arena);
	model->initializers = strmap_new(arena);
	model->loaded = intmap_new(arena);
	model->subgraphs = intmap_new(arena);
	model->files = strmap_new(arena);
	if (read_model(model, diag))
		check_all(model, diag);
	if (diag_errors(diag) == before)
		return model;
	model_close(model);
	return NULL;
}

void
model_close(Model *model)
{
	if (!model)
		return;
	external_close_all(model);
	for (int i = 0; i < model->blocks.n; i++)
		memory_free(model->blocks.at[i]);
	edit_close(model);
	if (model->proto)
		onnx__model_proto__free_unpacked(model->proto, &model->allocator);
	arena_free(model->arena);
}

int64_t
model_import_steps(const Model *model)
{
	enum { ELEMENTS_A_STEP = 1024 };
	const GraphProto *g = model->proto->graph;
	int64_t steps = 1 + model->n_flat;

	for (size_t i = 0; i < g->n_initializer; i++) {
		const TensorProto *t = g->initializer[i];
		int64_t n = 1;
		for (size_t k = 0; k < t->n_dims; k++)
			if (!size_mul(n, t->dims[k], &n))
				return INT64_MAX;
		if (n / ELEMENTS_A_STEP > INT64_MAX - steps)
			return INT64_MAX;
		steps += n / ELEMENTS_A_STEP;
	}
	return steps;
}
