/* cuBLASLt behind the interface of library.h: matrix products on NVIDIA's GPUs. A call has a description, layouts of its
 * matrices, and the algorithm that the library's heuristic or a trial prefers. Runs are queued in the device's stream and may
 * be captured into a graph. The same algorithm gives the same bits in each run. */
#include "runtime/library/cublaslt.h"
#include "base/numbers/numbers.h"
#include "runtime/library/library.h"

#include <string.h>

enum { MOST_NAME = 96 };

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
	void *product; /* cuBLASLt's description of the product */
	void *layouts[N_LT_LAYOUTS];
	CublasLtChoice choice;
	/* which of the caller's operands the first operand, the second and the result are; in another order if the caller has a
	 * convolution */
	int order[LIBRARY_BIAS];
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

static const uint32_t lt_epilogues[N_EPILOGUES] = {
	[EPILOGUE_NONE] = CUBLASLT_NOTHING,
	[EPILOGUE_BIAS] = CUBLASLT_BIAS,
	[EPILOGUE_GELU] = CUBLASLT_GELU,
	[EPILOGUE_GELU_BIAS] = CUBLASLT_GELU | CUBLASLT_BIAS,
	[EPILOGUE_GELU_AUX] = CUBLASLT_GELU | CUBLASLT_SAVES,
	[EPILOGUE_GELU_AUX_BIAS] = CUBLASLT_GELU | CUBLASLT_SAVES | CUBLASLT_BIAS,
	[EPILOGUE_DGELU] = CUBLASLT_GELU_GRAD,
	[EPILOGUE_BGRAD] = CUBLASLT_BIAS_GRAD_A,
};

static int
set_address(const PreparedCall *c, int attribute, const void *at)
{
	return c->library->lt.MatmulDescSetAttribute(c->product, attribute, &at, sizeof(at));
}

static int
set_distance(const PreparedCall *c, int attribute, int64_t elements)
{
	return c->library->lt.MatmulDescSetAttribute(c->product, attribute, &elements,
	                                             sizeof(elements));
}

/* Sets the addresses of the bias and of a GELU's operand for run i. buffers: NULL for the heuristic, which only needs to know
 * that there is a bias. */
static int
set_addresses(const PreparedCall *c, int64_t i, void *const *buffers)
{
	void *somewhere = (void *)(uintptr_t)256;
	const LibraryOperand *o = &c->call.operands[LIBRARY_BIAS];
	int code = 0;

	if (library_has_operand(&c->call, LIBRARY_BIAS))
		code = set_address(c, CUBLASLT_PRODUCT_BIAS,
		                   buffers ? (char *)buffers[LIBRARY_BIAS] +
		                                     dtype_bytes((DType)o->dtype, o->offset)
		                           : somewhere);
	if (!code && library_has_operand(&c->call, LIBRARY_AUX))
		code = set_address(c, CUBLASLT_PRODUCT_AUX,
		                   buffers ? cublaslt_place(&c->call, &c->plan, LT_AUX, i,
		                                            buffers[LIBRARY_AUX])
		                           : somewhere);
	return code;
}

static int
describe_epilogue(const PreparedCall *c)
{
	const LtMatrix *aux = &c->plan.matrices[LT_AUX];
	uint32_t epilogue = lt_epilogues[c->call.epilogue];

	if (epilogue == CUBLASLT_BIAS_GRAD_A && !c->plan.swapped)
		epilogue = CUBLASLT_BIAS_GRAD_B;
	int code = set_product(c, CUBLASLT_PRODUCT_EPILOGUE, (int32_t)epilogue);
	if (!code && library_has_operand(&c->call, LIBRARY_BIAS))
		code = set_product(c, CUBLASLT_PRODUCT_BIAS_TYPE,
		                   cublaslt_type(c->call.operands[LIBRARY_BIAS].dtype));
	if (!code && library_has_operand(&c->call, LIBRARY_AUX))
		code = set_distance(c, CUBLASLT_PRODUCT_AUX_LEADING, aux->leading);
	if (!code && library_has_operand(&c->call, LIBRARY_AUX) && c->plan.batch > 1)
		code = set_distance(c, CUBLASLT_PRODUCT_AUX_STRIDE, aux->stride);
	return code ? code : set_addresses(c, 0, NULL);
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
	if (!code && c->call.epilogue != EPILOGUE_NONE)
		code = describe_epilogue(c);
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

	for (int i = 0; i < N_LT_LAYOUTS && !code; i++)
		code = describe_matrix(c, i);
	return code;
}

/* ---- the algorithm */
/* The alignment of a matrix; a bias must have the result's alignment. */
static uint32_t
alignment_of(const PreparedCall *c, int i)
{
	const LibraryOperand *bias = &c->call.operands[LIBRARY_BIAS];
	uint32_t alignment = c->plan.matrices[i].alignment;

	while (i == LT_D && library_has_operand(&c->call, LIBRARY_BIAS) &&
	       dtype_bytes((DType)bias->dtype, bias->offset) % alignment)
		alignment /= 2;
	return alignment;
}

/* An algorithm may split the sum over k into partial sums. Allows only algorithms that keep the partial sums apart in f32 and
 * add them in a fixed order. If partial sums were added in place, their order would depend on the GPU; if they were rounded,
 * bits would be lost. */
static int
set_preference(const PreparedCall *c, void *preference, int64_t scratch_limit)
{
	const CublasLt *lt = &c->library->lt;
	uint64_t bytes = (uint64_t)scratch_limit;
	uint32_t sums = CUBLASLT_SUMS_WHOLE | CUBLASLT_SUMS_APART;
	int code = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_PREFERENCE_WORKSPACE,
	                                            &bytes, sizeof(bytes));

	if (!code)
		code = lt->MatmulPreferenceSetAttribute(preference, CUBLASLT_PREFERENCE_SUMS, &sums,
		                                        sizeof(sums));
	for (int i = 0; i < N_LT_LAYOUTS && !code; i++) {
		uint32_t alignment = alignment_of(c, i);
		code = lt->MatmulPreferenceSetAttribute(preference,
		                                        CUBLASLT_PREFERENCE_ALIGNMENT_A + i,
		                                        &alignment, sizeof(alignment));
	}
	return code;
}

/* Asks for at most `wanted` algorithms, best first. */
static int
ask_heuristic(const PreparedCall *c, int64_t scratch_limit, int wanted, CublasLtChoice *choices,
              int *n)
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
		                                  c->layouts[LT_B], c->layouts[LT_C],
		                                  c->layouts[LT_D], preference, wanted, choices, n);
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
		n += snprintf(c->name + n, sizeof(c->name) - (size_t)n, " splits %u", splits);
	if (c->call.epilogue > EPILOGUE_BIAS)
		n += snprintf(c->name + n, sizeof(c->name) - (size_t)n, " %s",
		              epilogue_names[c->call.epilogue]);
	if (c->call.beta)
		snprintf(c->name + n, sizeof(c->name) - (size_t)n, " beta 1");
}

/* ---- a call */
/* Refuses a GELU in full f32, for which the library's tanh is too inexact. */
static Status
check_tanh(const PreparedCall *c)
{
	bool rounds = c->library->tf32 || c->call.operands[LIBRARY_FIRST].dtype != F32;
	bool gelu = lt_epilogues[c->call.epilogue] & (CUBLASLT_GELU | CUBLASLT_GELU_GRAD);

	return gelu && !rounds ? status_error(EXIT_UNSUPPORTED, "cuBLASLt: a GELU in f32 is loops")
	                       : NULL;
}

/* Describes the product to the library. */
static Status
begin_call(PreparedCall *c)
{
	RETURN_IF_ERROR(check_tanh(c));
	RETURN_IF_ERROR(cublaslt_plan(&c->call, &c->plan));
	return cublaslt_status(&c->library->lt, describe(c), "no such product");
}

static void
lt_release(PreparedCall *c)
{
	if (!c)
		return;
	for (int i = 0; i < N_LT_LAYOUTS; i++)
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

static Status
new_call(Library *l, const LibraryCall *call, PreparedCall **out)
{
	PreparedCall *c = memory_zeroed(1, sizeof(*c));

	*out = NULL;
	c->library = l;
	c->call = *call;
	for (int i = 0; i < LIBRARY_BIAS; i++)
		c->order[i] = i;
	memory_hold(release_call, c);
	Status status = begin_call(c);
	memory_let_go();
	if (status)
		lt_release(c);
	else
		*out = c;
	return status;
}

/* Prepares the call with up to `most` algorithms; an error with *n calls says why there are not more. */
static Status
prepare(Library *l, const LibraryCall *call, int64_t scratch_limit, int most, PreparedCall **out,
        int *n)
{
	CublasLtChoice choices[MOST_ENGINES];
	PreparedCall *first;
	int offered = 0;

	*n = 0;
	RETURN_IF_ERROR(new_call(l, call, &first));
	Status status = cublaslt_status(
		&l->lt, ask_heuristic(first, scratch_limit, most, choices, &offered),
		"no algorithm");
	for (int i = 0; i < offered && !status; i++) {
		if (choices[i].status || choices[i].workspace > (size_t)scratch_limit)
			continue;
		out[*n] = first;
		if (*n > 0)
			status = new_call(l, call, &out[*n]);
		if (status)
			break;
		out[*n]->choice = choices[i];
		name_algorithm(out[(*n)++]);
	}
	if (*n == 0)
		lt_release(first);
	if (status || *n > 0)
		return status;
	return status_error(EXIT_UNSUPPORTED, "cuBLASLt has no algorithm for this product");
}

static Status
lt_prepare(Library *l, const LibraryCall *call, unsigned fixed, int64_t scratch_limit,
           PreparedCall **out)
{
	int n;

	(void)fixed;
	*out = NULL;
	return prepare(l, call, scratch_limit, 1, out, &n);
}

/* The bytes of the algorithm's description, in hexadecimal. */
static void
lt_print_engine(const PreparedCall *c, Text *out)
{
	const unsigned char *bytes = (const unsigned char *)&c->choice.algorithm;

	for (size_t i = 0; i < sizeof(c->choice.algorithm); i++)
		text_printf(out, "%02x", bytes[i]);
}

/* A convolution with windows of one element is a product, and the product may be faster than cuDNN. */
static Status
lt_engines(Library *l, const LibraryCall *call, int64_t scratch_limit,
           PreparedCall *out[MOST_ENGINES], int *n)
{
	LibraryCall dot;
	int order[LIBRARY_BIAS];

	*n = 0;
	if (call->kind == LIBRARY_DOT)
		return prepare(l, call, scratch_limit, MOST_ENGINES, out, n);
	if (!library_conv_as_dot(call, &dot, order))
		return status_error(EXIT_UNSUPPORTED, "cuBLASLt: the convolution is no product");
	Status status = prepare(l, &dot, scratch_limit, MOST_ENGINES, out, n);
	for (int i = 0; i < *n; i++)
		memcpy(out[i]->order, order, sizeof(order));
	return status;
}

/* ---- questions about a call */
/* always true: lt_prepare has refused the calls that are slower than the loops */
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
	return ((int64_t)c->choice.workspace + 63) / 64 * 64;
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
	char *at[N_LT_LAYOUTS];

	for (int i = 0; i < N_LT_LAYOUTS; i++)
		at[i] = cublaslt_place(&c->call, &c->plan, i, number, buffers[m[i].operand]);
	int code = set_addresses(c, number, buffers);
	if (code)
		return code;
	return c->library->lt.Matmul(c->library->handle, c->product, &alpha, at[LT_A],
	                             c->layouts[LT_A], at[LT_B], c->layouts[LT_B], &beta, at[LT_C],
	                             c->layouts[LT_C], at[LT_D], c->layouts[LT_D],
	                             &c->choice.algorithm, scratch, c->choice.workspace, stream);
}

static Status
run_one(PreparedCall *c, void *const *buffers, char *scratch, void *stream)
{
	int code = 0;

	for (int64_t i = 0; i < c->plan.runs && !code; i++)
		code = multiply(c, i, buffers, scratch, stream);
	return cublaslt_status(&c->library->lt, code, "a product failed");
}

static Status
lt_run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
       char *scratch, void *stream)
{
	void *own[N_LIBRARY_OPERANDS];

	(void)packed;
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		own[i] = buffers[i < LIBRARY_BIAS ? c->order[i] : i];
	return run_one(c, own, scratch, stream);
}

const LibraryOps library_cublaslt = {
	.name = "cuBLASLt",
	.open = lt_open,
	.close = lt_close,
	.version = lt_version,
	.prepare = lt_prepare,
	.engines = lt_engines,
	.print_engine = lt_print_engine,
	.release = lt_release,
	.pays = lt_pays,
	.implementation = lt_implementation,
	.scratch = lt_scratch,
	.packed_bytes = lt_packed_bytes,
	.run = lt_run,
};
