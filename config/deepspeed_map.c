/* Turns DeepSpeed's keys into options of gradc and of the executables: keys that are an option by themselves, and options that
 * depend on several keys. deepspeed_types.c does optimizers and schedulers. */
#include "config/deepspeed.h"

#include <math.h>
#include <string.h>

void
deepspeed_put(DeepspeedReader *r, const char *option, const char *value, const char *key,
              const char *unless)
{
	const char *origin = arena_printf(r->arena, "%s: %s: ", r->file->path, key);
	DeepspeedOption o = {arena_strdup(r->arena, option), value, origin, unless};

	vec_push(r->arena, r->out, o);
}

/* The number of a key; 0: the key is missing. */
static double
number(const DeepspeedReader *r, const char *path)
{
	return json_number_value(deepspeed_get(r, path));
}

/* ---- keys that are an option by themselves */
static void
put_key(DeepspeedReader *r, const DeepspeedKey *k, const char *option)
{
	const json_t *v = strchr(k->path, '*') ? NULL : deepspeed_get(r, k->path);

	if (!v || !option || (k->gate && !deepspeed_is_on(r, k->gate)) || json_is_false(v))
		return;
	/* 0 turns clipping off. */
	if (k->kind == KEY_NUMBER && json_number_value(v) == 0)
		return;
	deepspeed_put(r, option, deepspeed_text(r, k->path, v), k->path, k->unless);
}

static void
map_keys(DeepspeedReader *r)
{
	for (const DeepspeedKey *k = deepspeed_keys; k->path; k++)
		if (k->fate == KEY_MAPPED)
			put_key(r, k, r->file->of == OF_GRADC ? k->compile : k->run);
}

/* ---- batches: train_batch_size = micro-batch * accumulation * ranks; the number of ranks is known only at run time */
static bool
is_any_given(const DeepspeedReader *r, const char *const *options)
{
	while (*options && !deepspeed_is_given(r, *options))
		options++;
	return *options;
}

static void
check_batches(DeepspeedReader *r)
{
	static const char *const names[] = {"train_micro_batch_size_per_gpu",
	                                    "gradient_accumulation_steps"};
	static const char *const lines[] = {"batch", "accumulate", "global-batch", "micro-batch",
	                                    NULL};
	double batch = number(r, "train_batch_size"), part = 1;
	const char *list = "";

	for (int i = 0; i < COUNT(names); i++) {
		double n = number(r, names[i]);
		part *= n > 0 ? n : 1;
		if (n > 0)
			list = arena_printf(r->arena, "%s%s%s = %.16g", list,
			                    *list ? " times " : "", names[i], n);
	}
	if (batch == 0 || fmod(batch, part) == 0 || is_any_given(r, lines))
		return;
	deepspeed_fault(r, "train_batch_size", deepspeed_get(r, "train_batch_size"),
	                arena_printf(r->arena, "not a multiple of %s", list),
	                "train_batch_size is their product times the number of ranks");
}

/* ---- precision */
static void
check_precisions(DeepspeedReader *r)
{
	static const char *const names[] = {"fp16.enabled", "bf16.enabled", "bfloat16.enabled",
	                                    "torch_autocast.enabled"};
	const char *first = NULL;

	for (int i = 0; i < COUNT(names) && !deepspeed_is_given(r, "precision"); i++) {
		if (!deepspeed_is_on(r, names[i]))
			continue;
		if (first)
			deepspeed_fault(r, arena_printf(r->arena, "%s and %s", first, names[i]),
			                NULL, "one of them", "set the other to false");
		first = names[i];
	}
}

/* The keys of DeepSpeed's loss-scale rule and their settings, in the order of the rule. */
static const struct {
	const char *key, *setting;
} scale_settings[] = {{"fp16.initial_scale_power", "init"},
                      {"fp16.loss_scale_window", "interval"},
                      {"fp16.hysteresis", "hysteresis"},
                      {"fp16.consecutive_hysteresis", "consecutive"},
                      {"fp16.min_loss_scale", "least"}};

static const char *
scale_setting(DeepspeedReader *r, const char *key, const json_t *v)
{
	if (strcmp(key, "fp16.initial_scale_power") == 0)
		return arena_printf(r->arena, "%.17g", ldexp(1, (int)json_number_value(v)));
	return deepspeed_text(r, key, v);
}

static void
check_least_scale(DeepspeedReader *r)
{
	const json_t *power = deepspeed_get(r, "fp16.initial_scale_power");
	const json_t *least = deepspeed_get(r, "fp16.min_loss_scale");
	double init = ldexp(1, power ? (int)json_number_value(power) : 16);

	if (json_number_value(least) > init)
		deepspeed_fault(r, "fp16.min_loss_scale", least,
		                arena_printf(r->arena, "above the first scale, %.17g", init),
		                "fp16.initial_scale_power says the first: 2 to that power");
}

static void
map_loss_scale(DeepspeedReader *r)
{
	const json_t *fixed = deepspeed_get(r, "fp16.loss_scale");
	const char *rule = "deepspeed";

	if (!deepspeed_is_on(r, "fp16.enabled") || deepspeed_is_given(r, "loss-scale"))
		return;
	if (json_number_value(fixed) > 0) {
		deepspeed_put(r, "loss-scale", deepspeed_text(r, "fp16.loss_scale", fixed),
		              "fp16.loss_scale", "precision");
		return;
	}
	check_least_scale(r);
	for (int i = 0; i < COUNT(scale_settings); i++) {
		const char *key = scale_settings[i].key;
		const json_t *v = deepspeed_get(r, key);
		if (v)
			rule = arena_printf(r->arena, "%s,%s=%s", rule, scale_settings[i].setting,
			                    scale_setting(r, key, v));
	}
	deepspeed_put(r, "loss-scale", rule, "fp16", "precision");
}

/* Sums over micro-batches are f32, so bf16 gradients need steps of one micro-batch. */
static void
map_gradients(DeepspeedReader *r)
{
	const char *key = "data_types.grad_accum_dtype";
	const json_t *v = deepspeed_get(r, key);
	const char *type = v ? json_string_value(v) : "";
	double parts = number(r, "gradient_accumulation_steps");

	if (deepspeed_is_given(r, "gradients"))
		return;
	if (strcmp(type, "fp32") == 0)
		deepspeed_put(r, "gradients", "f32", key, NULL);
	if ((strcmp(type, "bf16") == 0 && parts > 1) || strcmp(type, "fp16") == 0)
		deepspeed_fault(r, key, v,
		                *type == 'f'
		                        ? "gradients are f32 or bf16"
		                        : arena_printf(r->arena,
		                                       "with gradient_accumulation_steps = "
		                                       "%.16g: sums over micro-batches are of f32",
		                                       parts),
		                "\"fp32\", or leave it out");
	if (strcmp(type, "bf16") == 0 && parts <= 1) {
		deepspeed_put(r, "gradients", "bf16", key, NULL);
		deepspeed_put(r, "max-accumulate", "1", key, NULL);
	}
}

/* ---- offload */
/* The device of an offload block; NULL: no offload. */
static const char *
device_of(const DeepspeedReader *r, const char *block)
{
	const char *path = arena_printf(r->arena, "zero_optimization.%s.device", block);
	const char *device = json_string_value(deepspeed_get(r, path));

	return device && strcmp(device, "none") != 0 ? device : NULL;
}

static void
map_offload(DeepspeedReader *r)
{
	bool optimizer = device_of(r, "offload_optimizer") ||
	                 deepspeed_is_on(r, "zero_optimization.cpu_offload");
	bool params = device_of(r, "offload_param") ||
	              deepspeed_is_on(r, "zero_optimization.cpu_offload_param");

	bool activations = deepspeed_is_on(r, "activation_checkpointing.cpu_checkpointing");
	const char *list = arena_printf(r->arena, "%s%s%s", optimizer ? ",optimizer" : "",
	                                params ? ",params" : "", activations ? ",activations" : "");

	if (*list && !deepspeed_is_given(r, "offload"))
		deepspeed_put(r, "offload", list + 1,
		              optimizer || params ? "zero_optimization"
		                                  : "activation_checkpointing",
		              NULL);
}

/* Takes the folder of the first block whose device is nvme; the other block's folder is ignored. */
static void
map_offload_dir(DeepspeedReader *r)
{
	static const char *const blocks[] = {"offload_optimizer", "offload_param"};

	for (int i = 0; i < COUNT(blocks) && !deepspeed_is_given(r, "offload-dir"); i++) {
		const char *device = device_of(r, blocks[i]);
		const char *key = arena_printf(r->arena, "zero_optimization.%s.nvme_path",
		                               blocks[i]);
		const char *folder = json_string_value(deepspeed_get(r, key));
		if (!device || strcmp(device, "nvme") != 0)
			continue;
		if (folder && *folder)
			deepspeed_put(r, "offload-dir", arena_strdup(r->arena, folder), key, NULL);
		else
			deepspeed_fault(r, key, NULL, "device nvme needs a folder", NULL);
		return;
	}
}

/* ---- outputs */
static void
map_tensorboard(DeepspeedReader *r)
{
	const char *folder = json_string_value(deepspeed_get(r, "tensorboard.output_path"));
	const char *job = json_string_value(deepspeed_get(r, "tensorboard.job_name"));

	if (!deepspeed_is_on(r, "tensorboard.enabled"))
		return;
	job = arena_strdup(r->arena, job ? job : "DeepSpeedJobName");
	deepspeed_put(r, "tensorboard", folder && *folder ? path_join(r->arena, folder, job) : job,
	              "tensorboard", NULL);
}

void
deepspeed_map(DeepspeedReader *r)
{
	check_batches(r);
	map_keys(r);
	if (r->file->of == OF_GRADC) {
		check_precisions(r);
		map_loss_scale(r);
		map_gradients(r);
		map_offload(r);
	} else {
		map_tensorboard(r);
		map_offload(r);
		map_offload_dir(r);
	}
	deepspeed_map_types(r);
}
