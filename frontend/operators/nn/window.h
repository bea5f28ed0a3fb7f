/* Private header: windows that slide over spatial axes, with the attributes that Conv, ConvTranspose
 * and the pools share. */
#ifndef GRADC_FRONTEND_OPERATORS_NN_WINDOW_H
#define GRADC_FRONTEND_OPERATORS_NN_WINDOW_H

#include "frontend/import/import.h"

typedef struct {
	int spatial; /* number of axes after batch and channel */
	Ints kernel, stride, dilation, low, high;
	Ints padded; /* the high pads, before ceil_mode increased `high` */
} Window;

/* Reads kernel_shape (or takes `kernel`), strides, dilations, pads and auto_pad for an input x;
 * ceil_mode lengthens `high`. false after reporting. */
bool want_window(OnnxNode *n, const Value *x, const Ints *kernel, Window *out);
/* Reads strides, dilations and pads for `spatial` axes; the kernel is left empty. false after
 * reporting. */
bool want_steps(OnnxNode *n, int spatial, Window *out);
/* Number of elements from the window's first to its last along spatial axis i. */
int64_t window_reach(const Window *w, int i);
/* The result's size along spatial axis i for an input of `size`; negative: the window does not fit. */
int64_t window_count(const Window *w, int i, int64_t size);

#endif
