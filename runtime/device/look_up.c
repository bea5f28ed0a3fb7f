/* Looks up bytes in tables. The host converts the values of files this way, and so does the device for tests. The kernels for a
 * GPU are in codegen/cuda/look_up.cuh. */
#include "runtime/device/device.h"

enum { ENTRIES = 256 };

/* stride 1: the channel changes with each element. */
#define LOOK_UP(name, T)                                                          \
	static void name(const LookUp *l)                                         \
	{                                                                         \
		const T *tables = l->tables;                                      \
		const uint8_t *from = l->from;                                    \
		int64_t n = l->n, channels = l->channels, stride = l->stride;     \
		T *to = l->to;                                                    \
                                                                                  \
		for (int64_t at = 0; stride == 1 && at < n; at += channels)       \
			for (int64_t c = 0; c < channels; c++)                    \
				to[at + c] = tables[ENTRIES * c + from[at + c]];  \
		for (int64_t at = 0, c = 0; stride > 1 && at < n; at += stride) { \
			const T *table = tables + ENTRIES * c;                    \
                                                                                  \
			for (int64_t i = 0; i < stride; i++)                      \
				to[at + i] = table[from[at + i]];                 \
			c = c + 1 < channels ? c + 1 : 0;                         \
		}                                                                 \
	}
LOOK_UP(look_up_2, uint16_t)
LOOK_UP(look_up_4, uint32_t)
LOOK_UP(look_up_8, uint64_t)
#undef LOOK_UP

void
look_up_on_host(const LookUp *l)
{
	static void (*const by_bytes[])(const LookUp *) = {
		[2] = look_up_2, [4] = look_up_4, [8] = look_up_8};

	by_bytes[l->bytes](l);
}
