/* Memory of the pretended GPU. Device addresses lie in a space that nobody can access. Stream threads see the bytes in views
 * elsewhere, at the same distances, because a kernel may count from where a whole argument would begin although it has a
 * part only. Addresses are never reused, so that uses of freed memory are detected. */
#include "tests/cuda/fake/fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, CHUNK = 16 << 20 };

typedef struct {
	Object object;
	size_t used, high;
	uint64_t kept;
} Pool;
typedef struct {
	char *at, *view;
	size_t bytes, mapped;
	int device;
	Pool *pool;            /* NULL: not from a pool */
	bool given_back, gone; /* given_back: freeing was requested; gone: freeing is done */
} Region;
/* Regions lie in a space by ascending address. */
typedef struct {
	char *base, *next, *end;
	char *views; /* device memory: start of the views, at the same distances as the regions from base */
	Region *at;
	int n, cap;
} Space;
static Space device_space, pinned_space;
static size_t used[MOST_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *
reserve(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* Leaves room before the first region, because an argument may begin there. */
static bool
space_open(Space *s)
{
	for (size_t bytes = (size_t)1 << 40; !s->base && bytes > 1 << 30; bytes /= 2) {
		char *at = reserve(bytes),
		     *views = at && s == &device_space ? reserve(bytes) : NULL;
		if (!at || (s == &device_space && !views)) {
			if (at)
				munmap(at, bytes);
			continue;
		}
		s->base = at;
		s->next = at + bytes / 4;
		s->end = at + bytes;
		s->views = views;
	}
	return s->base != NULL;
}

/* A file filled with the fill byte, mapped repeatedly: large memory is filled without being touched. */
static int
fill_file(void)
{
	static int file = -1;

	if (file >= 0)
		return file;
	char *text = malloc(CHUNK);
	file = memfd_create("fill", MFD_CLOEXEC);
	if (!text || file < 0)
		abort();
	memset(text, settings()->fill, CHUNK);
	if (write(file, text, CHUNK) != CHUNK)
		abort();
	free(text);
	return file;
}

static bool
fill(char *at, size_t bytes)
{
	size_t n = 0;

	for (; bytes - n > CHUNK; n += CHUNK)
		if (mmap(at + n, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
		         fill_file(), 0) == MAP_FAILED)
			return false;
	memset(at + n, settings()->fill, bytes - n);
	return true;
}

static bool
map_view(Region *r)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	bool pinned = r->device < 0;
	char *view = pinned ? r->at : device_space.views + (r->at - device_space.base);
	void *at = mmap(view, r->mapped, PROT_READ | PROT_WRITE, flags | MAP_FIXED, -1, 0);

	if (at == MAP_FAILED)
		return false;
	r->view = at;
	return fill(r->view, r->mapped);
}

/* device -1: pinned memory. An unused page separates two regions. */
static int
region_new(Space *s, size_t bytes, int device, Pool *pool, void **out)
{
	Region r = {.bytes = bytes,
	            .mapped = (bytes + PAGE - 1) / PAGE * PAGE,
	            .device = device,
	            .pool = pool};

	if (bytes == 0)
		return complain(BAD_VALUE, "memory of 0 bytes is asked for");
	if (bytes > (size_t)1 << 40 || (device >= 0 && used[device] + bytes > settings()->bytes))
		return CUDA_OUT_OF_MEMORY;
	if ((!s->base && !space_open(s)) || (size_t)(s->end - s->next) < r.mapped + PAGE)
		return complain(CUDA_OUT_OF_MEMORY, "addresses of the pretended GPU are used up");
	r.at = s->next;
	if (!map_view(&r))
		return complain(CUDA_OUT_OF_MEMORY, "the machine has no memory for %zu bytes",
		                bytes);
	if (s->n == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 64;
		s->at = realloc(s->at, sizeof(*s->at) * (size_t)s->cap);
	}
	if (!s->at)
		abort();
	s->at[s->n++] = r;
	s->next += r.mapped + PAGE;
	if (device >= 0)
		used[device] += bytes;
	*out = r.at;
	return 0;
}

static int
allocate(Space *s, size_t bytes, int device, Pool *pool, void **out)
{
	*out = NULL;
	pthread_mutex_lock(&lock);
	int code = region_new(s, bytes, device, pool, out);
	if (!code && pool) {
		pool->used += bytes;
		pool->high = pool->high > pool->used ? pool->high : pool->used;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

/* The last region that begins at or before the address, if the address is in the space. */
static Region *
region_find(const Space *s, const char *at)
{
	int low = 0, high = s->n;

	if (!s->base || at < s->base || at >= s->end)
		return NULL;
	while (low < high) {
		int middle = (low + high) / 2;
		if (s->at[middle].at <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? &s->at[low - 1] : NULL;
}

static bool
is_of(const Space *s, const char *at)
{
	return s->base && at >= s->base && at < s->end;
}

static bool
holds(const Region *r, const char *at, size_t bytes)
{
	size_t offset = (size_t)(at - r->at);

	return offset <= r->bytes && bytes <= r->bytes - offset;
}

Place
memory_place(const void *address, size_t bytes)
{
	const char *at = address;
	Place place = PLACE_HOST;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < 2; i++) {
		const Space *s = i ? &pinned_space : &device_space;
		const Region *r = region_find(s, at);
		if (is_of(s, at))
			place = !r || r->given_back || !holds(r, at, bytes) ? PLACE_BAD
			        : i                                         ? PLACE_PINNED
			                                                    : PLACE_DEVICE;
	}
	pthread_mutex_unlock(&lock);
	return place;
}

void *
memory_view(const void *address, size_t bytes)
{
	const char *at = address;
	char *view = (char *)(uintptr_t)address;

	pthread_mutex_lock(&lock);
	const Space *s = is_of(&device_space, at) ? &device_space : &pinned_space;
	if (is_of(s, at)) {
		const Region *r = region_find(s, at);
		view = r && !r->gone && holds(r, at, bytes) ? r->view + (at - r->at) : NULL;
	}
	pthread_mutex_unlock(&lock);
	return view;
}

void *
memory_argument(const void *address)
{
	const char *at = address;
	void *view = NULL;

	pthread_mutex_lock(&lock);
	const Region *r = region_find(&device_space, at);
	bool gone = r && r->gone && holds(r, at, 0);
	if (is_of(&device_space, at) && !gone)
		view = device_space.views + (at - device_space.base);
	pthread_mutex_unlock(&lock);
	return view                                     ? view
	       : memory_place(address, 0) == PLACE_HOST ? NULL
	                                                : memory_view(address, 0);
}

bool
memory_is_hurt(const void *address)
{
	bool hurt = false;

	pthread_mutex_lock(&lock);
	const Region *r = region_find(&device_space, address);
	for (size_t i = r && !r->gone ? r->bytes : SIZE_MAX; r && i < r->mapped; i++)
		hurt |= (unsigned char)r->view[i] != settings()->fill;
	pthread_mutex_unlock(&lock);
	return hurt;
}

/* ---- freeing: memory is gone when its stream comes to the request */
static int
give_back(Space *s, void *at, bool of_pool)
{
	pthread_mutex_lock(&lock);
	Region *r = region_find(s, at);
	bool right = r && r->at == at && !r->given_back && (!of_pool || r->pool);
	if (right)
		r->given_back = true;
	pthread_mutex_unlock(&lock);
	return right ? 0 : complain(BAD_VALUE, "%p is freed, which is no memory of that kind", at);
}

void
memory_release(void *at)
{
	pthread_mutex_lock(&lock);
	bool pinned = is_of(&pinned_space, at);
	Region *r = region_find(pinned ? &pinned_space : &device_space, at);
	if (r && r->at == at && !r->gone) {
		r->gone = true;
		mmap(r->view, r->mapped, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		if (!pinned)
			used[r->device] -= r->bytes;
		if (r->pool)
			r->pool->used -= r->bytes;
	}
	pthread_mutex_unlock(&lock);
}

int
fake_MemGetInfo(size_t *free_bytes, size_t *total)
{
	ENTER(MemGetInfo);
	pthread_mutex_lock(&lock);
	*total = settings()->bytes;
	*free_bytes = *total - used[current_device];
	pthread_mutex_unlock(&lock);
	return 0;
}

int
fake_MemAlloc(void **at, size_t bytes)
{
	ENTER(MemAlloc);
	return allocate(&device_space, bytes, current_device, NULL, at);
}

int
fake_MemFree(void *at)
{
	ENTER(MemFree);
	if (!at)
		return 0;
	int code = give_back(&device_space, at, false);
	if (code)
		return code;
	device_wait(current_device);
	memory_release(at);
	return spent();
}

int
fake_MemHostAlloc(void **at, size_t bytes, unsigned flags)
{
	ENTER(MemHostAlloc);
	if (flags & ~7u)
		return BAD_VALUE;
	return allocate(&pinned_space, bytes, -1, NULL, at);
}

int
fake_MemFreeHost(void *at)
{
	ENTER(MemFreeHost);
	int code = give_back(&pinned_space, at, false);
	if (!code)
		memory_release(at);
	return code;
}

/* ---- pools */
int
fake_MemPoolCreate(void **pool, const CudaPoolProperties *properties)
{
	ENTER(MemPoolCreate);
	if (!settings()->has_pools)
		return NOT_SUPPORTED;
	if (properties->allocation != CUDA_ALLOCATION_PINNED ||
	    properties->location.kind != CUDA_LOCATION_DEVICE || properties->location.id < 0 ||
	    properties->location.id >= MOST_DEVICES)
		return complain(BAD_VALUE, "properties of a pool");
	Pool *p = object_new(OBJECT_POOL, sizeof(*p));
	p->object.device = properties->location.id;
	*pool = p;
	return 0;
}

int
fake_MemPoolDestroy(void *pool)
{
	ENTER(MemPoolDestroy);
	Pool *p = object_find(pool, OBJECT_POOL);
	if (!p)
		return BAD_VALUE;
	p->object.dead = true;
	return 0;
}

int
fake_MemPoolSetAttribute(void *pool, int attribute, void *value)
{
	ENTER(MemPoolSetAttribute);
	Pool *p = object_find(pool, OBJECT_POOL);
	if (!p || (attribute != CUDA_POOL_KEPT && attribute != CUDA_POOL_RESERVED_HIGH))
		return BAD_VALUE;
	uint64_t number = *(uint64_t *)value;
	if (attribute == CUDA_POOL_RESERVED_HIGH && number)
		return BAD_VALUE;
	pthread_mutex_lock(&lock);
	if (attribute == CUDA_POOL_KEPT)
		p->kept = number;
	else
		p->high = p->used;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Freed memory of a pool is given back at once, so there is nothing to trim. */
int
fake_MemPoolTrimTo(void *pool, size_t kept)
{
	ENTER(MemPoolTrimTo);
	(void)kept;
	return object_find(pool, OBJECT_POOL) ? 0 : BAD_VALUE;
}

int
fake_MemPoolGetAttribute(void *pool, int attribute, void *value)
{
	ENTER(MemPoolGetAttribute);
	Pool *p = object_find(pool, OBJECT_POOL);
	if (!p || (attribute != CUDA_POOL_KEPT && attribute != CUDA_POOL_RESERVED_HIGH))
		return BAD_VALUE;
	pthread_mutex_lock(&lock);
	*(uint64_t *)value = attribute == CUDA_POOL_KEPT ? p->kept : p->high;
	pthread_mutex_unlock(&lock);
	return 0;
}

int
fake_MemAllocFromPoolAsync(void **at, size_t bytes, void *pool, void *stream)
{
	ENTER(MemAllocFromPoolAsync);
	Pool *p = object_find(pool, OBJECT_POOL);
	if (!p || !stream_find(stream))
		return p ? BAD_HANDLE : BAD_VALUE;
	return allocate(&device_space, bytes, p->object.device, p, at);
}

int
fake_MemFreeAsync(void *at, void *stream)
{
	ENTER(MemFreeAsync);
	Stream *s = stream_find(stream);
	if (!s)
		return BAD_HANDLE;
	int code = give_back(&device_space, at, false);
	if (code)
		return code;
	Work *w = work_new(WORK_FREE);
	w->to = at;
	return submit(s, w, false);
}

/* For the fake libraries, whose host functions read and write device memory. */
__attribute__((visibility("default"))) void *fake_cuda_at(const void *at);
void *
fake_cuda_at(const void *at)
{
	void *view = memory_view(at, 1);

	return view ? view : (void *)(uintptr_t)at;
}
