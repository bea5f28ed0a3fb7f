/* The kernel that looks up an input's bytes, a source of its own for NVRTC and for the tests, which run CUDA C on a CPU. Number i of
 * `to` becomes entry from[i] of its channel's table, as in runtime/device/look_up.c. Numbers are moved as 4 bytes, mostly f32.
 * `from` is memory of the host: it crosses the bus while the kernel runs. `to` and `from` begin at multiples of 16 bytes; n is
 * below 2^31. */
enum { GROUP = 16 }; /* bytes that a thread looks up at a time */

struct alignas(16) Bytes {
	unsigned words[GROUP / 4];
};
struct alignas(16) Numbers {
	unsigned at[GROUP];
};
/* The channel of a number, and how many numbers of this channel are left from here on. */
struct Place {
	unsigned channel, left;
};

static __device__ __forceinline__ void
advance(Place *p, unsigned channels, unsigned stride)
{
	if (--p->left > 0)
		return;
	p->left = stride;
	p->channel = p->channel + 1 < channels ? p->channel + 1 : 0;
}

extern "C" __global__ void __launch_bounds__(256, 1)
gradc_look_up_4(unsigned *to, const unsigned char *from, const unsigned *tables, unsigned n, unsigned channels, unsigned stride)
{
	const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;

	for (unsigned at = thread * GROUP; at < n; at += threads * GROUP) {
		Place p = {at / stride % channels, stride - at % stride};

		if (at + GROUP <= n) {
			const Bytes bytes = *(const Bytes *)(from + at);
			Numbers numbers;
#pragma unroll
			for (int i = 0; i < GROUP; i++) {
				const unsigned byte = bytes.words[i / 4] >> i % 4 * 8 & 255;
				numbers.at[i] = tables[256 * p.channel + byte];
				advance(&p, channels, stride);
			}
			*(Numbers *)(to + at) = numbers;
			continue;
		}
#pragma unroll 1
		for (unsigned i = at; i < n; i++) {
			to[i] = tables[256 * p.channel + from[i]];
			advance(&p, channels, stride);
		}
	}
}
