/* Recognizes kernels that only write zeros. Such a kernel is replaced by the device's own
 * operation that fills memory. */
#include "codegen/programs/instructions.h"

#include <math.h>

static bool
is_zero(const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_CONST &&
	       (dtype_is_float(s->type) ? s->f == 0 && !signbit(s->f) : s->i == 0);
}

/* Does the store write a literal zero, defined before it? */
static bool
stores_zero(const Kernel *k, int store)
{
	for (int i = store - 1; i >= 0; i--)
		if (k->body.at[i].result == k->body.at[store].operands[0])
			return is_zero(&k->body.at[i]);
	return false;
}

/* A kernel writes its whole result, so it is enough that every stored value is zero. */
bool
kernel_fills_zero(const Kernel *k)
{
	if (k->n_inputs > 0 || k->n_outputs != 1 || k->library)
		return false;
	for (int i = 0; i < k->body.n; i++) {
		LoopStatementKind kind = k->body.at[i].kind;
		bool loops = kind == LOOP_STATEMENT_FOR || kind == LOOP_STATEMENT_END;
		bool stores = kind == LOOP_STATEMENT_STORE && stores_zero(k, i);
		if (!loops && !stores && !is_zero(&k->body.at[i]))
			return false;
	}
	return true;
}
