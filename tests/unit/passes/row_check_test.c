/* Rows of optimizers, losses, passes and targets with missing entries are reported with row and column. */
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"
#include "passes/pass.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *said;
static size_t said_n;
static FILE *stream;

static Diag *
listen(void)
{
	stream = open_memstream(&said, &said_n);
	return diag_new("t", stream);
}

static void
assert_said(bool sound, Diag *diag, const char *want)
{
	diag_free(diag);
	fclose(stream);
	assert_false(sound);
	if (!strstr(said, want))
		fail_msg("want %s\nsaid %s", want, said);
	free(said);
}

static void
expect_optimizer(const OptimizerRow *row, const char *want)
{
	Diag *diag = listen();
	bool sound = optimizer_row_check(row, diag);

	assert_said(sound, diag, want);
}

static void
expect_loss(const LossRow *row, const char *want)
{
	Diag *diag = listen();
	bool sound = loss_row_check(row, diag);

	assert_said(sound, diag, want);
}

static void
expect_recipe(const Recipe *row, const char *want)
{
	Diag *diag = listen();
	bool sound = recipe_row_check(row, diag);

	assert_said(sound, diag, want);
}

static void
expect_pass(const PassRow *row, const char *want)
{
	Diag *diag = listen();
	bool sound = pass_row_check(row, diag);

	assert_said(sound, diag, want);
}

static void
expect_target(const Target *row, const char *want)
{
	Diag *diag = listen();
	bool sound = target_row_check(row, diag);

	assert_said(sound, diag, want);
}

static void
test_targets(void **state)
{
	const Target *known = target_table[0];
	Tuning own = *known->tuning;
	Target row = *known;

	(void)state;
	row.name = "x";
	row.line = 0;
	expect_target(&row, "target \"x\": lanes, registers or line are missing");
	row.line = 16;
	row.tuning = NULL;
	expect_target(&row, "target \"x\": column tuning is missing");
	row.tuning = &own;
	expect_target(&row, "its tuning is not its kind's, so its sums would have other bits");
	own.grains.parts = 0;
	expect_target(&row, "target \"x\": a number is missing in its tuning: grains.parts");
	own = *known->tuning;
	own.recompute.backward.least_bytes = 0;
	expect_target(&row, "recompute.backward.least_bytes");
}

static void
test_tiles(void **state)
{
	Target row = *target_find("cuda-sm_90");
	TeamTiles own = *row.tiles;
	TeamBlock *last = own.blocks;

	(void)state;
	row.tiles = &own;
	while (last[1].rows)
		last++;
	last->columns = 48;
	expect_target(&row, "a block of its tiles does not deal out whole units to all members");
	last->columns = 8; /* 16 * 8 numbers for 256 members */
	last->team = 256;
	expect_target(&row, "a block of its tiles does not deal out");
	*last = (TeamBlock){128, 128, 256};
	expect_target(&row, "a member has too many sums of f64 in the last block of its tiles");
	*last = (TeamBlock){32, 16, 32};
	row.shared_bytes = 13 << 10;
	expect_target(&row, "its shared_bytes are too few for two f64 stages of its last block");
	own.few_rows++;
	expect_target(&row, "its tiles add sums in another order than its kind's other targets");
	own.blocks[0].rows = 0;
	expect_target(&row, "its tiles lack processors, depth or blocks");
}

static void
test_tables(void **state)
{
	Diag *diag = diag_new("t", stderr);

	(void)state;
	assert_true(group_table_check(diag));
	assert_true(pass_tables_check(diag));
	assert_true(target_table_check(diag));
	assert_true(strategy_table_check(diag));
	diag_free(diag);
}

static void
update_nothing(Update *u)
{
	(void)u;
}
static void
update_param(Update *u)
{
	u->new_param = u->param;
}
static void
update_wrong_type(Update *u)
{
	u->new_param = u->lr;
}
static void
update_unnamed_moment(Update *u)
{
	u->new_param = b_binary(u->b, OP_sub, u->param, u->moment[0]);
}
static void
update_by_momentum(Update *u)
{
	Value *by = update_spread(u, update_scalar(u, SCALAR_MOMENTUM));

	u->new_param = b_binary(u->b, OP_sub, u->param, by);
}

static void
test_optimizers(void **state)
{
	const OptimizerRow sound = {
		.name = "x", .doc = "x", .defaults = "lr=0.1", .update = update_param};
	OptimizerRow row = sound;

	(void)state;
	row.doc = NULL;
	expect_optimizer(&row, "optimizer \"x\": column doc is missing");
	row = sound;
	row.update = NULL;
	expect_optimizer(&row, "optimizer \"x\": column update is missing");
	row.update = update_nothing;
	expect_optimizer(&row, "column update leaves new_param unset");
	row.update = update_wrong_type;
	expect_optimizer(&row, "column update gives new_param another type than param's f32");
	row.update = update_unnamed_moment;
	expect_optimizer(&row, "column moments lacks the name of moment 0, which update uses");
	row.update = update_by_momentum;
	expect_optimizer(&row, "column defaults lacks momentum, which update reads");
	row = sound;
	row.moments[0] = "velocity";
	expect_optimizer(&row, "column update leaves new_moment[0] unset, of velocity");
	row = sound;
	row.defaults = "lr=0.1 momentun=0.9";
	expect_optimizer(&row,
	                 "column defaults names the hyperparameter momentun, which does not exist");
	row.defaults = "lr=fast";
	expect_optimizer(&row, "column defaults has lr=fast: need NAME=NUMBER");
	row.defaults = NULL;
	expect_optimizer(&row, "column defaults is missing");
}

static void
build_nothing(Loss *l)
{
	(void)l;
}
static void
build_rows(Loss *l)
{
	l->sum = l->count = l->weight;
}

static void
test_losses(void **state)
{
	LossRow row = {.name = "x", .doc = "x"};

	(void)state;
	expect_loss(&row, "loss \"x\": column build is missing");
	row.build = build_nothing;
	expect_loss(&row, "column build leaves sum unset");
	expect_loss(&row, "column build leaves count unset");
	expect_loss(&row, "column build leaves targets unset");
	row.build = build_rows;
	expect_loss(&row, "column build gives sum another type than a scalar of the output's");
	row.options = (const PassOption[]){{"axis", "x", OPTION_INT, 0}, {0}};
	expect_loss(&row, "loss \"x\": column options_size is missing");
	expect_loss(&row, "column options names axis, which every loss has");
}

/* The options of a loss: defaults, then values from the text. */
typedef struct {
	double gamma;
	int64_t classes;
} Settings;
static void
test_loss_settings(void **state)
{
	static const PassOption options[] = {
		{"gamma", "x", OPTION_DOUBLE, offsetof(Settings, gamma)},
		{"classes", "x", OPTION_INT, offsetof(Settings, classes)},
		{0}};
	static const Settings defaults = {2, 3};
	LossRow row = {.name = "x",
	               .options = options,
	               .options_size = sizeof(Settings),
	               .defaults = &defaults};
	Arena *arena = arena_new();
	Diag *diag = listen();
	const Settings *given = loss_settings(&row, "classes=7", arena, diag);

	(void)state;
	assert_non_null(given);
	assert_true(given->gamma == 2 && given->classes == 7);
	assert_null(loss_settings(&row, "gamma=x", arena, diag));
	assert_null(loss_settings(&row, "gama=1", arena, diag));
	assert_said(false, diag, "loss x has no option gama");
	arena_free(arena);
}

static void
test_passes(void **state)
{
	PassRow row = pass_loss;

	(void)state;
	row.options_size = 0;
	expect_pass(&row, "pass \"loss\": column options_size is missing");
	row.options_size = 8;
	expect_pass(&row, "column options has output beyond the 8 bytes of options_size");
	row = pass_loss;
	row.run = NULL;
	expect_pass(&row, "pass \"loss\": column run is missing");
	row.help = NULL;
	expect_pass(&row, "pass \"loss\": column help is missing");
	row = pass_optimizer;
	row.options_size = 8;
	expect_pass(&row, "column options has name beyond the 8 bytes of options_size");
	row.options = (const PassOption[]){
		{"x", "x", OPTION_PARSED, 0},
		{"y", "y", OPTION_INT, 0, .parser = &optimizer_choice_parser},
		{0}};
	expect_pass(&row,
	            "column options has x with a parser but without OPTION_PARSED, or reversed");
	expect_pass(&row,
	            "column options has y with a parser but without OPTION_PARSED, or reversed");
}

static void
test_recipes(void **state)
{
	static const char *const unknown[] = {"dot", "dott", NULL};
	const Recipe sound = {
		.name = "r", .floats = F32, .products = BF16, .loss_scale = "none", .trains = true};
	Recipe r = sound;

	(void)state;
	r.high = unknown;
	expect_recipe(&r, "names the op dott, which does not exist");
	r = sound;
	r.products = S8;
	expect_recipe(&r, "products");
	r = sound;
	r.floats = BF16;
	expect_recipe(&r, "floats");
	r = sound;
	r.loss_scale = NULL;
	expect_recipe(&r, "loss_scale");
}

static void
test_flags(void **state)
{
	PassOption options[] = {{.name = "n",
	                         .help = "h",
	                         .kind = OPTION_BOOL,
	                         .flag = {.name = "f", .value = "X", .help = "h"}},
	                        {0}};
	PassRow row = pass_loss;

	(void)state;
	row.options = options;
	row.options_size = 1;
	expect_pass(&row, "has the option --f without value, help or group");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_targets), cmocka_unit_test(test_tiles),
		cmocka_unit_test(test_tables),  cmocka_unit_test(test_optimizers),
		cmocka_unit_test(test_losses),  cmocka_unit_test(test_loss_settings),
		cmocka_unit_test(test_passes),  cmocka_unit_test(test_recipes),
		cmocka_unit_test(test_flags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
