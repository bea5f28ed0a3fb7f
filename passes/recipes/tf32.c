/* f32, whose products may round their operands to 11 bits (TensorFloat-32), as tensor cores do. Loops never round. */
#include "passes/pass.h"

const Recipe recipe_tf32 = {.name = "tf32",
                            .floats = F32,
                            .products = F32,
                            .allow_tf32 = true,
                            .loss_scale = "none",
                            .trains = true};
