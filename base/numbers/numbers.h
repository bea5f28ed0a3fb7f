/* Numbers: the element types with the one table of conversions, and what is computed of them in several folders. Sections are named
 * after the .c file. */
#ifndef GRADC_BASE_NUMBERS_NUMBERS_H
#define GRADC_BASE_NUMBERS_NUMBERS_H

#include "base/base.h"

/* ---- dtype.c: the element types and the one table of conversions. */
/* clang-format off */
typedef enum {
	F64, F32, F16, BF16, F8E4M3, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, F4E2M1, E8M0,
	S64, S32, S16, S8, S4, S2, U64, U32, U16, U8, U4, U2, BOOL,
	N_DTYPES,
} DType;
/* clang-format on */
typedef enum { CLASS_FLOAT, CLASS_SIGNED, CLASS_UNSIGNED, CLASS_BOOL } DTypeClass;
typedef struct {
	const char *name; /* "f32" */
	uint8_t bits;     /* 4- and 2-bit types are packed, low bits first */
	DTypeClass class;
	const char *npy;         /* "<f4", NULL where NumPy has no such type */
	const char *npy_bits;    /* the unsigned type that holds its raw bits: "<u2" for bf16 */
	const char *safetensors; /* "F32", NULL where the format has no such type */
} DTypeInfo;
extern const DTypeInfo dtype_info[N_DTYPES];

/* A float type below f32. Codes are bit patterns without the sign. */
typedef struct {
	uint8_t bits, mantissa;
	int16_t bias;       /* a normal number is 1.m * 2^(exponent - bias) */
	uint16_t sign;      /* its bit, 0 for e8m0 */
	uint16_t largest;   /* code of the largest finite value */
	uint16_t overflow;  /* code of finite values above */
	uint16_t infinity;  /* 0: has none */
	uint16_t nan;       /* the pattern that NaN becomes; f4e2m1 has no NaN and gives -0 */
	bool unsigned_zero; /* fnuz: no -0, its pattern is the only NaN */
	bool only_normal;   /* e8m0: exponent 0 is a power of two like any other */
} FloatFormat;
const FloatFormat *float_format(DType t); /* NULL: any other type */

/* How a number becomes one of a format that has fewer. AWAY: from zero. STOCHASTIC: the magnitude's fraction f of
 * a unit in the last place rounds up where 32 random bits are below floor(2^32 f). */
typedef enum { ROUND_NEAREST, ROUND_TOWARD_ZERO, ROUND_AWAY, ROUND_STOCHASTIC } Rounding;
/* What lies above the largest number. DEFAULT: infinity of f16 and bf16, the largest number of other formats, but
 * infinity stays infinity where there is one. SATURATE: the largest number. SPECIAL: infinity, or NaN where there is
 * none; f4e2m1 has neither and saturates. A finite number rounded toward zero never gets there. */
typedef enum { OVERFLOW_DEFAULT, OVERFLOW_SATURATE, OVERFLOW_SPECIAL } Overflow;
extern const char *const rounding_names[], *const overflow_names[];
typedef struct {
	Rounding round;
	Overflow overflow;
} Conversion;
typedef struct {
	uint16_t finite, infinite; /* codes of finite values above the largest, of infinity */
} OverflowCodes;
OverflowCodes float_overflow(const FloatFormat *f, Overflow overflow);

bool dtype_parse(const char *name, DType *out);
static inline bool
dtype_is_float(DType t)
{
	return dtype_info[t].class == CLASS_FLOAT;
}
/* The type in which a result computed as `computed` is written, where the graph declares `declared`: f64 stays
 * f64, other floats take the declared type. */
static inline DType
result_dtype(DType computed, DType declared)
{
	return computed == F64 || !dtype_is_float(computed) ? computed : declared;
}
/* Bytes of n elements; packed types round up. n must be >= 0. */
int64_t dtype_bytes(DType t, int64_t n);
/* Element i of an array of dtype t. Floats (round to nearest even, as Conversion's default) through double;
 * signed and bool through int64, u64 through its bits. */
double dtype_load_float(DType t, const void *at, int64_t i);
void dtype_store_float(DType t, void *at, int64_t i, double value);
int64_t dtype_load_int(DType t, const void *at, int64_t i);
void dtype_store_int(DType t, void *at, int64_t i, int64_t value); /* wraps */
/* value rounded once to the float type t, as a double. */
double dtype_round(DType t, double value);
/* To a float type below f32 in any way; random: 32 bits for ROUND_STOCHASTIC. */
double dtype_round_as(DType t, Conversion how, double value, uint32_t random);
/* An integer as a double from which every smaller float rounds as from the integer itself. */
double dtype_int_for_rounding(uint64_t bits, bool is_signed);
/* round(x / scale) + zero, clamped to the integer type t; NaN gives 0. Steps are rounded to the type `arithmetic`, f32 or f64.
 * reciprocal: x times 1 / scale, in place of the division. */
int64_t dtype_quantize(DType t, DType arithmetic, bool reciprocal, double x, double scale,
                       double zero);
/* The smallest and the largest number of an integer type of at most 32 bits, or of a float type below f32. */
void dtype_range(DType t, double *low, double *high);
/* Converts n elements from one type to another as C does (float to integer truncates and
 * saturates, NaN to 0; to bool: != 0). */
void dtype_convert(DType to, void *dst, DType from, const void *src, int64_t n);
/* A hash of floats by their values: the same whatever wider type holds them. */
uint64_t hash_numbers(DType dtype, const void *data, int64_t n);

/* ---- groups.c: elements that share a number, as those of a block share a scale: group[i] places along each axis, the last group perhaps
 * shorter. Groups are counted in row-major order, as the elements. */
typedef struct {
	int rank;
	const int64_t *dims, *group; /* group: at least 1 each */
} Groups;
int64_t groups_along(const Groups *g, int axis);
int64_t groups_count(const Groups *g);
int64_t groups_at(const Groups *g, const int64_t *at); /* of the element at these indices */
/* Every element and its group: for (GroupWalk w = group_walk(&g); w.i < n; group_next(&w)) */
typedef struct {
	Groups groups;
	int64_t at[MAX_RANK], i, group;
} GroupWalk;
GroupWalk group_walk(const Groups *g);
void group_next(GroupWalk *w);

/* ---- quantization.c */
/* Codes: integers, or numbers of floats of 8 and 4 bits, whose zero point is 0. Scale and zero point for a range, 0 in it (quant_utils.py:
 * compute_scale_zp). symmetric: the same scale on both sides of the middle code; so it is for floats. A range of nothing has scale 1. */
void quantization_of(DType type, bool symmetric, float low, float high, float *scale,
                     int32_t *zero);
/* Of 0, 1, ... 255: what onnxruntime divides a standard deviation by for the scale of 8-bit floats, whatever numbers they are. */
#define DEVIATION_OF_BYTES 73.90027f
/* Those of each group of numbers of type `dtype`, by its smallest and largest: symmetric where codes are signed. Of 8-bit floats by the
 * group's standard deviation (compute_scale_zp_float8), where its largest number has a code then. */
void quantization_of_groups(DType type, const Groups *g, DType dtype, const void *data,
                            Arena *scratch, float *scale, int32_t *zero);
/* x's code as element i of an array, and the number that it stands for; steps are rounded to f32. */
void code_store(DType type, void *at, int64_t i, double x, double scale, double zero);
double code_number(DType type, double x, double scale, double zero);

/* ---- difference.c: a derivative at x beside central differences of f, with as many steps as it takes. dtype, F64 or a smaller
 * float: what x is stored in. f may be called at x and beside it, last at any of these. */
typedef Status (*DifferenceOf)(void *context, double x, double *y);
typedef struct {
	double slope; /* by the step that agrees best */
	double error; /* |slope - derivative| / max(|slope|, |derivative|, 1e-4) */
	bool kink;    /* they differ, and f has a kink at x, so that it has no slope there */
} Difference;
Status difference_check(DifferenceOf f, void *context, DType dtype, double x, double derivative,
                        Difference *out);
/* The worst of several, those that are not numbers before all others, kinks only where there is nothing else. Starts as {0}. */
typedef struct {
	double error, derivative, slope;
	int64_t at;             /* as difference_add was told */
	int64_t checked, kinks; /* so far */
} WorstDifference;
void difference_add(WorstDifference *worst, const Difference *d, double derivative, int64_t at);

/* ---- lapack.c */
/* u: [rows, n], s: [n], from the largest on, vt: [n, columns], n the lesser of both. */
typedef struct {
	int64_t n;
	double *u, *s, *vt;
} Svd;
/* Of a matrix [rows, columns] of finite numbers, which is lost: u diag(s) vt. EXIT_UNSUPPORTED where LAPACK is not installed. */
Status svd(Arena *arena, int64_t rows, int64_t columns, double *matrix, Svd *out);

/* ---- dynamic_map.c: 8-bit numbers of bitsandbytes, in ascending order */
enum { DYNAMIC_MAP = 256 };
void dynamic_map(bool is_signed, float out[DYNAMIC_MAP]);

/* ---- four_bit.c: bitsandbytes' numbers of 4 bits in blocks, with its bytes */
typedef enum { FOUR_BIT_NF4, FOUR_BIT_FP4, N_FOUR_BIT } FourBit;
enum { FOUR_BIT_CODES = 16, FOUR_BIT_BLOCK = 64, ABSMAX_BLOCK = 256 };
extern const char *const four_bit_names[]; /* "nf4", "fp4"; ends with NULL */
extern const float four_bit_values[N_FOUR_BIT][FOUR_BIT_CODES];
int64_t four_bit_blocks(int64_t n); /* of n elements */
int64_t absmax_blocks(int64_t n);   /* of n such blocks */
/* codes: (n + 1) / 2 bytes, the first of two in the upper half. absmax: of each block the largest size. x must be finite. */
void four_bit_quantize(FourBit kind, const float *x, int64_t n, uint8_t *codes, float *absmax);
/* Blocks run over [outputs, outer, inner]: where element i of [outer, outputs, inner] lies there. */
int64_t four_bit_place(int64_t i, int64_t outputs, int64_t outer, int64_t inner);
float four_bit_number(FourBit kind, const uint8_t *codes, const float *absmax, int64_t i);
/* absmax, less their mean `offset`, as codes of dynamic_map, with a largest size in `nested` for each 256 of them. */
void absmax_quantize(float *absmax, int64_t n, uint8_t *codes, float *nested, float *offset);
void absmax_numbers(const uint8_t *codes, const float *nested, float offset, int64_t n,
                    float *absmax);

/* ---- scalar.c: the block of numbers that the trainer computes for each step and kernels read (scalar_list.def). */
typedef enum {
#define SCALAR(index, name, dtype, has_default) SCALAR_##index,
#include "base/numbers/scalar_list.def"
#undef SCALAR
	N_SCALARS,
} ScalarIndex;
typedef union {
	double f;   /* F64 */
	uint64_t u; /* U64 */
} Scalar;
extern const char *const scalar_names[]; /* "lr", "beta1", ...; ends with NULL */
extern const DType scalar_dtypes[N_SCALARS];
extern const bool scalar_has_default[N_SCALARS];

/* ---- philox.c: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3". */
typedef struct {
	uint32_t at[4];
} Philox;
Philox philox4x32(const uint32_t counter[4], uint64_t key);
/* What random numbers of a graph are made of: key = seed ^ stream, counter = index (words 0 and 1), step (2 and 3). */
Philox philox_at(uint64_t key, uint64_t index, uint64_t step);

/* The square of a norm of weights that have a learned size (passes/lora/magnitude.c) is read as that, where it is less: 0 / 0 is none. */
#define LEAST_NORM_SQUARE 1e-30

#endif
