/* Numbers: the element types (f32, bf16, s8 ...) with their conversions, and arithmetic that several folders share,
 * such as quantization and random numbers. Each section is named after its .c file. */
#ifndef GRADC_BASE_NUMBERS_NUMBERS_H
#define GRADC_BASE_NUMBERS_NUMBERS_H

#include "base/base.h"

/* ---- dtype.c: the element types and the one table of conversions. */
typedef enum {
#define DTYPE(NAME, name, bits, class, npy, npy_bits, safetensors, onnx) NAME,
#include "base/numbers/dtype_list.def"
#undef DTYPE
	N_DTYPES,
} DType;
typedef enum { CLASS_FLOAT, CLASS_SIGNED, CLASS_UNSIGNED, CLASS_BOOL } DTypeClass;
typedef struct {
	const char *name; /* "f32" */
	uint8_t bits;     /* 4- and 2-bit types are packed, low bits first */
	DTypeClass class;
	const char *npy;         /* "<f4", NULL where NumPy has no such type */
	const char *npy_bits;    /* the unsigned type that holds its raw bits: "<u2" for bf16 */
	const char *safetensors; /* "F32", NULL where the format has no such type */
	int onnx;                /* TensorProto.DataType */
} DTypeInfo;
extern const DTypeInfo dtype_info[N_DTYPES];
extern const char *const dtype_names[]; /* ends with NULL */

/* A float type smaller than f32. Codes are bit patterns without the sign. */
typedef struct {
	uint8_t bits, mantissa;
	int16_t bias;       /* a normal number is 1.m * 2^(exponent - bias) */
	uint16_t sign;      /* sign bit, 0 for e8m0 */
	uint16_t largest;   /* code of the largest finite value */
	uint16_t overflow;  /* code for finite values above the largest */
	uint16_t infinity;  /* code of infinity; 0: the format has no infinity */
	uint16_t nan;       /* bit pattern of NaN; f4e2m1 has no NaN and stores -0 */
	bool unsigned_zero; /* fnuz formats have no -0; its bit pattern is their only NaN */
	bool only_normal;   /* e8m0: exponent 0 is an ordinary power of two */
} FloatFormat;
const FloatFormat *float_format(DType t); /* NULL: t is not a float type smaller than f32 */

/* Rounding to a format with fewer bits. AWAY: away from zero. STOCHASTIC: let f be the magnitude's fraction of a unit in
 * the last place; the magnitude rounds up if 32 random bits are below floor(2^32 f). */
typedef enum { ROUND_NEAREST, ROUND_TOWARD_ZERO, ROUND_AWAY, ROUND_STOCHASTIC } Rounding;
/* The result for values above the largest number. DEFAULT: infinity in f16 and bf16, the largest number in other formats;
 * an infinite value stays infinite where the format has infinity. SATURATE: the largest number. SPECIAL: infinity, or NaN in
 * formats without infinity; f4e2m1 has neither and saturates. A finite number rounded toward zero never overflows. */
typedef enum { OVERFLOW_DEFAULT, OVERFLOW_SATURATE, OVERFLOW_SPECIAL } Overflow;
extern const char *const rounding_names[], *const overflow_names[];
typedef struct {
	Rounding round;
	Overflow overflow;
} Conversion;
typedef struct {
	uint16_t finite, infinite; /* codes for finite values above the largest, and for infinity */
} OverflowCodes;
OverflowCodes float_overflow(const FloatFormat *f, Overflow overflow);

bool dtype_parse(const char *name, DType *out);
static inline bool
dtype_is_float(DType t)
{
	return dtype_info[t].class == CLASS_FLOAT;
}
/* The type in which a result of type `computed` is written if the graph declares it as `declared`. f64 stays f64, other
 * floats take the declared type. */
static inline DType
result_dtype(DType computed, DType declared)
{
	return computed == F64 || !dtype_is_float(computed) ? computed : declared;
}
/* Bytes of n elements; packed types round up. n must be >= 0. */
int64_t dtype_bytes(DType t, int64_t n);
/* Loads or stores element i of an array of type t. Floats pass through double and round to nearest even, as the default
 * Conversion does. Integers and bool pass through int64; a u64 keeps its bits. */
double dtype_load_float(DType t, const void *at, int64_t i);
void dtype_store_float(DType t, void *at, int64_t i, double value);
int64_t dtype_load_int(DType t, const void *at, int64_t i);
void dtype_store_int(DType t, void *at, int64_t i, int64_t value); /* wraps */
/* value rounded once to the float type t, as a double. */
double dtype_round(DType t, double value);
/* value rounded to a float type smaller than f32, by any Conversion. random: 32 bits for ROUND_STOCHASTIC. */
double dtype_round_as(DType t, Conversion how, double value, uint32_t random);
/* An integer as a double. Rounding this double to a smaller float gives the same number as rounding the integer itself. */
double dtype_int_for_rounding(uint64_t bits, bool is_signed);
/* round(x / scale) + zero, clamped to the integer type t; NaN gives 0. Intermediate results are rounded to the type
 * `arithmetic`, f32 or f64. reciprocal: multiplies x by 1 / scale instead of dividing. */
int64_t dtype_quantize(DType t, DType arithmetic, bool reciprocal, double x, double scale,
                       double zero);
/* The smallest and the largest number of an integer type of at most 32 bits, or of a float type smaller than f32. */
void dtype_range(DType t, double *low, double *high);
/* Converts n elements from one type to another as C does (float to integer truncates and
 * saturates, NaN to 0; to bool: != 0). */
void dtype_convert(DType to, void *dst, DType from, const void *src, int64_t n);
/* A hash of floats by value: converting the floats to a wider type does not change the hash. */
uint64_t hash_numbers(DType dtype, const void *data, int64_t n);

/* ---- groups.c: groups of elements that share a number; the elements of a quantization block share a scale, for example. A
 * group has group[i] elements along axis i; the last group of an axis may be shorter. Groups are numbered in row-major order. */
typedef struct {
	int rank;
	const int64_t *dims, *group; /* group: at least 1 each */
} Groups;
int64_t groups_along(const Groups *g, int axis);
int64_t groups_count(const Groups *g);
int64_t groups_at(const Groups *g,
                  const int64_t *at); /* the group of the element at these indices */
/* Walks over all elements with their groups: for (GroupWalk w = group_walk(&g); w.i < n; group_next(&w)) */
typedef struct {
	Groups groups;
	int64_t at[MAX_RANK], i, group;
} GroupWalk;
GroupWalk group_walk(const Groups *g);
void group_next(GroupWalk *w);

/* ---- quantization.c */
/* A code stands for the number (code - zero point) scale. Codes are integers, or floats of 8 or 4 bits with zero point
 * 0. */
/* Scale and zero point for the range [low, high], extended to contain 0 (onnxruntime, quant_utils.py: compute_scale_zp).
 * symmetric: the range is made symmetric around 0, as always for float codes. An empty range has scale 1. */
void quantization_of(DType type, bool symmetric, float low, float high, float *scale,
                     int32_t *zero);
/* The standard deviation of 0, 1, ... 255. onnxruntime's scale for 8-bit floats is the data's standard deviation divided by
 * this constant, whichever 8-bit float it is. */
#define DEVIATION_OF_BYTES 73.90027f
/* Scale and zero point for each group of `data`, numbers of type `dtype`. Both are computed from the group's smallest
 * and largest number; signed codes are symmetric. For 8-bit floats the scale comes from the group's standard deviation
 * instead (compute_scale_zp_float8), unless the group's largest number would then be out of range. */
void quantization_of_groups(DType type, const Groups *g, DType dtype, const void *data,
                            Arena *scratch, float *scale, int32_t *zero);
/* code_store writes x's code as element i of an array. code_number gives the number that x's code stands for. Intermediate
 * results are rounded to f32. */
void code_store(DType type, void *at, int64_t i, double x, double scale, double zero);
double code_number(DType type, double x, double scale, double zero);

/* ---- difference.c: compares a derivative at x with central differences of f, trying smaller steps as needed. dtype: the type
 * in which x is stored, F64 or a smaller float. f is called at x and near x, in any order. */
typedef Status (*DifferenceOf)(void *context, double x, double *y);
typedef struct {
	double slope; /* central difference of the step that agrees best */
	double error; /* |slope - derivative| / max(|slope|, |derivative|, 1e-4) */
	bool kink; /* true: slope and derivative differ because f has a kink at x, hence no slope */
} Difference;
Status difference_check(DifferenceOf f, void *context, DType dtype, double x, double derivative,
                        Difference *out);
/* The worst of several differences. NaN is worse than any number; a kink is kept only if all differences are kinks.
 * Starts as {0}. */
typedef struct {
	double error, derivative, slope;
	int64_t at;             /* the worst difference's `at`, as passed to difference_add */
	int64_t checked, kinks; /* numbers of differences and of kinks so far */
} WorstDifference;
void difference_add(WorstDifference *worst, const Difference *d, double derivative, int64_t at);

/* ---- lapack.c */
/* u: [rows, n]; s: [n], in descending order; vt: [n, columns]; n = min(rows, columns). */
typedef struct {
	int64_t n;
	double *u, *s, *vt;
} Svd;
/* Decomposes a matrix [rows, columns] of finite numbers into u diag(s) vt and overwrites the matrix. EXIT_UNSUPPORTED if
 * LAPACK is not installed. */
Status svd(Arena *arena, int64_t rows, int64_t columns, double *matrix, Svd *out);

/* ---- dynamic_map.c: the 256 values of bitsandbytes' 8-bit codes, in ascending order */
enum { DYNAMIC_MAP = 256 };
void dynamic_map(bool is_signed, float out[DYNAMIC_MAP]);

/* ---- four_bit.c: bitsandbytes' 4-bit numbers in blocks, in the same bytes as bitsandbytes */
typedef enum { FOUR_BIT_NF4, FOUR_BIT_FP4, N_FOUR_BIT } FourBit;
enum { FOUR_BIT_CODES = 16, FOUR_BIT_BLOCK = 64, ABSMAX_BLOCK = 256 };
extern const char *const four_bit_names[]; /* "nf4", "fp4"; ends with NULL */
extern const float four_bit_values[N_FOUR_BIT][FOUR_BIT_CODES];
int64_t four_bit_blocks(int64_t n); /* number of blocks for n elements */
int64_t absmax_blocks(int64_t n);   /* number of absmax blocks for n absmax values */
/* codes: (n + 1) / 2 bytes, two codes a byte, the first in the upper half. absmax: the largest magnitude of each block. x must
 * be finite. */
void four_bit_quantize(FourBit kind, const float *x, int64_t n, uint8_t *codes, float *absmax);
/* i: index of an element in [outer, outputs, inner]. Returns the element's index in [outputs, outer, inner], the order
 * in which blocks are cut. */
int64_t four_bit_place(int64_t i, int64_t outputs, int64_t outer, int64_t inner);
float four_bit_number(FourBit kind, const uint8_t *codes, const float *absmax, int64_t i);
/* Quantizes the n absmax values: subtracts their mean, `offset`, and stores codes of dynamic_map. `nested` gets the largest
 * magnitude of each 256 values. */
void absmax_quantize(float *absmax, int64_t n, uint8_t *codes, float *nested, float *offset);
void absmax_numbers(const uint8_t *codes, const float *nested, float offset, int64_t n,
                    float *absmax);

/* ---- scalar.c: the scalar block: numbers that the trainer computes for each step and kernels read (scalar_list.def). */
typedef enum {
#define SCALAR(index, name, dtype) SCALAR_##index,
#include "base/numbers/scalar_list.def"
	N_SCALARS,
} ScalarIndex;
typedef union {
	double f;   /* F64 */
	uint64_t u; /* U64 */
} Scalar;
extern const char *const scalar_names[]; /* "lr", "beta1", ...; ends with NULL */
extern const DType scalar_dtypes[N_SCALARS];
/* option: of executables, without the dashes; NULL: the scalar is no hyperparameter. Values are at least 0, and less than
 * `below`. */
typedef struct {
	const char *option;
	double below;
} Hyperparameter;
extern const Hyperparameter hyperparameters[N_SCALARS];

/* ---- philox.c: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3". */
typedef struct {
	uint32_t at[4];
} Philox;
Philox philox4x32(const uint32_t counter[4], uint64_t key);
/* The source of a graph's random numbers. key = seed ^ stream; the counter holds index (words 0 and 1) and step (2 and 3). */
Philox philox_at(uint64_t key, uint64_t index, uint64_t step);

/* The lower bound for the squared norm of weights with a learned magnitude (passes/lora/magnitude.c). This bound avoids
 * 0 / 0. */
#define LEAST_NORM_SQUARE 1e-30

#endif
