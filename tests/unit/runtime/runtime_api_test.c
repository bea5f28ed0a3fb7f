/* The calls of gradc.h in random order (runtime_api.h), from fixed seeds. With GRADC_API_SECONDS, as many sequences as fit
 * into the time, from the seed GRADC_API_SEED on. The last printed seed is the failing one. */
#include "tests/unit/runtime/runtime_api.h"

enum { SEEDS = 150, MOST_BYTES = 160 };

static void
fill(uint64_t seed, uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)(hash_mix(seed, i) >> 24);
}

static int64_t
setting(const char *name, int64_t otherwise)
{
	const char *text = getenv(name);
	int64_t value;

	return text && parse_int(text, &value) ? value : otherwise;
}

static void
test_any_calls_end_with_a_status(void **state)
{
	int64_t first = setting("GRADC_API_SEED", 0), seconds = setting("GRADC_API_SECONDS", 0);
	double begin = seconds_now(), told = begin;
	Tiny t = api_open_tiny();
	uint8_t bytes[MOST_BYTES];

	(void)state;
	for (int64_t i = first;
	     seconds ? seconds_now() - begin < (double)seconds : i < first + SEEDS; i++) {
		size_t n = 8 + hash_mix((uint64_t)i, 77) % (MOST_BYTES - 8);
		if (seconds && seconds_now() - told > 1) {
			told = seconds_now();
			fprintf(stderr, "seed %lld\n", (long long)i);
		}
		fill((uint64_t)i, bytes, n);
		api_run(&t, bytes, n);
	}
	tiny_close(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_calls_end_with_a_status),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
