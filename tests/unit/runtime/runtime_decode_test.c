/* Decoding: the look-up table gives the same bits as the arithmetic, in every layout and type. Large files and large orders
 * need no memory of their size. */
#include "runtime/data/sources.h"
#include "tests/unit/runtime/runtime_tiny.h"

#include <fcntl.h>

enum { CHANNELS = 3, PIXELS = 64, IMAGE = CHANNELS * PIXELS, IMAGES = 2 };

static const float mean_std[2 * CHANNELS] = {0.485f, 0.456f, 0.406f, 0.229f, 0.224f, 0.225f};

/* The definition of decoding, one element at a time. */
static double
decoded(const Source *s, uint8_t byte, DType from, int64_t i)
{
	double x = from == S8 ? (double)(int8_t)byte : (double)byte;

	x = x * s->scale + s->offset;
	if (!s->mean)
		return x;
	int64_t channel = i % IMAGE / s->channel_stride % CHANNELS;
	return (x - (double)s->mean[channel]) / (double)s->std[channel];
}

static void
check_decode(DType from, DType to, bool with_mean, int64_t stride)
{
	Arena *arena = arena_new();
	PortRecord port = {.dtype = to};
	Source s = {.port = &port, .elements = IMAGE, .scale = 1 / 255.0, .offset = 0.25};
	uint8_t raw[IMAGES * IMAGE], got[IMAGES * IMAGE * 8], want[IMAGES * IMAGE * 8];
	int64_t n = IMAGES * IMAGE;

	if (with_mean) {
		s.mean = mean_std;
		s.std = mean_std + CHANNELS;
		s.channels = CHANNELS;
		s.channel_stride = stride;
	}
	for (int i = 0; i < n; i++) {
		raw[i] = (uint8_t)(i * 37 + i / 256);
		dtype_store_float(to, want, i, decoded(&s, raw[i], from, i));
	}
	decode_prepare(arena, &s, from);
	assert_non_null(s.bytes);
	decode(&s, from, raw, n, got);
	assert_memory_equal(got, want, (size_t)dtype_bytes(to, n));
	s.bytes = NULL;
	memset(got, 0, sizeof(got));
	decode(&s, from, raw, n, got);
	assert_memory_equal(got, want, (size_t)dtype_bytes(to, n));
	arena_free(arena);
}

static void
test_bytes_to_floats(void **state)
{
	const DType types[] = {F64, F32, F16, BF16};

	for (int i = 0; i < COUNT(types); i++)
		for (int k = 0; k < 2; k++) {
			check_decode(k ? S8 : U8, types[i], false, 0);
			check_decode(k ? S8 : U8, types[i], true, 1);
			check_decode(k ? S8 : U8, types[i], true, PIXELS);
		}
}

/* Every pair of types with a loop of its own, against the conversion of single elements. */
static void
test_integers(void **state)
{
	const DType from[] = {U8, U16, U32, S32, S64, S16}, to[] = {S64, S32, U16};
	uint64_t raw[32], got[32], want[32];

	for (int i = 0; i < 32; i++)
		raw[i] = hash_mix((uint64_t)i, 99);
	for (int f = 0; f < COUNT(from); f++)
		for (int t = 0; t < COUNT(to); t++) {
			for (int i = 0; i < 32; i++)
				dtype_store_int(to[t], want, i, dtype_load_int(from[f], raw, i));
			dtype_convert(to[t], got, from[f], raw, 32);
			assert_memory_equal(got, want, (size_t)dtype_bytes(to[t], 32));
		}
}

/* Reads the last window of a sparse file of 20 GB. */
static void
check_huge(const char *name, int64_t size)
{
	Tiny t = tiny_open(true, 4);
	char *path = tiny_path(&t, name);
	int64_t bytes = 20ll << 30, length = 8;
	PortRecord port = {.dtype = S64, .file_dtype = S64, .max = 1000, .bounded = 1};
	Source s = {.port = &port, .name = "ids", .elements = length, .scale = 1};
	int64_t got[8];
	int fd = open(path, O_WRONLY | O_CREAT, 0666);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, bytes), 0);
	for (int64_t i = 0; i < 2 * length; i++) { /* the last two windows hold 1, 2, 3 ... */
		int64_t value = i + 1, at = bytes - (2 * length + 1 - i) * size;
		assert_int_equal(pwrite(fd, &value, (size_t)size, at), size);
	}
	close(fd);
	must(tokens_open(t.arena, path, false, &s.set));
	assert_int_equal(s.set.files[0].info.n_elements, bytes / size);
	s.set.files[0].rows = (bytes / size - 1) / length;
	char *raw = arena_alloc(t.arena, (size_t)(length * size));
	int64_t last = s.set.files[0].rows - 1, drift = (bytes / size - 1) % length;
	must(source_read(&s, last, 1, (char *)got, raw));
	for (int64_t i = 0; i < length; i++)
		assert_int_equal(got[i], length + 1 + i - drift);
	files_close(&s.set);
	tiny_close(&t);
}

static void
test_files_of_any_size(void **state)
{
	check_huge("a.bin", 2);
	check_huge("a.u32.bin", 4);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes_to_floats),
		cmocka_unit_test(test_integers),
		cmocka_unit_test(test_files_of_any_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
