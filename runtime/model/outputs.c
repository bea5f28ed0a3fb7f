/* Writes results as files: outputs of a program, gradients, the loss. */
#include "runtime/model/values.h"

#include <string.h>

/* Writes a span of `stored` numbers as type->dtype. Floats are multiplied by the factor. */
static Status
write_span(Gradc *run, NamedFiles *files, const char *name, const char *prefix, const NpyInfo *type,
           DType stored, Span from, double factor)
{
	Arena *arena = arena_new();
	char *data = arena_alloc(arena, (size_t)from.bytes), *out = data;
	Status status = executor_read(&run->executor, data, from);

	if (stored != type->dtype)
		out = arena_alloc(arena, (size_t)dtype_bytes(type->dtype, type->n_elements));
	for (int64_t i = 0; !status && (factor != 1 || out != data) && i < type->n_elements; i++)
		dtype_store_float(type->dtype, out, i, dtype_load_float(stored, data, i) * factor);
	if (!status)
		status = named_write(files, name, prefix, type, out);
	arena_free(arena);
	return status;
}

static NpyInfo
type_of(const Format *f, uint32_t dtype, uint32_t rank, uint32_t first_dim)
{
	NpyInfo type = {.dtype = (DType)dtype,
	                .rank = (int)rank,
	                .n_elements = format_elements(f, first_dim, rank)};

	for (uint32_t i = 0; i < rank; i++)
		type.dims[i] = f->dims[first_dim + i];
	return type;
}

Status
outputs_write_port(Gradc *run, NamedFiles *files, const PortRecord *port, double factor)
{
	const Format *f = &run->format;
	NpyInfo type = type_of(f, port->dtype, port->rank, port->first_dim);
	const char *prefix = port->kind == PORT_GRADIENT ? "grad." : "";

	type.dtype = result_dtype((DType)port->dtype, (DType)port->file_dtype);
	return write_span(run, files, format_text(f, port->name), prefix, &type, (DType)port->dtype,
	                  executor_slot(&run->executor, port->slot), factor);
}

static bool
is_gradient(const Format *f, const StateRecord *s)
{
	return s->kind == STATE_GRADIENT && s->of && f->states[s->of - 1].kind == STATE_PARAMETER;
}

Status
outputs_write_gradients(Gradc *run, NamedFiles *files, double loss, double factor)
{
	const Format *f = &run->format;
	NpyInfo scalar = {.dtype = F64, .n_elements = 1};
	int trained = 0, n = 0;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		NpyInfo type = type_of(f, s->dtype, s->rank, s->first_dim);

		trained += s->kind == STATE_PARAMETER && s->trainable;
		if (!is_gradient(f, s))
			continue;
		RETURN_IF_ERROR(write_span(run, files, format_text(f, f->states[s->of - 1].name),
		                           "grad.", &type, type.dtype,
		                           executor_state(&run->executor, i), factor));
		n++;
	}
	if (n == 0 && trained > 0)
		return status_error(EXIT_UNSUPPORTED, "this executable keeps no gradients between "
		                                      "accumulation and update");
	return named_write(files, "loss", "", &scalar, &loss);
}
