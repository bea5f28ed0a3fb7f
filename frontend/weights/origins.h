/* What the exporter did to tensors, and what of it is undone. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_WEIGHTS_ORIGINS_H
#define GRADC_FRONTEND_WEIGHTS_ORIGINS_H

#include "frontend/weights/weights.h"

/* ---- origins.c */
void origins_read(Repairs *r);
/* Of what edits restored: behind unmerge and untie_readers. */
void origins_of_restored(Repairs *r);
/* Adds to in_file the initializer's name, and the names of the parameters that the initializer was computed from. */
void origins_add_names(StrMap *in_file, const char *name, const Origin *o);

/* ---- unmerge.c: repairs `unmerge` and `biases`, in the model's graph; behind origins_read. */
void unmerge(Repairs *r);
/* unmerge_calls.c: how often the exporter's text of the node's call names the module's tensor. */
int node_text_names(const Repairs *r, const NodeProto *p, const char *tensor);

/* ---- untie.c: --no-tie of one initializer with several readers, likewise. */
void untie_readers(Repairs *r);
bool origin_is(const Weight *w, const char *kind);
/* What it was computed from is nowhere else in the file. */
bool origin_is_all_there_is(const Repairs *r, const Weight *w);
/* "computed from a, b when exported: ..." */
const char *origin_text(const Repairs *r, const Weight *w);

/* ---- findings.c: what the exporter changed without a trace, as notes. */
void findings_note(Repairs *r);

#endif
