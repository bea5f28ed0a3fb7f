/* Every float is f64: for checks of the arithmetic. */
#include "passes/pass.h"

const Recipe recipe_f64 = {
	.name = "f64", .floats = F64, .products = F64, .loss_scale = "none", .trains = true};
