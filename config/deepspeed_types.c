/* Turns DeepSpeed's optimizers and schedulers into options. A table has a row for each `type`, such as "AdamW": gradc's
 * name, the defaults that differ, and the setting or option for each parameter. */
#include "config/deepspeed.h"

#include <string.h>
#include <strings.h>

/* clang-format off */
#define LR {"lr", "lr", "lr"}
#define BETAS {"betas", "beta", "beta"}
#define EPS {"eps", "eps", "eps"}
#define DECAY {"weight_decay", "weight_decay", "weight-decay"}
#define ADAM LR, BETAS, EPS, DECAY, {"bias_correction"}, {"amsgrad", "amsgrad"}, {"torch_adam"}, {"adam_w_mode"}, {"set_grad_none"}, {"foreach"}, {"fused"}
#define SGD LR, DECAY, {"nesterov"}, {"foreach"}, {"fused"}
#define TORCH LR, EPS, DECAY, {"foreach"}
#define ONE_BIT LR, BETAS, EPS, DECAY, {"bias_correction"}, {"amsgrad"}, {"freeze_step"}, {"cuda_aware"}, {"comm_backend_name"}
#define RATIO LR, BETAS, EPS, DECAY, {"bias_correction"}, {"amsgrad"}, {"max_coeff"}, {"min_coeff"}, {"eps_inside_sqrt"}, {"set_grad_none"}
const DeepspeedType deepspeed_optimizers[] = {
	{"Adam", .off = "adam_w_mode", .name = "adam", .params = {ADAM}, .says = "with `adam_w_mode` false"},
	{"Adam", .when = "torch_adam", .name = "adamw", .defaults = "weight_decay=0.01", .params = {ADAM}, .says = "with `torch_adam` true"},
	{"Adam", .name = "adamw", .defaults = "weight_decay=0", .params = {ADAM}, .says = "AdamW, unless `adam_w_mode` is false"},
	{"AdamW", .when = "torch_adam", .name = "adamw", .defaults = "weight_decay=0.01", .params = {ADAM}, .says = "with `torch_adam` true"},
	{"AdamW", .name = "adamw", .defaults = "weight_decay=0", .params = {ADAM}},
	{"Lion", .name = "lion", .defaults = "lr=0.001", .params = {LR, BETAS, DECAY, {"set_grad_none"}}},
	{"Muon", .name = "muon", .defaults = "lr=0.02,momentum=0.95,weight_decay=0,rest_lr=0.0003,rest_weight_decay=0,rest_beta1=0.9,rest_beta2=0.95,rest_eps=1e-10",
	 .params = {LR, {"lr", "rest_lr", NULL}, {"muon_lr", "lr", "lr"}, {"adam_lr", "rest_lr", NULL}, {"scheduler.params.warmup_max_lr", "rest_lr", NULL},
		    {"scheduler.params.lr_range_test_min_lr", "rest_lr", NULL}, {"scheduler.params.cycle_max_lr", "rest_lr", NULL}, {"momentum", "momentum", "momentum"},
		    DECAY, {"weight_decay", "rest_weight_decay", NULL}, {"betas", "rest_beta", NULL}, {"eps", "rest_eps", NULL}},
	 .says = "AdamW updates the parameters that Muon does not update; `betas`, `eps` and `adam_lr` are for AdamW"},
	{"SGD", .when = "nesterov", .without = "momentum", .params = {SGD, {"momentum"}, {"dampening"}}, .says = "torch.optim.SGD wants a momentum for nesterov", .hint = "give optimizer.params.momentum"},
	{"SGD", .when = "nesterov", .name = "nesterov", .params = {SGD, {"momentum", "momentum", "momentum"}, {"dampening"}}, .says = "with `nesterov` true"},
	{"SGD", .when = "momentum", .name = "momentum", .params = {SGD, {"momentum", "momentum", "momentum"}, {"dampening", "dampening", NULL}}, .says = "with a `momentum` above 0"},
	{"SGD", .name = "sgd", .params = {SGD, {"momentum"}, {"dampening"}}},
	{"Adagrad", .name = "adagrad", .params = {TORCH, {"lr_decay", "lr_decay", NULL}}},
	{"RMSprop", .name = "rmsprop", .params = {TORCH, {"alpha", "alpha", NULL}, {"momentum", "momentum", NULL}, {"centered", "centered", NULL}}},
	{"Adadelta", .name = "adadelta", .params = {TORCH, {"rho", "rho", NULL}}},
	{"NAdam", .name = "nadam", .params = {TORCH, BETAS, {"momentum_decay", "momentum_decay", NULL}, {"decoupled_weight_decay", "decoupled", NULL}}},
	{"RAdam", .name = "radam", .params = {TORCH, BETAS, {"decoupled_weight_decay", "decoupled", NULL}}},
	{"Lamb", .params = {RATIO}, .says = "DeepSpeed keeps the ratio of norms between min_coeff and max_coeff, 0.01 and 10 by default; --optimizer=lamb does not",
	 .hint = "give --optimizer=lamb on the command line"},
	{"OneBitAdam", .params = {ONE_BIT}, .says = "1-bit messages are not supported", .hint = "the type Adam is the same without 1-bit messages"},
	{"ZeroOneAdam", .params = {ONE_BIT, {"var_freeze_step"}, {"var_update_scaler"}, {"local_step_scaler"}, {"local_step_clipper"}}, .says = "1-bit messages are not supported", .hint = "the type Adam is the same without 1-bit messages"},
	{"OneBitLamb", .params = {RATIO, {"freeze_step"}, {"cuda_aware"}, {"comm_backend_name"}, {"coeff_beta"}, {"factor_max"}, {"factor_min"}, {"factor_threshold"}},
	 .says = "1-bit messages are not supported", .hint = "give --optimizer=lamb on the command line"},
	{0}};

#define WARM {"warmup_num_steps", "steps", NULL}, {"warmup_type", "log", NULL}, {"last_batch_iteration"}
#define TO_MAX {"warmup_min_lr", NULL, "min-lr"}, {"warmup_max_lr", NULL, "lr"}
#define TOTAL {"total_num_steps", "total", NULL}
#define CYCLE {"cycle_min_lr", NULL, "min-lr"}, {"cycle_max_lr", NULL, "lr"}, {"cycle_first_step_size", "first", NULL}, {"cycle_second_step_size", "second", NULL}, \
	{"decay_step_size", "size", NULL}, {"decay_lr_rate", "rate", NULL}, {"cycle_first_stair_count"}, {"cycle_second_stair_count"}, {"cycle_momentum"}, {"cycle_min_mom"}, \
	{"cycle_max_mom"}, {"decay_mom_rate"}, {"last_batch_iteration"}
const DeepspeedType deepspeed_schedulers[] = {
	{"WarmupLR", .name = "deepspeed-warmup", .params = {WARM, TO_MAX}},
	{"WarmupDecayLR", .name = "deepspeed-decay", .run_default = "lr=0.001", .params = {WARM, TO_MAX, TOTAL}},
	{"WarmupCosineLR", .name = "deepspeed-cosine", .params = {WARM, TOTAL, {"warmup_min_ratio", "min_ratio", NULL}, {"cos_min_ratio", "cos_min_ratio", NULL}}},
	{"LRRangeTest", .name = "deepspeed-range", .run_default = "lr=0.001", .params = {{"lr_range_test_min_lr", NULL, "lr"}, {"lr_range_test_step_size", "size", NULL},
		{"lr_range_test_step_rate", "rate", NULL}, {"lr_range_test_staircase", "stairs", NULL}, {"last_batch_iteration"}},
	 .says = "`--find-lr` looks for a learning rate by itself"},
	{"OneCycle", .off = "cycle_momentum", .name = "deepspeed-cycle", .needs = {"cycle_min_lr", "cycle_max_lr"}, .params = {CYCLE}, .says = "with `cycle_momentum` false"},
	{"OneCycle", .params = {CYCLE}, .says = "DeepSpeed's cycle changes the momentum, too; here it stays constant", .hint = "set scheduler.params.cycle_momentum to false, or use --lr-schedule=one-cycle"},
	{0}};
/* clang-format on */

/* ---- finding the row of a type */
typedef struct {
	const char *block;  /* "optimizer" */
	const char *option; /* option that the type becomes */
	unsigned of;        /* OF_...: program that has the option */
	const DeepspeedType *rows;
} TypeBlock;
static const TypeBlock blocks[] = {
	{"optimizer", "optimizer", OF_GRADC, deepspeed_optimizers},
	{"scheduler", "lr-schedule", OF_EXECUTABLE, deepspeed_schedulers},
};

static const char *
param_path(const DeepspeedReader *r, const TypeBlock *b, const char *key)
{
	return strchr(key, '.') ? key : arena_printf(r->arena, "%s.params.%s", b->block, key);
}

static const json_t *
param_value(const DeepspeedReader *r, const TypeBlock *b, const char *key)
{
	return deepspeed_get(r, param_path(r, b, key));
}

static bool
is_set(const DeepspeedReader *r, const TypeBlock *b, const char *key)
{
	const json_t *v = param_value(r, b, key);

	return json_is_true(v) || (json_is_number(v) && json_number_value(v) != 0);
}

static bool
fits(const DeepspeedReader *r, const TypeBlock *b, const DeepspeedType *row)
{
	return (!row->when || is_set(r, b, row->when)) &&
	       (!row->without || !is_set(r, b, row->without)) &&
	       (!row->off || (param_value(r, b, row->off) && !is_set(r, b, row->off)));
}

static const char *
type_names(Arena *arena, const DeepspeedType *rows)
{
	const char *list = "";

	for (const DeepspeedType *t = rows; t->type; t++)
		if (t == rows || strcmp(t->type, t[-1].type) != 0)
			list = arena_printf(arena, "%s%s%s", list, *list ? ", " : "", t->type);
	return list;
}

static const char *
type_path(const DeepspeedReader *r, const TypeBlock *b)
{
	return arena_printf(r->arena, "%s.type", b->block);
}

/* The row for the block's type; NULL: the type is missing or unknown. */
static const DeepspeedType *
find_type(const DeepspeedReader *r, const TypeBlock *b)
{
	const char *type = json_string_value(deepspeed_get(r, type_path(r, b)));

	for (const DeepspeedType *row = b->rows; type && row->type; row++)
		if (strcasecmp(row->type, type) == 0 && fits(r, b, row))
			return row;
	return NULL;
}

/* ---- parameters of a type */
static bool
takes_param(const DeepspeedType *row, const char *key)
{
	for (int i = 0; i < MOST_PARAMS && row->params[i].key; i++)
		if (strcmp(row->params[i].key, key) == 0)
			return true;
	return false;
}

static const char *
param_names(Arena *arena, const DeepspeedType *row)
{
	const char *list = "it has";

	for (int i = 0; i < MOST_PARAMS && row->params[i].key; i++) {
		const char *key = row->params[i].key;
		bool again = strchr(key, '.');
		for (int k = 0; k < i; k++)
			again |= strcmp(row->params[k].key, key) == 0;
		if (!again)
			list = arena_printf(arena, "%s%s %s", list, i ? "," : "", key);
	}
	return list;
}

static void
check_params(DeepspeedReader *r, const TypeBlock *b, const DeepspeedType *row)
{
	const json_t *params = deepspeed_get(r, arena_printf(r->arena, "%s.params", b->block));
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)params, key, value)
		if (!takes_param(row, key))
			deepspeed_fault(
				r, param_path(r, b, key), NULL,
				arena_printf(r->arena, "%s has no such parameter", row->type),
				param_names(r->arena, row));
	for (int i = 0; i < COUNT(row->needs) && row->needs[i]; i++)
		if (!param_value(r, b, row->needs[i]))
			deepspeed_fault(r, param_path(r, b, row->needs[i]), NULL,
			                arena_printf(r->arena, "%s needs it", row->type), NULL);
}

/* Settings such as "lr=0.02", in order; a later value of the same name replaces the earlier value. */
typedef struct {
	StringList names, values;
} Parts;

static void
set_part(Arena *arena, Parts *p, const char *name, const char *value)
{
	for (int i = 0; i < p->names.n; i++)
		if (strcmp(p->names.at[i], name) == 0) {
			p->values.at[i] = value;
			return;
		}
	vec_push(arena, &p->names, name);
	vec_push(arena, &p->values, value);
}

static void
set_defaults(Arena *arena, Parts *p, const char *list)
{
	char *copy = arena_strdup(arena, list ? list : ""), *save = NULL;

	for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		char *equals = strchr(word, '=');
		*equals = '\0';
		set_part(arena, p, word, equals + 1);
	}
}

static const char *
with_parts(Arena *arena, const char *name, const Parts *p)
{
	for (int i = 0; i < p->names.n; i++)
		name = arena_printf(arena, "%s,%s=%s", name, p->names.at[i], p->values.at[i]);
	return name;
}

/* Adds the option that the type becomes, with its settings, to the result: "adamw,weight_decay=0". */
static void
put_type(DeepspeedReader *r, const TypeBlock *b, const DeepspeedType *row)
{
	Arena *arena = r->arena;
	Parts parts = {0};

	set_defaults(arena, &parts, row->defaults);
	for (int i = 0; i < MOST_PARAMS && row->params[i].key; i++) {
		const TypeParam *p = &row->params[i];
		const json_t *v = param_value(r, b, p->key);
		if (!v || !p->part)
			continue;
		const char *path = param_path(r, b, p->key);
		if (!json_is_array(v))
			set_part(arena, &parts, p->part, deepspeed_text(r, path, v));
		for (size_t k = 0; k < json_array_size(v); k++)
			set_part(arena, &parts, arena_printf(arena, "%s%zu", p->part, k + 1),
			         deepspeed_text(r, path, json_array_get(v, k)));
	}
	deepspeed_put(r, b->option, with_parts(arena, row->name, &parts), type_path(r, b), NULL);
}

/* Adds the options of the executable that the type's parameters become, such as --lr. If the command line has another
 * schedule, the file's schedule is dropped, and so are its learning rates. */
static void
put_run(DeepspeedReader *r, const TypeBlock *b, const DeepspeedType *row)
{
	Arena *arena = r->arena;
	const char *unless = b->of == OF_EXECUTABLE ? b->option : NULL;
	const char *equals = row->run_default ? strchr(row->run_default, '=') : NULL;

	if (equals)
		deepspeed_put(
			r,
			arena_strndup(arena, row->run_default, (size_t)(equals - row->run_default)),
			equals + 1, type_path(r, b), unless);
	for (int i = 0; i < MOST_PARAMS && row->params[i].key; i++) {
		const TypeParam *p = &row->params[i];
		const json_t *v = p->run ? param_value(r, b, p->key) : NULL;
		const char *path = param_path(r, b, p->key);
		if (v && !json_is_array(v))
			deepspeed_put(r, p->run, deepspeed_text(r, path, v), path, unless);
		for (size_t k = 0; v && k < json_array_size(v); k++)
			deepspeed_put(r, arena_printf(arena, "%s%zu", p->run, k + 1),
			              deepspeed_text(r, path, json_array_get(v, k)), path, unless);
	}
}

/* Reports a type that is missing, unknown or refused. */
static void
refuse_type(DeepspeedReader *r, const TypeBlock *b, const DeepspeedType *row)
{
	const json_t *type = deepspeed_get(r, type_path(r, b));

	if (row)
		deepspeed_fault(r, type_path(r, b), type, row->says, row->hint);
	else
		deepspeed_fault(
			r, type_path(r, b), type, type ? "there is no such type" : "is missing",
			arena_printf(r->arena, "it may be %s", type_names(r->arena, b->rows)));
}

/* Maps one block. Only the program that has the option reports faults. */
static void
map_block(DeepspeedReader *r, const TypeBlock *b)
{
	bool own = r->file->of == b->of && !deepspeed_is_given(r, b->option);
	const DeepspeedType *row = find_type(r, b);

	if (!deepspeed_get(r, b->block))
		return;
	if (own && (!row || !row->name)) {
		refuse_type(r, b, row);
		return;
	}
	if (own) {
		check_params(r, b, row);
		put_type(r, b, row);
	}
	if (r->file->of == OF_EXECUTABLE && row)
		put_run(r, b, row);
}

void
deepspeed_map_types(DeepspeedReader *r)
{
	for (int i = 0; i < COUNT(blocks); i++)
		map_block(r, &blocks[i]);
}
