/* The kernels of tests/unit/runtime/runtime_tiny.h for a GPU, in the form of printed ones: a thread is a part. Who compiles the
 * text puts an enum of SCALAR_LR and SCALAR_CLIP_NORM before it, with the numbers of base/numbers/scalar_list.def. */
typedef union {
	double f;
	unsigned long long u;
} Scalar;
typedef long long int64_t;
enum { ROWS = 4 };

#define PART \
	const int64_t part = begin + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; \
	if (part >= end) \
		return;

extern "C" __global__ void __launch_bounds__(128, 1)
gradc_k_add_one(const double *x, double *y, const Scalar *scalars, int64_t begin, int64_t end)
{
	PART
	y[part] = x[part] + scalars[SCALAR_LR].f;
}

extern "C" __global__ void __launch_bounds__(128, 1)
gradc_k_diff(const double *x, const double *t, const double *w, double *diff, const Scalar *scalars, int64_t begin, int64_t end)
{
	PART
	diff[part] = *w * x[part] - t[part];
}

extern "C" __global__ void __launch_bounds__(128, 1)
gradc_k_gradient(const double *diff, const double *x, const double *weight, double *gradient, double *sum, double *count,
                 const Scalar *scalars, int64_t begin, int64_t end)
{
	PART
	for (int i = 0; i < ROWS; i++) {
		*gradient += 2 * diff[i] * x[i] * weight[i] / ROWS;
		*sum += weight[i] * diff[i] * diff[i];
		*count += weight[i];
	}
}

extern "C" __global__ void __launch_bounds__(128, 1)
gradc_k_update(double *w, const double *gradient, const double *sum, const double *count, double *norm, double *sum_out,
               double *count_out, bool *failed, const Scalar *scalars, int64_t begin, int64_t end)
{
	PART
	double loss = *sum / *count, g = *gradient * ROWS / *count;
	double clip = scalars[SCALAR_CLIP_NORM].f / (fabs(g) + 1e-6);
	/* no number minus itself is 0 but a finite one */
	bool finite = loss - loss == 0 && g - g == 0;

	*norm = fabs(g);
	*sum_out = *sum;
	*count_out = *count;
	if (finite && !*failed)
		*w -= scalars[SCALAR_LR].f * g * (clip < 1 ? clip : 1);
	*failed |= !finite;
}

extern "C" __global__ void __launch_bounds__(128, 1)
gradc_k_forward(const double *x, const double *w, double *y, const Scalar *scalars, int64_t begin, int64_t end)
{
	PART
	y[part] = *w * x[part];
}

extern "C" __global__ void __launch_bounds__(128, 1)
gradc_k_eval(const double *diff, const double *weight, double *sum, double *count, const Scalar *scalars, int64_t begin,
             int64_t end)
{
	PART
	for (int i = 0; i < ROWS; i++) {
		*sum += weight[i] * diff[i] * diff[i];
		*count += weight[i];
	}
}
