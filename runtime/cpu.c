/* Does this CPU have what the kernels were compiled for? Info "cpu_features": words. */
#include "runtime/cli.h"

#include <string.h>

#if defined(__x86_64__)
typedef struct {
	const char *name;
	bool there;
} Feature;

Status
cpu_check(const Format *f)
{
	const char *needed = format_info_get(f, "cpu_features");

	__builtin_cpu_init();
	const Feature features[] = {
#define CPU_FEATURE(name) {name, __builtin_cpu_supports(name) != 0},
#include "base/cpu_feature_list.def"
#undef CPU_FEATURE
	};
	for (const char *at = needed; at && *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");

		for (int i = 0; i < COUNT(features); i++)
			if (strlen(features[i].name) == n && memcmp(features[i].name, at, n) == 0 &&
			    !features[i].there)
				return status_error(
					EXIT_SYSTEM,
					"this CPU lacks %s, which the kernels use: compile the "
					"model on this machine",
					features[i].name);
		at += n;
	}
	return NULL;
}
#else
Status
cpu_check(const Format *f)
{
	return NULL;
}
#endif
