/* How long kernels take, roughly: what decides whether a second thread pays. */
#include "format/format.h"

/* A core does four operations and moves ten bytes in a nanosecond. Where there are many operations for each byte it is a
 * product, whose numbers stay in registers. */
double
kernel_estimate(const KernelRecord *k)
{
	double flops = (double)k->flops, bytes = (double)k->bytes;

	return flops > 8 * bytes ? flops / 64 : flops / 4 + bytes / 10;
}

/* Of one process alone: what ranks do besides is no reason for another thread. */
double
program_estimate(const Format *f, const ProgramRecord *p)
{
	double times[MAX_LOOPS + 1] = {1}, total = 0;
	int depth = 0;

	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *in = &f->instructions[p->first_instruction + i];

		if (in->kind == RUN_KERNEL && only_applies(in->only, &run_alone))
			total += times[depth] * kernel_estimate(&f->kernels[in->what]);
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
