/* SHA-1 (FIPS 180-4), for the checksums that external data may carry. SHA-1 detects accidental
 * changes, not attacks. */
#include "frontend/file/external.h"

#include <string.h>

static uint32_t
rotate(uint32_t x, int n)
{
	return x << n | x >> (32 - n);
}

static void
sha1_block(uint32_t h[5], const uint8_t *p)
{
	uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 80; i++)
		w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
	for (int i = 0; i < 80; i++) {
		uint32_t f = i < 20              ? (b & c) | (~b & d)
		             : i < 40 || i >= 60 ? b ^ c ^ d
		                                 : (b & c) | (b & d) | (c & d);
		static const uint32_t k[] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
		uint32_t t = rotate(a, 5) + f + e + k[i / 20] + w[i];
		e = d;
		d = c;
		c = rotate(b, 30);
		b = a;
		a = t;
	}
	h[0] += a;
	h[1] += b;
	h[2] += c;
	h[3] += d;
	h[4] += e;
}

void
sha1_hex(const void *bytes, size_t n, char hex[41])
{
	uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
	const uint8_t *p = bytes;
	uint8_t tail[128] = {0};
	size_t whole = n / 64 * 64, rest = n - whole, padded = rest < 56 ? 64 : 128;

	for (size_t i = 0; i < whole; i += 64)
		sha1_block(h, p + i);
	if (rest)
		memcpy(tail, p + whole, rest);
	tail[rest] = 0x80;
	for (int i = 0; i < 8; i++)
		tail[padded - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> (8 * i));
	for (size_t i = 0; i < padded; i += 64)
		sha1_block(h, tail + i);
	for (int i = 0; i < 5; i++)
		snprintf(hex + 8 * i, 9, "%08x", h[i]);
}
