/* What a library of kernels says of one: the pretended driver and the library's sources agree on it. */
#ifndef GRADC_TESTS_CUDA_HARNESS_KERNEL_H
#define GRADC_TESTS_CUDA_HARNESS_KERNEL_H

typedef struct HarnessKernel HarnessKernel;
struct HarnessKernel {
	int n; /* parameters */
	const int *sizes;
	const bool *pointers;
	void (*run)(void *parameters); /* of one thread: an address for each parameter */
};

#endif
