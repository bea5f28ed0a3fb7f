/* A rough estimate of a kernel's time, to decide whether a second thread pays. */
#include "format/format.h"

/* In a nanosecond a core does four operations and moves ten bytes. A kernel with many operations per byte is a matrix product: its
 * operands stay in registers, and the core does 64 operations. */
double
kernel_estimate(const KernelRecord *k)
{
	double flops = (double)k->flops, bytes = (double)k->bytes;

	return flops > 8 * bytes ? flops / 64 : flops / 4 + bytes / 10;
}

/* Instructions that only runs of several ranks execute do not count, because another
 * thread would not speed them up. */
double
program_sum(const Format *f, const ProgramRecord *p,
            double (*of)(const KernelRecord *k, const void *context), const void *context)
{
	double times[MAX_LOOPS + 1] = {1}, total = 0;
	int depth = 0;

	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *in = &f->instructions[p->first_instruction + i];

		if (in->kind == RUN_KERNEL && only_applies(in->only, &run_alone))
			total += times[depth] * of(&f->kernels[in->what], context);
		else if (instruction_opens(in->kind)) {
			double count = in->kind == BRANCH
			                       ? 1
			                       : (double)format_loop_count(in->what, &run_alone);
			times[depth + 1] = times[depth] * count;
			depth++;
		} else if (in->kind == END)
			depth--;
	}
	return total;
}

static double
estimate_of(const KernelRecord *k, const void *context)
{
	(void)context;
	return kernel_estimate(k);
}

double
program_estimate(const Format *f, const ProgramRecord *p)
{
	return program_sum(f, p, estimate_of, NULL);
}
