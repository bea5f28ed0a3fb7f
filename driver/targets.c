/* Parses --target=cpu:x86-64-v3,cuda:sm_90a: the CPUs and GPUs that kernels are compiled for. */
#include "codegen/codegen.h"
#include "driver/session.h"

#include <string.h>

/* Adds a CPU to the list of targets unless the list has it. */
static void
add_cpu(Options *o, Arena *arena, const char *cpu, const char *features)
{
	CpuTarget target = {cpu, features, target_of_vectors(cpu_vector_bits(features))};

	for (int i = 0; i < o->cpus.n; i++)
		if (strcmp(o->cpus.at[i].cpu, cpu) == 0)
			return;
	vec_push(arena, &o->cpus, target);
}

static void
add_gpu(Options *o, Arena *arena, const CudaArchitecture *gpu)
{
	for (int i = 0; i < o->gpus.n; i++)
		if (o->gpus.at[i] == gpu)
			return;
	vec_push(arena, &o->gpus, gpu);
}

static void
add_default_gpus(Options *o, Arena *arena)
{
	for (const CudaArchitecture *a = cuda_architectures; a->name; a++)
		if (a->by_default)
			add_gpu(o, arena, a);
}

/* Adds the machine whose name follows `cuda:` or `cpu:`; false: unknown name. */
static bool
add_machine(const OptionUse *u, bool cuda, const char *name)
{
	Options *o = u->to;
	const CudaArchitecture *gpu = cuda ? cuda_architecture_find(name) : NULL;
	const char *features = cuda ? NULL : cpu_features(u->arena, name);

	if (gpu)
		add_gpu(o, u->arena, gpu);
	else if (features)
		add_cpu(o, u->arena, name, features);
	return gpu || features;
}

static void
hint_targets(const OptionUse *u)
{
	Text t = {0};

	for (const CudaArchitecture *a = cuda_architectures; a->name; a++)
		text_printf(&t, "%s%s", a == cuda_architectures ? "cuda:" : ", ", a->name);
	option_hint(u, u->value,
	            arena_printf(u->arena,
	                         "it has auto, cpu, cpu:native, cpu:x86-64-v2, -v3, -v4, cuda, %s",
	                         t.at));
	text_free(&t);
}

/* --target=cpu:NAME,NAME,cuda:NAME,...: what kernels are compiled for. A name without prefix has the
 * prefix of the name before it. */
bool
set_target(const OptionUse *u, void *at)
{
	Options *o = u->to;
	char *copy = arena_strdup(u->arena, u->value), *save = NULL;
	bool cuda = false, any = false;

	*(const char **)at = u->value;
	o->cpus.n = 0;
	o->gpus.n = 0;
	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		bool of_cuda = strncmp(word, "cuda:", 5) == 0;
		bool of_cpu = strncmp(word, "cpu:", 4) == 0, known = true;
		const char *name = of_cuda ? word + 5 : of_cpu ? word + 4 : word;
		if (strcmp(word, "cuda") == 0) {
			add_default_gpus(o, u->arena);
			cuda = true;
		} else if (strcmp(word, "auto") == 0 || strcmp(word, "cpu") == 0) {
			add_machine(u, false, "native");
			cuda = false;
		} else {
			cuda = of_cuda || (cuda && !of_cpu);
			known = (of_cuda || of_cpu || any) && add_machine(u, cuda, name);
		}
		any = true;
		if (known)
			continue;
		diag_error(u->diag, EXIT_USAGE, "%s--target=%s: not supported in this build",
		           u->origin, u->value);
		hint_targets(u);
		return false;
	}
	if (!any) {
		diag_error(u->diag, EXIT_USAGE, "%s--target=%s names no CPU and no GPU", u->origin,
		           u->value);
		hint_targets(u);
	}
	return any;
}

bool
targets_complete(Options *o, Arena *arena, Diag *diag)
{
	const OptionUse use = {
		.value = o->target, .origin = "", .to = o, .arena = arena, .diag = diag};

	if (o->cpus.n || o->gpus.n)
		return true;
	if (o->target)
		return set_target(&use, &o->target);
	add_cpu(o, arena, "native", cpu_features(arena, "native"));
	return true;
}
