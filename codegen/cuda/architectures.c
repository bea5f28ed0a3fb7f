/* Lists the GPU architectures that --target=cuda: accepts, such as sm_90a, and for each
 * architecture the target (row of costs) whose programs it runs. */
#include "codegen/cuda/cuda.h"

#include <string.h>

#define TARGET(name) extern const Target target_##name;
#include "codegen/target/target_list.def"
#undef TARGET

const CudaArchitecture cuda_architectures[] = {
#define CUDA_ARCHITECTURE(name, target, by_default) {name, &target_##target, by_default},
#include "codegen/cuda/architecture_list.def"
#undef CUDA_ARCHITECTURE
	{0},
};

const char *const cuda_shown = "sm_90a";

const CudaArchitecture *
cuda_architecture_find(const char *name)
{
	for (const CudaArchitecture *a = cuda_architectures; a->name; a++)
		if (strcmp(a->name, name) == 0)
			return a;
	return NULL;
}
