/* Each call is a primitive, made once, or two where tiles do not divide the work, and copies of operands into the
 * layouts that it wants and back. Scratch is the caller's. Each worker of a tiled call has memory objects of its
 * own: they hold the addresses of the tile at hand. */
#if GRADC_ONEDNN
#include "runtime/onednn_impl.h"
#include "runtime/onednn_slow.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static const WorkKind *const onednn_kinds[N_LIBRARY_KINDS] = {
	[LIBRARY_DOT] = &onednn_dot,
	[LIBRARY_CONV] = &onednn_conv,
	[LIBRARY_CONV_GRAD_INPUT] = &onednn_conv_grad_input,
	[LIBRARY_CONV_GRAD_WEIGHT] = &onednn_conv_grad_weight,
};

/* Memory objects of a worker: operands in our layout, in the primitive's, and its scratch. */
enum { OURS, THEIRS = N_OPERANDS, SCRATCH = 2 * N_OPERANDS, N_MEMORIES };

/* A primitive for one size of tile, and what copies its operands. */
typedef struct {
	dnnl_primitive_desc_t description, copy_descriptions[N_OPERANDS];
	dnnl_primitive_t primitive, copies[N_OPERANDS]; /* NULL: the primitive takes ours */
	int64_t bytes[N_MEMORIES];                      /* aligned; of ours: unused */
	dnnl_memory_t *memories;                        /* N_MEMORIES for each worker */
	const char *name;
} Tile;

struct OnednnCall {
	Onednn *lib;
	const WorkKind *kind;
	LibraryWork work;
	Tiling tiling;
	Tile full, rest; /* rest.primitive NULL: tiles divide the work */
	bool tiled;      /* each tile is computed by one thread */
	int workers;
	unsigned fixed;
	int64_t shared, scratch; /* bytes: of operands that all tiles read, of a worker */
	/* of a run */
	char *buffers[N_OPERANDS], *packed[N_OPERANDS], *memory;
	dnnl_status_t *results; /* of each worker */
};

static Status
dnnl_fault(dnnl_status_t status, const char *what)
{
	return status == dnnl_success
	               ? NULL
	               : status_error(EXIT_SYSTEM, "oneDNN: %s: status %d", what, (int)status);
}

static Status
find_symbols(Onednn *lib)
{
	static const struct {
		const char *name;
		size_t offset;
	} symbols[] = {
#define DNNL(name) {"dnnl_" #name, offsetof(Onednn, name)},
#include "runtime/onednn_list.def"
#undef DNNL
	};

	for (int i = 0; i < COUNT(symbols); i++) {
		void *at = dlsym(lib->library, symbols[i].name);
		if (!at)
			return status_error(EXIT_SYSTEM, SONAME ": no %s", symbols[i].name);
		memcpy((char *)lib + symbols[i].offset, &at, sizeof(at));
	}
	return NULL;
}

static Status
start(Onednn *lib)
{
	RETURN_IF_ERROR(find_symbols(lib));
	const dnnl_version_t *v = lib->version();
	if (v->major != DNNL_VERSION_MAJOR || v->minor < DNNL_VERSION_MINOR)
		return status_error(EXIT_SYSTEM, SONAME " is %d.%d, this build needs %d.%d",
		                    v->major, v->minor, DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR);
	snprintf(lib->version_text, sizeof(lib->version_text), "oneDNN %d.%d.%d", v->major,
	         v->minor, v->patch);
	RETURN_IF_ERROR(dnnl_fault(lib->engine_create(&lib->engine, dnnl_cpu, 0), "no engine"));
	RETURN_IF_ERROR(
		dnnl_fault(lib->stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags),
	                   "no stream"));
	RETURN_IF_ERROR(dnnl_fault(lib->primitive_attr_create(&lib->attributes), "no attributes"));
	return dnnl_fault(
		lib->primitive_attr_set_scratchpad_mode(lib->attributes, dnnl_scratchpad_mode_user),
		"no scratch of ours");
}

static void
close_library(void *lib)
{
	onednn_close(lib);
}

Status
onednn_open(Pool *pool, bool tiled, Onednn **out)
{
	Onednn *lib = memory_zeroed(1, sizeof(*lib));
	Status status = NULL;

	*out = NULL;
	memory_hold(close_library, lib);
	lib->pool = pool;
	lib->tiled = tiled;
	*(void **)&lib->in_parallel = pool_symbol(pool, "omp_in_parallel");
	*(void **)&lib->max_threads = pool_symbol(pool, "omp_get_max_threads");
	*(void **)&lib->set_threads = pool_symbol(pool, "omp_set_num_threads");
	if (!lib->in_parallel || !lib->max_threads || !lib->set_threads)
		status = status_error(EXIT_SYSTEM, "oneDNN: its threads are libgomp's, ours not");
	if (!status && !(lib->library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL)))
		status = status_error(EXIT_SYSTEM, "%s", dlerror());
	if (!status)
		status = start(lib);
	memory_let_go();
	if (status) {
		onednn_close(lib);
		return status;
	}
	*out = lib;
	return NULL;
}

/* The library stays loaded: libgomp's threads may still be in its code's loops. */
void
onednn_close(Onednn *lib)
{
	if (!lib)
		return;
	if (lib->attributes)
		lib->primitive_attr_destroy(lib->attributes);
	if (lib->stream)
		lib->stream_destroy(lib->stream);
	if (lib->engine)
		lib->engine_destroy(lib->engine);
	memory_free(lib);
}

const char *
onednn_version(const Onednn *lib)
{
	return lib->version_text;
}

/* ---- threads
 * The library makes primitives for as many, and computes with as many, as OpenMP has for the calling thread, which may
 * be another one for each run. Where that is within a loop of the host's, OpenMP gives it one, and it waits forever for
 * others that it was told of. */
static int
threads_begin(const OnednnCall *c)
{
	const Onednn *lib = c->lib;
	int before = lib->max_threads();

	lib->set_threads(c->tiled || lib->in_parallel() ? 1 : pool_threads(lib->pool));
	return before;
}

static void
threads_end(const OnednnCall *c, int before)
{
	c->lib->set_threads(before);
}

/* ---- descriptions: what differs between the generations */
static dnnl_data_type_t
data_type(const LibraryWork *w)
{
	return w->dtype == BF16 ? dnnl_bf16 : dnnl_f32;
}

static dnnl_status_t
describe_ours(const Onednn *lib, const LibraryWork *w, Layout *l, MemoryDesc *out)
{
#if DNNL_VERSION_MAJOR == 3
	return lib->memory_desc_create_with_strides(out, l->rank, l->dims, data_type(w),
	                                            l->strides);
#else
	return lib->memory_desc_init_by_strides(out, l->rank, l->dims, data_type(w), l->strides);
#endif
}

static dnnl_status_t
describe_any(const Onednn *lib, const LibraryWork *w, Layout *l, MemoryDesc *out)
{
#if DNNL_VERSION_MAJOR == 3
	return lib->memory_desc_create_with_tag(out, l->rank, l->dims, data_type(w),
	                                        dnnl_format_tag_any);
#else
	return lib->memory_desc_init_by_tag(out, l->rank, l->dims, data_type(w),
	                                    dnnl_format_tag_any);
#endif
}

static void
forget_memory(const Onednn *lib, MemoryDesc *m)
{
#if DNNL_VERSION_MAJOR == 3
	if (*m)
		lib->memory_desc_destroy(*m);
#else
	(void)lib;
	(void)m;
#endif
}

static int64_t
aligned_bytes(const Onednn *lib, ConstMemoryDesc m)
{
	return (int64_t)(lib->memory_desc_get_size(m) + 63) / 64 * 64;
}

static ConstMemoryDesc
wanted(const OnednnCall *c, const Tile *t, int i)
{
	return c->lib->primitive_desc_query_md(t->description, dnnl_query_exec_arg_md,
	                                       c->kind->names[i]);
}

/* ---- tiles */

/* Operands that all tiles read lie in one layout, that of the full tile. */
static bool
is_shared(const OnednnCall *c, int i)
{
	return i != LIBRARY_RESULT && c->tiling.move[i] == 0;
}

static bool
is_packed(const OnednnCall *c, int i)
{
	return is_shared(c, i) && c->full.copies[i];
}

static Status
make_copy(const OnednnCall *c, Tile *t, int i, ConstMemoryDesc ours, ConstMemoryDesc theirs)
{
	const Onednn *lib = c->lib;
	bool result = i == LIBRARY_RESULT;

	if (lib->memory_desc_equal(ours, theirs))
		return NULL;
	t->bytes[THEIRS + i] = aligned_bytes(lib, theirs);
	RETURN_IF_ERROR(dnnl_fault(lib->reorder_primitive_desc_create(
					   &t->copy_descriptions[i], result ? theirs : ours,
					   lib->engine, result ? ours : theirs, lib->engine, NULL),
	                           "no such copy"));
	return dnnl_fault(lib->primitive_create(&t->copies[i], t->copy_descriptions[i]), "no copy");
}

static Status
make_memories(const OnednnCall *c, Tile *t, MemoryDesc ours[N_OPERANDS])
{
	const Onednn *lib = c->lib;
	ConstMemoryDesc of[N_MEMORIES] = {0};

	of[SCRATCH] = lib->primitive_desc_query_md(t->description, dnnl_query_scratchpad_md, 0);
	t->bytes[SCRATCH] = aligned_bytes(lib, of[SCRATCH]);
	for (int i = 0; i < library_operands(&c->work); i++) {
		of[OURS + i] = DESC(ours[i]);
		of[THEIRS + i] = wanted(c, t, i);
		RETURN_IF_ERROR(make_copy(c, t, i, of[OURS + i], of[THEIRS + i]));
	}
	t->memories = memory_zeroed((size_t)c->workers * N_MEMORIES, sizeof(*t->memories));
	for (int i = 0; i < c->workers * N_MEMORIES; i++) {
		ConstMemoryDesc m = of[i % N_MEMORIES];
		if (m)
			RETURN_IF_ERROR(
				dnnl_fault(lib->memory_create(&t->memories[i], m, lib->engine,
			                                      DNNL_MEMORY_NONE),
			                   "no memory object"));
	}
	return NULL;
}

static Status
make_primitive(const OnednnCall *c, Tile *t, ConstMemoryDesc asked[N_OPERANDS],
               MemoryDesc ours[N_OPERANDS])
{
	const Onednn *lib = c->lib;

	RETURN_IF_ERROR(dnnl_fault(c->kind->describe(lib, &c->work, asked, &t->description),
	                           "no such work"));
	RETURN_IF_ERROR(dnnl_fault(
		lib->primitive_desc_query(t->description, dnnl_query_impl_info_str, 0, &t->name),
		"no name"));
	if (strstr(t->name, "ref"))
		return status_error(EXIT_UNSUPPORTED, "oneDNN has only %s", t->name);
	RETURN_IF_ERROR(make_memories(c, t, ours));
	return dnnl_fault(lib->primitive_create(&t->primitive, t->description), "no primitive");
}

/* A tile of so many steps along the axis. */
static Status
make_tile(const OnednnCall *c, int64_t steps, Tile *t)
{
	MemoryDesc ours[N_OPERANDS] = {0}, any[N_OPERANDS] = {0};
	ConstMemoryDesc asked[N_OPERANDS] = {0};
	dnnl_status_t made = dnnl_success;

	for (int i = 0; i < library_operands(&c->work) && made == dnnl_success; i++) {
		Layout l = c->kind->layout(&c->work, &c->tiling, steps, i);
		bool free = i != LIBRARY_BIAS && (c->kind->any || (c->fixed >> i & 1));
		made = describe_ours(c->lib, &c->work, &l, &ours[i]);
		if (made == dnnl_success)
			made = describe_any(c->lib, &c->work, &l, &any[i]);
		asked[i] = free ? DESC(any[i]) : DESC(ours[i]);
		if (t == &c->rest && is_shared(c, i))
			asked[i] = wanted(c, &c->full, i);
	}
	Status status = dnnl_fault(made, "no such layout");
	if (!status)
		status = make_primitive(c, t, asked, ours);
	for (int i = 0; i < N_OPERANDS; i++) {
		forget_memory(c->lib, &ours[i]);
		forget_memory(c->lib, &any[i]);
	}
	return status;
}

static int64_t
worker_bytes(const OnednnCall *c, const Tile *t)
{
	int64_t bytes = t->bytes[SCRATCH];

	for (int i = 0; i < N_OPERANDS; i++)
		bytes += is_shared(c, i) ? 0 : t->bytes[THEIRS + i];
	return bytes;
}

static Status
make_call(OnednnCall *c, int64_t scratch_limit)
{
	int64_t tiles = (c->tiling.extent + c->tiling.step - 1) / c->tiling.step;
	int threads = pool_threads(c->lib->pool);

	c->workers = tiles < threads ? (int)tiles : threads;
	c->results = memory_zeroed((size_t)c->workers, sizeof(*c->results));
	RETURN_IF_ERROR(make_tile(c, c->tiling.step, &c->full));
	if (c->tiling.extent % c->tiling.step)
		RETURN_IF_ERROR(make_tile(c, c->tiling.extent % c->tiling.step, &c->rest));
	for (int i = LIBRARY_FIRST; i < LIBRARY_RESULT; i++)
		c->shared += is_packed(c, i) ? c->full.bytes[THEIRS + i] : 0;
	int64_t full = worker_bytes(c, &c->full), rest = worker_bytes(c, &c->rest);
	c->scratch = full > rest ? full : rest;
	if (onednn_scratch(c) > scratch_limit)
		return status_error(EXIT_UNSUPPORTED, "oneDNN wants %lld bytes, at most %lld",
		                    (long long)onednn_scratch(c), (long long)scratch_limit);
	return NULL;
}

static void
close_call(void *call)
{
	onednn_call_close(call);
}

static Status
open_call(Onednn *lib, const LibraryWork *work, unsigned fixed, int64_t scratch_limit, bool tiled,
          int tiles, OnednnCall **out)
{
	OnednnCall *c = memory_zeroed(1, sizeof(*c));

	*out = NULL;
	memory_hold(close_call, c);
	c->lib = lib;
	c->kind = onednn_kinds[work->kind];
	c->work = *work;
	c->fixed = fixed;
	c->tiling = c->kind->tiling(work, tiles);
	c->tiled = tiled;
	int before = threads_begin(c);
	Status status = make_call(c, scratch_limit);
	threads_end(c, before);
	memory_let_go();
	if (status)
		onednn_call_close(c);
	else
		*out = c;
	return status;
}

static bool
has_avx512(const Onednn *lib)
{
	int isa = (int)lib->get_effective_cpu_isa();

	return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

/* Without AVX-512 gemm:jit parts the sums of a product by its number of threads. */
static bool
follows_threads(const OnednnCall *c)
{
	return c->kind->same_bits && strncmp(c->full.name, "gemm", 4) == 0 && !has_avx512(c->lib);
}

Status
onednn_call_open(Onednn *lib, const LibraryWork *work, unsigned fixed, int64_t scratch_limit,
                 OnednnCall **out)
{
	if (lib->tiled)
		return open_call(lib, work, fixed, scratch_limit, true, MANY_TILES, out);
	/* Which implementation it is shows when it is made. */
	RETURN_IF_ERROR(open_call(lib, work, fixed, scratch_limit, false, 1, out));
	if (!follows_threads(*out))
		return NULL;
	onednn_call_close(*out);
	return open_call(lib, work, fixed, scratch_limit, true, cpu_count(), out);
}

bool
onednn_pays(const OnednnCall *c)
{
	const Tiling *t = &c->tiling;

	return !onednn_is_slow(&(LibraryUse){.name = c->full.name,
	                                     .avx512 = has_avx512(c->lib),
	                                     .intel = cpu_is_intel(),
	                                     .second_cache = cpu_second_cache(),
	                                     .work = &c->work,
	                                     .axis = t->axis,
	                                     .step = t->step,
	                                     .tiles = (t->extent + t->step - 1) / t->step,
	                                     .enough = c->lib->tiled ? ENOUGH_TILES : cpu_count()});
}

static void
forget_tile(const OnednnCall *c, Tile *t)
{
	const Onednn *lib = c->lib;

	for (int i = 0; t->memories && i < c->workers * N_MEMORIES; i++)
		if (t->memories[i])
			lib->memory_destroy(t->memories[i]);
	memory_free(t->memories);
	for (int i = 0; i < N_OPERANDS; i++) {
		if (t->copies[i])
			lib->primitive_destroy(t->copies[i]);
		if (t->copy_descriptions[i])
			lib->primitive_desc_destroy(t->copy_descriptions[i]);
	}
	if (t->primitive)
		lib->primitive_destroy(t->primitive);
	if (t->description)
		lib->primitive_desc_destroy(t->description);
}

void
onednn_call_close(OnednnCall *c)
{
	if (!c)
		return;
	forget_tile(c, &c->full);
	forget_tile(c, &c->rest);
	memory_free(c->results);
	memory_free(c);
}

const char *
onednn_implementation(const OnednnCall *c)
{
	return c->full.name;
}

int64_t
onednn_scratch(const OnednnCall *c)
{
	return c->shared + c->scratch * c->workers;
}

int64_t
onednn_packed_bytes(const OnednnCall *c, int i)
{
	return is_packed(c, i) && (c->fixed >> i & 1) ? c->full.bytes[THEIRS + i] : 0;
}

/* ---- a run */
static dnnl_status_t
copy(const OnednnCall *c, const Tile *t, int i, dnnl_memory_t *m)
{
	bool result = i == LIBRARY_RESULT;
	dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, m[(result ? THEIRS : OURS) + i]},
	                               {DNNL_ARG_TO, m[(result ? OURS : THEIRS) + i]}};

	return c->lib->primitive_execute(t->copies[i], c->lib->stream, COUNT(arguments), arguments);
}

static char *
operand_at(const OnednnCall *c, int i, const char *buffer, int64_t first)
{
	int64_t skip = c->work.offset[i] + first * c->tiling.move[i];

	return (char *)buffer + dtype_bytes(c->work.dtype, skip);
}

static Status
pack(const OnednnCall *c, int i, const void *buffer, char *to)
{
	dnnl_memory_t *m = c->full.memories;
	const Onednn *lib = c->lib;

	RETURN_IF_ERROR(
		dnnl_fault(lib->memory_set_data_handle(m[OURS + i], operand_at(c, i, buffer, 0)),
	                   "no address"));
	RETURN_IF_ERROR(dnnl_fault(lib->memory_set_data_handle(m[THEIRS + i], to), "no address"));
	RETURN_IF_ERROR(dnnl_fault(copy(c, &c->full, i, m), "a copy failed"));
	return dnnl_fault(lib->stream_wait(lib->stream), "a copy failed");
}

Status
onednn_pack(OnednnCall *c, int i, const void *buffer, char *to)
{
	int before = threads_begin(c);
	Status status = pack(c, i, buffer, to);

	threads_end(c, before);
	return status;
}

/* The addresses of a worker's tile: operands that all share are packed already, others have room in its scratch. */
static dnnl_status_t
set_addresses(const OnednnCall *c, const Tile *t, int worker, int64_t first)
{
	dnnl_memory_t *m = t->memories + worker * N_MEMORIES;
	char *at = c->memory + worker * c->scratch;
	dnnl_status_t status = c->lib->memory_set_data_handle(m[SCRATCH], at);

	at += t->bytes[SCRATCH];
	for (int i = 0; i < library_operands(&c->work) && status == dnnl_success; i++) {
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
run_tile(const OnednnCall *c, int worker, int64_t first)
{
	const Tile *t = c->tiling.extent - first < c->tiling.step ? &c->rest : &c->full;
	dnnl_memory_t *m = t->memories + worker * N_MEMORIES;
	dnnl_exec_arg_t arguments[N_OPERANDS + 1] = {{DNNL_ARG_SCRATCHPAD, m[SCRATCH]}};
	dnnl_status_t status = set_addresses(c, t, worker, first);
	int n = library_operands(&c->work);

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

/* Workers [begin, end): each takes every workers-th tile. */
static void
run_workers(void *ctx, int64_t begin, int64_t end)
{
	OnednnCall *c = ctx;
	const Tiling *t = &c->tiling;

	for (int64_t w = begin; w < end; w++) {
		c->results[w] = dnnl_success;
		for (int64_t i = w * t->step; i < t->extent; i += c->workers * t->step)
			if (c->results[w] == dnnl_success)
				c->results[w] = run_tile(c, (int)w, i);
	}
}

static Status
run(OnednnCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2], char *scratch)
{
	for (int i = 0; i < N_OPERANDS; i++) {
		c->buffers[i] = buffers[i];
		c->packed[i] = NULL;
		if (!is_packed(c, i))
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
		RETURN_IF_ERROR(dnnl_fault(c->results[w], "a call failed"));
	return dnnl_fault(c->lib->stream_wait(c->lib->stream), "a call failed");
}

Status
onednn_run(OnednnCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
           char *scratch)
{
	int before = threads_begin(c);
	Status status = run(c, buffers, packed, scratch);

	threads_end(c, before);
	return status;
}
#endif
