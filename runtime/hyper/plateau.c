/* A learning rate that is multiplied by a factor when the loss of evaluations stops falling:
 * torch.optim.lr_scheduler.ReduceLROnPlateau with mode min and a relative threshold, operation by operation. */
#include "runtime/hyper/curves.h"

#include <math.h>

Plateau
plateau_new(double lr)
{
	return (Plateau){.lr = lr, .first = lr, .best = INFINITY};
}

static void
reduce(Plateau *p, const double *settings, double least_lr)
{
	double lr = fmax(p->lr * settings[PLATEAU_FACTOR], least_lr);

	if (p->lr - lr > settings[PLATEAU_EPS])
		p->lr = lr;
}

void
plateau_step(Plateau *p, const double *settings, double least_lr, double loss)
{
	bool better = loss < p->best * (1 - settings[PLATEAU_THRESHOLD]);

	p->best = better ? loss : p->best;
	p->bad = better ? 0 : p->bad + 1;
	if (p->cooldown > 0) {
		p->cooldown--;
		p->bad = 0;
	}
	if ((double)p->bad <= settings[PLATEAU_PATIENCE])
		return;
	reduce(p, settings, least_lr);
	p->cooldown = (int64_t)settings[PLATEAU_COOLDOWN];
	p->bad = 0;
}

void
plateau_resume(Plateau *p, const Plateau *saved)
{
	Plateau now = *p;

	if (p->lr == 0 || saved->lr == 0)
		return;
	*p = *saved;
	if (now.first != saved->first)
		p->lr = p->first = now.first;
}
