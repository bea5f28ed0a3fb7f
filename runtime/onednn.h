/* oneDNN, opened with dlopen: its products in place of generated loops. The one wrapper that knows the library; the
 * generation of its interface, 2 or 3, is that of the header at build. */
#ifndef GRADC_ONEDNN_H
#define GRADC_ONEDNN_H

#include "format/format.h"
#include "runtime/parallel.h"

typedef struct Onednn Onednn;
typedef struct OnednnCall OnednnCall;

/* tiled: products are cut into tiles of one size, each computed by one thread, so that any number of threads
 * gives the same bits; else the library cuts as it likes. An error says why there is no library. The pool
 * outlives it. */
Status onednn_open(Pool *pool, bool tiled, Onednn **out);
void onednn_close(Onednn *lib);                /* after its calls; NULL is allowed */
const char *onednn_version(const Onednn *lib); /* "oneDNN 2.6.0" */

/* A product made ready. An error says why the loops are better: only reference code, or more scratch
 * than scratch_limit bytes. */
Status onednn_dot(Onednn *lib, const LibraryDot *dot, int64_t scratch_limit, OnednnCall **out);
void onednn_call_close(OnednnCall *call);                  /* NULL is allowed */
const char *onednn_implementation(const OnednnCall *call); /* "brg:avx512_core" */
int64_t onednn_scratch(const OnednnCall *call); /* bytes that a run needs, aligned to 64 */
/* buffers: of x, y and z, where their offsets count from. */
Status onednn_run(OnednnCall *call, void *const buffers[3], char *scratch);

#endif
