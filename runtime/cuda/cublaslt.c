/* cuBLASLt as a library (runtime/library.h): products on NVIDIA's GPUs. A call is a description, three layouts and the algorithm that
 * the library's own heuristic thinks is best; its runs are queued in the device's stream, and may be captured into a graph. The
 * same algorithm gives the same bits in each run. */
#include "runtime/cuda/cublaslt.h"
#include "runtime/library.h"

#include <stdlib.h>

enum { MOST_NAME = 64 };

struct Library {
	CublasLt lt;
	void *handle;
	bool tf32;
	char version[32];
};
struct PreparedCall {
	Library *library;
	LibraryCall call;
	LtPlan plan;
	void *product; /* the library's description */
	void *layouts[N_LT_MATRICES];
	CublasLtChoice choice;
	PreparedCall *rest; /* that runs behind it; NULL: nothing */
	char name[MOST_NAME];
};

/* ---- the library */
static void
lt_close(Library *l)
{
	if (!l)
		return;
	if (l->handle)
		l->lt.Destroy(l->handle);
	memory_free(l);
}

static void
close_library(void *library)
{
	lt_close(library);
}

static Status
start(Library *l)
{
	RETURN_IF_ERROR(cublaslt_load(&l->lt));
	int v = (int)l->lt.GetVersion();
	snprintf(l->version, sizeof(l->version), "cuBLASLt %d.%d.%d", v / 10000, v / 100 % 100,
	         v % 100);
	return cublaslt_status(&l->lt, l->lt.Create(&l->handle), "it does not start");
}

static Status
lt_open(const LibraryHome *home, Library **out)
{
	Library *l = memory_zeroed(1, sizeof(*l));

	*out = NULL;
	l->tf32 = home->tf32;
	memory_hold(close_library, l);
	Status status = start(l);
	memory_let_go();
	if (status)
		lt_close(l);
	else
		*out = l;
	return status;
}

static const char *
lt_version(const Library *l)
{
	return l->version;
}

/* ---- descriptions */
static int
set_product(const PreparedCall *c, int attribute, int32_t value)
{
	return c->library->lt.MatmulDescSetAttribute(c->product, attribute, &value, sizeof(value));
}

/* The heuristic asks whether there is a bias, not where. */
static int
set_bias(const PreparedCall *c, void *buffer)
{
	const LibraryOperand *o = &c->call.operands[LIBRARY_BIAS];
	const char *at = (char *)buffer + dtype_bytes((DType)o->dtype, o->offset);

	return c->library->lt.MatmulDescSetAttribute(c->product, CUBLASLT_PRODUCT_BIAS, &at,
	                                             sizeof(at));
}

static int
describe_bias(const PreparedCall *c)
{
	int code = set_product(c, CUBLASLT_PRODUCT_EPILOGUE, CUBLASLT_ADDS_BIAS);

	if (!code)
		code = set_product(c, CUBLASLT_PRODUCT_BIAS_TYPE,
		                   cublaslt_type(c->call.operands[LIBRARY_BIAS].dtype));
	return code ? code : set_bias(c, (void *)(uintptr_t)256);
}

static int
describe_product(PreparedCall *c)
{
	const LtMatrix *m = c->plan.matrices;
	bool tf32 = c->library->tf32 && c->call.operands[LIBRARY_FIRST].dtype == F32;
	int code = c->library->lt.MatmulDescCreate(
		&c->product, tf32 ? CUBLASLT_COMPUTE_TF32 : CUBLASLT_COMPUTE_F32, CUBLASLT_F32);

	if (!code && m[LT_A].transposed)
		code = set_product(c, CUBLASLT_PRODUCT_TRANSPOSES_A, CUBLASLT_TRANSPOSED);
	if (!code && m[LT_B].transposed)
		code = set_product(c, CUBLASLT_PRODUCT_TRANSPOSES_B, CUBLASLT_TRANSPOSED);
	if (!code && c->call.epilogue == EPILOGUE_BIAS)
		code = describe_bias(c);
	return code;
}

static int
describe_matrix(PreparedCall *c, int i)
{
	const CublasLt *lt = &c->library->lt;
	const LtMatrix *m = &c->plan.matrices[i];
	int32_t batch = (int32_t)c->plan.batch;
	int code = lt->MatrixLayoutCreate(&c->layouts[i],
	                                  cublaslt_type(c->call.operands[m->operand].dtype),
	                                  (uint64_t)m->rows, (uint64_t)m->columns, m->leading);

	if (code || batch == 1)
		return code;
	code = lt->MatrixLayoutSetAttribute(c->layouts[i], CUBLASLT_LAYOUT_BATCH, &batch,
	                                    sizeof(batch));
	if (!code)
		code = lt->MatrixLayoutSetAttribute(c->layouts[i], CUBLASLT_LAYOUT_BATCH_STRIDE,
		                                    &m->stride, sizeof(m->stride));
	return code;
}

static int
describe(PreparedCall *c)
{
	int code = describe_product(c);

	for (int i = 0; i < N_LT_MATRICES && !code; i++)
		code = describe_matrix(c, i);
	return code;
}

/* ---- the algorithm */
/* A bias is read like the result is written. */
static uint32_t
alignment_of(const PreparedCall *c, int i)
{
	const LibraryOperand *bias = &c->call.operands[LIBRARY_BIAS];
	uint32_t alignment = c->plan.matrices[i].alignment;

	while (i == LT_D && c->call.epilogue == EPILOGUE_BIAS &&
	       dtype_bytes((DType)bias->dtype, bias->offset) % alignment)
		alignment /= 2;
	return alignment;
}

/* Sums of parts of k are kept apart in f32 and added up in order: in place their order would be the GPU's, and rounded they would
 * lose bits. */
static int
set_preference(const PreparedCall *c, void *preference, int64_t scratch_limit)
{
	static const int order[] = {LT_A, LT_B, LT_D, LT_D}; /* c is d */
	const CublasLt *lt = &c->library->lt;
	uint64_t bytes = (uint64_t)scratch_limit;
	uint32_t sums = CUBLASLT_SUMS_WHOLE | CUBLASLT_SUMS_APART;
	int code = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_PREFERENCE_WORKSPACE,
	                                            &bytes, sizeof(bytes));

	if (!code)
		code = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_PREFERENCE_SUMS, &sums,
		                                        sizeof(sums));
	for (int i = 0; i < COUNT(order) && !code; i++) {
		uint32_t alignment = alignment_of(c, order[i]);
		code = lt->MatmulPreferenceSetAttribute(preference,
		                                        CUBLASLT_PREFERENCE_ALIGNMENT_A + i,
		                                        &alignment, sizeof(alignment));
	}
	return code;
}

static int
choose(PreparedCall *c, int64_t scratch_limit, int *n)
{
	const CublasLt *lt = &c->library->lt;
	void *preference = NULL;
	int code = lt->MatmulPreferenceCreate(&preference);

	*n = 0;
	if (code)
		return code;
	code = set_preference(c, preference, scratch_limit);
	if (!code)
		code = lt->MatmulAlgoGetHeuristic(c->library->handle, c->product, c->layouts[LT_A],
		                                  c->layouts[LT_B], c->layouts[LT_D],
		                                  c->layouts[LT_D], preference, 1, &c->choice, n);
	lt->MatmulPreferenceDestroy(preference);
	return code;
}

static uint32_t
fact(const PreparedCall *c, int attribute)
{
	uint32_t value = 0;
	size_t written;

	c->library->lt.MatmulAlgoConfigGetAttribute(&c->choice.algorithm, attribute, &value,
	                                            sizeof(value), &written);
	return value;
}

static void
name_algorithm(PreparedCall *c)
{
	uint32_t splits = fact(c, CUBLASLT_ALGORITHM_SPLITS);
	int n = snprintf(c->name, sizeof(c->name), "cuBLASLt algo %u tile %u stages %u",
	                 fact(c, CUBLASLT_ALGORITHM_ID), fact(c, CUBLASLT_ALGORITHM_TILE),
	                 fact(c, CUBLASLT_ALGORITHM_STAGES));

	if (splits > 1)
		snprintf(c->name + n, sizeof(c->name) - (size_t)n, " splits %u", splits);
}

static Status
make_call(PreparedCall *c, int64_t scratch_limit)
{
	const CublasLt *lt = &c->library->lt;
	int n;

	RETURN_IF_ERROR(cublaslt_plan(&c->call, &c->plan));
	RETURN_IF_ERROR(cublaslt_status(lt, describe(c), "no such product"));
	RETURN_IF_ERROR(cublaslt_status(lt, choose(c, scratch_limit, &n), "no algorithm"));
	if (n < 1 || c->choice.status || c->choice.workspace > (size_t)scratch_limit)
		return status_error(EXIT_UNSUPPORTED, "cuBLASLt has no algorithm for this product");
	name_algorithm(c);
	return NULL;
}

static void
lt_release(PreparedCall *c)
{
	if (!c)
		return;
	lt_release(c->rest);
	for (int i = 0; i < N_LT_MATRICES; i++)
		if (c->layouts[i])
			c->library->lt.MatrixLayoutDestroy(c->layouts[i]);
	if (c->product)
		c->library->lt.MatmulDescDestroy(c->product);
	memory_free(c);
}

static void
release_call(void *call)
{
	lt_release(call);
}

/* It releases what it was given where it fails. */
static Status
prepare_one(Library *l, const LibraryCall *call, int64_t scratch_limit, PreparedCall *rest,
            PreparedCall **out)
{
	PreparedCall *c = memory_zeroed(1, sizeof(*c));

	*out = NULL;
	c->library = l;
	c->call = *call;
	c->rest = rest;
	memory_hold(release_call, c);
	Status status = make_call(c, scratch_limit);
	memory_let_go();
	if (status)
		lt_release(c);
	else
		*out = c;
	return status;
}

static Status
lt_prepare(Library *l, const LibraryCall *call, unsigned fixed, int64_t scratch_limit,
           PreparedCall **out)
{
	LibraryCall first, second;
	PreparedCall *rest = NULL;

	*out = NULL;
	if (!cublaslt_split(call, &first, &second))
		return prepare_one(l, call, scratch_limit, NULL, out);
	RETURN_IF_ERROR(lt_prepare(l, &second, fixed, scratch_limit, &rest));
	return prepare_one(l, &first, scratch_limit, rest, out);
}

/* ---- what is known of it */
static bool
lt_pays(const PreparedCall *c)
{
	(void)c;
	return true;
}

static const char *
lt_implementation(const PreparedCall *c)
{
	return c->name;
}

static int64_t
lt_scratch(const PreparedCall *c)
{
	int64_t own = ((int64_t)c->choice.workspace + 63) / 64 * 64;
	int64_t rest = c->rest ? lt_scratch(c->rest) : 0;

	return own > rest ? own : rest;
}

static int64_t
lt_packed_bytes(const PreparedCall *c, int i)
{
	(void)c;
	(void)i;
	return 0;
}

/* ---- runs */
static int
multiply(const PreparedCall *c, int64_t number, void *const *buffers, char *scratch, void *stream)
{
	const float alpha = 1, beta = (float)c->call.beta;
	const LtMatrix *m = c->plan.matrices;
	char *at[N_LT_MATRICES];

	for (int i = 0; i < N_LT_MATRICES; i++)
		at[i] = cublaslt_place(&c->call, &c->plan, i, number, buffers[m[i].operand]);
	return c->library->lt.Matmul(c->library->handle, c->product, &alpha, at[LT_A],
	                             c->layouts[LT_A], at[LT_B], c->layouts[LT_B], &beta, at[LT_D],
	                             c->layouts[LT_D], at[LT_D], c->layouts[LT_D],
	                             &c->choice.algorithm, scratch, c->choice.workspace, stream);
}

static Status
lt_run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
       char *scratch, void *stream)
{
	int code = c->call.epilogue == EPILOGUE_BIAS ? set_bias(c, buffers[LIBRARY_BIAS]) : 0;

	(void)packed;
	for (int64_t i = 0; i < c->plan.runs && !code; i++)
		code = multiply(c, i, buffers, scratch, stream);
	if (code)
		return cublaslt_status(&c->library->lt, code, "a product failed");
	return c->rest ? lt_run(c->rest, buffers, packed, scratch, stream) : NULL;
}

const LibraryOps library_cublaslt = {
	.name = "cuBLASLt",
	.open = lt_open,
	.close = lt_close,
	.version = lt_version,
	.prepare = lt_prepare,
	.release = lt_release,
	.pays = lt_pays,
	.implementation = lt_implementation,
	.scratch = lt_scratch,
	.packed_bytes = lt_packed_bytes,
	.run = lt_run,
};
