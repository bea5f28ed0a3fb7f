/* The checksum XXH3 (checksum.c), compiled with -mavx2 for CPUs that have AVX2. */
#include "runtime/host/host.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

void
checksum_add_avx2(Checksum *c, const void *bytes, int64_t n)
{
	XXH3_64bits_update((XXH3_state_t *)c, bytes, (size_t)n);
}
