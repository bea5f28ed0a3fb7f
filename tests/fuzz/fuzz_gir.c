/* Fuzzes .gir text: a module that can be read and verified prints to text that reads back as the same module. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static FILE *quiet;

static Module *
parse(const char *text)
{
	Diag *diag = diag_new("fuzz", quiet);
	Module *m = module_parse(text, "fuzz.gir", NULL, diag);

	if (m && !module_verify(m, diag)) {
		module_free(m);
		m = NULL;
	}
	diag_free(diag);
	return m;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Text first = {0}, second = {0};
	char *text = malloc(size + 1);

	if (!quiet)
		quiet = fopen("/dev/null", "w");
	memcpy(text, data, size);
	text[size] = '\0';
	Module *m = parse(text);
	if (m) {
		module_print(&first, m, NULL);
		/* Constants above 16 elements lie in a file beside the text, which has only their hash. */
		if (!strstr(first.at, "@data[")) {
			Module *again = parse(first.at);
			if (!again)
				abort();
			module_print(&second, again, NULL);
			if (strcmp(first.at, second.at) != 0)
				abort();
			module_free(again);
		}
	}
	module_free(m);
	text_free(&first);
	text_free(&second);
	free(text);
	return 0;
}
