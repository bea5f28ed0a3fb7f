/* Private to runtime/library, for onednn*.c: oneDNN's functions, and what differs between oneDNN's generations and between
 * kinds of calls (products, convolutions, their gradients). */
#ifndef GRADC_RUNTIME_LIBRARY_ONEDNN_H
#define GRADC_RUNTIME_LIBRARY_ONEDNN_H

#include "runtime/library/library.h"

#include <limits.h>

#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR == 3
#define DNNL_2(name)
#define DNNL_3(name) DNNL(name)
#define SONAME "libdnnl.so.3"
typedef dnnl_memory_desc_t MemoryDesc;
typedef const_dnnl_memory_desc_t ConstMemoryDesc;
#define DESC(d) (d)
#else
#define DNNL_2(name) DNNL(name)
#define DNNL_3(name)
#define SONAME "libdnnl.so.2"
typedef dnnl_memory_desc_t MemoryDesc;
typedef const dnnl_memory_desc_t *ConstMemoryDesc;
#define DESC(d) (&(d))
#endif

enum { N_OPERANDS = LIBRARY_BIAS + 1 }; /* oneDNN adds only to the result */

struct Library {
	Pool *pool;
	bool tiled;
	/* OpenMP's functions for the calling thread; loops of the host use them as well */
	int (*in_parallel)(void), (*max_threads)(void);
	void (*set_threads)(int);
	void *library;
	char version_text[32];
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	/* `adding` adds to the result's earlier contents */
	dnnl_primitive_attr_t attributes, adding;
#define DNNL(name) __typeof__(dnnl_##name) *name;
#include "runtime/library/onednn_list.def"
#undef DNNL
};

/* The layout of a tile's operand in the caller's buffers. */
typedef struct {
	int rank;
	dnnl_dims_t dims, strides;
} Layout;

/* How work is split into tiles, along one axis of the result. */
typedef struct {
	int axis;             /* the kind's own number of the axis */
	int64_t extent, step; /* length of the axis; length of a tile */
	/* Elements from one step of the axis to the next; 0 if all tiles read the same operand. */
	int64_t move[N_OPERANDS];
} Tiling;

/* Number of operands in a call, counted from the first. */
static inline int
onednn_operands(const LibraryCall *call)
{
	return library_has_operand(call, LIBRARY_BIAS) ? N_OPERANDS : LIBRARY_BIAS;
}

/* for tiled calls, on any number of threads: no limit for the number of tiles; the number of tiles that is enough */
enum { MANY_TILES = INT_MAX, ENOUGH_TILES = 2 };
/* How a kind of call is described to the library: a row of onednn_kinds for each LibraryKind. */
typedef struct {
	int names[N_OPERANDS]; /* DNNL_ARG_... */
	/* the library picks its preferred layouts, because with the operands' own layouts it loses more time than copies
	 * take */
	bool any;
	/* Splits the work into at most `tiles` tiles that are not too small; 1: does not split. */
	Tiling (*tiling)(const LibraryCall *call, int tiles);
	bool same_bits; /* bits do not depend on the number of threads; for other kinds they may */
	/* Layout of operand i of a tile with that many steps. A bias is dense; only kinds with a bias are asked for it. */
	Layout (*layout)(const LibraryCall *call, const Tiling *t, int64_t steps, int i);
	/* m: NULL for a missing bias. */
	dnnl_status_t (*describe)(const Library *lib, const LibraryCall *call,
	                          ConstMemoryDesc m[N_OPERANDS], dnnl_primitive_desc_t *out);
} WorkKind;
extern const WorkKind onednn_dot, onednn_conv, onednn_conv_grad_input, onednn_conv_grad_weight;

/* Memory objects of a worker: operands in their own layout (OURS), operands in the primitive's layout (THEIRS), scratch. */
enum { OURS, THEIRS = N_OPERANDS, SCRATCH = 2 * N_OPERANDS, N_MEMORIES };

/* A primitive for one size of tile, with the copies of its operands. */
typedef struct {
	dnnl_primitive_desc_t description, copy_descriptions[N_OPERANDS];
	dnnl_primitive_t primitive, copies[N_OPERANDS]; /* NULL if the primitive takes our layout */
	/* aligned sizes; entries of OURS are unused */
	int64_t bytes[N_MEMORIES];
	dnnl_memory_t *memories; /* N_MEMORIES for each worker */
	const char *name;
} Tile;

struct PreparedCall {
	Library *lib;
	const WorkKind *kind;
	LibraryCall call;
	Tiling tiling;
	Tile full, rest; /* rest.primitive is NULL if tiles divide the work evenly */
	bool tiled;      /* each tile is computed by one thread */
	int workers;
	unsigned fixed;
	int64_t shared, scratch; /* bytes: of operands that all tiles read; of a worker */
	/* ---- of the present run */
	char *buffers[N_OPERANDS], *packed[N_OPERANDS], *memory;
	dnnl_status_t *results; /* one per worker */
};

/* ---- onednn.c */
Status onednn_fault(dnnl_status_t status, const char *what);
dnnl_data_type_t onednn_type(uint32_t dtype);
void onednn_forget_memory(const Library *lib, MemoryDesc *m); /* m may be all zero */
/* Is operand i packed once in each run, because all tiles read the same operand? */
bool onednn_is_packed(const PreparedCall *c, int i);
/* Called around all computing by the library: sets OpenMP's number of threads for the calling thread, and restores it. */
int onednn_threads_begin(const PreparedCall *c);
void onednn_threads_end(const PreparedCall *c, int before);

/* ---- onednn_run.c: functions of LibraryOps */
Status onednn_pack(PreparedCall *c, int i, const void *buffer, char *to);
Status onednn_run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
                  char *scratch, void *stream);

#endif
