/* Finds suggestions: the names nearest to a glob that matches no name, and the word that a misspelt word was meant to be. */
#include "base/base.h"

#include <ctype.h>
#include <string.h>

Nearest
nearest_open(const char *glob)
{
	Nearest n = {{0}};

	text_add(&n.letters, "");
	for (; *glob; glob++)
		if (*glob != '*' && *glob != '?')
			text_add_bytes(&n.letters, glob, 1);
	return n;
}

int
nearest_distance(const Nearest *n, const char *name)
{
	return text_distance(n->letters.at, name);
}

void
nearest_offer(Nearest *n, const void *item, int distance)
{
	int k = N_NEAREST;

	for (; k > 0 && (!n->item[k - 1] || distance < n->distance[k - 1]); k--)
		if (k < N_NEAREST) {
			n->item[k] = n->item[k - 1];
			n->distance[k] = n->distance[k - 1];
		}
	if (k < N_NEAREST) {
		n->item[k] = item;
		n->distance[k] = distance;
	}
}

void
nearest_close(Nearest *n)
{
	text_free(&n->letters);
}

WordGuess
guess_open(const char *given)
{
	return (WordGuess){.given = given};
}

static char
folded(char c)
{
	return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

enum { LONGEST_WORD = 64 };

/* The number of letters to insert, delete, replace or swap with their neighbour to turn a into b; upper and lower case, `-` and
 * `_` are the same. The words have at most LONGEST_WORD letters. */
static int
word_distance(const char *a, const char *b)
{
	int rows[3][LONGEST_WORD + 1], n = (int)strlen(b);
	int *before = rows[0], *last = rows[1], *row = rows[2];

	for (int k = 0; k <= n; k++)
		last[k] = k;
	for (int i = 1; a[i - 1]; i++) {
		row[0] = i;
		for (int k = 1; k <= n; k++) {
			char x = folded(a[i - 1]), y = folded(b[k - 1]);
			int best = last[k - 1] + (x != y);
			best = row[k - 1] + 1 < best ? row[k - 1] + 1 : best;
			best = last[k] + 1 < best ? last[k] + 1 : best;
			if (i > 1 && k > 1 && x == folded(b[k - 2]) && y == folded(a[i - 2]) &&
			    before[k - 2] + 1 < best)
				best = before[k - 2] + 1;
			row[k] = best;
		}
		int *oldest = before;
		before = last;
		last = row;
		row = oldest;
	}
	return last[n];
}

/* A word is similar if at most a third of the longer word's letters are wrong, or if the given word is its beginning. */
void
guess_offer(WordGuess *g, const char *word)
{
	int n = (int)strlen(g->given), length = (int)strlen(word);
	int longer = n > length ? n : length;

	if (n == 0 || length == 0 || longer > LONGEST_WORD)
		return;
	int distance = n > 1 && strncmp(g->given, word, (size_t)n) == 0
	                       ? 1
	                       : word_distance(g->given, word);
	if (distance * 3 > longer || (g->word && distance >= g->distance))
		return;
	g->word = word;
	g->distance = distance;
}

void
hint_guess(Diag *diag, const WordGuess *g, const char *prefix, const char *rest)
{
	if (g->word)
		diag_hint(diag, "did you mean `%s%s`?%s%s", prefix, g->word, rest ? " " : "",
		          rest ? rest : "");
	else if (rest)
		diag_hint(diag, "%s", rest);
}
