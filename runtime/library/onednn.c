/* oneDNN behind the interface of library.h: products and convolutions on CPUs. The library is opened with dlopen; the header
 * that was present when gradc was built decides the generation of its interface, 2 or 3. A prepared call is a primitive
 * (oneDNN's compiled operation), with copies of operands to the library's layouts and back. If work is split into tiles and
 * the last tile is smaller, there is a second primitive for it. The caller provides the scratch. Each worker (thread) of a
 * tiled call has its own memory objects, because a memory object holds the address of the worker's tile. onednn_run.c runs
 * the calls. */
#if GRADC_ONEDNN
#include "base/numbers/numbers.h"
#include "runtime/library/onednn.h"
#include "runtime/library/onednn_slow.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static void onednn_close(Library *lib);
static void onednn_release(PreparedCall *c);
static int64_t onednn_scratch(const PreparedCall *c);

static const WorkKind *const onednn_kinds[N_LIBRARY_KINDS] = {
	[LIBRARY_DOT] = &onednn_dot,
	[LIBRARY_CONV] = &onednn_conv,
	[LIBRARY_CONV_GRAD_INPUT] = &onednn_conv_grad_input,
	[LIBRARY_CONV_GRAD_WEIGHT] = &onednn_conv_grad_weight,
};

Status
onednn_fault(dnnl_status_t status, const char *what)
{
	return status == dnnl_success
	               ? NULL
	               : status_error(EXIT_SYSTEM, "oneDNN: %s: status %d", what, (int)status);
}

static Status
find_symbols(Library *lib)
{
	static const LibrarySymbol symbols[] = {
#define DNNL(name) {"dnnl_" #name, offsetof(Library, name), false},
#include "runtime/library/onednn_list.def"
#undef DNNL
		{0}};
	const char *lacks = symbols_find(lib->library, symbols, lib);

	return lacks ? status_error(EXIT_SYSTEM, SONAME ": no %s", lacks) : NULL;
}

/* Primitives use the caller's scratch. */
static dnnl_status_t
make_attributes(const Library *lib, dnnl_primitive_attr_t *out)
{
	dnnl_status_t status = lib->primitive_attr_create(out);

	return status == dnnl_success
	               ? lib->primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user)
	               : status;
}

static dnnl_status_t
add_to_result(const Library *lib, dnnl_primitive_attr_t attributes)
{
	dnnl_post_ops_t post;
	dnnl_status_t status = lib->post_ops_create(&post);

	if (status != dnnl_success)
		return status;
#if DNNL_VERSION_MAJOR == 3
	status = lib->post_ops_append_sum(post, 1, 0, dnnl_data_type_undef);
#else
	status = lib->post_ops_append_sum(post, 1);
#endif
	if (status == dnnl_success)
		status = lib->primitive_attr_set_post_ops(attributes, post);
	lib->post_ops_destroy(post);
	return status;
}

static Status
start(Library *lib)
{
	RETURN_IF_ERROR(find_symbols(lib));
	const dnnl_version_t *v = lib->version();
	if (v->major != DNNL_VERSION_MAJOR || v->minor < DNNL_VERSION_MINOR)
		return status_error(EXIT_SYSTEM, SONAME " is %d.%d, this build needs %d.%d",
		                    v->major, v->minor, DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR);
	snprintf(lib->version_text, sizeof(lib->version_text), "oneDNN %d.%d.%d", v->major,
	         v->minor, v->patch);
	RETURN_IF_ERROR(onednn_fault(lib->engine_create(&lib->engine, dnnl_cpu, 0), "no engine"));
	RETURN_IF_ERROR(onednn_fault(
		lib->stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags),
		"no stream"));
	RETURN_IF_ERROR(onednn_fault(make_attributes(lib, &lib->attributes), "no attributes"));
	RETURN_IF_ERROR(onednn_fault(make_attributes(lib, &lib->adding), "no attributes"));
	return onednn_fault(add_to_result(lib, lib->adding), "no sums with the result");
}

static void
close_library(void *lib)
{
	onednn_close(lib);
}

static Status
onednn_open(const LibraryHome *home, Library **out)
{
	Library *lib = memory_zeroed(1, sizeof(*lib));
	Status status = NULL;

	*out = NULL;
	memory_hold(close_library, lib);
	lib->pool = home->pool;
	lib->tiled = home->tiled;
	*(void **)&lib->in_parallel = pool_symbol(lib->pool, "omp_in_parallel");
	*(void **)&lib->max_threads = pool_symbol(lib->pool, "omp_get_max_threads");
	*(void **)&lib->set_threads = pool_symbol(lib->pool, "omp_set_num_threads");
	if (!lib->in_parallel || !lib->max_threads || !lib->set_threads)
		status = status_error(EXIT_SYSTEM,
		                      "oneDNN: it uses libgomp's threads, this process does not");
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

/* The library stays loaded, because libgomp's threads may still run its code. */
static void
onednn_close(Library *lib)
{
	if (!lib)
		return;
	if (lib->attributes)
		lib->primitive_attr_destroy(lib->attributes);
	if (lib->adding)
		lib->primitive_attr_destroy(lib->adding);
	if (lib->stream)
		lib->stream_destroy(lib->stream);
	if (lib->engine)
		lib->engine_destroy(lib->engine);
	memory_free(lib);
}

static const char *
onednn_version(const Library *lib)
{
	return lib->version_text;
}

/* ---- threads
 * The library makes and runs primitives with the number of threads that OpenMP has set for the calling thread, which may differ
 * from run to run. Inside a parallel loop of the host, OpenMP gives the library a single thread, and the library would wait
 * forever for the others. */
int
onednn_threads_begin(const PreparedCall *c)
{
	const Library *lib = c->lib;
	int before = lib->max_threads();

	lib->set_threads(c->tiled || lib->in_parallel() ? 1 : pool_threads(lib->pool));
	return before;
}

void
onednn_threads_end(const PreparedCall *c, int before)
{
	c->lib->set_threads(before);
}

/* ---- descriptions: where the generations differ */
dnnl_data_type_t
onednn_type(uint32_t dtype)
{
	return dtype == F32 ? dnnl_f32 : dtype == BF16 ? dnnl_bf16 : dnnl_data_type_undef;
}

static dnnl_status_t
describe_ours(const Library *lib, uint32_t dtype, Layout *l, MemoryDesc *out)
{
#if DNNL_VERSION_MAJOR == 3
	return lib->memory_desc_create_with_strides(out, l->rank, l->dims, onednn_type(dtype),
	                                            l->strides);
#else
	return lib->memory_desc_init_by_strides(out, l->rank, l->dims, onednn_type(dtype),
	                                        l->strides);
#endif
}

static dnnl_status_t
describe_any(const Library *lib, uint32_t dtype, Layout *l, MemoryDesc *out)
{
#if DNNL_VERSION_MAJOR == 3
	return lib->memory_desc_create_with_tag(out, l->rank, l->dims, onednn_type(dtype),
	                                        dnnl_format_tag_any);
#else
	return lib->memory_desc_init_by_tag(out, l->rank, l->dims, onednn_type(dtype),
	                                    dnnl_format_tag_any);
#endif
}

void
onednn_forget_memory(const Library *lib, MemoryDesc *m)
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
aligned_bytes(const Library *lib, ConstMemoryDesc m)
{
	return (int64_t)(lib->memory_desc_get_size(m) + 63) / 64 * 64;
}

static ConstMemoryDesc
wanted(const PreparedCall *c, const Tile *t, int i)
{
	return c->lib->primitive_desc_query_md(t->description, dnnl_query_exec_arg_md,
	                                       c->kind->names[i]);
}

/* ---- tiles */

/* Do all tiles read the same operand i? Then the smaller last tile must read it in the layout that the full tiles use. */
static bool
is_shared(const PreparedCall *c, int i)
{
	return i != LIBRARY_RESULT && c->tiling.move[i] == 0;
}

bool
onednn_is_packed(const PreparedCall *c, int i)
{
	return is_shared(c, i) && c->full.copies[i];
}

static Status
make_copy(const PreparedCall *c, Tile *t, int i, ConstMemoryDesc ours, ConstMemoryDesc theirs)
{
	const Library *lib = c->lib;
	bool result = i == LIBRARY_RESULT;

	if (lib->memory_desc_equal(ours, theirs))
		return NULL;
	t->bytes[THEIRS + i] = aligned_bytes(lib, theirs);
	RETURN_IF_ERROR(onednn_fault(
		lib->reorder_primitive_desc_create(&t->copy_descriptions[i], result ? theirs : ours,
	                                           lib->engine, result ? ours : theirs, lib->engine,
	                                           NULL),
		"no such copy"));
	return onednn_fault(lib->primitive_create(&t->copies[i], t->copy_descriptions[i]),
	                    "no copy");
}

static Status
make_memories(const PreparedCall *c, Tile *t, MemoryDesc ours[N_OPERANDS])
{
	const Library *lib = c->lib;
	ConstMemoryDesc of[N_MEMORIES] = {0};

	of[SCRATCH] = lib->primitive_desc_query_md(t->description, dnnl_query_scratchpad_md, 0);
	t->bytes[SCRATCH] = aligned_bytes(lib, of[SCRATCH]);
	for (int i = 0; i < onednn_operands(&c->call); i++) {
		of[OURS + i] = DESC(ours[i]);
		of[THEIRS + i] = wanted(c, t, i);
		RETURN_IF_ERROR(make_copy(c, t, i, of[OURS + i], of[THEIRS + i]));
	}
	t->memories = memory_zeroed((size_t)c->workers * N_MEMORIES, sizeof(*t->memories));
	for (int i = 0; i < c->workers * N_MEMORIES; i++) {
		ConstMemoryDesc m = of[i % N_MEMORIES];
		if (m)
			RETURN_IF_ERROR(
				onednn_fault(lib->memory_create(&t->memories[i], m, lib->engine,
			                                        DNNL_MEMORY_NONE),
			                     "no memory object"));
	}
	return NULL;
}

static Status
make_primitive(const PreparedCall *c, Tile *t, ConstMemoryDesc asked[N_OPERANDS],
               MemoryDesc ours[N_OPERANDS])
{
	const Library *lib = c->lib;

	RETURN_IF_ERROR(onednn_fault(c->kind->describe(lib, &c->call, asked, &t->description),
	                             "no such work"));
	RETURN_IF_ERROR(onednn_fault(
		lib->primitive_desc_query(t->description, dnnl_query_impl_info_str, 0, &t->name),
		"no name"));
	if (strstr(t->name, "ref"))
		return status_error(EXIT_UNSUPPORTED, "oneDNN has only %s", t->name);
	RETURN_IF_ERROR(make_memories(c, t, ours));
	return onednn_fault(lib->primitive_create(&t->primitive, t->description), "no primitive");
}

/* Makes a tile of `steps` steps along the axis. */
static Status
make_tile(const PreparedCall *c, int64_t steps, Tile *t)
{
	MemoryDesc ours[N_OPERANDS] = {0}, any[N_OPERANDS] = {0};
	ConstMemoryDesc asked[N_OPERANDS] = {0};
	dnnl_status_t made = dnnl_success;

	for (int i = 0; i < onednn_operands(&c->call) && made == dnnl_success; i++) {
		Layout l = c->kind->layout(&c->call, &c->tiling, steps, i);
		bool free = i != LIBRARY_BIAS && (c->kind->any || (c->fixed >> i & 1));
		made = describe_ours(c->lib, c->call.operands[i].dtype, &l, &ours[i]);
		if (made == dnnl_success)
			made = describe_any(c->lib, c->call.operands[i].dtype, &l, &any[i]);
		asked[i] = free ? DESC(any[i]) : DESC(ours[i]);
		if (t == &c->rest && is_shared(c, i))
			asked[i] = wanted(c, &c->full, i);
	}
	Status status = onednn_fault(made, "no such layout");
	if (!status)
		status = make_primitive(c, t, asked, ours);
	for (int i = 0; i < N_OPERANDS; i++) {
		onednn_forget_memory(c->lib, &ours[i]);
		onednn_forget_memory(c->lib, &any[i]);
	}
	return status;
}

static int64_t
worker_bytes(const PreparedCall *c, const Tile *t)
{
	int64_t bytes = t->bytes[SCRATCH];

	for (int i = 0; i < N_OPERANDS; i++)
		bytes += is_shared(c, i) ? 0 : t->bytes[THEIRS + i];
	return bytes;
}

static Status
make_call(PreparedCall *c, int64_t scratch_limit)
{
	int64_t tiles = (c->tiling.extent + c->tiling.step - 1) / c->tiling.step;
	int threads = pool_threads(c->lib->pool);

	c->workers = tiles < threads ? (int)tiles : threads;
	c->results = memory_zeroed((size_t)c->workers, sizeof(*c->results));
	RETURN_IF_ERROR(make_tile(c, c->tiling.step, &c->full));
	if (c->tiling.extent % c->tiling.step)
		RETURN_IF_ERROR(make_tile(c, c->tiling.extent % c->tiling.step, &c->rest));
	for (int i = LIBRARY_FIRST; i < LIBRARY_RESULT; i++)
		c->shared += onednn_is_packed(c, i) ? c->full.bytes[THEIRS + i] : 0;
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
	onednn_release(call);
}

static Status
open_call(Library *lib, const LibraryCall *call, unsigned fixed, int64_t scratch_limit, bool tiled,
          int tiles, PreparedCall **out)
{
	PreparedCall *c = memory_zeroed(1, sizeof(*c));

	*out = NULL;
	memory_hold(close_call, c);
	c->lib = lib;
	c->kind = onednn_kinds[call->kind];
	c->call = *call;
	c->fixed = fixed;
	c->tiling = c->kind->tiling(call, tiles);
	c->tiled = tiled;
	int before = onednn_threads_begin(c);
	Status status = make_call(c, scratch_limit);
	onednn_threads_end(c, before);
	memory_let_go();
	if (status)
		onednn_release(c);
	else
		*out = c;
	return status;
}

static bool
has_avx512(const Library *lib)
{
	int isa = (int)lib->get_effective_cpu_isa();

	return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

/* Without AVX-512, oneDNN's implementation gemm:jit splits sums by the number of threads, so the bits of results depend on the
 * number of threads. */
static bool
follows_threads(const PreparedCall *c)
{
	return c->kind->same_bits && strncmp(c->full.name, "gemm", 4) == 0 && !has_avx512(c->lib);
}

static Status
onednn_prepare(Library *lib, const LibraryCall *call, unsigned fixed, int64_t scratch_limit,
               PreparedCall **out)
{
	if (call->beta && !library_adds_in_place(call))
		return status_error(EXIT_UNSUPPORTED, "oneDNN adds to the result only");
	if (call->kind != LIBRARY_DOT && !library_is_dense(&call->operands[LIBRARY_FIRST]))
		return status_error(EXIT_UNSUPPORTED, "oneDNN: convolutions with channels last "
		                                      "are loops");
	if (call->epilogue > EPILOGUE_BIAS)
		return status_error(EXIT_UNSUPPORTED, "oneDNN: epilogue %s is loops",
		                    epilogue_names[call->epilogue]);
	if (lib->tiled)
		return open_call(lib, call, fixed, scratch_limit, true, MANY_TILES, out);
	/* The call is made without tiles first: only then is its implementation known. */
	RETURN_IF_ERROR(open_call(lib, call, fixed, scratch_limit, false, 1, out));
	if (!follows_threads(*out))
		return NULL;
	onednn_release(*out);
	return open_call(lib, call, fixed, scratch_limit, true, cpu_count(), out);
}

static bool
onednn_pays(const PreparedCall *c)
{
	const Tiling *t = &c->tiling;

	return !onednn_is_slow(&(LibraryUse){.name = c->full.name,
	                                     .avx512 = has_avx512(c->lib),
	                                     .intel = cpu_is_intel(),
	                                     .second_cache = cpu_second_cache(),
	                                     .call = &c->call,
	                                     .axis = t->axis,
	                                     .step = t->step,
	                                     .tiles = (t->extent + t->step - 1) / t->step,
	                                     .enough = c->lib->tiled ? ENOUGH_TILES : cpu_count()});
}

static void
forget_tile(const PreparedCall *c, Tile *t)
{
	const Library *lib = c->lib;

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

static void
onednn_release(PreparedCall *c)
{
	if (!c)
		return;
	forget_tile(c, &c->full);
	forget_tile(c, &c->rest);
	memory_free(c->results);
	memory_free(c);
}

static const char *
onednn_implementation(const PreparedCall *c)
{
	return c->full.name;
}

static int64_t
onednn_scratch(const PreparedCall *c)
{
	return c->shared + c->scratch * c->workers;
}

static int64_t
onednn_packed_bytes(const PreparedCall *c, int i)
{
	return onednn_is_packed(c, i) && (c->fixed >> i & 1) ? c->full.bytes[THEIRS + i] : 0;
}

const LibraryOps library_onednn = {
	.name = "oneDNN",
	.open = onednn_open,
	.close = onednn_close,
	.version = onednn_version,
	.prepare = onednn_prepare,
	.release = onednn_release,
	.pays = onednn_pays,
	.implementation = onednn_implementation,
	.scratch = onednn_scratch,
	.packed_bytes = onednn_packed_bytes,
	.pack = onednn_pack,
	.run = onednn_run,
};
#endif
