/* Runs the calls that onednn.c has prepared: sets addresses of memory objects, copies operands, runs primitives. */
#if GRADC_ONEDNN
#include "base/numbers/numbers.h"
#include "runtime/library/onednn.h"

static dnnl_status_t
copy(const PreparedCall *c, const Tile *t, int i, dnnl_memory_t *m)
{
	bool result = i == LIBRARY_RESULT;
	dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, m[(result ? THEIRS : OURS) + i]},
	                               {DNNL_ARG_TO, m[(result ? OURS : THEIRS) + i]}};

	return c->lib->primitive_execute(t->copies[i], c->lib->stream, COUNT(arguments), arguments);
}

static char *
operand_at(const PreparedCall *c, int i, const char *buffer, int64_t first)
{
	const LibraryOperand *o = &c->call.operands[i];
	int64_t skip = o->offset + first * c->tiling.move[i];

	return (char *)buffer + dtype_bytes((DType)o->dtype, skip);
}

static Status
pack(const PreparedCall *c, int i, const void *buffer, char *to)
{
	dnnl_memory_t *m = c->full.memories;
	const Library *lib = c->lib;

	RETURN_IF_ERROR(
		onednn_fault(lib->memory_set_data_handle(m[OURS + i], operand_at(c, i, buffer, 0)),
	                     "no address"));
	RETURN_IF_ERROR(onednn_fault(lib->memory_set_data_handle(m[THEIRS + i], to), "no address"));
	RETURN_IF_ERROR(onednn_fault(copy(c, &c->full, i, m), "a copy failed"));
	return onednn_fault(lib->stream_wait(lib->stream), "a copy failed");
}

Status
onednn_pack(PreparedCall *c, int i, const void *buffer, char *to)
{
	int before = onednn_threads_begin(c);
	Status status = pack(c, i, buffer, to);

	onednn_threads_end(c, before);
	return status;
}

/* Sets the addresses of a worker's memory objects for its next tile. Operands that all workers share are already packed; the
 * others are copied into the worker's scratch. */
static dnnl_status_t
set_addresses(const PreparedCall *c, const Tile *t, int worker, int64_t first)
{
	dnnl_memory_t *m = t->memories + worker * N_MEMORIES;
	char *at = c->memory + worker * c->scratch;
	dnnl_status_t status = c->lib->memory_set_data_handle(m[SCRATCH], at);

	at += t->bytes[SCRATCH];
	for (int i = 0; i < onednn_operands(&c->call) && status == dnnl_success; i++) {
		char *theirs = c->packed[i] ? c->packed[i] : at;
		status = c->lib->memory_set_data_handle(m[OURS + i],
		                                        operand_at(c, i, c->buffers[i], first));
		if (status == dnnl_success && t->copies[i])
			status = c->lib->memory_set_data_handle(m[THEIRS + i], theirs);
		at += c->packed[i] ? 0 : t->bytes[THEIRS + i];
	}
	return status;
}

static dnnl_status_t
run_tile(const PreparedCall *c, int worker, int64_t first)
{
	const Tile *t = c->tiling.extent - first < c->tiling.step ? &c->rest : &c->full;
	dnnl_memory_t *m = t->memories + worker * N_MEMORIES;
	dnnl_exec_arg_t arguments[N_OPERANDS + 1] = {{DNNL_ARG_SCRATCHPAD, m[SCRATCH]}};
	dnnl_status_t status = set_addresses(c, t, worker, first);
	int n = onednn_operands(&c->call);

	for (int i = 0; i < n; i++) {
		arguments[i + 1] = (dnnl_exec_arg_t){c->kind->names[i],
		                                     m[(t->copies[i] ? THEIRS : OURS) + i]};
		if (i != LIBRARY_RESULT && t->copies[i] && !c->packed[i] && status == dnnl_success)
			status = copy(c, t, i, m);
	}
	if (status == dnnl_success)
		status = c->lib->primitive_execute(t->primitive, c->lib->stream, n + 1, arguments);
	if (t->copies[LIBRARY_RESULT] && status == dnnl_success)
		status = copy(c, t, LIBRARY_RESULT, m);
	return status;
}

/* Runs workers [begin, end); worker w computes every workers-th tile. */
static void
run_workers(void *ctx, int64_t begin, int64_t end)
{
	PreparedCall *c = ctx;
	const Tiling *t = &c->tiling;

	for (int64_t w = begin; w < end; w++) {
		c->results[w] = dnnl_success;
		for (int64_t i = w * t->step; i < t->extent; i += c->workers * t->step)
			if (c->results[w] == dnnl_success)
				c->results[w] = run_tile(c, (int)w, i);
	}
}

static Status
run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2], char *scratch)
{
	for (int i = 0; i < N_OPERANDS; i++) {
		c->buffers[i] = buffers[i];
		c->packed[i] = NULL;
		if (!onednn_is_packed(c, i))
			continue;
		c->packed[i] = packed[i];
		if (!packed[i]) {
			c->packed[i] = scratch;
			RETURN_IF_ERROR(pack(c, i, buffers[i], scratch));
		}
		scratch += c->full.bytes[THEIRS + i];
	}
	c->memory = scratch;
	if (c->workers == 1)
		run_workers(c, 0, 1);
	else
		parallel_for(c->lib->pool, c->workers, 1, run_workers, c);
	for (int w = 0; w < c->workers; w++)
		RETURN_IF_ERROR(onednn_fault(c->results[w], "a call failed"));
	return onednn_fault(c->lib->stream_wait(c->lib->stream), "a call failed");
}

Status
onednn_run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
           char *scratch, void *stream)
{
	(void)stream;
	int before = onednn_threads_begin(c);
	Status status = run(c, buffers, packed, scratch);

	onednn_threads_end(c, before);
	return status;
}
#endif
