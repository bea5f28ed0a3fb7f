/* Interprets bytes as calls of gradc.h on sessions of a tiny model (tests/unit/runtime/runtime_api.h), on one to three
 * threads. Each call must end with a Status. FUZZ_SANITIZER=thread builds it with Clang's thread sanitizer instead of the
 * others. */
#include "tests/unit/runtime/runtime_api.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static Tiny tiny;

	if (!tiny.arena)
		tiny = api_open_tiny();
	api_run(&tiny, data, size);
	return 0;
}
