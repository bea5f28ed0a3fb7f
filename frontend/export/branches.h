/* Private header: adapters as branches of an exported graph. */
#ifndef GRADC_FRONTEND_EXPORT_BRANCHES_H
#define GRADC_FRONTEND_EXPORT_BRANCHES_H

#include "frontend/edit/edit.h"

/* ---- adapter_branches.c */
/* Adds the adapters' branches to g, a copy of the main graph. Each initializer for a part of an
 * adapter has an ExportRecord in holes, by its address. quantized: the tensors of --quantize, or
 * NULL. Returns the name of a node that cannot have a branch; NULL: all can. */
const char *model_branch_edit(const Module *m, const QuantizedTensors *quantized, GraphProto *g,
                              IntMap *holes, Arena *arena);

#endif
