/* XXH3, 64 bits, of bytes as they come. */
#ifndef GRADC_CHECKSUM_H
#define GRADC_CHECKSUM_H

#include "base/base.h"

enum { CHECKSUM_HEX = 16 }; /* digits of one as text */
typedef struct {
	_Alignas(64) char state[576];
} Checksum;
void checksum_begin(Checksum *c);
void checksum_add(Checksum *c, const void *bytes, int64_t n);
uint64_t checksum_end(Checksum *c); /* and begins again */
uint64_t checksum_bytes(const void *bytes, int64_t n);
const char *checksum_text(char to[CHECKSUM_HEX + 1], uint64_t checksum);
/* By the vectors of any CPU, and of those that have AVX2. */
void checksum_add_any(Checksum *c, const void *bytes, int64_t n);
void checksum_add_avx2(Checksum *c, const void *bytes, int64_t n);

#endif
