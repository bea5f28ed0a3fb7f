/* Adapters as branches of an exported graph. */
#ifndef GRADC_FRONTEND_EXPORT_BRANCHES_H
#define GRADC_FRONTEND_EXPORT_BRANCHES_H

#include "frontend/edit/edit.h"

/* ---- adapter_branches.c */
/* Puts the adapters' branches into g, a copy of the main graph, with initializers for their parts: holes has an ExportRecord by the
 * address of each. quantized: what --quantize made, or NULL. The node that can have none; NULL: there is no such node. */
const char *model_branch_edit(const Module *m, const QuantizedTensors *quantized, GraphProto *g,
                              IntMap *holes, Arena *arena);

#endif
