/* The parts of a session. Sections are named after the .c file. */
#ifndef GRADC_DRIVER_SESSION_H
#define GRADC_DRIVER_SESSION_H

#include "driver/driver.h"

/* ---- choices.c */
/* The rule of --loss-scale. The default depends on --precision: f16 needs a loss scale. */
const char *options_loss_scale(const Options *o);
/* Steps from one estimate of the optimizers to the next, the smallest if they differ; 0: no estimates. */
int64_t options_estimate_every(const Options *o);

/* ---- targets.c */
/* If --target was not read as an option: reads o->target; NULL: the CPU of this machine. False after reporting. */
bool targets_complete(Options *o, Arena *arena, Diag *diag);

/* ---- quantize_spec.c: sets s->quantize from --quantize; false after reporting. */
bool session_quantize(Session *s);

/* ---- session.c */
/* Is the exported form also used in evaluations (--eval-mode=as-exported)? */
bool evaluates_as_exported(const Options *o);
/* Splits NAME=VALUE at the last `=`, since names may contain `=` and values of these options do
 * not. false after reporting. */
bool split_pair(Session *s, const char *option, const char *text, const char **name,
                const char **value);

/* ---- session_dims.c */
/* Sets the dimensions in `io`; false after reporting. */
bool session_bind(Session *s, OpenDims open, ImportOptions *io);

/* ---- session_sizes.c: imports the module. Under OPEN_ONE it finds sizes that work for open
 * dimensions. NULL after reporting. */
Module *session_import_open(Session *s, const ImportOptions *io);

/* ---- executable.c: tables and link */
Status library_path(Arena *arena, char **path); /* path of libgradc_rt.a */

/* ---- kept_adapters.c */
extern const char *const adapter_files[2]; /* files in an adapter's folder: settings, tensors */
bool kept_adapters_write(Session *s, FormatWriter *w); /* false after reporting */

/* ---- lists.c: sequences and optionals of `gradc run` */
bool lists_read(Session *s, ImportOptions *io); /* false after reporting */

#endif
