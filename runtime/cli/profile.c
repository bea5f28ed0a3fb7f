/* Sums the times of instructions per kernel and per ONNX node, for the report. */
#include "runtime/cli/cli.h"

#include <string.h>

typedef struct {
	const char *name;
	double ms[N_PHASES];
} NodeTime;

typedef struct {
	Arena *arena;
	const Format *format;
	const GradcProfile *profile;
	StrMap *by_name;
	VEC(NodeTime *) nodes;
} Sums;

static void
add_node(Sums *s, const char *name, int phase, double ms)
{
	NodeTime *node = strmap_get(s->by_name, name);

	if (!node) {
		node = NEW(s->arena, NodeTime);
		node->name = arena_strdup(s->arena, name);
		strmap_put(s->by_name, node->name, node);
		vec_push(s->arena, &s->nodes, node);
	}
	node->ms[phase] += ms;
}

static double
milliseconds(const Sums *s, int instruction)
{
	return 1e3 * s->profile->seconds[instruction] / s->profile->n_steps;
}

static void
add_nodes(Sums *s)
{
	const Format *f = s->format;

	for (int i = 0; i < f->n[SECTION_INSTRUCTIONS]; i++) {
		if (!s->profile->runs[i])
			continue;
		StringList names = origin_names(s->arena, f, &f->instructions[i]);
		for (int k = 0; k < names.n; k++)
			add_node(s, names.at[k], f->instructions[i].phase,
			         milliseconds(s, i) / names.n);
	}
}

static json_t *
nodes_json(Sums *s)
{
	json_t *nodes = json_array();

	add_nodes(s);
	for (int i = 0; i < s->nodes.n; i++) {
		const NodeTime *n = s->nodes.at[i];
		json_array_append_new(nodes,
		                      json_pack("{s:o,s:f,s:f,s:f}", "name", json_name(n->name),
		                                "forward", n->ms[0] + n->ms[1], "backward",
		                                n->ms[2], "update", n->ms[3]));
	}
	return nodes;
}

/* One entry per instruction that runs a kernel. */
static json_t *
kernels_json(const Sums *s)
{
	const Format *f = s->format;
	json_t *kernels = json_array();

	for (int i = 0; i < f->n[SECTION_INSTRUCTIONS]; i++) {
		const Instruction *n = &f->instructions[i];
		const KernelRecord *k = n->kind == RUN_KERNEL ? &f->kernels[n->what] : NULL;
		double runs = (double)s->profile->runs[i] / s->profile->n_steps;

		if (s->profile->runs[i])
			json_array_append_new(
				kernels, json_pack("{s:o,s:o,s:s,s:f,s:f,s:I,s:I}", "name",
			                           json_name(k ? format_text(f, k->name)
			                                       : instruction_names[n->kind]),
			                           "origin", json_name(format_text(f, n->origin)),
			                           "phase", phase_names[n->phase], "runs", runs,
			                           "ms", milliseconds(s, i), "flops",
			                           (json_int_t)(k ? k->flops : 0), "bytes",
			                           (json_int_t)(k ? k->bytes : 0)));
	}
	return kernels;
}

json_t *
profile_json(const Format *f, const GradcProfile *p)
{
	Arena *arena = arena_new();
	Sums sums = {arena, f, p, strmap_new(arena), {0}};
	json_t *steps = json_array();

	for (int i = 0; i < p->n_steps; i++)
		json_array_append_new(steps, json_integer(p->steps[i]));
	json_t *json = json_pack("{s:o,s:o,s:o}", "steps", steps, "nodes",
	                         p->n_steps ? nodes_json(&sums) : json_array(), "kernels",
	                         p->n_steps ? kernels_json(&sums) : json_array());
	arena_free(arena);
	return json;
}
