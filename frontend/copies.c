/* Layers that began as copies of one, as deepcopy makes a stack of them: equal in everything, and some of it still as modules
 * begin, ones or zeros. Tied weights are equal where what lies beside them differs. */
#include "frontend/frontend_impl.h"

#include <ctype.h>
#include <string.h>

/* The module's name for the weight: layers.0.fc.weight, or the path of what reads it, with dots. */
static const char *
module_name(const Repairs *r, const Weight *w)
{
	char *name = arena_strdup(r->arena,
	                          name_is_generated(w->name) && w->path ? w->path : w->name);

	for (char *at = name; *at; at++)
		*at = *at == '/' ? '.' : *at;
	return name;
}

/* Length of what ends in the first number in which two names differ; 0: they differ otherwise, or not. */
static size_t
numbered_prefix(const char *a, const char *b)
{
	size_t n = 0;

	while (a[n] && a[n] == b[n])
		n++;
	while (n && isdigit((unsigned char)a[n - 1]))
		n--;
	size_t in_a = strspn(a + n, "0123456789"), in_b = strspn(b + n, "0123456789");
	return in_a && in_b && !strcmp(a + n + in_a, b + n + in_b) ? n : 0;
}

bool
weights_of_copied_layers(const Repairs *r, const Weight *a, const Weight *b)
{
	const char *x = module_name(r, a), *y = module_name(r, b);
	size_t n = numbered_prefix(x, y), in_x, in_y;
	int varied = 0, fresh = 0;
	double value;

	if (n == 0 && !isdigit((unsigned char)*x))
		return false;
	in_x = n + strspn(x + n, "0123456789");
	in_y = n + strspn(y + n, "0123456789");
	for (int i = 0; i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		if (strncmp(w->name, x, in_x) || w->name[in_x] != '.')
			continue;
		const Weight *twin = repairs_weight(
			r, arena_printf(r->arena, "%.*s%s", (int)in_y, y, w->name + in_x));
		if (!twin)
			continue;
		if (!tensor_data_equal(&w->data, &twin->data))
			return false;
		bool constant = tensor_constant_valued(&w->data, &value);
		fresh += constant;
		varied += !constant && w != a;
	}
	return fresh > 0 && varied > 0;
}
