/* Windows that slide over spatial axes: the attributes that Conv, ConvTranspose and the pools
 * share. */
#ifndef GRADC_WINDOW_H
#define GRADC_WINDOW_H

#include "frontend/import/import.h"

typedef struct {
	int spatial; /* axes, after batch and channel */
	Ints kernel, stride, dilation, low, high;
	Ints padded; /* `high` before ceil_mode lengthened it */
} Window;

/* Reads kernel_shape (or takes `kernel`), strides, dilations, pads and auto_pad for an input x;
 * ceil_mode lengthens `high`. false after reporting. */
bool want_window(OnnxNode *n, const Value *x, const Ints *kernel, Window *out);
/* Reads strides, dilations and pads for so many spatial axes; the kernel is left empty. false after reporting. */
bool want_steps(OnnxNode *n, int spatial, Window *out);
/* Elements that the window covers along spatial axis i. */
int64_t window_reach(const Window *w, int i);
/* Result size along spatial axis i of an input of that size; negative: it does not fit. */
int64_t window_count(const Window *w, int i, int64_t size);

#endif
