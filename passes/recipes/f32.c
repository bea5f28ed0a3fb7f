/* The default recipe. Values that the file keeps in f64 stay f64. */
#include "passes/pass.h"

const Recipe recipe_f32 = {
	.name = "f32", .floats = F32, .products = F32, .loss_scale = "none", .trains = true};
