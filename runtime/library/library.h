/* The interface to a library that runs products and convolutions in place of generated loops: a table of functions. oneDNN
 * implements it for the host (onednn*.c), cuBLASLt and cuDNN for NVIDIA's GPUs (cublaslt*.c, cudnn.c).
 * runtime/device/library_calls.c knows only this interface. */
#ifndef GRADC_RUNTIME_LIBRARY_LIBRARY_H
#define GRADC_RUNTIME_LIBRARY_LIBRARY_H

#include "base/calls/library_call.h"
#include "runtime/host/host.h"

typedef struct Library Library;           /* an opened library */
typedef struct PreparedCall PreparedCall; /* a call that is ready to run */

/* Where and how a library works: threads or GPU, and what it may do. */
typedef struct {
	Pool *pool; /* threads of the host, which must outlive the library; NULL on a GPU */
	/* On the host. true: work is split into tiles of one size, each computed by one thread, so that bits do not depend on
	 * the number of threads. false: only products whose bits would depend on the number of threads are split, into one tile
	 * per CPU of the machine; the library divides all other work among the threads itself. */
	bool tiled;
	const char *machine; /* name of the GPU; NULL on the host */
	/* of the GPU: 90 for compute capability 9.0; number of multiprocessors */
	int capability, processors;
	bool tf32; /* f32 products may round their operands to tf32 */
} LibraryHome;

/* A way to run a call that was found when the model was compiled. */
typedef struct {
	const char *version;        /* version of the library */
	const char *text;           /* in the library's own form */
	int capability, processors; /* of the GPU for which it was found */
} LibraryPlan;

enum { MOST_ENGINES = 8 };
typedef struct {
	const char *name;
	/* Opens the library; an error says why it cannot be used. On a GPU, the caller has made the GPU's context current in
	 * the thread, here and in all calls below. */
	Status (*open)(const LibraryHome *home, Library **out);
	/* called after all the library's calls are released; library may be NULL */
	void (*close)(Library *library);
	const char *(*version)(const Library *library); /* such as "oneDNN 2.6.0" */
	/* fixed: bit i says that operand i (0 or 1) holds the same elements in every run with the same packed memory. An error
	 * says why the generated loops must be used: for example, the library has no fast code for the dtypes or strides, or
	 * needs more scratch than scratch_limit bytes. */
	Status (*prepare)(Library *library, const LibraryCall *call, unsigned fixed,
	                  int64_t scratch_limit, PreparedCall **out);
	/* Prepares the call with each of up to MOST_ENGINES engines (algorithms), in the order in which the library expects them
	 * to be fast. Also takes calls that `prepare` leaves to another library. The caller releases all *n, also after an error,
	 * which says why there are not more. NULL if the library has one engine for a call. */
	Status (*engines)(Library *library, const LibraryCall *call, int64_t scratch_limit,
	                  PreparedCall *out[MOST_ENGINES], int *n);
	/* Appends what tells the engine from all others that this version of the library offers for the call: one line without
	 * tabs. NULL like `engines`. */
	void (*print_engine)(const PreparedCall *call, Text *out);
	/* Prepares a call by a plan. An error says why the plan does not fit this library or GPU. NULL if the library has no
	 * plans. */
	Status (*rebuild)(Library *library, const LibraryCall *call, const LibraryPlan *plan,
	                  int64_t scratch_limit, PreparedCall **out);
	/* Why the library cannot run any call, which may be known only after the first `prepare`; NULL if it can run calls. The
	 * function pointer is NULL for a library that can always run calls. */
	const char *(*fault)(const Library *library);
	void (*release)(PreparedCall *call);                     /* call may be NULL */
	bool (*pays)(const PreparedCall *call);                  /* false: the loops are faster */
	const char *(*implementation)(const PreparedCall *call); /* such as "brg:avx512_core" */
	int64_t (*scratch)(const PreparedCall *call); /* bytes of scratch in a run, aligned to 64 */
	/* Bytes of fixed operand i in the library's own layout; 0 if the library reads the operand's own layout, or packs the
	 * operand in each run. */
	int64_t (*packed_bytes)(const PreparedCall *call, int i);
	/* Packs operand i from the buffer to `to`, which is aligned to 64. NULL if packed_bytes is always 0. */
	Status (*pack)(PreparedCall *call, int i, const void *buffer, char *to);
	/* buffers: one per operand of the call; an operand's offset counts from the beginning of its buffer. packed: packed
	 * operands; NULL if packed_bytes is 0, or if operands are to be packed in this run, into the scratch. stream: the GPU's
	 * stream, in which the work is queued. On the host it is NULL, and the work is done on return. */
	Status (*run)(PreparedCall *call, void *const buffers[N_LIBRARY_OPERANDS],
	              char *const packed[2], char *scratch, void *stream);
} LibraryOps;
extern const LibraryOps library_onednn; /* without oneDNN in the build, open is an error */
extern const LibraryOps library_cublaslt, library_cudnn;

/* ---- libraries.c: the libraries of a device, in the order in which they are asked to take a call */
enum { MOST_LIBRARIES = 2 };
typedef struct {
	const LibraryOps *ops;
	Library *library; /* NULL if it could not be opened */
	Status why_none;
} OpenedLibrary;
typedef struct {
	int n; /* 0: libraries are off */
	OpenedLibrary at[MOST_LIBRARIES];
	Text text;     /* for people: versions, or why a library cannot be used */
	Text versions; /* versions of the usable libraries */
} Libraries;
/* Opens all libraries of `list`. If a library cannot be opened, that is not a fault. */
void libraries_open(Libraries *out, const LibraryHome *home, int n, const LibraryOps *const *list);
/* Called after calls were prepared: a library that can run no call no longer counts as usable. */
void libraries_look_again(Libraries *libraries);
void libraries_close(Libraries *libraries);
/* FLOP/s of a large square product with the element types of `like`; 0 if no library computes it. Takes some ten
 * milliseconds. Only for libraries of the host. */
double libraries_peak(const Libraries *libraries, const LibraryCall *like);
/* NULL if no library is usable. */
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

/* ---- tune_file.c: the file of --tune. It has a first line that identifies the file. Lines are only added, each by one write,
 * so several processes may share the file; of two choices for a key the first counts. */
enum { TUNE_FILE_BYTES = 16 << 20 }; /* largest file */
/* Reads the file's lines. If `writes`, creates the file if it is missing. A file that exists may be read-only. EXIT_SYSTEM if the
 * file cannot be made or read, or is not a file of --tune. *missing: the file does not exist. */
Status tune_file_open(const char *path, bool writes, Tunings *out, bool *missing);
/* Adds a line; false if the file cannot be written. */
bool tune_file_add(const char *path, const TunedEngine *e);

/* ---- tuner.c: tries engines, and takes the fastest */
/* What a device offers for trials. All functions wait until the work is done. */
typedef struct {
	void *(*alloc)(void *context, int64_t bytes); /* NULL if the device has too little memory */
	void (*free)(void *context, void *at, int64_t bytes);
	Status (*fill)(void *context, void *at, int byte, int64_t bytes);
	Status (*read)(void *context, void *to, const void *from, int64_t bytes);
	/* Runs the call `runs` times. seconds: of one run, by the device's clock. EXIT_HANG if the call does not end. */
	Status (*time)(void *context, Status (*run)(void *call, void *stream), void *call, int runs,
	               double *seconds);
	void *context;
} LibraryTrials;
typedef struct {
	Tunings *tunings; /* choices of earlier runs, to which the tuner adds; borrowed */
	const char *file; /* of --tune; NULL: none. A new choice is added to it */
	/* All trials may take `seconds`, or `steps` times what the tried calls take in a training step, if that is more. seconds 0:
	 * nothing is tried. */
	double seconds, steps;
	const LibraryTrials *trials;
	const char *machine; /* name of the GPU */
	bool tf32;
	double in_step; /* seconds that the tried calls take in a training step */
} Tuner;
typedef struct {
	const LibraryOps *ops;
	PreparedCall *call; /* NULL: none */
	bool none;          /* all engines are known to be faulty, so the loops must run */
} TunedCall;
/* Prepares the call with the engine that an earlier run chose, or with the fastest of those that are tried. *out may hold a call
 * that was prepared by a plan: it competes, and is released if another one is taken. If nothing is known and nothing can be
 * tried, *out stays as it is; then the caller takes the library's own first choice, and says so by tuner_note. launches: in a
 * training step. An error ends the run: an engine hangs, or has broken the device. */
Status tuner_pick(Tuner *t, const Libraries *libraries, const LibraryCall *call, int64_t launches,
                  int64_t scratch_limit, TunedCall *out);
void tuner_note(Tuner *t, const Libraries *libraries, const LibraryCall *call,
                int64_t scratch_limit, const LibraryOps *ops, const PreparedCall *prepared);

#endif
