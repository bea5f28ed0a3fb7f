/* Fuzzes ONNX bytes: reading either reports a fault or gives a module that the verifier accepts. */
#include "frontend/frontend.h"
#include "tests/fuzz/in_file.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static FILE *quiet;

static void
import(const char *path)
{
	Binding binding = {.text = ""};
	ImportOptions options = {.bindings = &binding, .n_bindings = 1, .open_dims = OPEN_ONE};
	Diag *diag = diag_new("fuzz", quiet);
	Model *model = model_open(path, diag);
	Module *m = model ? model_import(model, &options, diag) : NULL;

	if (!m && diag_errors(diag) == 0)
		abort(); /* refused without a message */
	if (m) {
		Diag *faults = diag_new("fuzz", stderr);
		if (!module_verify(m, faults))
			abort();
		diag_free(faults);
	}
	module_free(m);
	model_close(model);
	diag_free(diag);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *path = in_file(data, size);

	if (!quiet)
		quiet = fopen("/dev/null", "w");
	import(path);
	return 0;
}
