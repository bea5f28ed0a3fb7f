/* Places: what an operator does with each of its inputs. MatMul multiplies by input 1, so a tensor
 * there is likely a weight; Clip takes input 1 as a bound, which is not trained. The facts of the
 * operators tell it; the functions here ask one reader or all readers of a tensor. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"

/* Where the inputs of each kind stand among the facts. */
static const size_t sets[] = {[WEIGHT_PLACE] = offsetof(OperatorFacts, weights),
                              [STEERING_PLACE] = offsetof(OperatorFacts, steering),
                              [FILLING_PLACE] = offsetof(OperatorFacts, filling),
                              [FACTOR_PLACE] = offsetof(OperatorFacts, factors),
                              [TERM_PLACE] = offsetof(OperatorFacts, terms),
                              [JOINING_PLACE] = offsetof(OperatorFacts, joining),
                              [LAYER_PLACE] = offsetof(OperatorFacts, layer_inputs),
                              [CHANNEL_PLACE] = offsetof(OperatorFacts, channels),
                              [STATE_PLACE] = offsetof(OperatorFacts, states),
                              [STATISTIC_PLACE] = offsetof(OperatorFacts, statistics)};

static unsigned
inputs_of(const OperatorFacts *facts, PlaceKind kind)
{
	return *(const unsigned *)((const char *)facts + sets[kind]);
}

static bool
has_input(unsigned inputs, int input)
{
	return input >= 0 && (input < 32 ? inputs >> input & 1 : inputs == ALL_INPUTS);
}

bool
in_place(const Repairs *r, const Reader *reader, PlaceKind kind)
{
	const OperatorFacts *facts = operator_facts(r->model, reader->node->proto);

	return has_input(inputs_of(facts, kind), reader->input);
}

bool
all_in(const Case *c, PlaceKind kind)
{
	for (int i = 0; i < c->n; i++)
		if (!in_place(c->r, &c->readers[i], kind))
			return false;
	return c->n > 0;
}

bool
any_in(const Case *c, PlaceKind kind)
{
	for (int i = 0; i < c->n; i++)
		if (in_place(c->r, &c->readers[i], kind))
			return true;
	return false;
}
