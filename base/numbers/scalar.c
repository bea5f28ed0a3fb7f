/* The scalar block holds numbers that the trainer computes for each step and kernels read, such as
 * the learning rate. This file has the table of their names, types and options. */
#include "base/numbers/numbers.h"

#include <math.h>

const char *const scalar_names[] = {
#define SCALAR(index, name, dtype) [SCALAR_##index] = #name,
#include "base/numbers/scalar_list.def"
	[N_SCALARS] = NULL,
};

const DType scalar_dtypes[N_SCALARS] = {
#define SCALAR(index, name, dtype) [SCALAR_##index] = dtype,
#include "base/numbers/scalar_list.def"
};

#define FINITE INFINITY
#define LESS_1 1
const Hyperparameter hyperparameters[N_SCALARS] = {
#define HYPER(index, name, option, below, help) [SCALAR_##index] = {option, below},
#include "base/numbers/optimizer_list.def"
};
