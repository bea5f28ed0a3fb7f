/* Private to runtime/library: cuBLASLt, NVIDIA's library of matrix products, opened with dlopen. Nothing of CUDA is needed to
 * build gradc. The declarations here are gradc's own, for the interface that NVIDIA's cublasLt.h describes; generations 12 and
 * 13 have the same interface. */
#ifndef GRADC_RUNTIME_LIBRARY_CUBLASLT_H
#define GRADC_RUNTIME_LIBRARY_CUBLASLT_H

#include "base/base.h"
#include "runtime/library/library.h"

/* cublasLtMatmulAlgo_t, cublasLtMatmulHeuristicResult_t */
typedef struct {
	uint64_t data[8];
} CublasLtAlgorithm;
typedef struct {
	CublasLtAlgorithm algorithm;
	size_t workspace; /* in bytes */
	int status;       /* other fields are valid only if status is CUBLASLT_OK */
	float waves;
	int reserved[4];
} CublasLtChoice;

/* The values that gradc uses, from cublasStatus_t, cublasComputeType_t, cudaDataType, cublasOperation_t, cublasLtEpilogue_t,
 * cublasLtReductionScheme_t and the enums of attributes. */
enum {
	CUBLASLT_OK = 0,

	CUBLASLT_COMPUTE_F32 = 68,
	CUBLASLT_COMPUTE_TF32 = 77,

	CUBLASLT_F32 = 0,
	CUBLASLT_F16 = 2,
	CUBLASLT_BF16 = 14,

	CUBLASLT_TRANSPOSED = 1,
	CUBLASLT_NOTHING = 1,
	CUBLASLT_BIAS = 4,
	CUBLASLT_GELU = 32,
	CUBLASLT_GELU_GRAD = 64 | 128,
	CUBLASLT_SAVES = 128,       /* with a GELU: also writes the GELU's operand */
	CUBLASLT_BIAS_GRAD_A = 256, /* sums of matrix a over k; for b the next value */
	CUBLASLT_BIAS_GRAD_B = 512,

	CUBLASLT_SUMS_WHOLE = 0,    /* k is not split */
	CUBLASLT_SUMS_IN_PLACE = 1, /* parts of k are added to the result */
	/* parts of k are added from the workspace, in the type of the sums */
	CUBLASLT_SUMS_APART = 2,
	/* parts of k are added from the workspace, in the type of the result */
	CUBLASLT_SUMS_ROUNDED = 4,

	CUBLASLT_PRODUCT_TRANSPOSES_A = 3, /* int32_t */
	CUBLASLT_PRODUCT_TRANSPOSES_B = 4, /* int32_t */
	CUBLASLT_PRODUCT_EPILOGUE = 7,     /* uint32_t */
	CUBLASLT_PRODUCT_BIAS = 8,         /* address */
	CUBLASLT_PRODUCT_AUX = 11,         /* address */
	CUBLASLT_PRODUCT_AUX_LEADING = 12, /* int64_t: elements; a multiple of 8 for a GELU */
	/* int64_t: elements from one matrix of the batch to the next. */
	CUBLASLT_PRODUCT_AUX_STRIDE = 13,
	CUBLASLT_PRODUCT_BIAS_TYPE = 26, /* int32_t */

	CUBLASLT_LAYOUT_BATCH = 5,        /* int32_t: number of matrices */
	CUBLASLT_LAYOUT_BATCH_STRIDE = 6, /* int64_t: elements */

	CUBLASLT_PREFERENCE_WORKSPACE = 1, /* uint64_t: most bytes */
	CUBLASLT_PREFERENCE_SUMS = 3,      /* uint32_t: bits CUBLASLT_SUMS_... */
	/* uint32_t: least alignment of a in bytes; the next values are for b, c, d */
	CUBLASLT_PREFERENCE_ALIGNMENT_A = 5,

	CUBLASLT_ALGORITHM_ID = 0,     /* int32_t */
	CUBLASLT_ALGORITHM_TILE = 1,   /* uint32_t */
	CUBLASLT_ALGORITHM_SPLITS = 2, /* int32_t: splits of k */
	CUBLASLT_ALGORITHM_STAGES = 6, /* uint32_t */
};

/* ---- cublaslt_load.c */
typedef struct {
	void *library;
#define CUBLASLT_SYMBOL(name, type, parameters) type(*name) parameters;
#include "runtime/library/cublaslt_symbols.def"
#undef CUBLASLT_SYMBOL
} CublasLt;
/* EXIT_SYSTEM if the library is not found. The library stays loaded. */
Status cublaslt_load(CublasLt *out);
/* Turns the library's result code into a Status; NULL for CUBLASLT_OK. what: what was being done, for the message. */
Status cublaslt_status(const CublasLt *lt, int code, const char *what);

/* ---- cublaslt_plan.c: a call as the library's product d = a * b + c of matrices in column order */
enum {
	LT_A,
	LT_B,
	LT_C,
	LT_D,
	N_LT_LAYOUTS,
	LT_AUX = N_LT_LAYOUTS,
	N_LT_MATRICES
}; /* c is d if nothing is added */
typedef struct {
	int operand;                    /* operand of the call */
	int64_t rows, columns, leading; /* size in memory; elements from one column to the next */
	bool transposed;                /* the product reads the transposed matrix */
	int64_t stride;                 /* elements from one matrix of the batch to the next */
	/* elements from one matrix to the next along each outer axis */
	int64_t steps[MAX_LIBRARY_BATCH_AXES - 1];
	/* Alignment of all its matrices, in bytes. */
	uint32_t alignment;
} LtMatrix;
typedef struct {
	LtMatrix matrices[N_LT_MATRICES];
	int64_t batch; /* products in one run of the library */
	int n_outer;   /* axes that need a run per index */
	int64_t outer[MAX_LIBRARY_BATCH_AXES - 1];
	int64_t runs; /* number of runs */
	bool swapped; /* computes z^T = y^T x^T */
} LtPlan;
/* Returns an error that says why the library cannot run the call. */
Status cublaslt_plan(const LibraryCall *call, LtPlan *out);
/* Address of matrix m in run i, in the operand's buffer. */
char *cublaslt_place(const LibraryCall *call, const LtPlan *plan, int m, int64_t i, void *buffer);
int cublaslt_type(uint32_t dtype); /* -1 if the library does not have the type */

#endif
