/* Shared by runtime/onednn*.c: the library's functions, and what differs between its generations and between kinds of
 * work. */
#ifndef GRADC_ONEDNN_IMPL_H
#define GRADC_ONEDNN_IMPL_H

#include "runtime/onednn.h"

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

enum { N_OPERANDS = N_LIBRARY_OPERANDS };

struct Onednn {
	Pool *pool;
	bool tiled;
	/* of OpenMP, for the calling thread; the host's own loops go by them, too */
	int (*in_parallel)(void), (*max_threads)(void);
	void (*set_threads)(int);
	void *library;
	char version_text[32];
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_attr_t attributes;
#define DNNL(name) __typeof__(dnnl_##name) *name;
#include "runtime/onednn_list.def"
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

enum { MANY_TILES = INT_MAX, ENOUGH_TILES = 2 }; /* for any number of threads */
/* What a kind of work is to the library: one row of onednn_kinds for each LibraryKind. */
typedef struct {
	int names[N_OPERANDS]; /* DNNL_ARG_... */
	bool any; /* the library picks the layouts it likes best: ours cost it more than a copy */
	/* The tiling into at most so many tiles that are large enough; 1: nothing is cut. */
	Tiling (*tiling)(const LibraryWork *w, int tiles);
	bool same_bits; /* for any number of threads; sums of other kinds may depend on it */
	/* Operand i of a tile of so many steps. A bias, which only kinds that have one are asked for, is dense. */
	Layout (*layout)(const LibraryWork *w, const Tiling *t, int64_t steps, int i);
	/* m: NULL for a bias that the work has not. */
	dnnl_status_t (*describe)(const Onednn *lib, const LibraryWork *w,
	                          ConstMemoryDesc m[N_OPERANDS], dnnl_primitive_desc_t *out);
} WorkKind;
extern const WorkKind onednn_dot, onednn_conv, onednn_conv_grad_input, onednn_conv_grad_weight;

#endif
