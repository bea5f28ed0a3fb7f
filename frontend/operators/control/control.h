/* What If, Loop and Scan share: the graphs among a node's attributes. */
#ifndef GRADC_CONTROL_H
#define GRADC_CONTROL_H

#include "frontend/import/import.h"

/* That attribute; NULL after reporting that it is no graph. */
const GraphProto *want_graph(OnnxNode *n, const char *name);
/* Input i of a graph that is imported next; of another element type than it declares: reported. */
void set_graph_input(OnnxNode *n, const GraphProto *g, size_t i, const Bound *b);
void set_graph_value(OnnxNode *n, const GraphProto *g, size_t i, Value *v);
/* Output i of a graph that has been imported; NULL after a fault. */
Bound *graph_output(OnnxNode *n, const GraphProto *g, size_t i);
/* Output i is padded, and nobody behind it could know. */
void report_counted_output(OnnxNode *n, const GraphProto *g, size_t i);

#endif
