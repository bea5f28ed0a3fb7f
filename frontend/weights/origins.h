/* Private header: finds out what the exporter did to tensors (computed, merged, dropped), and
 * undoes merging and dropping. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_WEIGHTS_ORIGINS_H
#define GRADC_FRONTEND_WEIGHTS_ORIGINS_H

#include "frontend/weights/weights.h"

/* ---- origins.c */
void origins_read(Repairs *r);
/* Sets the origins of initializers that edits restored; call it after unmerge and untie_readers. */
void origins_of_restored(Repairs *r);
/* Adds the initializer's name to in_file, and the names of the parameters that the initializer was
 * computed from. */
void origins_add_names(StrMap *in_file, const char *name, const Origin *o);

/* ---- unmerge.c: repairs `unmerge` and `biases`, in the model's graph; call it after origins_read. */
void unmerge(Repairs *r);

/* ---- unmerge_calls.c */
/* How often the exporter's text of the node's call names the module's tensor. */
int node_text_names(const Repairs *r, const NodeProto *p, const char *tensor);

/* ---- untie.c: --no-tie of an initializer with several readers; call it after origins_read. */
void untie_readers(Repairs *r);

/* ---- origins.c */
bool origin_is(const Weight *w, const char *kind);
/* Is the tensor computed from parameters that appear nowhere else in the file? */
bool origin_is_all_there_is(const Repairs *r, const Weight *w);
/* "computed from a, b when exported: ..." */
const char *origin_text(const Repairs *r, const Weight *w);

/* ---- findings.c: adds notes on changes that the exporter made without a trace. */
void findings_note(Repairs *r);

#endif
