/* The scalar block holds numbers that the trainer computes for each step and kernels read, such as
 * the learning rate. This file has the table of their names, types and defaults. */
#include "base/numbers/numbers.h"

const char *const scalar_names[] = {
#define SCALAR(index, name, dtype, has_default) [SCALAR_##index] = #name,
#include "base/numbers/scalar_list.def"
#undef SCALAR
	[N_SCALARS] = NULL,
};

const DType scalar_dtypes[N_SCALARS] = {
#define SCALAR(index, name, dtype, has_default) [SCALAR_##index] = dtype,
#include "base/numbers/scalar_list.def"
#undef SCALAR
};

const bool scalar_has_default[N_SCALARS] = {
#define SCALAR(index, name, dtype, has_default) [SCALAR_##index] = has_default,
#include "base/numbers/scalar_list.def"
#undef SCALAR
};
