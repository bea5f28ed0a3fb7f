/* Finds the instruction-set features (AVX2 ...) of this machine's CPU, and of CPUs given by
 * name. */

#if defined(__x86_64__)
#include "base/base.h"

#include <cpuid.h>
#endif
#include <string.h>
#include <unistd.h>

typedef struct {
	const char *name;
	bool here;
} Feature;
typedef struct {
	const char *name, *features;
} Level;

static const Level levels[] = {
#define CPU_LEVEL(name, features) {name, features},
#include "base/cpu_level_list.def"
#undef CPU_LEVEL
};

#if defined(__x86_64__)
#define CPU_FEATURE(name) {name, __builtin_cpu_supports(name) != 0},
#else
#define CPU_FEATURE(name) {name, false},
#endif
#define MAX_FEATURES 32

static int
list_features(Feature *out)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
#endif
	const Feature all[] = {
#include "base/cpu_feature_list.def"
	};
	_Static_assert(COUNT(all) <= MAX_FEATURES, "more features than room");
	memcpy(out, all, sizeof(all));
	return COUNT(all);
}

bool
cpu_is_intel(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
	return __builtin_cpu_is("intel") != 0;
#else
	return false;
#endif
}

const char *
cpu_bf16(void)
{
#if defined(__x86_64__)
	enum { AMX_BF16 = 1 << 22 /* EDX of leaf 7 */, AVX512_BF16 = 1 << 5 /* EAX of leaf 7,1 */ };
	unsigned a, b, c, d;

	if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_BF16)
		return "AMX";
	if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && a & AVX512_BF16)
		return "AVX-512 BF16";
#endif
	return NULL;
}

int64_t
cpu_second_cache(void)
{
	long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);

	return bytes > 0 ? bytes : 0;
}

const char *
cpu_features(Arena *arena, const char *cpu)
{
	Feature all[MAX_FEATURES];
	int n = list_features(all);
	const char *text = "";

	for (int i = 0; i < COUNT(levels); i++)
		if (strcmp(levels[i].name, cpu) == 0)
			return levels[i].features;
	if (strcmp(cpu, "native") != 0)
		return NULL;
	for (int i = 0; i < n; i++)
		if (all[i].here)
			text = arena_printf(arena, "%s%s%s", text, *text ? " " : "", all[i].name);
	return text;
}

/* The brand string: 16 bytes from each of three leaves, with spaces on either side. */
const char *
cpu_name(char to[CPU_NAME])
{
	const char *name = to;

	memset(to, 0, CPU_NAME);
#if defined(__x86_64__)
	unsigned leaf = 0x80000002, r[4];
	for (unsigned i = 0; i < 3 && __get_cpuid(leaf + i, r, r + 1, r + 2, r + 3); i++)
		memcpy(to + i * sizeof(r), r, sizeof(r));
#endif
	for (size_t n = strlen(to); n > 0 && to[n - 1] == ' '; n--)
		to[n - 1] = '\0';
	return name + strspn(name, " ");
}

int
cpu_vector_bits(const char *features)
{
	static const struct {
		const char *feature;
		int bits;
	} widths[] = {{"avx512f", 512}, {"avx", 256}};

	for (int i = 0; i < COUNT(widths); i++)
		for (const char *at = features; *at; at += strspn(at, " ")) {
			size_t n = strcspn(at, " ");
			if (strlen(widths[i].feature) == n && memcmp(widths[i].feature, at, n) == 0)
				return widths[i].bits;
			at += n;
		}
	return 128;
}

const char *
cpu_lacks(const char *features, int *n)
{
	Feature all[MAX_FEATURES];
	int n_all = list_features(all);

	for (const char *at = features; *at; at += strspn(at, " ")) {
		bool here = false;

		*n = (int)strcspn(at, " ");
		for (int i = 0; i < n_all; i++)
			if (strlen(all[i].name) == (size_t)*n &&
			    memcmp(all[i].name, at, (size_t)*n) == 0)
				here = all[i].here;
		if (!here)
			return at;
		at += *n;
	}
	return NULL;
}
