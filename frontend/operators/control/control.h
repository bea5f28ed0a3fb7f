/* Private header: graphs among a node's attributes, for If, Loop and Scan. */
#ifndef GRADC_FRONTEND_OPERATORS_CONTROL_CONTROL_H
#define GRADC_FRONTEND_OPERATORS_CONTROL_CONTROL_H

#include "frontend/import/import.h"

/* The graph in an attribute; NULL after reporting that it is not a graph. */
const GraphProto *want_graph(OnnxNode *n, const char *name);
/* Sets input i of a graph that will be imported next; reports an element type that differs from the
 * declared one. */
void set_graph_input(OnnxNode *n, const GraphProto *g, size_t i, const Bound *b);
void set_graph_value(OnnxNode *n, const GraphProto *g, size_t i, Value *v);
/* Output i of a graph after its import; NULL after a fault. */
Bound *graph_output(OnnxNode *n, const GraphProto *g, size_t i);
/* Reports that output i is padded where no reader would know its count. */
void report_counted_output(OnnxNode *n, const GraphProto *g, size_t i);

#endif
