/* Inputs that the device converts. The host leaves the bytes of a file in the image, such as the u8 of pictures. The program's
 * COPY of the input to the io region then becomes a look-up: the device reads the bytes from the host's memory, and writes the
 * numbers that the tables have for them. So a quarter of the bytes cross the bus if the numbers are f32, and no memory of the
 * device holds the bytes. */
#include "runtime/exec/walk.h"

enum { ENTRIES = 256, LOOK_UP_ALIGNMENT = 16 };

/* A program on the host's processors would read the bytes as numbers. */
bool
raw_input_fits(const Executor *x, int64_t offset, const LookUp *look_up)
{
	return executor_is_apart(x) && !x->host_reads_io && x->ops->look_up &&
	       offset % LOOK_UP_ALIGNMENT == 0 && x->ops->has_look_up(x->code, look_up);
}

Status
raw_input_place_tables(Executor *x, LookUp *look_up)
{
	int64_t bytes = look_up->channels * ENTRIES * look_up->bytes;
	Span at;

	Status status = x->ops->alloc(x->device, MEMORY_DEVICE, bytes, &at);
	if (status)
		return status_annotate(status, "tables of an input that the device converts");
	vec_push(x->arena, &x->tables, at);
	RETURN_IF_ERROR(executor_write(x, at, look_up->tables));
	look_up->tables = at.at;
	return NULL;
}

int64_t
raw_input_table_bytes(const Executor *x)
{
	int64_t bytes = 0;

	for (int i = 0; i < x->tables.n; i++)
		bytes += x->tables.at[i].bytes;
	return bytes;
}

const RawInput *
raw_input_find(const Executor *x, const Slot *from, int64_t bytes)
{
	for (int i = 0; x->raw && from->space == SPACE_IO_HOST && i < x->raw->n; i++)
		if (x->raw->at[i].offset == from->offset && x->raw->at[i].bytes == bytes)
			return &x->raw->at[i];
	return NULL;
}

Status
raw_input_copy(Executor *x, int stream, const RawInput *raw, Span to, const void *from)
{
	LookUp l = raw->look_up;

	l.to = to.at;
	l.from = from;
	return x->ops->look_up(x->device, stream, x->code, &l);
}

void
raw_inputs_free(Executor *x)
{
	for (int i = 0; i < x->tables.n; i++)
		x->ops->free(x->device, MEMORY_DEVICE, x->tables.at[i]);
	x->tables.n = 0;
}
