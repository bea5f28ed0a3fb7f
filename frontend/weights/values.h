/* Tensors that their numbers show to be no parameters. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_WEIGHTS_VALUES_H
#define GRADC_FRONTEND_WEIGHTS_VALUES_H

#include "frontend/weights/weights.h"

/* ---- table_values.c */
/* More than one axis is longer than 1. */
bool values_are_wide(const TensorData *t);
/* Are all that lie along the axis the same? */
bool values_repeat(const TensorData *t, int axis);
/* 0 and very negative numbers: what is added before a softmax. */
bool values_are_mask(const TensorData *t);
/* Ones and zeros. */
bool values_are_binary(const TensorData *t);
/* Ones on and below the diagonal of the last two axes, zeros above. */
bool values_are_triangle(const TensorData *t);
/* Position encodings, sinusoidal and rotary: along some axis, the positions', nothing but sines and cosines, of angles
 * from 0 on if `from_zero`. */
bool values_are_waves(const TensorData *t, bool from_zero);
/* The same of 4 or 5 positions from 0 on, too few to be sure. */
bool values_are_short_waves(const TensorData *t);
/* Line k is cos(pi / n (i + 1/2) k) times some number: of 3 lines or more, in order. */
bool values_are_cosine_transform(const TensorData *t);
/* A kernel [out, in, ...], or one without channels, that is the same for all channels and, to the last bit, the mirror image of
 * itself or of its negative along each axis. */
bool values_are_symmetric_kernel(const TensorData *t);
/* ALiBi (Press et al. 2022): along the last of three axes or more each line rises or falls evenly. */
bool values_are_ramps(const TensorData *t);

/* ---- filter_values.c */
/* Sines behind a window, or lines of 8 numbers or more that are mirror images: bases of transforms, fixed filters. */
bool values_are_basis(const TensorData *t);
/* One line that rises to its middle and falls again: Hann, Hamming, Blackman, Kaiser ... */
bool values_are_window(const TensorData *t);
/* One bump a line, in order: filters of mel, ERB and Bark scales, matrices that interpolate. */
bool values_are_filter_bank(const TensorData *t);
/* One line of a + b r^i: evenly spaced numbers, powers, frequencies of a mel scale. */
bool values_are_sequence(const TensorData *t);
/* Whole numbers and halves, at least three, some beyond 1: positions, anchors, the numbers of a distribution's bins. */
bool values_are_whole(const TensorData *t);

#endif
