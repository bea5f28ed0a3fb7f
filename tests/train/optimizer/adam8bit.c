/* Adam with 8-bit moments over given gradients, by plain loops, as a reference for states: like bitsandbytes' blockwise kernel,
 * or like torchao's.
 * usage: adam8bit VARIANT N LR DECAY < gradients > states. In: f32[steps][n]. Out: codes of m and of v, absmax of m and of v,
 * weights.
 * usage: adam8bit maps > numbers. Out: the signed map, then the unsigned map. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, CODES = 256 };

static int
ascending(const void *a, const void *b)
{
	return (*(const float *)a > *(const float *)b) - (*(const float *)a < *(const float *)b);
}

static void
make_map(int is_signed, float *map)
{
	int n = 0;

	for (int decade = 0; decade < 7; decade++) {
		int parts = (is_signed ? 1 : 2) << decade;
		float edge[129], step = (1.0f - 0.1f) / (float)parts;
		for (int i = 0; i <= parts; i++)
			edge[i] = i < (parts + 1) / 2 ? fmaf(step, (float)i, 0.1f)
			                              : fmaf(-step, (float)(parts - i), 1.0f);
		for (int i = 0; i < parts; i++) {
			float x = (float)pow(10, decade - 6) * ((edge[i] + edge[i + 1]) / 2.0f);
			map[n++] = x;
			if (is_signed)
				map[n++] = -x;
		}
	}
	map[n++] = 1;
	for (; n < CODES; n++)
		map[n] = 0;
	qsort(map, CODES, sizeof(*map), ascending);
}

/* The index of the nearest number; in a tie the lower index. */
static int
nearest(const float *map, float x)
{
	int i = 0;

	while (i + 1 < CODES && x > (map[i] + map[i + 1]) / 2)
		i++;
	return i;
}

static int
nearest_of_torchao(const float *map, float x)
{
	int i = 0;

	while (i + 1 < CODES && x >= map[i + 1])
		i++;
	int next = i + 1 < CODES ? i + 1 : i;
	return x - map[i] >= (map[next] - map[i]) * 0.5f ? next : i;
}

static float
largest(const float *x, int n)
{
	float most = 0;

	for (int i = 0; i < n; i++)
		most = fmaxf(most, fabsf(x[i]));
	return most;
}

int
main(int argc, char **argv)
{
	float signed_map[CODES], unsigned_map[CODES];

	make_map(1, signed_map);
	make_map(0, unsigned_map);
	if (argc == 2) {
		fwrite(signed_map, 4, CODES, stdout);
		fwrite(unsigned_map, 4, CODES, stdout);
		return 0;
	}
	if (argc != 5)
		return 2;
	int torchao = strcmp(argv[1], "torchao") == 0, n = atoi(argv[2]),
	    blocks = (n + BLOCK - 1) / BLOCK;
	double lr = atof(argv[3]), decay = atof(argv[4]), beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
	int padded = blocks * BLOCK;
	float *g = calloc((size_t)padded, 4), *p = calloc((size_t)padded, 4),
	      *m = calloc((size_t)padded, 4), *v = calloc((size_t)padded, 4);
	float *sizes = calloc(2 * (size_t)blocks, 4);
	uint8_t *codes = calloc(2 * (size_t)padded, 1);

	for (int t = 1; fread(g, 4, (size_t)n, stdin) == (size_t)n; t++) {
		double c1 = 1 - pow(beta1, t), c2 = 1 - pow(beta2, t);
		for (int i = 0; i < padded; i++) {
			float a = t == 1 ? 0 : signed_map[codes[i]] * sizes[i / BLOCK];
			float s = t == 1 ? 0
			                 : unsigned_map[codes[padded + i]] *
			                           sizes[blocks + i / BLOCK];
			if (torchao) {
				m[i] = a + (float)(1 - beta1) * (g[i] - a);
				v[i] = s + (float)(1 - beta2) * (g[i] * g[i] - s);
			} else {
				m[i] = a * (float)beta1 + (1.0f - (float)beta1) * g[i];
				v[i] = s * (float)beta2 + (1.0f - (float)beta2) * g[i] * g[i];
			}
			if (torchao)
				p[i] *= (float)(1 - lr * decay);
			p[i] -= (float)(lr * sqrt(c2) / c1) *
			        (m[i] / (sqrtf(v[i]) + (float)(eps * sqrt(c2))));
			if (!torchao)
				p[i] *= (float)(1 - lr * decay);
		}
		for (int b = 0; b < blocks; b++) {
			float most_m = largest(m + b * BLOCK, BLOCK),
			      most_v = largest(v + b * BLOCK, BLOCK);
			if (torchao) {
				most_m = fmaxf(most_m, 1e-12f);
				most_v = fmaxf(most_v, 1e-12f);
			}
			sizes[b] = most_m;
			sizes[blocks + b] = most_v;
			for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
				float x = most_m > 0 ? m[i] / most_m : 0,
				      y = most_v > 0 ? v[i] / most_v : 0;
				int c = torchao ? nearest_of_torchao(signed_map, x)
				                : nearest(signed_map, x);
				if (!torchao && (signed_map[c] < 0) != (x < 0))
					c += x > 0 ? 1 : -1;
				codes[i] = (uint8_t)c;
				codes[padded + i] = (uint8_t)(torchao ? nearest_of_torchao(
										unsigned_map, y)
				                                      : nearest(unsigned_map, y));
			}
		}
	}
	fwrite(codes, 1, 2 * (size_t)padded, stdout);
	fwrite(sizes, 4, 2 * (size_t)blocks, stdout);
	fwrite(p, 4, (size_t)n, stdout);
	return 0;
}
