/* --fill NAME=ones|zeros|iota|VALUE: constants for inputs without data. iota is 0, 1, 2, ... along the last axis. */
#include "runtime/data/sources.h"

#include <string.h>

static const struct {
	const char *name;
	double base, step;
} fills[] = {{"ones", 1, 0}, {"zeros", 0, 0}, {"iota", 0, 1}};

const char *
fill_default(const char *input)
{
	static const GradcPair defaults[] = {{"attention_mask", "ones"}, {"position_ids", "iota"}};

	for (int i = 0; i < COUNT(defaults); i++)
		if (strcmp(defaults[i].name, input) == 0)
			return defaults[i].value;
	return NULL;
}

Status
fill_parse(Arena *arena, const Format *f, const PortRecord *port, const char *text, char **constant)
{
	DType dtype = (DType)port->dtype;
	int64_t n = format_elements(f, port->first_dim, port->rank);
	int64_t last = port->rank > 0 ? f->dims[port->first_dim + port->rank - 1] : 1;
	double base, step = 0;
	int i = 0;

	while (i < COUNT(fills) && strcmp(fills[i].name, text) != 0)
		i++;
	if (i < COUNT(fills)) {
		base = fills[i].base;
		step = fills[i].step;
	} else if (!parse_double(text, &base)) {
		return status_error(EXIT_USAGE,
		                    "--fill %s: \"%s\" is not ones, zeros, iota or a number",
		                    format_text(f, port->name), text);
	}
	*constant = arena_alloc(arena, (size_t)dtype_bytes(dtype, n));
	for (int64_t k = 0; k < n; k++) {
		double value = base + step * (double)(k % last);

		if (dtype_is_float(dtype))
			dtype_store_float(dtype, *constant, k, value);
		else
			dtype_store_int(dtype, *constant, k, (int64_t)value);
	}
	return NULL;
}
