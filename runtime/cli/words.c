/* The words that may stand before the options of a training executable: each is a way to use the model without training. */
#include "runtime/cli/cli.h"

#include <string.h>

const Word words[] = {
	{"eval", "loss and metrics of --eval-data, --eval-tokens or --eval-text", FOR_EVAL,
         word_eval},
	{"predict", "the model's outputs for all rows of --data, to --output", FOR_PREDICT,
         word_predict},
	{0},
};

const Word *
word_find(const char *name)
{
	for (const Word *w = words; w->name; w++)
		if (strcmp(w->name, name) == 0)
			return w;
	return NULL;
}
