/* What a device needs of a library that does products and convolutions in place of generated loops: a table of
 * functions. oneDNN fills it for the host (onednn*.c alone know it), cuBLASLt and cuDNN for NVIDIA's GPUs
 * (cuda/cublaslt*.c, cuda/cudnn.c); library_calls.c knows no more than this. */
#ifndef GRADC_LIBRARY_H
#define GRADC_LIBRARY_H

#include "base/calls/library_call.h"
#include "runtime/host/host.h"

typedef struct Library Library;           /* one that was opened */
typedef struct PreparedCall PreparedCall; /* a call that it is ready to run */

/* How a library finds out by trying which of its ways is fastest. */
typedef struct {
	const char *file; /* what was found, as text; one that is not there says nothing */
	bool times;       /* what the file lacks is tried, and added to it */
	void *(*alloc)(void *context,
	               int64_t bytes); /* the GPU's memory; NULL: it has not so much */
	void (*free)(void *context, void *at, int64_t bytes);
	/* Seconds of a run, by the GPU's clock; negative: it failed. */
	double (*time)(void *context, Status (*run)(void *call, void *stream), void *call);
	void *context;
} LibraryTrials;

/* ---- autotune.c: that file */
enum { AUTOTUNE_BYTES = 16 << 20 }; /* at most */
/* Can it be read, and written, if that is wanted? Makes it then. An error says why not. missing: it is not there. */
Status autotune_file_open(const char *path, bool writes, bool *missing);

/* Where a library works. */
typedef struct {
	Pool *pool; /* of the host's threads, which outlives the library; NULL: it works on a GPU */
	/* On the host: work is cut into tiles of one size, each computed by one thread, so that any number of threads gives
	 * the same bits. Else products are cut, a tile for each CPU of the machine, where these bits would depend on the
	 * threads; all other work the library cuts as it likes. */
	bool tiled;
	const char *machine;        /* the GPU's name; NULL: the host */
	int capability, processors; /* of the GPU: 90 is compute capability 9.0 */
	bool tf32;                  /* products of f32 may round their operands to it */
	const LibraryTrials
		*trials; /* as long as the library; NULL: it takes what it thinks is best */
} LibraryHome;

/* A way to run a call that a library found when the model was compiled. */
typedef struct {
	const char *version;        /* of the library */
	const char *text;           /* in its words */
	int capability, processors; /* of the GPU that it was found for */
} LibraryPlan;

typedef struct {
	const char *name;
	/* An error says why there is no library. Of a GPU: its context is the thread's current one, here and in all calls
	 * below. */
	Status (*open)(const LibraryHome *home, Library **out);
	void (*close)(Library *library);                /* after its calls; NULL is allowed */
	const char *(*version)(const Library *library); /* "oneDNN 2.6.0" */
	/* fixed: bit i says that operand i (0, 1) has the same elements in every run that gives the same packed memory for
	 * it. An error says why the loops are better: dtypes or strides that the library has no fast code for, or more
	 * scratch than scratch_limit bytes. */
	Status (*prepare)(Library *library, const LibraryCall *call, unsigned fixed,
	                  int64_t scratch_limit, PreparedCall **out);
	/* The same by that plan. An error says why it is none for this library and its GPU. NULL: there are no plans for it. */
	Status (*rebuild)(Library *library, const LibraryCall *call, const LibraryPlan *plan,
	                  int64_t scratch_limit, PreparedCall **out);
	/* Why it cannot run any call, known when the first was to be prepared; NULL: it can. NULL: no library of its kind fails then. */
	const char *(*fault)(const Library *library);
	void (*release)(PreparedCall *call);                     /* NULL is allowed */
	bool (*pays)(const PreparedCall *call);                  /* false: the loops are faster */
	const char *(*implementation)(const PreparedCall *call); /* "brg:avx512_core" */
	int64_t (*scratch)(const PreparedCall *call); /* bytes that a run needs, aligned to 64 */
	/* Bytes of the fixed operand i in the layout that the library likes best; 0: it takes ours, or wants it anew in
	 * each run. */
	int64_t (*packed_bytes)(const PreparedCall *call, int i);
	/* Brings operand i of that buffer into that layout, once. to: aligned to 64. NULL where packed_bytes is always 0. */
	Status (*pack)(PreparedCall *call, int i, const void *buffer, char *to);
	/* buffers: of each operand that the call has, where its offset counts from. packed: of the operands for which
	 * packed_bytes is not 0; NULL there: packed anew, into the scratch. stream: the GPU's, in which the work has its turn;
	 * NULL on the host, where it is done when this returns. */
	Status (*run)(PreparedCall *call, void *const buffers[N_LIBRARY_OPERANDS],
	              char *const packed[2], char *scratch, void *stream);
} LibraryOps;
extern const LibraryOps library_onednn; /* in a build without it, open is an error */
extern const LibraryOps library_cublaslt, library_cudnn;

/* ---- libraries.c: those of a device, in the order in which they are asked for a call */
enum { MOST_LIBRARIES = 2 };
typedef struct {
	const LibraryOps *ops;
	Library *library; /* NULL: it is not there */
	Status why_none;
} OpenedLibrary;
typedef struct {
	int n; /* 0: nobody asked for any */
	OpenedLibrary at[MOST_LIBRARIES];
	Text text;     /* for people: their versions, or why they are not there */
	Text versions; /* of those that are there */
} Libraries;
/* One that is not there is no fault. */
void libraries_open(Libraries *out, const LibraryHome *home, int n, const LibraryOps *const *list);
/* When calls have been prepared: what cannot run any is not there. */
void libraries_look_again(Libraries *libraries);
void libraries_close(Libraries *libraries);
/* NULL: none is there. */
static inline const char *
libraries_versions(const Libraries *libraries)
{
	return libraries->versions.at;
}
static inline const char *
libraries_text(const Libraries *libraries)
{
	return libraries->n ? libraries->text.at : "no libraries";
}

#endif
