/* A pretended cuBLASLt, which the runtime's dlopen finds in LD_LIBRARY_PATH. It refuses what the real library refuses, and
 * multiplies by plain loops in f64, rounded once to the result's type. With the pretended GPU (fake/) a product runs in its
 * stream's order and reads device memory through that driver; without a driver the product is done when the call returns. */
#include "base/numbers/numbers.h"
#include "runtime/library/cublaslt.h"
#include "tests/cuda/programs/fake_library.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The exported functions. A type that differs from the runtime's list does not compile; a missing symbol does not link. */
#define EXPORTED __attribute__((visibility("default")))
#define CUBLASLT_SYMBOL(name, type, parameters) EXPORTED type cublasLt##name parameters;
#include "runtime/library/cublaslt_symbols.def"
#undef CUBLASLT_SYMBOL
typedef void (*AnyFunction)(void);
#define CUBLASLT_SYMBOL(name, type, parameters) (AnyFunction) cublasLt##name,
__attribute__((used)) static const AnyFunction all[] = {
#include "runtime/library/cublaslt_symbols.def"
};
#undef CUBLASLT_SYMBOL
EXPORTED int fake_cublaslt_alive(void); /* number of handles and descriptors not yet destroyed */

enum { NOT_INITIALIZED = 1, BAD_VALUE = 7, FAILED = 13, NOT_SUPPORTED = 15 }; /* cublasStatus_t */
enum { ALL_SUMS = 7, WORKSPACE = 4096, WORKSPACE_ALIGNMENT = 256, AUX_ALIGNMENT = 16 };
enum { ALGORITHM = 7, TILE = 20, STAGES = 4, PATTERN = 0xA5, N_ALGORITHMS = 3 };

/* ---- objects of callers */
typedef enum { HANDLE, PRODUCT, LAYOUT, PREFERENCE } Kind;
typedef struct {
	Kind kind;
	int compute;
	int32_t transposed[2];
	uint32_t epilogue;
	char *bias, *aux;
	int64_t aux_leading, aux_stride;
	int32_t bias_type; /* -1: the result's type */
} Product;
typedef struct {
	Kind kind;
	int type;
	int64_t rows, columns, leading, stride;
	int32_t batch;
} Layout;
typedef struct {
	Kind kind;
	uint64_t workspace;
	uint32_t sums, alignment[4]; /* alignment of a, b, c, d */
} Preference;
typedef struct {
	Kind kind;
} Handle;
static atomic_int alive;

int
fake_cublaslt_alive(void)
{
	return atomic_load(&alive);
}

static int
object_new(void **out, const void *object, size_t bytes)
{
	if (!out)
		return BAD_VALUE;
	*out = malloc(bytes);
	if (!*out)
		abort();
	memcpy(*out, object, bytes);
	atomic_fetch_add(&alive, 1);
	return CUBLASLT_OK;
}

static bool
is_a(const void *object, Kind kind)
{
	return object && *(const Kind *)object == kind;
}

static int
object_free(void *object, Kind kind)
{
	if (!is_a(object, kind))
		return BAD_VALUE;
	*(Kind *)object = (Kind)-1;
	free(object);
	atomic_fetch_sub(&alive, 1);
	return CUBLASLT_OK;
}

/* ---- attributes */
typedef struct {
	int number;
	size_t offset, bytes;
} Attribute;
#define ATTRIBUTE(number, type, field)                                    \
	{                                                                 \
		number, offsetof(type, field), sizeof(((type *)0)->field) \
	}

static const Attribute product_attributes[] = {
	ATTRIBUTE(CUBLASLT_PRODUCT_TRANSPOSES_A, Product, transposed[0]),
	ATTRIBUTE(CUBLASLT_PRODUCT_TRANSPOSES_B, Product, transposed[1]),
	ATTRIBUTE(CUBLASLT_PRODUCT_EPILOGUE, Product, epilogue),
	ATTRIBUTE(CUBLASLT_PRODUCT_BIAS, Product, bias),
	ATTRIBUTE(CUBLASLT_PRODUCT_AUX, Product, aux),
	ATTRIBUTE(CUBLASLT_PRODUCT_AUX_LEADING, Product, aux_leading),
	ATTRIBUTE(CUBLASLT_PRODUCT_AUX_STRIDE, Product, aux_stride),
	ATTRIBUTE(CUBLASLT_PRODUCT_BIAS_TYPE, Product, bias_type),
	{0},
};
static const Attribute layout_attributes[] = {
	ATTRIBUTE(CUBLASLT_LAYOUT_BATCH, Layout, batch),
	ATTRIBUTE(CUBLASLT_LAYOUT_BATCH_STRIDE, Layout, stride),
	{0},
};
static const Attribute preference_attributes[] = {
	ATTRIBUTE(CUBLASLT_PREFERENCE_WORKSPACE, Preference, workspace),
	ATTRIBUTE(CUBLASLT_PREFERENCE_SUMS, Preference, sums),
	ATTRIBUTE(CUBLASLT_PREFERENCE_ALIGNMENT_A, Preference, alignment[0]),
	ATTRIBUTE(CUBLASLT_PREFERENCE_ALIGNMENT_A + 1, Preference, alignment[1]),
	ATTRIBUTE(CUBLASLT_PREFERENCE_ALIGNMENT_A + 2, Preference, alignment[2]),
	ATTRIBUTE(CUBLASLT_PREFERENCE_ALIGNMENT_A + 3, Preference, alignment[3]),
	{0},
};

static int
set(void *object, Kind kind, const Attribute *attributes, int number, const void *value,
    size_t bytes)
{
	for (const Attribute *a = attributes; is_a(object, kind) && value && a->bytes; a++)
		if (a->number == number && a->bytes == bytes) {
			memcpy((char *)object + a->offset, value, bytes);
			return CUBLASLT_OK;
		}
	return BAD_VALUE;
}

/* ---- the interface: objects */
size_t
cublasLtGetVersion(void)
{
	return 130100;
}

const char *
cublasLtGetStatusString(int status)
{
	return status == CUBLASLT_OK       ? "CUBLAS_STATUS_SUCCESS"
	       : status == NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
	       : status == BAD_VALUE       ? "CUBLAS_STATUS_INVALID_VALUE"
	       : status == FAILED          ? "CUBLAS_STATUS_EXECUTION_FAILED"
	       : status == NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
	                                   : "unknown";
}

int
cublasLtCreate(void **handle)
{
	return object_new(handle, &(Handle){HANDLE}, sizeof(Handle));
}

int
cublasLtDestroy(void *handle)
{
	return object_free(handle, HANDLE);
}

int
cublasLtMatmulDescCreate(void **description, int compute, int scale)
{
	Product p = {PRODUCT, .compute = compute, .epilogue = CUBLASLT_NOTHING, .bias_type = -1};

	if ((compute != CUBLASLT_COMPUTE_F32 && compute != CUBLASLT_COMPUTE_TF32) ||
	    scale != CUBLASLT_F32)
		return BAD_VALUE;
	return object_new(description, &p, sizeof(p));
}

int
cublasLtMatmulDescDestroy(void *description)
{
	return object_free(description, PRODUCT);
}

int
cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t bytes)
{
	return set(description, PRODUCT, product_attributes, attribute, value, bytes);
}

static DType
dtype_of(int type)
{
	return type == CUBLASLT_F32 ? F32 : type == CUBLASLT_F16 ? F16 : BF16;
}

int
cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns,
                           int64_t leading)
{
	Layout l = {LAYOUT, type, (int64_t)rows, (int64_t)columns, leading, 0, 1};

	if (cublaslt_type(dtype_of(type)) != type)
		return BAD_VALUE;
	return object_new(layout, &l, sizeof(l));
}

int
cublasLtMatrixLayoutDestroy(void *layout)
{
	return object_free(layout, LAYOUT);
}

int
cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes)
{
	return set(layout, LAYOUT, layout_attributes, attribute, value, bytes);
}

int
cublasLtMatmulPreferenceCreate(void **preference)
{
	Preference p = {PREFERENCE, 0, ALL_SUMS, {256, 256, 256, 256}};

	return object_new(preference, &p, sizeof(p));
}

int
cublasLtMatmulPreferenceDestroy(void *preference)
{
	return object_free(preference, PREFERENCE);
}

int
cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                     size_t bytes)
{
	return set(preference, PREFERENCE, preference_attributes, attribute, value, bytes);
}

/* ---- checks that operands fit together */
typedef struct {
	Product product;
	Layout a, b, c, d;
	int64_t m, n, k;
} Call;

static bool
take_call(const void *handle, const void *product, const void *a, const void *b, const void *c,
          const void *d, Call *out)
{
	if (!is_a(handle, HANDLE) || !is_a(product, PRODUCT) || !is_a(a, LAYOUT) ||
	    !is_a(b, LAYOUT) || !is_a(c, LAYOUT) || !is_a(d, LAYOUT))
		return false;
	*out = (Call){.product = *(const Product *)product,
	              .a = *(const Layout *)a,
	              .b = *(const Layout *)b,
	              .c = *(const Layout *)c,
	              .d = *(const Layout *)d};
	out->m = out->d.rows;
	out->n = out->d.columns;
	out->k = out->product.transposed[0] ? out->a.rows : out->a.columns;
	return true;
}

/* Does the layout fit the matrix as the product reads it? */
static bool
is_matrix(const Layout *l, int32_t transposed, int64_t rows, int64_t columns, int32_t batch)
{
	return l->rows == (transposed ? columns : rows) &&
	       l->columns == (transposed ? rows : columns) && l->rows > 0 && l->columns > 0 &&
	       l->leading >= l->rows && l->batch == batch && batch > 0 && l->stride >= 0;
}

static bool
shapes_fit(const Call *c)
{
	const int32_t *transposed = c->product.transposed;

	return (transposed[0] | transposed[1] | CUBLASLT_TRANSPOSED) == CUBLASLT_TRANSPOSED &&
	       is_matrix(&c->a, transposed[0], c->m, c->k, c->d.batch) &&
	       is_matrix(&c->b, transposed[1], c->k, c->n, c->d.batch) &&
	       is_matrix(&c->c, 0, c->m, c->n, c->d.batch) &&
	       is_matrix(&c->d, 0, c->m, c->n, c->d.batch) && (c->d.batch == 1 || c->d.stride > 0);
}

/* ---- epilogues */
typedef struct {
	uint32_t number;
	bool bias, bias_grad, gelu, gelu_grad, aux;
} Epilogue;
static const Epilogue epilogues[] = {
	{CUBLASLT_NOTHING, false, false, false, false, false},
	{CUBLASLT_BIAS, true, false, false, false, false},
	{32, false, false, true, false, false},
	{36, true, false, true, false, false},
	{160, false, false, true, false, true},
	{164, true, false, true, false, true},
	{192, false, false, false, true, true},
	{256, false, true, false, false, false},
	{512, false, true, false, false, false},
};

/* NULL: unknown epilogue */
static const Epilogue *
epilogue_of(const Product *p)
{
	for (size_t i = 0; i < sizeof(epilogues) / sizeof(*epilogues); i++)
		if (epilogues[i].number == p->epilogue)
			return &epilogues[i];
	return NULL;
}

static bool
epilogue_fits(const Call *c)
{
	const Product *p = &c->product;
	const Epilogue *e = epilogue_of(p);

	if (!e || ((e->gelu || e->gelu_grad) && getenv("FAKE_CUBLASLT_LACKS")) ||
	    ((e->bias || e->bias_grad) && p->bias_type != -1 && p->bias_type != c->d.type))
		return false; /* FAKE_CUBLASLT_LACKS=gelu */
	if (e->aux && (p->aux_leading < c->m || p->aux_leading % 8 ||
	               (c->d.batch > 1 && (p->aux_stride <= 0 || p->aux_stride % 8))))
		return false;
	return !e->bias_grad || c->d.batch == 1;
}

static bool
types_fit(const Call *c)
{
	const Product *p = &c->product;

	return c->a.type == c->b.type && c->c.type == c->d.type &&
	       (c->d.type == c->a.type || c->d.type == CUBLASLT_F32) &&
	       (p->compute == CUBLASLT_COMPUTE_F32 || c->a.type == CUBLASLT_F32) &&
	       epilogue_fits(c);
}

/* ---- the interface: algorithms. An algorithm is a number and the product for which it was chosen. */
typedef struct {
	uint32_t number, tile;
	int64_t m, n, k;
	uint32_t sums, alignment[4];
} Chosen;
_Static_assert(sizeof(Chosen) <= sizeof(CublasLtAlgorithm), "callers have room for it");

int
cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c, void *d,
                               void *preference, int wanted, CublasLtChoice *choices, int *n)
{
	Call call;

	if (!n || !choices || wanted < 1 || !is_a(preference, PREFERENCE) ||
	    !take_call(handle, description, a, b, c, d, &call) || !shapes_fit(&call))
		return BAD_VALUE;
	const Preference *p = preference;
	*n = 0;
	if (!types_fit(&call) || p->workspace < WORKSPACE)
		return NOT_SUPPORTED;
	for (*n = 0; *n < wanted && *n < N_ALGORITHMS; ++*n) {
		Chosen chosen = {ALGORITHM, TILE + (uint32_t)*n, call.m, call.n, call.k, p->sums};
		memcpy(chosen.alignment, p->alignment, sizeof(chosen.alignment));
		choices[*n] = (CublasLtChoice){.workspace = WORKSPACE, .waves = 1};
		memcpy(&choices[*n].algorithm, &chosen, sizeof(chosen));
	}
	return CUBLASLT_OK;
}

/* If the preference allows sums in any order, or sums rounded before they are complete, the algorithm claims to split sums. */
int
cublasLtMatmulAlgoConfigGetAttribute(const CublasLtAlgorithm *algorithm, int attribute, void *value,
                                     size_t bytes, size_t *written)
{
	const Chosen *chosen = (const void *)algorithm;

	if (!algorithm || chosen->number != ALGORITHM || !value || bytes != sizeof(uint32_t))
		return BAD_VALUE;
	bool loose = chosen->sums & (CUBLASLT_SUMS_IN_PLACE | CUBLASLT_SUMS_ROUNDED);
	uint32_t fact = attribute == CUBLASLT_ALGORITHM_ID       ? ALGORITHM
	                : attribute == CUBLASLT_ALGORITHM_TILE   ? chosen->tile
	                : attribute == CUBLASLT_ALGORITHM_STAGES ? STAGES
	                : attribute == CUBLASLT_ALGORITHM_SPLITS ? (loose ? 2 : 1)
	                                                         : 0;
	if (!fact)
		return BAD_VALUE;
	memcpy(value, &fact, sizeof(fact));
	if (written)
		*written = sizeof(fact);
	return CUBLASLT_OK;
}

/* ---- work */
typedef struct {
	Call call;
	float alpha, beta;
	const char *a, *b, *c;
	char *d, *workspace;
	uint32_t tile;
} Work;

/* Loads matrix number i into to[outer][inner]. across: an inner step goes to the next column. */
static double *
load_matrix(const Work *w, const Layout *l, const char *from, int64_t i, bool across)
{
	const char *at = fake_readable(from);
	int64_t outer = across ? l->rows : l->columns, inner = across ? l->columns : l->rows;
	bool rounds = w->call.product.compute == CUBLASLT_COMPUTE_TF32;
	double *to = malloc(sizeof(*to) * (size_t)(outer * inner));

	if (!to)
		abort();
	for (int64_t o = 0; o < outer; o++)
		for (int64_t k = 0; k < inner; k++) {
			int64_t place = i * l->stride +
			                (across ? o + k * l->leading : o * l->leading + k);
			double x = dtype_load_float(dtype_of(l->type), at, place);
			to[o * inner + k] = rounds ? fake_round_to_tf32(x) : x;
		}
	return to;
}

/* Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2 */
static double
gelu(double x, bool derivative)
{
	const double a = sqrt(2 / acos(-1)), b = 0.044715;
	double t = tanh(a * (x + b * x * x * x));

	return derivative ? (1 + t) / 2 + x / 2 * (1 - t * t) * a * (1 + 3 * b * x * x)
	                  : x / 2 * (1 + t);
}

/* The value to store for a sum at a place of d, and the value to save for the gradient. */
static double
finish(const Call *c, const Epilogue *e, double sum, int64_t row, int64_t aux_place)
{
	DType type = dtype_of(c->d.type);

	if (e->bias)
		sum += dtype_load_float(type, fake_readable(c->product.bias), row);
	if (e->gelu_grad)
		return sum *
		       gelu(dtype_load_float(type, fake_readable(c->product.aux), aux_place), true);
	if (e->aux)
		dtype_store_float(type, fake_readable(c->product.aux), aux_place, sum);
	return e->gelu ? gelu(sum, false) : sum;
}

static void
store_matrix(const Work *w, int64_t i, const double *a, const double *b)
{
	const Call *c = &w->call;
	const Product *p = &c->product;
	DType type = dtype_of(c->d.type);
	char *d = fake_readable(w->d);
	const char *added = w->beta != 0 ? fake_readable(w->c) : NULL;

	for (int64_t column = 0; column < c->n; column++)
		for (int64_t row = 0; row < c->m; row++) {
			double sum = 0;
			for (int64_t k = 0; k < c->k; k++)
				sum += a[row * c->k + k] * b[column * c->k + k];
			sum *= w->alpha;
			if (added)
				sum += w->beta * dtype_load_float(type, added,
				                                  i * c->c.stride + row +
				                                          column * c->c.leading);
			int64_t saved = i * p->aux_stride + column * p->aux_leading + row;
			dtype_store_float(type, d, i * c->d.stride + row + column * c->d.leading,
			                  finish(c, epilogue_of(p), sum, row, saved));
		}
}

/* Sums of a's rows or b's columns, as the product reads them. */
static void
store_bias_grad(const Call *c, const double *a, const double *b)
{
	bool of_a = c->product.epilogue == CUBLASLT_BIAS_GRAD_A;
	const double *from = of_a ? a : b;

	for (int64_t i = 0; i < (of_a ? c->m : c->n); i++) {
		double sum = 0;
		for (int64_t k = 0; k < c->k; k++)
			sum += from[i * c->k + k];
		dtype_store_float(dtype_of(c->d.type), fake_readable(c->product.bias), i, sum);
	}
}

static void
multiply(void *work)
{
	const Work *w = work;
	const Call *c = &w->call;

	FakeBehaviour behaviour = fake_behaviour(w->tile);
	fake_begin(behaviour, w->workspace, WORKSPACE);
	memset(fake_readable(w->workspace), PATTERN, WORKSPACE);
	for (int64_t i = 0; i < c->d.batch; i++) {
		double *a = load_matrix(w, &c->a, w->a, i, !c->product.transposed[0]);
		double *b = load_matrix(w, &c->b, w->b, i, c->product.transposed[1]);
		store_matrix(w, i, a, b);
		if (epilogue_of(&c->product)->bias_grad)
			store_bias_grad(c, a, b);
		free(a);
		free(b);
	}
	int64_t last = (c->d.batch - 1) * c->d.stride + (c->n - 1) * c->d.leading + c->m - 1;
	DType type = dtype_of(c->d.type);
	fake_end(behaviour, (char *)fake_readable(w->d) + dtype_bytes(type, last),
	         dtype_bytes(type, 1));
}

/* ---- the interface: products */
/* Are all addresses aligned as chosen? The bias is checked with the result's alignment. */
static bool
places_fit(const Work *w, const Chosen *chosen)
{
	const Product *p = &w->call.product;
	const Epilogue *e = epilogue_of(p);
	const Layout *c = &w->call.c, *d = &w->call.d;

	return w->a && w->b && w->d && (w->c || w->beta == 0) &&
	       fake_is_aligned(w->a, chosen->alignment[0]) &&
	       fake_is_aligned(w->b, chosen->alignment[1]) &&
	       fake_is_aligned(w->c, chosen->alignment[2]) &&
	       fake_is_aligned(w->d, chosen->alignment[3]) &&
	       (w->c != w->d || (c->leading == d->leading && c->stride == d->stride)) &&
	       ((!e->bias && !e->bias_grad) ||
	        (p->bias && fake_is_aligned(p->bias, chosen->alignment[3]))) &&
	       (!e->aux || (p->aux && fake_is_aligned(p->aux, AUX_ALIGNMENT)));
}

int
cublasLtMatmul(void *handle, void *description, const void *alpha, const void *a, void *a_layout,
               const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
               void *d, void *d_layout, const CublasLtAlgorithm *algorithm, void *workspace,
               size_t bytes, void *stream)
{
	const Chosen *chosen = (const void *)algorithm;
	Work w = {.a = a, .b = b, .c = c, .d = d, .workspace = workspace};

	if (!alpha || !beta || !algorithm || chosen->number != ALGORITHM ||
	    !take_call(handle, description, a_layout, b_layout, c_layout, d_layout, &w.call) ||
	    !shapes_fit(&w.call) || !types_fit(&w.call) || chosen->m != w.call.m ||
	    chosen->n != w.call.n || chosen->k != w.call.k)
		return BAD_VALUE;
	w.tile = chosen->tile;
	if (fake_behaviour(w.tile) == FAKE_FAILS)
		return FAILED;
	w.alpha = *(const float *)alpha;
	w.beta = *(const float *)beta;
	if (!places_fit(&w, chosen) || !workspace ||
	    !fake_is_aligned(workspace, WORKSPACE_ALIGNMENT) || bytes < WORKSPACE)
		return BAD_VALUE;
	return fake_enqueue(stream, multiply, &w, sizeof(w)) ? CUBLASLT_OK : FAILED;
}
