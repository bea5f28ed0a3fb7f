/* --info: prints what the executable contains (from its tables) and what will run on this machine, without allocating the
 * memory for training. */
#include "format/bundle/bundle.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/cli/cli.h"
#include "runtime/model/model.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *
shape_json(const Format *f, uint32_t rank, uint32_t first)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < rank; i++)
		json_array_append_new(shape, json_integer(f->dims[first + i]));
	return shape;
}

static void
add_states(json_t *root, const Format *f)
{
	json_t *list = json_array();

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];

		const FourBitRecord *r = format_four_bit(f, i);
		json_array_append_new(
			list,
			json_pack("{s:s, s:s, s:o, s:s, s:s, s:b, s:s, s:s, s:s, s:I, s:I}", "name",
		                  format_text(f, s->name), "dtype", dtype_info[s->dtype].name,
		                  "shape", shape_json(f, s->rank, s->first_dim), "kind",
		                  state_kind_names[s->kind], "lifetime",
		                  lifetime_names[s->lifetime], "trainable", (int)s->trainable,
		                  "init", init_names[s->init], "why", format_text(f, s->why),
		                  "path", format_text(f, s->path), "offset", (json_int_t)s->offset,
		                  "bytes", (json_int_t)s->bytes));
		if (s->sharded)
			json_object_set_new(json_array_get(list, json_array_size(list) - 1),
			                    "sharded",
			                    json_pack("{s:s, s:I}", "mode", mode_names[s->sharded],
			                              "block", (json_int_t)s->block));
		if (r)
			json_object_set_new(
				json_array_get(list, json_array_size(list) - 1), "holds",
				json_pack("{s:s, s:s, s:o}", "format", four_bit_names[r->kind],
			                  "dtype", dtype_info[r->dtype].name, "shape",
			                  shape_json(f, r->rank, r->first_dim)));
	}
	json_object_set_new(root, "states", list);
}

static json_t *
ports_json(const Format *f, uint32_t first, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = first; i < first + n; i++) {
		const PortRecord *p = &f->ports[i];
		json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "name",
		                                      format_text(f, p->name), "kind",
		                                      port_kind_names[p->kind], "dtype",
		                                      dtype_info[p->dtype].name, "shape",
		                                      shape_json(f, p->rank, p->first_dim)));
	}
	return list;
}

static void
add_programs(json_t *root, const Format *f)
{
	json_t *list = json_array();

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];

		json_array_append_new(
			list,
			json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:o, s:o}", "role",
		                  role_names[p->role], "binding",
		                  format_text(f, f->bindings[p->binding].text), "target",
		                  format_text(f, f->targets[p->target].name), "instructions",
		                  (int)p->n_instructions, "workspace_bytes",
		                  (json_int_t)p->bytes[SPACE_WORKSPACE], "io_bytes",
		                  (json_int_t)p->bytes[SPACE_IO], "flops", (json_int_t)p->flops,
		                  "inputs", ports_json(f, p->first_input, p->n_inputs), "outputs",
		                  ports_json(f, p->first_output, p->n_outputs)));
	}
	json_object_set_new(root, "programs", list);
}

/* The target whose programs a variant runs. */
static const char *
target_name(const Format *f, const CodeImage *v)
{
	return v->target < f->n[SECTION_TARGETS] ? format_text(f, f->targets[v->target].name) : "";
}

/* The contents of a bundle of GPU code as text: number of modules, or what is wrong with the bundle. */
static const char *
bundle_text(Arena *arena, const Format *f, const CodeImage *v)
{
	Bundle b;
	Status status = bundle_read(v, f, &b);
	const char *text = status ? arena_strdup(arena, status->message)
	                          : arena_printf(arena, "%u modules, %lld bytes",
	                                         b.header->n_modules, (long long)v->size);

	status_free(status);
	return text;
}

/* Can the first GPU of this machine run the variant? */
static bool
runs_here(const CodeImage *v)
{
	Status status = device_cuda.runs(0, v);
	bool runs = !status;

	status_free(status);
	return runs;
}

static json_t *
bundle_json(const Format *f, const CodeImage *v)
{
	Bundle b;
	Status status = bundle_read(v, f, &b);
	json_t *j = json_pack("{s:s, s:s, s:I, s:I, s:b, s:s}", "cuda", v->name, "target",
	                      target_name(f, v), "bytes", (json_int_t)v->size, "modules",
	                      (json_int_t)(status ? 0 : b.header->n_modules), "runs_here",
	                      runs_here(v), "code", status ? status->message : "verified");

	status_free(status);
	return j;
}

static json_t *
cpu_json(const Format *f, const CodeImage *v)
{
	int n;

	return json_pack("{s:s, s:s, s:s, s:b}", "cpu", v->name, "features", v->features, "target",
	                 target_name(f, v), "runs_here", cpu_lacks(v->features, &n) == NULL);
}

static json_t *
variants_json(const Format *f, const CodeImage *v)
{
	json_t *list = json_array();

	for (; v->name; v++)
		json_array_append_new(list, v->kind == IMAGE_FUNCTIONS ? cpu_json(f, v)
		                                                       : bundle_json(f, v));
	return list;
}

/* Facts for --info that are not in the tables. */
typedef struct {
	const CodeImage *variants;
	int target; /* the target whose programs run here; EVERY_TARGET if none can run here */
	bool weights_ok;
	int64_t snapshot; /* bytes of the snapshot */
} Shown;

/* Is the region shown? A region that every run has is always shown, any other region only if this run uses it. */
static bool
is_shown(Space space, int64_t bytes)
{
	const SpaceRow *row = &space_table[space];

	return row->only == ONLY_ALWAYS && (!row->by_slots || bytes > 0);
}

static json_t *
collect(const Format *f, const Shown *shown)
{
	json_t *root = json_object(), *regions = json_object(), *info = json_object();
	int64_t total = 0;

	for (int i = 0; i < f->n[SECTION_INFO]; i++)
		json_object_set_new(info, format_text(f, f->info[i].key),
		                    json_string(format_text(f, f->info[i].value)));
	json_object_update(root, info);
	json_decref(info);
	for (int s = 0; s < N_SPACES; s++) {
		int64_t bytes = format_region_bytes(f, (Space)s, shown->target, &run_alone);
		total += bytes;
		if (is_shown((Space)s, bytes))
			json_object_set_new(regions, space_table[s].name, json_integer(bytes));
	}
	/* only with --save */
	json_object_set_new(regions, "snapshot", json_integer(shown->snapshot));
	json_object_set_new(root, "regions", regions);
	json_object_set_new(root, "peak_bytes", json_integer(total));
	json_object_set_new(root, "bytes_per_parameter", state_bytes_json(f));
	json_object_set_new(root, "rank_bytes", rank_bytes_json(f));
	json_object_set_new(root, "weights_bytes", json_integer(f->header->weights_bytes));
	json_object_set_new(root, "weights",
	                    json_string(shown->weights_ok ? "verified" : "damaged or missing"));
	json_object_set_new(root, "kernels", json_integer(f->n[SECTION_KERNELS]));
	json_object_set_new(root, "variants", variants_json(f, shown->variants));
	add_programs(root, f);
	add_states(root, f);
	return root;
}

static void
print_quoted(const char *text)
{
	Text t = {0};

	text_add_quoted(&t, text);
	fputs(t.at, stdout);
	text_free(&t);
}

static void
print_infos(const Format *f)
{
	for (int i = 0; i < f->n[SECTION_INFO]; i++) {
		printf("%-24s ", format_text(f, f->info[i].key));
		print_quoted(format_text(f, f->info[i].value));
		printf("\n");
	}
}

static void
print_ports(const Format *f, Arena *arena, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		const PortRecord *p = &f->ports[i];

		printf("  %-8s %s%s ", port_kind_names[p->kind], dtype_info[p->dtype].name,
		       shape_text(arena, (int)p->rank, f->dims + p->first_dim));
		print_quoted(format_text(f, p->name));
		printf("\n");
	}
}

static void
print_variants(const Format *f, Arena *arena, const CodeImage *v)
{
	int n;

	for (; v->name; v++)
		if (v->kind == IMAGE_FUNCTIONS)
			printf("kernels for cpu:%-8s %s, %s%s\n", v->name, target_name(f, v),
			       v->features, cpu_lacks(v->features, &n) ? " (not this CPU)" : "");
		else
			printf("kernels for cuda:%-7s %s, %s%s\n", v->name, target_name(f, v),
			       bundle_text(arena, f, v), runs_here(v) ? "" : " (not this GPU)");
}

/* Prints the ONNX nodes that a kernel computes: several nodes if equal layers share the kernel. */
static void
print_runs(const Format *f, uint32_t kernel)
{
	enum { SHOWN = 3 };
	Text origins = {0};
	int runs = 0;

	for (int i = 0; i < f->n[SECTION_INSTRUCTIONS]; i++) {
		const Instruction *n = &f->instructions[i];
		if (n->kind != RUN_KERNEL || n->what != kernel || runs++ >= SHOWN)
			continue;
		text_add(&origins, runs > 1 ? "; " : "");
		text_add_plain(&origins, format_text(f, n->origin));
	}
	if (runs > SHOWN)
		text_printf(&origins, "; and %d more", runs - SHOWN);
	printf("%s", origins.at ? origins.at : "");
	text_free(&origins);
}

static void
print_program(const Format *f, Arena *arena, const ProgramRecord *p)
{
	Text target = {0};
	char text[32];

	format_print_target(&target, f, p);
	printf("\nprogram %s %s%s: %u instructions, %s FLOPs\n", role_names[p->role],
	       plain_text(arena, format_text(f, f->bindings[p->binding].text)),
	       target.at ? target.at : "", p->n_instructions, count_text(text, (double)p->flops));
	text_free(&target);
	print_ports(f, arena, p->first_input, p->n_inputs);
	print_ports(f, arena, p->first_output, p->n_outputs);
}

static void
print_text(const Format *f, const Shown *shown)
{
	Arena *arena = arena_new();
	char text[32];

	print_infos(f);
	print_variants(f, arena, shown->variants);
	printf("%-24s %s (%s)\n", "weights", bytes_text(text, (double)f->header->weights_bytes),
	       shown->weights_ok ? "verified" : "damaged or missing");
	for (int s = 0; s < N_SPACES; s++) {
		int64_t bytes = format_region_bytes(f, (Space)s, shown->target, &run_alone);
		if (is_shown((Space)s, bytes))
			printf("region %-17s %s\n", space_table[s].name,
			       bytes_text(text, (double)bytes));
	}
	printf("region %-17s %s (with --save)\n", "snapshot",
	       bytes_text(text, (double)shown->snapshot));
	rank_bytes_print(stdout, f);
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		print_program(f, arena, &f->programs[i]);
	printf("\n%d states\n", f->n[SECTION_STATES]);
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];

		printf("  %-9s %-8s %s%s ", state_kind_names[s->kind], lifetime_names[s->lifetime],
		       dtype_info[s->dtype].name,
		       shape_text(arena, (int)s->rank, f->dims + s->first_dim));
		print_quoted(format_text(f, s->name));
		const FourBitRecord *r = format_four_bit(f, i);
		if (r)
			printf(" %s of %s%s", four_bit_names[r->kind], dtype_info[r->dtype].name,
			       shape_text(arena, (int)r->rank, f->dims + r->first_dim));
		printf("\n");
	}
	printf("\n%d kernels\n", f->n[SECTION_KERNELS]);
	for (int i = 0; i < f->n[SECTION_KERNELS]; i++) {
		printf("  %-8s ", plain_text(arena, format_text(f, f->kernels[i].name)));
		print_runs(f, (uint32_t)i);
		printf("\n");
	}
	arena_free(arena);
}

int
info_print(const GradcModel *model, const CliOptions *o, Diag *diag)
{
	Format f;
	const CodeImage *variant = NULL;
	DeviceChoice choice;
	Shown shown = {.variants = model->images, .target = EVERY_TARGET};

	if (diag_status(diag, format_read(model->blob, model->bytes, &f)))
		return diag_exit_code(diag);
	shown.snapshot = saved_alone_bytes(&f, o->run.shard_bytes);
	status_free(weights_check(model, &f, o->run.weights, &shown.weights_ok));
	Status chosen = device_choose(model->images, o->run.device, o->run.target, &choice);
	if (!chosen)
		chosen = variant_pick(model->images, o->run.target, &choice, &variant);
	status_free(choice.why_not_gpu);
	status_free(chosen);
	if (variant)
		shown.target = (int)variant->target;
	if (o->json) {
		json_t *root = collect(&f, &shown);
		json_t *device = info_device(model, &f, &o->run);
		json_object_update(root, device);
		json_decref(device);
		json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		printf("\n");
		json_decref(root);
	} else {
		print_text(&f, &shown);
		printf("\n");
		info_device_print(model, &f, &o->run);
	}
	return EXIT_OK;
}
