/* Initial values of the states. The model's weights lie in the executable's file after the code, aligned to pages, and are
 * mapped into memory from there. --weights FILE names another file with the same bytes; it is read and not mapped, because it
 * may change. */
#include "runtime/host/host.h"
#include "runtime/model/adapters.h"
#include "runtime/model/values.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
	const char *at;
	int64_t bytes;
	void *mapping; /* NULL: the weights were read into the arena */
	size_t mapped;
	int fd;         /* the mapped file; -1: no file */
	int64_t offset; /* offset in the file */
} Weights;

static Status
missing(const char *image, const char *why)
{
	return status_error(EXIT_SYSTEM,
	                    "%s: the initial weights after the executable's code %s; "
	                    "--weights FILE names a copy",
	                    image ? image : "executable", why);
}

static Status
check_tail(const char *image, const Format *f, const FormatTail *tail, int64_t size)
{
	if (tail->magic != FORMAT_MAGIC)
		return missing(image, "are missing (was it stripped?)");
	if (tail->offset < 0 || tail->bytes < 0 || tail->offset % 4096 != 0 || tail->bytes > size ||
	    tail->offset > size - tail->bytes)
		return missing(image, "lie outside of the file");
	if (tail->bytes < f->header->weights_bytes)
		return missing(image, tail->bytes == 0 ? "were not embedded" : "are truncated");
	return NULL;
}

static Status
map_tail(const char *image, const Format *f, int fd, Weights *out)
{
	struct stat st;
	FormatTail tail = {0};

	if (fstat(fd, &st) != 0 || st.st_size < (off_t)sizeof(tail))
		return missing(image, "are missing");
	RETURN_IF_ERROR(
		file_pread(fd, image, &tail, sizeof(tail), st.st_size - (off_t)sizeof(tail)));
	RETURN_IF_ERROR(check_tail(image, f, &tail, st.st_size));
	out->bytes = f->header->weights_bytes;
	out->fd = fd;
	out->offset = tail.offset;
	out->mapped = (size_t)out->bytes;
	out->mapping = mmap(NULL, out->mapped, PROT_READ, MAP_PRIVATE, fd, tail.offset);
	if (out->mapping == MAP_FAILED) {
		out->mapping = NULL;
		return status_error(EXIT_SYSTEM, "%s: cannot map the weights: %s", image,
		                    strerror(errno));
	}
	out->at = out->mapping;
	return NULL;
}

static Status
read_file(Arena *arena, const char *path, const Format *f, Weights *out)
{
	void *bytes;

	RETURN_IF_ERROR(file_read(arena, path, INT64_MAX / 2, &bytes, &out->bytes));
	out->at = bytes;
	if (out->bytes != f->header->weights_bytes)
		return status_error(EXIT_SYSTEM,
		                    "%s: %lld bytes, the executable's weights have %lld", path,
		                    (long long)out->bytes, (long long)f->header->weights_bytes);
	return NULL;
}

/* If the model was compiled to a shared library, the weights lie in that library's file: the file that the tables were loaded
 * from. */
static const char *
image_of(const GradcModel *model)
{
	Dl_info info;

	if (model->file)
		return model->file;
	return dladdr(model->blob, &info) ? info.dli_fname : NULL;
}

static Status
open_weights(Arena *arena, const GradcModel *model, const Format *f, const char *file, Weights *out)
{
	*out = (Weights){.fd = -1};
	if (f->header->weights_bytes == 0)
		return NULL;
	if (file)
		return read_file(arena, file, f, out);
	const char *image = image_of(model);
	int fd = image ? open(image, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return missing(image, "cannot be read");
	Status status = map_tail(image, f, fd, out);
	if (status)
		close(fd);
	return status;
}

static void
close_weights(Weights *w)
{
	if (w->mapping)
		munmap(w->mapping, w->mapped);
	if (w->mapping)
		close(w->fd);
}

/* Hashes the data of each state in order, as the compiler does. */
static uint64_t
hash_states(const Format *f, const Weights *w)
{
	uint64_t hash = 0;

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].init == INIT_DATA)
			hash = hash_bytes(w->at + f->states[i].data_offset,
			                  (size_t)f->states[i].bytes, hash);
	return hash;
}

Status
weights_check(const GradcModel *model, const Format *f, const char *file, bool *same)
{
	Arena *arena = arena_new();
	Weights w;
	Status status = open_weights(arena, model, f, file, &w);

	*same = !status && hash_states(f, &w) == f->header->weights_hash;
	close_weights(&w);
	arena_free(arena);
	return status;
}

/* ---- generated numbers */
enum {
	/* a chunk: elements that a thread makes together; a multiple of 8, so that packed types end at a byte */
	CHUNK = 4096,
	/* number of elements (7 ms for one thread) from which on several threads are used */
	LEAST_SHARED = 262144,
};

typedef struct {
	const StateRecord *state;
	uint64_t seed, stream;
	char *to; /* memory for the state's bytes, all zero */
	int64_t n;
} Init;

static uint64_t
init_seed(const Gradc *run)
{
	const char *text = format_info_get(&run->format, "init_seed");
	uint64_t seed = run->options.seed;

	if (text)
		parse_uint(text, &seed);
	return seed;
}

static double
one(const Init *i, int64_t k)
{
	(void)i;
	(void)k;
	return 1;
}

static double
normal(const Init *i, int64_t k)
{
	return i->state->init_a + i->state->init_b * philox_normal(i->seed, i->stream, (uint64_t)k);
}

static double
uniform(const Init *i, int64_t k)
{
	double a = i->state->init_a, b = i->state->init_b;

	return a + (b - a) * philox_uniform(i->seed, i->stream, (uint64_t)k);
}

static double (*const made[N_INITS])(const Init *, int64_t) = {
	[INIT_ONES] = one,
	[INIT_NORMAL] = normal,
	[INIT_UNIFORM] = uniform,
};

/* A ParallelFn over chunks. */
static void
make_chunks(void *ctx, int64_t begin, int64_t end)
{
	const Init *i = ctx;
	DType dtype = (DType)i->state->dtype;
	int64_t stop = end * CHUNK < i->n ? end * CHUNK : i->n;

	for (int64_t k = begin * CHUNK; k < stop; k++) {
		double x = made[i->state->init](i, k);
		if (dtype_is_float(dtype))
			dtype_store_float(dtype, i->to, k, x);
		else
			dtype_store_int(dtype, i->to, k, (int64_t)x);
	}
}

static bool
is_made(const StateRecord *s)
{
	return made[s->init] != NULL;
}

/* Opens a pool of threads. *pool is NULL if the caller's thread alone is as fast. */
static Status
open_makers(const Gradc *run, Pool **pool)
{
	const Format *f = &run->format;
	int64_t n = 0;

	*pool = NULL;
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (is_made(&f->states[i]))
			n += format_elements(f, f->states[i].first_dim, f->states[i].rank);
	return n < LEAST_SHARED ? NULL : pool_open(THREADS_PLAIN, (int)run->options.threads, pool);
}

/* Generates the numbers in memory and copies them to the state. */
static Status
init_made(Gradc *run, Pool *pool, int index)
{
	const Format *f = &run->format;
	const StateRecord *s = &f->states[index];
	const char *name = format_text(f, s->name);
	Arena *arena = arena_new();
	Init init = {.state = s,
	             .seed = init_seed(run),
	             .stream = hash_bytes(name, strlen(name), 0),
	             .to = arena_alloc(arena, (size_t)s->bytes),
	             .n = format_elements(f, s->first_dim, s->rank)};
	int64_t chunks = (init.n + CHUNK - 1) / CHUNK;

	if (pool && init.n >= LEAST_SHARED)
		parallel_for(pool, chunks, 1, make_chunks, &init);
	else
		make_chunks(&init, 0, chunks);
	Status status = state_write(&run->executor, index, 0, init.to, s->bytes);
	arena_free(arena);
	return status;
}

/* ---- the model's weights: mapped if file and region have the same layout, otherwise copied */
enum { PAGE = 4096, LEAST_MAPPED = 1 << 20 };

/* A range of the state region. The same bytes are in the file, at offsets that are larger by `shift`. */
typedef struct {
	int64_t begin, end, shift;
	int64_t mapped_begin, mapped_end;
	bool constant;
} DataRun;

/* The longest range of states, beginning with state `index`, that has the same layout in the file. Either all states of the
 * range are constant or none is. */
static DataRun
data_run(const Format *f, int index, int mode)
{
	const StateRecord *s = &f->states[index];
	DataRun r = {.begin = s->offset,
	             .end = s->offset,
	             .shift = s->data_offset - s->offset,
	             .constant = s->lifetime == LIFE_CONSTANT};

	for (int i = index; i < f->n[SECTION_STATES]; i++) {
		s = &f->states[i];
		if (s->init != INIT_DATA)
			continue;
		if (state_is_sharded(s, mode) || s->offset < r.end || s->offset - r.end > PAGE ||
		    s->data_offset - s->offset != r.shift ||
		    (s->lifetime == LIFE_CONSTANT) != r.constant)
			break;
		r.end = s->offset + s->bytes;
	}
	r.mapped_begin = r.mapped_end = r.end;
	return r;
}

/* Maps the whole pages of a range, if the device can map files. Bytes between two states of the range are zero in the file as
 * well as in the region. */
static Status
map_run(Gradc *run, const Weights *w, DataRun *r)
{
	Executor *x = &run->executor;
	char *base = x->regions[SPACE_STATE][0].at;
	int64_t from = w->offset + r->shift;
	int64_t begin = (r->begin + PAGE - 1) / PAGE * PAGE, end = r->end / PAGE * PAGE;

	if (!x->ops->map || w->fd < 0 || end - begin < LEAST_MAPPED ||
	    (uintptr_t)base % PAGE != 0 || from % PAGE != 0)
		return NULL;
	r->mapped_begin = begin;
	r->mapped_end = end;
	Span to = {base + begin, end - begin};
	if (!r->constant)
		vec_push(run->arena, &run->mapped, to);
	return x->ops->map(x->device, to, w->fd, from + begin);
}

/* Copies bytes [begin, end) of the state region, which lie in the range. */
static Status
copy_data(Gradc *run, const Weights *w, const DataRun *r, int64_t begin, int64_t end)
{
	Span to = {run->executor.regions[SPACE_STATE][0].at + begin, end - begin};

	return end <= begin ? NULL : executor_write(&run->executor, to, w->at + begin + r->shift);
}

static Status
init_data(Gradc *run, const Weights *w, int index, DataRun *r)
{
	const StateRecord *s = &run->format.states[index];
	int64_t end = s->offset + s->bytes;

	if (state_has_parts(&run->executor, index))
		return state_write(&run->executor, index, 0, w->at + s->data_offset, s->bytes);
	if (s->offset >= r->end || s->offset < r->begin || s->data_offset - s->offset != r->shift) {
		*r = data_run(&run->format, index, run->mode);
		RETURN_IF_ERROR(map_run(run, w, r));
	}
	int64_t before = r->mapped_begin < end ? r->mapped_begin : end;
	int64_t behind = r->mapped_end > s->offset ? r->mapped_end : s->offset;
	RETURN_IF_ERROR(copy_data(run, w, r, s->offset, before));
	return copy_data(run, w, r, behind > before ? behind : before, end);
}

static Status
init_state(Gradc *run, const Weights *weights, Pool *pool, int index, DataRun *data)
{
	const StateRecord *s = &run->format.states[index];

	if (s->init == INIT_ZEROS)
		return NULL;
	if (s->init == INIT_DATA)
		return init_data(run, weights, index, data);
	if (s->init == INIT_COPY)
		return NULL; /* weights_copy makes this state later */
	return init_made(run, pool, index);
}

/* Fills all states with their initial values. The region is already zero. */
Status
weights_init(Gradc *run)
{
	Weights weights;
	DataRun data = {0};
	Pool *pool = NULL;
	Arena *arena = arena_new();
	Status status = open_weights(arena, &run->model, &run->format, run->options.weights,
	                             &weights);

	if (!status && run->options.weights &&
	    hash_states(&run->format, &weights) != run->format.header->weights_hash)
		status = status_error(EXIT_SYSTEM, "%s: not the weights of this executable",
		                      run->options.weights);
	if (!status)
		status = open_makers(run, &pool);
	for (int i = 0; i < run->format.n[SECTION_STATES] && !status; i++)
		status = init_state(run, &weights, pool, i, &data);
	pool_close(pool);
	close_weights(&weights);
	arena_free(arena);
	return status ? status : weights_copy(run, false);
}

Status
weights_first(Gradc *run, Arena *arena, int state, char **out)
{
	const StateRecord *s = &run->format.states[state];
	Weights weights;

	RETURN_IF_ERROR(
		open_weights(arena, &run->model, &run->format, run->options.weights, &weights));
	*out = arena_alloc(arena, (size_t)s->bytes + 1);
	memcpy(*out, weights.at + s->data_offset, (size_t)s->bytes);
	close_weights(&weights);
	return NULL;
}

/* Resets a state that begins with zeros, ones or random numbers. */
Status
weights_begin(Gradc *run, int state)
{
	const StateRecord *s = &run->format.states[state];

	if (is_made(s))
		return init_made(run, NULL, state);
	Arena *arena = arena_new();
	char *zeros = arena_alloc(arena, (size_t)s->bytes + 1);
	memset(zeros, 0, (size_t)s->bytes);
	Status status = state_write(&run->executor, state, 0, zeros, s->bytes);
	arena_free(arena);
	return status;
}

/* Does this rank hold only a part of each of the two states, and the same elements of both? Then it can copy without other
 * ranks. True for a unit (states that are divided together) and the states in it. */
static bool
has_same_part(const Executor *x, int to, int from)
{
	const StateRecord *a = &x->format->states[to], *b = &x->format->states[from];

	return state_has_parts(x, to) && state_has_parts(x, from) &&
	       format_elements(x->format, a->first_dim, a->rank) ==
	               format_elements(x->format, b->first_dim, b->rank);
}

/* Copies the whole state, or this rank's part if it holds the same part of both. */
Status
weights_copy_state(Gradc *run, int to, int from)
{
	const Format *f = &run->format;
	const StateRecord *x = &f->states[from], *y = &f->states[to];
	DType xt = (DType)x->dtype, yt = (DType)y->dtype;
	Executor *e = &run->executor;
	Arena *arena = arena_new();
	bool own = has_same_part(e, to, from);
	StatePart part = own ? state_part(e, from) : (StatePart){.at.bytes = x->bytes};
	int64_t n = part.at.bytes * 8 / dtype_info[xt].bits;
	char *old = arena_alloc(arena, (size_t)part.at.bytes + 1);
	char *new = arena_alloc(arena, (size_t)dtype_bytes(yt, n) + 1);
	Status status = !own            ? state_read(run, from, old)
	                : part.at.bytes ? executor_read(e, old, part.at)
	                                : NULL;

	if (!status) {
		int64_t first = dtype_bytes(yt, part.first * 8 / dtype_info[xt].bits);
		dtype_convert(yt, new, xt, old, n);
		status = state_write(e, to, first, new, dtype_bytes(yt, n));
	}
	arena_free(arena);
	return status;
}

Status
weights_copy(Gradc *run, bool resumed)
{
	const Format *f = &run->format;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		if (s->init == INIT_COPY && !(resumed && s->lifetime == LIFE_SAVED))
			RETURN_IF_ERROR(weights_copy_state(run, i, (int)s->of - 1));
	}
	return NULL;
}

Status
weights_unmap(Gradc *run)
{
	for (int i = 0; i < run->mapped.n; i++)
		RETURN_IF_ERROR(run->executor.ops->unmap(run->executor.device, run->mapped.at[i]));
	run->mapped.n = 0;
	return NULL;
}
