/* Private header: for If, Loop and Scan, whose attributes hold graphs (branches and loop
 * bodies). */
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
/* Reports output i if it is padded: the node's readers would not know how many of its elements are
 * data. */
void report_counted_output(OnnxNode *n, const GraphProto *g, size_t i);

#endif
