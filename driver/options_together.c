/* Checks options that only make sense together, or exclude each other. */
#include "codegen/codegen.h"
#include "driver/session.h"

#include <string.h>

static bool
is(const char *option, const char *value)
{
	return option && strcmp(option, value) == 0;
}

static bool
fault(Diag *diag, const char *why)
{
	diag_error(diag, EXIT_USAGE, "%s", why);
	return false;
}

static bool
check_gradients(const Options *o, Diag *diag)
{
	if (!is(o->gradients, "bf16"))
		return true;
	if (o->max_accumulate != 1)
		return fault(diag, "--gradients=bf16 needs --max-accumulate=1: sums over "
		                   "micro-batches are of f32");
	return recipe_find(o->precision)->floats != F64 ||
	       fault(diag, "--gradients=bf16 cannot be combined with --precision=f64");
}

static bool
check_sync_batchnorm(const Options *o, Diag *diag)
{
	return !o->sync_batchnorm || !is(o->eval_mode, "as-exported") ||
	       fault(diag, "--sync-batchnorm cannot be combined with --eval-mode=as-exported: "
	                   "in an evaluation ranks may have different numbers of batches, so "
	                   "they cannot exchange statistics");
}

static bool
check_printer(Options *o, Diag *diag)
{
	if (!o->printer)
		o->printer = o->keep_sources ? &printer_c : kernel_printers[0];
	return !o->keep_sources || o->printer == &printer_c ||
	       fault(diag, "--keep-sources: only --printer=c writes sources");
}

static bool
has_word(const char *list, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = list; at && (at = strstr(at, word)); at += n)
		if ((at == list || at[-1] == ',') && (at[n] == '\0' || at[n] == ','))
			return true;
	return false;
}

/* Checks --offload and the options that it needs. --offload moves the parts of states that each
 * rank holds to the host's memory; a single rank holds all parts. */
static bool
settle_offload(Options *o, Diag *diag)
{
	bool params = options_offload(o, OFFLOAD_PARAMS);
	bool optimizer = options_offload(o, OFFLOAD_OPTIMIZER);

	if (!params && !optimizer)
		return true;
	if (o->gpus.n > 0 && o->cpus.n == 0 && optimizer)
		return fault(
			diag,
			"--offload=optimizer: the host's CPU computes the optimizer's updates, "
			"so --target needs a CPU, too: --target=cpu,cuda");
	if (!o->data_parallel)
		o->data_parallel = mode_names[params ? MODE_ZERO3 : MODE_ZERO2];
	if (has_word(o->data_parallel, "zero1") ||
	    (params && has_word(o->data_parallel, "zero2"))) {
		diag_error(diag, EXIT_USAGE, "--offload=%s and --data-parallel=%s: need %s",
		           o->offload, o->data_parallel,
		           params ? "zero3, in which weights are gathered before they are read"
		                  : "zero2 or zero3, in which ranks have parts of gradients");
		return false;
	}
	if (!has_word(o->data_parallel, "zero2") && !has_word(o->data_parallel, "zero3"))
		return fault(
			diag,
			"--offload and --data-parallel=ddp: ddp keeps everything on the device; "
			"need zero2 or zero3");
	return true;
}

bool
options_complete(Options *o, Arena *arena, Diag *diag)
{
	if (!recipe_find(o->precision)) {
		diag_error(diag, EXIT_USAGE, "--precision=%s: there is no such recipe",
		           o->precision);
		return false;
	}
	return targets_complete(o, arena, diag) && check_gradients(o, diag) &&
	       check_sync_batchnorm(o, diag) && settle_offload(o, diag) && check_printer(o, diag);
}
