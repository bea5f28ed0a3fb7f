/* Each product is a primitive, made once, or two where tiles do not divide it. Scratch is the caller's. Each worker
 * of a tiled product has memory objects of its own: they hold the addresses of the tile at hand. */
#include "runtime/onednn.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#if GRADC_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#if DNNL_VERSION_MAJOR == 3
#define DNNL_2(name)
#define DNNL_3(name) DNNL(name)
#define SONAME "libdnnl.so.3"
typedef dnnl_memory_desc_t MemoryDesc;
typedef const_dnnl_memory_desc_t ConstMemoryDesc;
#define DESC(d) (d)
#else
#define DNNL_2(name) DNNL(name)
#define DNNL_3(name)
#define SONAME "libdnnl.so.2"
typedef dnnl_memory_desc_t MemoryDesc;
typedef const dnnl_memory_desc_t *ConstMemoryDesc;
#define DESC(d) (&(d))
#endif

enum { TILE_ROWS = 128, N_ARGUMENTS = 4 };

struct Onednn {
	Pool *pool;
	bool tiled;
	void *library;
	char version_text[32];
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_attr_t attributes;
#define DNNL(name) __typeof__(dnnl_##name) *name;
#include "runtime/onednn_list.def"
#undef DNNL
};

/* A primitive for one size of tile. */
typedef struct {
	dnnl_primitive_desc_t description;
	dnnl_primitive_t primitive;
	dnnl_memory_t *memories; /* N_ARGUMENTS for each worker */
	const char *name;
	int64_t scratch; /* of a worker */
} Tile;

/* Tiles go along one axis of x and z, and of y where that is a batch axis. */
struct OnednnCall {
	Onednn *lib;
	LibraryDot dot;
	Tile full, rest; /* rest.primitive NULL: they divide */
	int axis, workers;
	int64_t extent, step, scratch;
	/* of a run */
	char *buffers[3], *memory;
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

Status
onednn_open(Pool *pool, bool tiled, Onednn **out)
{
	Onednn *lib = calloc(1, sizeof(*lib));
	void (*set_threads)(int);
	Status status = NULL;

	*out = NULL;
	if (!lib)
		return status_error(EXIT_SYSTEM, "no memory for oneDNN");
	lib->pool = pool;
	lib->tiled = tiled;
	*(void **)&set_threads = pool_symbol(pool, "omp_set_num_threads");
	if (!set_threads)
		status = status_error(EXIT_SYSTEM, "oneDNN: its threads are libgomp's, ours not");
	if (!status && !(lib->library = dlopen(SONAME, RTLD_NOW | RTLD_LOCAL)))
		status = status_error(EXIT_SYSTEM, "%s", dlerror());
	if (!status)
		status = start(lib);
	if (status) {
		onednn_close(lib);
		return status;
	}
	set_threads(tiled ? 1 : pool_threads(pool));
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
	free(lib);
}

const char *
onednn_version(const Onednn *lib)
{
	return lib->version_text;
}

/* ---- descriptions: what differs between the generations */
static dnnl_status_t
describe_memory(const Onednn *lib, const LibraryDot *d, int i, MemoryDesc *out)
{
	dnnl_data_type_t type = d->dtype == BF16 ? dnnl_bf16 : dnnl_f32;

#if DNNL_VERSION_MAJOR == 3
	return lib->memory_desc_create_with_strides(out, d->rank, d->dims[i], type, d->strides[i]);
#else
	return lib->memory_desc_init_by_strides(out, d->rank, d->dims[i], type, d->strides[i]);
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

static dnnl_status_t
describe_product(const Onednn *lib, MemoryDesc m[3], dnnl_primitive_desc_t *out)
{
#if DNNL_VERSION_MAJOR == 3
	return lib->matmul_primitive_desc_create(out, lib->engine, m[0], m[1], NULL, m[2],
	                                         lib->attributes);
#else
	dnnl_matmul_desc_t product;
	dnnl_status_t status = lib->matmul_desc_init(&product, &m[0], &m[1], NULL, &m[2]);

	return status == dnnl_success ? lib->primitive_desc_create(out, &product, lib->attributes,
	                                                           lib->engine, NULL)
	                              : status;
#endif
}

/* ---- primitives */
static Status
make_memories(const Onednn *lib, MemoryDesc m[3], int workers, Tile *t)
{
	ConstMemoryDesc scratch = lib->primitive_desc_query_md(t->description,
	                                                       dnnl_query_scratchpad_md, 0);

	t->scratch = (int64_t)(lib->memory_desc_get_size(scratch) + 63) / 64 * 64;
	t->memories = calloc((size_t)workers * N_ARGUMENTS, sizeof(*t->memories));
	if (!t->memories)
		return status_error(EXIT_SYSTEM, "no memory for %d workers", workers);
	for (int i = 0; i < workers * N_ARGUMENTS; i++) {
		int which = i % N_ARGUMENTS;
		ConstMemoryDesc of = which < 3 ? DESC(m[which]) : scratch;
		RETURN_IF_ERROR(dnnl_fault(
			lib->memory_create(&t->memories[i], of, lib->engine, DNNL_MEMORY_NONE),
			"no memory object"));
	}
	return NULL;
}

static Status
make_primitive(const Onednn *lib, MemoryDesc m[3], int workers, Tile *t)
{
	RETURN_IF_ERROR(dnnl_fault(describe_product(lib, m, &t->description), "no such product"));
	RETURN_IF_ERROR(dnnl_fault(
		lib->primitive_desc_query(t->description, dnnl_query_impl_info_str, 0, &t->name),
		"no name"));
	if (strstr(t->name, "ref"))
		return status_error(EXIT_UNSUPPORTED, "oneDNN has only %s", t->name);
	RETURN_IF_ERROR(make_memories(lib, m, workers, t));
	return dnnl_fault(lib->primitive_create(&t->primitive, t->description), "no primitive");
}

/* One for tiles of `extent` along the axis of the call. */
static Status
make_tile(const OnednnCall *c, int64_t extent, Tile *t)
{
	LibraryDot d = c->dot;
	MemoryDesc m[3] = {0};
	dnnl_status_t made = dnnl_success;

	for (int i = 0; i < 3; i++)
		if (i != 1 || c->axis < d.rank - 2)
			d.dims[i][c->axis] = extent;
	for (int i = 0; i < 3 && made == dnnl_success; i++)
		made = describe_memory(c->lib, &d, i, &m[i]);
	Status status = dnnl_fault(made, "no such layout");
	if (!status)
		status = make_primitive(c->lib, m, c->workers, t);
	for (int i = 0; i < 3; i++)
		forget_memory(c->lib, &m[i]);
	return status;
}

/* Tiled: one element of the first batch axis that has enough of them, else TILE_ROWS rows. */
static void
choose_tiles(OnednnCall *c)
{
	const LibraryDot *d = &c->dot;

	c->axis = d->rank - 2;
	c->extent = c->step = d->dims[0][c->axis];
	c->workers = 1;
	if (!c->lib->tiled)
		return;
	c->step = TILE_ROWS < c->extent ? TILE_ROWS : c->extent;
	for (int i = d->rank - 3; i >= 0; i--)
		if (d->dims[0][i] >= 4) {
			c->axis = i;
			c->extent = d->dims[0][i];
			c->step = 1;
		}
	int64_t tiles = (c->extent + c->step - 1) / c->step;
	c->workers = pool_threads(c->lib->pool);
	c->workers = tiles < c->workers ? (int)tiles : c->workers;
}

Status
onednn_dot(Onednn *lib, const LibraryDot *dot, int64_t scratch_limit, OnednnCall **out)
{
	OnednnCall *c = calloc(1, sizeof(*c));
	Status status = NULL;

	*out = NULL;
	if (!c)
		return status_error(EXIT_SYSTEM, "no memory for a product");
	c->lib = lib;
	c->dot = *dot;
	choose_tiles(c);
	c->results = calloc((size_t)c->workers, sizeof(*c->results));
	if (!c->results)
		status = status_error(EXIT_SYSTEM, "no memory for a product");
	if (!status)
		status = make_tile(c, c->step, &c->full);
	if (!status && c->extent % c->step)
		status = make_tile(c, c->extent % c->step, &c->rest);
	c->scratch = c->full.scratch > c->rest.scratch ? c->full.scratch : c->rest.scratch;
	if (!status && c->scratch * c->workers > scratch_limit)
		status = status_error(EXIT_UNSUPPORTED, "oneDNN wants %lld bytes, at most %lld",
		                      (long long)(c->scratch * c->workers),
		                      (long long)scratch_limit);
	if (status)
		onednn_call_close(c);
	else
		*out = c;
	return status;
}

static void
forget_tile(const OnednnCall *c, Tile *t)
{
	for (int i = 0; t->memories && i < c->workers * N_ARGUMENTS; i++)
		if (t->memories[i])
			c->lib->memory_destroy(t->memories[i]);
	free(t->memories);
	if (t->primitive)
		c->lib->primitive_destroy(t->primitive);
	if (t->description)
		c->lib->primitive_desc_destroy(t->description);
}

void
onednn_call_close(OnednnCall *c)
{
	if (!c)
		return;
	forget_tile(c, &c->full);
	forget_tile(c, &c->rest);
	free(c->results);
	free(c);
}

const char *
onednn_implementation(const OnednnCall *c)
{
	return c->full.name;
}

int64_t
onednn_scratch(const OnednnCall *c)
{
	return c->scratch * c->workers;
}

/* ---- a run */
static dnnl_status_t
run_tile(const OnednnCall *c, int worker, int64_t first)
{
	static const int names[N_ARGUMENTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
	                                       DNNL_ARG_SCRATCHPAD};
	const Tile *t = c->extent - first < c->step ? &c->rest : &c->full;
	dnnl_memory_t *m = t->memories + worker * N_ARGUMENTS;
	dnnl_exec_arg_t arguments[N_ARGUMENTS];
	dnnl_status_t status = dnnl_success;

	for (int i = 0; i < N_ARGUMENTS && status == dnnl_success; i++) {
		char *at = c->memory + worker * c->scratch;
		if (i < 3) {
			bool moves = i != 1 || c->axis < c->dot.rank - 2;
			int64_t skip = c->dot.offset[i];
			skip += moves ? first * c->dot.strides[i][c->axis] : 0;
			at = c->buffers[i] + dtype_bytes(c->dot.dtype, skip);
		}
		arguments[i] = (dnnl_exec_arg_t){names[i], m[i]};
		status = c->lib->memory_set_data_handle(m[i], at);
	}
	if (status == dnnl_success)
		status = c->lib->primitive_execute(t->primitive, c->lib->stream, N_ARGUMENTS,
		                                   arguments);
	return status;
}

/* Workers [begin, end): each takes every workers-th tile. */
static void
run_workers(void *ctx, int64_t begin, int64_t end)
{
	OnednnCall *c = ctx;

	for (int64_t w = begin; w < end; w++) {
		c->results[w] = dnnl_success;
		for (int64_t i = w * c->step; i < c->extent; i += c->workers * c->step)
			if (c->results[w] == dnnl_success)
				c->results[w] = run_tile(c, (int)w, i);
	}
}

Status
onednn_run(OnednnCall *c, void *const buffers[3], char *scratch)
{
	for (int i = 0; i < 3; i++)
		c->buffers[i] = buffers[i];
	c->memory = scratch;
	if (c->workers == 1)
		run_workers(c, 0, 1);
	else
		parallel_for(c->lib->pool, c->workers, 1, run_workers, c);
	for (int w = 0; w < c->workers; w++)
		RETURN_IF_ERROR(dnnl_fault(c->results[w], "a product failed"));
	return dnnl_fault(c->lib->stream_wait(c->lib->stream), "a product failed");
}

#else /* built without */

Status
onednn_open(Pool *pool, bool tiled, Onednn **out)
{
	(void)pool;
	(void)tiled;
	*out = NULL;
	return status_error(EXIT_SYSTEM, "built without oneDNN");
}

void
onednn_close(Onednn *lib)
{
	(void)lib;
}

const char *
onednn_version(const Onednn *lib)
{
	(void)lib;
	return "";
}

Status
onednn_dot(Onednn *lib, const LibraryDot *dot, int64_t scratch_limit, OnednnCall **out)
{
	(void)lib;
	(void)dot;
	(void)scratch_limit;
	*out = NULL;
	return status_error(EXIT_UNSUPPORTED, "built without oneDNN");
}

void
onednn_call_close(OnednnCall *call)
{
	(void)call;
}

const char *
onednn_implementation(const OnednnCall *call)
{
	(void)call;
	return "";
}

int64_t
onednn_scratch(const OnednnCall *call)
{
	(void)call;
	return 0;
}

Status
onednn_run(OnednnCall *call, void *const buffers[3], char *scratch)
{
	(void)call;
	(void)buffers;
	(void)scratch;
	return status_error(EXIT_UNSUPPORTED, "built without oneDNN");
}

#endif
