/* NVIDIA's GPUs, by the architecture that kernels are compiled for. A part is a block of threads. No number of these is measured
 * yet: the tuning is the CPUs'. */
#include "codegen/target.h"

const Target target_cuda_sm_80 = {
	.name = "cuda-sm_80", .kind = TARGET_TEAMS, .lanes = 4, .team = 256, .tuning = &cpu_tuning};
const Target target_cuda_sm_90 = {
	.name = "cuda-sm_90", .kind = TARGET_TEAMS, .lanes = 4, .team = 256, .tuning = &cpu_tuning};
const Target target_cuda_sm_100 = {.name = "cuda-sm_100",
                                   .kind = TARGET_TEAMS,
                                   .lanes = 4,
                                   .team = 256,
                                   .tuning = &cpu_tuning};
