/* What If, Loop and Scan share: the graphs among a node's attributes. */
#ifndef GRADC_CONTROL_H
#define GRADC_CONTROL_H

#include "frontend/onnx/importer.h"

/* That attribute; NULL after reporting that it is no graph. */
const GraphProto *want_graph(OnnxNode *n, const char *name);
/* Output i of a graph that has been imported; NULL after a fault. */
Bound *graph_output(OnnxNode *n, const GraphProto *g, size_t i);

#endif
