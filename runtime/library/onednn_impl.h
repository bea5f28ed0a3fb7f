/* Shared by runtime/onednn*.c: the library's functions, and what differs between its generations and between kinds of
 * work. */
#ifndef GRADC_ONEDNN_IMPL_H
#define GRADC_ONEDNN_IMPL_H

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

enum { N_OPERANDS = LIBRARY_BIAS + 1 }; /* what is added is the result */

struct Library {
	Pool *pool;
	bool tiled;
	/* of OpenMP, for the calling thread; the host's own loops go by them, too */
	int (*in_parallel)(void), (*max_threads)(void);
	void (*set_threads)(int);
	void *library;
	char version_text[32];
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_attr_t attributes, adding; /* the second: to what the result was */
#define DNNL(name) __typeof__(dnnl_##name) *name;
#include "runtime/library/onednn_list.def"
#undef DNNL
};

/* An operand of a tile, as it lies in our buffers. */
typedef struct {
	int rank;
	dnnl_dims_t dims, strides;
} Layout;

/* Tiles go along one axis of the result. */
typedef struct {
	int axis;             /* the kind's own number for it */
	int64_t extent, step; /* of the axis, of a tile */
	int64_t move
		[N_OPERANDS]; /* elements from one step of the axis to the next; 0: all tiles read the same */
} Tiling;

/* How many operands a call has here, from the first. */
static inline int
onednn_operands(const LibraryCall *call)
{
	return library_has_operand(call, LIBRARY_BIAS) ? N_OPERANDS : LIBRARY_BIAS;
}

enum { MANY_TILES = INT_MAX, ENOUGH_TILES = 2 }; /* for any number of threads */
/* What a kind of work is to the library: one row of onednn_kinds for each LibraryKind. */
typedef struct {
	int names[N_OPERANDS]; /* DNNL_ARG_... */
	bool any; /* the library picks the layouts it likes best: ours cost it more than a copy */
	/* The tiling into at most so many tiles that are large enough; 1: nothing is cut. */
	Tiling (*tiling)(const LibraryCall *call, int tiles);
	bool same_bits; /* for any number of threads; sums of other kinds may depend on it */
	/* Operand i of a tile of so many steps. A bias, which only kinds that have one are asked for, is dense. */
	Layout (*layout)(const LibraryCall *call, const Tiling *t, int64_t steps, int i);
	/* m: NULL for a bias that the call has not. */
	dnnl_status_t (*describe)(const Library *lib, const LibraryCall *call,
	                          ConstMemoryDesc m[N_OPERANDS], dnnl_primitive_desc_t *out);
} WorkKind;
extern const WorkKind onednn_dot, onednn_conv, onednn_conv_grad_input, onednn_conv_grad_weight;

/* Memory objects of a worker: operands in our layout, in the primitive's, and its scratch. */
enum { OURS, THEIRS = N_OPERANDS, SCRATCH = 2 * N_OPERANDS, N_MEMORIES };

/* A primitive for one size of tile, and what copies its operands. */
typedef struct {
	dnnl_primitive_desc_t description, copy_descriptions[N_OPERANDS];
	dnnl_primitive_t primitive, copies[N_OPERANDS]; /* NULL: the primitive takes ours */
	int64_t bytes[N_MEMORIES];                      /* aligned; of ours: unused */
	dnnl_memory_t *memories;                        /* N_MEMORIES for each worker */
	const char *name;
} Tile;

struct PreparedCall {
	Library *lib;
	const WorkKind *kind;
	LibraryCall call;
	Tiling tiling;
	Tile full, rest; /* rest.primitive NULL: tiles divide the work */
	bool tiled;      /* each tile is computed by one thread */
	int workers;
	unsigned fixed;
	int64_t shared, scratch; /* bytes: of operands that all tiles read, of a worker */
	/* of a run */
	char *buffers[N_OPERANDS], *packed[N_OPERANDS], *memory;
	dnnl_status_t *results; /* of each worker */
};

/* ---- onednn.c */
Status onednn_fault(dnnl_status_t status, const char *what);
dnnl_data_type_t onednn_type(uint32_t dtype);
void onednn_forget_memory(const Library *lib, MemoryDesc *m); /* one that was made, or zeros */
/* Does each run bring operand i into the library's layout before its tiles? They all read the same. */
bool onednn_is_packed(const PreparedCall *c, int i);
/* Around whatever the library computes: OpenMP's number of threads for the calling one, and what it was. */
int onednn_threads_begin(const PreparedCall *c);
void onednn_threads_end(const PreparedCall *c, int before);

/* ---- onednn_run.c: of LibraryOps */
Status onednn_pack(PreparedCall *c, int i, const void *buffer, char *to);
Status onednn_run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
                  char *scratch, void *stream);

#endif
