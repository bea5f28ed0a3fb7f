/* oneDNN, opened with dlopen: its products and convolutions in place of generated loops. runtime/onednn*.c alone know
 * the library; the generation of its interface, 2 or 3, is that of the header at build. */
#ifndef GRADC_ONEDNN_H
#define GRADC_ONEDNN_H

#include "format/format.h"
#include "runtime/parallel.h"

typedef struct Onednn Onednn;
typedef struct OnednnCall OnednnCall;

/* tiled: work is cut into tiles of one size, each computed by one thread, so that any number of threads gives the same
 * bits. Else products are cut, a tile for each CPU of the machine, where these bits would depend on the threads; all other
 * work the library cuts as it likes. An error says why there is no library. The pool outlives it. */
Status onednn_open(Pool *pool, bool tiled, Onednn **out);
void onednn_close(Onednn *lib);                /* after its calls; NULL is allowed */
const char *onednn_version(const Onednn *lib); /* "oneDNN 2.6.0" */

/* Work made ready. fixed: bit i says that operand i (0, 1) has the same elements in every run that gives the
 * same packed memory for it. An error says why the loops are better: only reference code, or more scratch than
 * scratch_limit bytes. */
Status onednn_call_open(Onednn *lib, const LibraryWork *work, unsigned fixed, int64_t scratch_limit,
                        OnednnCall **out);
void onednn_call_close(OnednnCall *call);                  /* NULL is allowed */
bool onednn_pays(const OnednnCall *call);                  /* false: the loops are faster */
const char *onednn_implementation(const OnednnCall *call); /* "brg:avx512_core" */
int64_t onednn_scratch(const OnednnCall *call); /* bytes that a run needs, aligned to 64 */
/* Bytes of the fixed operand i in the layout that the library likes best; 0: it takes ours, or wants it anew in each
 * run. */
int64_t onednn_packed_bytes(const OnednnCall *call, int i);
/* Brings operand i of that buffer into that layout, once. to: aligned to 64. */
Status onednn_pack(OnednnCall *call, int i, const void *buffer, char *to);
/* buffers: of each operand that the work has, where its offset counts from. packed: of the operands for which
 * onednn_packed_bytes is not 0; NULL there: packed anew, into the scratch. */
Status onednn_run(OnednnCall *call, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
                  char *scratch);

#endif
