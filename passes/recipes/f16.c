/* Products of f16, as torch.autocast computes them. The range of f16 is small, so gradients need a loss scale. Weights of f16 alone
 * do not train: an update below 6e-8 vanishes, and a larger update loses what is below 0.05 % of the weight. torch.amp.GradScaler
 * refuses such weights, too. */
#include "passes/pass.h"

const Recipe recipe_f16 = {
	.name = "f16", .floats = F32, .products = F16, .loss_scale = "torch", .trains = false};
