/* Checksums of checkpoints and other memory: XXH3 with 64 bits
 * (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md). xxHash's header is compiled twice: here for every CPU, and
 * in checksum_avx2.c for CPUs with AVX2, which hash a checkpoint in a third of the time. */
#include "runtime/host/host.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

_Static_assert(sizeof(XXH3_state_t) <= sizeof(Checksum), "a checksum's state");

void
checksum_begin(Checksum *c)
{
	XXH3_64bits_reset((XXH3_state_t *)c);
}

void
checksum_add_any(Checksum *c, const void *bytes, int64_t n)
{
	XXH3_64bits_update((XXH3_state_t *)c, bytes, (size_t)n);
}

void
checksum_add(Checksum *c, const void *bytes, int64_t n)
{
	(__builtin_cpu_supports("avx2") ? checksum_add_avx2 : checksum_add_any)(c, bytes, n);
}

uint64_t
checksum_end(Checksum *c)
{
	uint64_t checksum = XXH3_64bits_digest((XXH3_state_t *)c);

	checksum_begin(c);
	return checksum;
}

uint64_t
checksum_bytes(const void *bytes, int64_t n)
{
	Checksum c;

	checksum_begin(&c);
	checksum_add(&c, bytes, n);
	return checksum_end(&c);
}

const char *
checksum_text(char to[CHECKSUM_HEX + 1], uint64_t checksum)
{
	snprintf(to, CHECKSUM_HEX + 1, "%016llx", (unsigned long long)checksum);
	return to;
}
