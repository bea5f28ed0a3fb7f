/* Finds suggestions for a glob that matches no name: the names nearest to the glob. */
#include "base/base.h"

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
