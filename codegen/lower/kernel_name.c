/* Names kernels after their ops. Example: dot_exp_add_7 has the words of its function's ops and the
 * kernel's number. The words are names of ops, never strings of a model, so the name is an identifier in
 * every language that kernels are printed in. */
#include "codegen/lower/nest.h"
#include "ir/groups/groups.h"

#include <string.h>

/* The most letters that the words of a name have together, and the most words that are
 * considered. */
enum { MOST_LETTERS = 40, MOST_WORDS = 64 };

typedef struct {
	char text[32];
	int weight; /* largest weight of an op with this word */
} Word;
typedef struct {
	int n;
	Word at[MOST_WORDS];
} Words;

/* The word of n. A reduction has the name of its kind ("sum"); another op with a kind has the
 * kind after its own name ("pool_max"). */
static void
word_of(const Node *n, Word *out)
{
	const OpRow *row = op_row(n);
	const char *kind = NULL;

	for (const Field *f = row->fields; f && f->name; f++)
		if (f->kind == FIELD_ENUM && strcmp(f->name, "kind") == 0)
			kind = f->names[*(const int *)((const char *)n->attr + f->offset)];
	snprintf(out->text, sizeof(out->text), "%s%s%s",
	         kind && row->fuse == FUSE_REDUCE ? "" : row->name,
	         kind && row->fuse != FUSE_REDUCE ? "_" : "", kind ? kind : "");
	/* Opaque ops say most about a kernel, reductions and roots come next, elementwise ops say
	 * least. */
	out->weight = row->fuse == FUSE_OPAQUE                             ? INT32_MAX
	              : row->fuse == FUSE_REDUCE || row->fuse == FUSE_ROOT ? INT32_MAX - 1
	                                                                   : row->weight;
}

static void
add_word(Words *words, const Node *n)
{
	Word word;
	int i = 0;

	word_of(n, &word);
	while (i < words->n && strcmp(words->at[i].text, word.text) != 0)
		i++;
	if (i < words->n && words->at[i].weight < word.weight)
		words->at[i].weight = word.weight;
	if (i == words->n && words->n < MOST_WORDS)
		words->at[words->n++] = word;
}

/* Does the op change a number? */
static bool
computes(const Node *n)
{
	return op_row(n)->fuse != FUSE_VIEW && n->n_operands && n->op != OP_stop_gradient;
}

/* The words of f's ops in their order, each once. all: includes ops that only move numbers. */
static void
find_words(const Function *f, bool all, Words *words)
{
	words->n = 0;
	for_each_node(f, n)
		if (op_row(n)->fuse != FUSE_NONE && (all || computes(n)))
			add_word(words, n);
}

static size_t
letters(const Words *words)
{
	size_t n = 0;

	for (int i = 0; i < words->n; i++)
		n += strlen(words->at[i].text) + 1;
	return n;
}

/* Drops the last of the words with the least weight. */
static void
drop_word(Words *words)
{
	int least = 0;

	for (int i = 1; i < words->n; i++)
		if (words->at[i].weight <= words->at[least].weight)
			least = i;
	words->n--;
	memmove(&words->at[least], &words->at[least + 1],
	        sizeof(*words->at) * (size_t)(words->n - least));
}

const char *
lower_kernel_name(Arena *arena, const Function *f, Phase phase, bool before, int number)
{
	Words words;
	Text name = {0};

	words.n = 0;
	if (f->group)
		text_printf(&name, "%s_", f->group->name);
	else
		find_words(f, false, &words);
	if (words.n == 0 && !f->group)
		find_words(f, true, &words);
	while (words.n > 1 && letters(&words) > MOST_LETTERS)
		drop_word(&words);
	for (int i = 0; i < words.n; i++)
		text_printf(&name, "%s_", words.at[i].text);
	if (words.n == 0 && !f->group)
		text_add(&name, "copy_");
	if (before)
		text_add(&name, "prepare_");
	if (phase == PHASE_BACKWARD && !f->group)
		text_add(&name, "grad_");
	if (phase == PHASE_UPDATE)
		text_add(&name, "update_");
	text_printf(&name, "%d", number);
	const char *copy = arena_strdup(arena, name.at);
	text_free(&name);
	return copy;
}
