/* bench_predict: predicts launches that were measured some time ago, from their numbers in a file of results: the formulas of
 * cost/ without an executable. fit.py tries other numbers of a machine with it.
 *
 * stdin:  {"gpu": "NVIDIA H200", "set": {"memory_reached": 0.8, "products.tf32.reached": 0.7},
 *          "launches": [{"class": "loops", "math": "f32", "bytes": 4096, "blocks": 8, "block_threads": 256}, ...]}
 * stdout: {"machine": "h200", "launch_us": 0.9, "launches": [[total_us, launch_us, bound, measured], ...]}
 *
 * "gpu" is CUDA's name of the device; "machine" in its place is a name for --machine. The launches have the fields of work_fields
 * (cost/work.c); what is missing is 0, or 1 where 0 makes no sense. */
#include "cost/cost.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A machine whose numbers may be changed. */
typedef struct {
	Machine machine;
	Chip chip;
	CostFit fit;
} Model;

#define OF_FIT(name)                                                  \
	{                                                             \
#name, offsetof(Model, fit) + offsetof(CostFit, name) \
	}
#define OF_MACHINE(name)                                                  \
	{                                                                 \
#name, offsetof(Model, machine) + offsetof(Machine, name) \
	}
static const struct {
	const char *name;
	size_t offset;
} numbers[] = {
	OF_MACHINE(memory_reached), OF_MACHINE(launch),     OF_FIT(cached_bytes),
	OF_FIT(start_seconds),      OF_FIT(overlap),        OF_FIT(step_seconds),
	OF_FIT(cached_step),        OF_FIT(alone_slowdown), OF_FIT(tile_reached),
	OF_FIT(call_seconds),       OF_FIT(call_overlap),   OF_FIT(split_seconds),
	OF_FIT(unaligned_memory),
};
static const struct {
	const char *name;
	size_t offset;
} product_numbers[] = {
	{"reached", offsetof(ProductRate, reached)},
	{"begin_k", offsetof(ProductRate, begin_k)},
	{"transposed", offsetof(ProductRate, transposed)},
	{"unaligned", offsetof(ProductRate, unaligned)},
};

static void
fail(const char *what, const char *name)
{
	fprintf(stderr, "bench_predict: %s: %s\n", what, name);
	exit(2);
}

static int
word_index(const char *const *words, const char *word)
{
	for (int i = 0; words[i]; i++)
		if (word && strcmp(words[i], word) == 0)
			return i;
	fail("unknown word", word ? word : "(none)");
	return -1;
}

/* Where the number of this name lies: "overlap", or "products.tf32.reached". */
static double *
number_at(Model *m, const char *name)
{
	char math[16] = "", field[16] = "";

	for (int i = 0; i < COUNT(numbers); i++)
		if (strcmp(numbers[i].name, name) == 0)
			return (double *)((char *)m + numbers[i].offset);
	if (sscanf(name, "products.%15[^.].%15s", math, field) == 2)
		for (int i = 0; i < COUNT(product_numbers); i++)
			if (strcmp(product_numbers[i].name, field) == 0)
				return (double *)((char *)&m->chip
				                          .products[word_index(math_names, math)] +
				                  product_numbers[i].offset);
	fail("unknown number", name);
	return NULL;
}

static double
number_of(json_t *value, const char *name)
{
	double x = json_number_value(value);

	if (!json_is_number(value) || !(x >= 0) || x > 1e18)
		fail("not a number from 0 to 1e18", name);
	return x;
}

static Model
read_model(json_t *root)
{
	const char *gpu = json_string_value(json_object_get(root, "gpu"));
	const char *name = gpu ? gpu : json_string_value(json_object_get(root, "machine"));
	const Machine *known = gpu ? machine_of_device(gpu) : name ? machine_find(name) : NULL;
	Model m;
	const char *key;
	json_t *value;

	if (!known)
		fail("unknown machine", name ? name : "(none)");
	m = (Model){.machine = *known, .chip = *known->chip, .fit = *known->chip->fit};
	json_object_foreach(json_object_get(root, "set"), key, value)
		*number_at(&m, key) = number_of(value, key);
	return m;
}

static Work
read_work(json_t *launch)
{
	Work w = {0};

	w.class = (WorkClass)word_index(work_class_names,
	                                json_string_value(json_object_get(launch, "class")));
	w.math = (Math)word_index(math_names, json_string_value(json_object_get(launch, "math")));
	for (const WorkField *f = work_fields; f->name; f++) {
		json_t *given = json_object_get(launch, f->name);
		double value = given ? number_of(given, f->name) : 0;
		if (f->whole)
			*(int64_t *)((char *)&w + f->offset) = (int64_t)value;
		else
			*(double *)((char *)&w + f->offset) = value;
	}
	int64_t *const least_one[] = {&w.blocks,    &w.block_threads, &w.product.m,   &w.product.n,
	                              &w.product.k, &w.product.batch, &w.product.runs};
	for (int i = 0; i < COUNT(least_one); i++)
		*least_one[i] = *least_one[i] > 1 ? *least_one[i] : 1;
	return w;
}

int
main(void)
{
	json_error_t error;
	json_t *root = json_loadf(stdin, 0, &error), *launch, *list = json_array();
	size_t i;

	if (!root)
		fail("not JSON", error.text);
	Model m = read_model(root);
	m.chip.fit = &m.fit;
	m.machine.chip = &m.chip;
	json_array_foreach(json_object_get(root, "launches"), i, launch) {
		Work w = read_work(launch);
		Prediction p = predict_work(&w, &m.machine);
		if (!isfinite(p.seconds))
			fail("no finite time", json_dumps(launch, JSON_COMPACT));
		json_array_append_new(list, json_pack("[f,f,s,b]", 1e6 * p.seconds, 1e6 * p.launch,
		                                      bound_names[p.bound],
		                                      prediction_is_measured(&p, &m.machine)));
	}
	json_t *out = json_pack("{s:s,s:f,s:o}", "machine", m.machine.name, "launch_us",
	                        1e6 * m.machine.launch, "launches", list);
	json_dumpf(out, stdout, JSON_COMPACT);
	json_decref(out);
	json_decref(root);
	return 0;
}
