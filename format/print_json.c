/* The schedule as JSON, for scripts: CLI.md fixes the keys. One object a launch, so that parts, operations and bytes can be
 * added up without the kernels' table. */
#include "format/format.h"

#include <jansson.h>

/* Those that must hold: ["ranks", "staged"]. */
static json_t *
only_json(uint32_t only)
{
	json_t *list = json_array();

	for (int bit = 0; only_names[bit]; bit++)
		if (only >> bit & 1)
			json_array_append_new(list, json_string(only_names[bit]));
	return list;
}

static json_t *
instruction_json(const Format *f, const Instruction *n)
{
	const KernelRecord *k = n->kind == RUN_KERNEL ? &f->kernels[n->what] : NULL;
	const CollectiveRecord *c = n->kind == COLLECTIVE ? &f->collectives[n->what] : NULL;
	json_t *j = json_pack("{s:s,s:s,s:s,s:o,s:o}", "op",
	                      c ? collective_names[c->kind] : instruction_names[n->kind], "stream",
	                      stream_names[n->stream], "when", when_names[n->when], "only",
	                      only_json(n->only), "origin", json_name(format_text(f, n->origin)));

	json_object_set_new(j, "kernel", k ? json_name(format_text(f, k->name)) : json_null());
	json_object_set_new(j, "parts", json_integer(k ? k->iterations : 1));
	json_object_set_new(j, "flops", json_integer(k ? k->flops : 0));
	json_object_set_new(j, "bytes",
	                    json_integer(k   ? k->bytes
	                                 : c ? dtype_bytes((DType)c->dtype, c->n)
	                                     : 0));
	if (c)
		json_object_set_new(j, "group", json_string(comm_group_names[c->group]));
	return j;
}

void
format_print_json(Text *out, const Format *f)
{
	json_t *programs = json_array();

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];
		json_t *list = json_array();
		for (uint32_t k = 0; k < p->n_instructions; k++)
			json_array_append_new(
				list,
				instruction_json(f, &f->instructions[p->first_instruction + k]));
		json_array_append_new(
			programs,
			json_pack("{s:s,s:o,s:i,s:s,s:o,s:o}", "role", role_names[p->role],
		                  "binding",
		                  json_name(format_text(f, f->bindings[p->binding].text)), "stage",
		                  (int)p->stage, "mode", mode_names[p->mode], "target",
		                  json_name(format_text(f, f->targets[p->target].name)),
		                  "instructions", list));
	}
	json_t *root = json_pack("{s:o}", "programs", programs);
	char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	text_add(out, text);
	text_add(out, "\n");
	memory_free(text);
	json_decref(root);
}
