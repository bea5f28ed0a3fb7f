/* Private header: recognizes tensors whose numbers show that they are not parameters. Sections are
 * named after the .c file. */
#ifndef GRADC_FRONTEND_WEIGHTS_VALUES_H
#define GRADC_FRONTEND_WEIGHTS_VALUES_H

#include "frontend/weights/weights.h"

/* ---- table_values.c */
/* Is more than one axis longer than 1? */
bool values_are_wide(const TensorData *t);
/* Are all slices along the axis equal? */
bool values_repeat(const TensorData *t, int axis);
/* A mask that is added before a softmax: only 0 and large negative numbers. */
bool values_are_mask(const TensorData *t);
/* Only ones and zeros. */
bool values_are_binary(const TensorData *t);
/* Ones on and below the diagonal of the last two axes, zeros above. */
bool values_are_triangle(const TensorData *t);
/* Position encodings, sinusoidal or rotary: all lines along some axis are sines or cosines.
 * from_zero: their angles start at 0. */
bool values_are_waves(const TensorData *t, bool from_zero);
/* The same with 4 or 5 positions from 0 on, too few to be sure. */
bool values_are_short_waves(const TensorData *t);
/* A cosine transform: at least 3 lines; line k = 0, 1, 2 ... is proportional to
 * cos(pi / n (i + 1/2) k). */
bool values_are_cosine_transform(const TensorData *t);
/* A kernel [out, in, ...] that is the same for all channels, or a kernel without channels. Along
 * each axis the kernel equals its mirror image or the negative of its mirror image, to the last
 * bit. */
bool values_are_symmetric_kernel(const TensorData *t);
/* ALiBi (Press et al. 2022): three axes or more; each line along the last axis rises or falls
 * evenly. */
bool values_are_ramps(const TensorData *t);

/* ---- filter_values.c */
/* Bases of transforms and fixed filters: lines that are sines times a shared window, or lines of 8
 * numbers or more that equal their mirror images. */
bool values_are_basis(const TensorData *t);
/* A window (Hann, Hamming, Blackman, Kaiser ...): one line that rises to its middle and falls again. */
bool values_are_window(const TensorData *t);
/* A filter bank (mel, ERB and Bark filters, interpolation matrices): one bump per line, in order. */
bool values_are_filter_bank(const TensorData *t);
/* One line a + b r^i: evenly spaced numbers, powers, frequencies of a mel scale. */
bool values_are_sequence(const TensorData *t);
/* Whole numbers and halves, at least three different ones, some beyond 1: positions, anchors, bins
 * of a distribution. */
bool values_are_whole(const TensorData *t);

#endif
