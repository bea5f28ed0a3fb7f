/* Private header: low-rank adapters (LoRA) in an exported model. Each node that reads an adapted
 * weight gets a branch: nodes that compute the adapter's product, and an Add. */
#ifndef GRADC_FRONTEND_EXPORT_BRANCHES_H
#define GRADC_FRONTEND_EXPORT_BRANCHES_H

#include "frontend/edit/edit.h"

/* ---- adapter_branches.c */
/* Adds the adapters' branches to g, a copy of the main graph. For each initializer that it adds for
 * a part of an adapter, it puts an entry into `holes`: the initializer's address -> ExportRecord.
 * quantized: the tensors of --quantize, or NULL. Returns the name of a node that cannot have a
 * branch; NULL: every node can. */
const char *model_branch_edit(const Module *m, const QuantizedTensors *quantized, GraphProto *g,
                              IntMap *holes, Arena *arena);

#endif
