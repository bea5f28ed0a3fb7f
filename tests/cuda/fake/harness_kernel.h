/* The description of a kernel in a library of kernels. The pretended driver and the library's sources both include it. */
#ifndef GRADC_TESTS_CUDA_HARNESS_KERNEL_H
#define GRADC_TESTS_CUDA_HARNESS_KERNEL_H

typedef struct HarnessKernel HarnessKernel;
struct HarnessKernel {
	int n; /* number of parameters */
	const int *sizes;
	const bool *pointers;
	void (*run)(
		void *parameters); /* runs one thread; `parameters` has an address for each parameter */
};

#endif
