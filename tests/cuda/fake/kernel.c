/* Launches of the pretended driver. A launch is checked against the hardware's limits. Then its blocks of threads run one
 * after the other in a random order, by libraries that harness.py builds. */
#include "base/base.h"
#include "tests/cuda/fake/fake.h"
#include "tests/cuda/fake/harness_kernel.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BLOCK = 1024, MOST_REGISTERS = 65536, MOST_GRID_YZ = 65535, WARP = 32 };

struct Harness {
	const HarnessKernel *kernel;
	unsigned *grid; /* gridDim of the library's threads */
	void (*run_block)(unsigned block, int threads, void (*kernel)(void *), void *argument);
};
struct Launch {
	const Function *function;
	unsigned blocks;
	int threads;
	unsigned char values[]; /* values of the parameters, each at its offset */
};
static pthread_mutex_t run_lock =
	PTHREAD_MUTEX_INITIALIZER; /* the harness has one set of threads only */

/* ---- libraries of kernels */
static void *libraries[64];
static int n_libraries;

static void
open_libraries(void)
{
	char *copy = settings()->kernels ? strdup(settings()->kernels) : NULL, *save = NULL;

	for (char *path = copy ? strtok_r(copy, ":", &save) : NULL; path;
	     path = strtok_r(NULL, ":", &save)) {
		void *library = n_libraries < COUNT(libraries) ? dlopen(path, RTLD_NOW | RTLD_LOCAL)
		                                               : NULL;
		if (library)
			libraries[n_libraries++] = library;
		else
			complain(NOT_FOUND, "FAKE_CUDA_KERNELS: %s", dlerror());
	}
	free(copy);
}

static const Harness *
find_harness(const Function *f)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	Harness h = {0};
	char name[1024];

	pthread_once(&once, open_libraries);
	snprintf(name, sizeof(name), "%s_entry", f->name);
	for (int i = 0; i < n_libraries && !h.kernel; i++) {
		h.kernel = dlsym(libraries[i], name);
		h.grid = dlsym(libraries[i], "gridDim");
		*(void **)&h.run_block = dlsym(libraries[i], "harness_run_block");
	}
	if (!h.kernel || !h.grid || !h.run_block)
		return NULL;
	Harness *found = malloc(sizeof(*found));
	if (!found)
		abort();
	*found = h;
	return found;
}

/* Do the library's text and the module describe the same kernel? */
static bool
is_alike(const Function *f, const HarnessKernel *k)
{
	bool alike = k->n == f->n_parameters;

	for (int i = 0; i < k->n && alike; i++)
		alike = (uint32_t)k->sizes[i] == f->parameters[i].bytes;
	return alike;
}

static int
check_harness(Function *f)
{
	pthread_mutex_lock(&run_lock);
	if (!f->harness)
		f->harness = find_harness(f);
	pthread_mutex_unlock(&run_lock);
	if (!f->harness)
		return complain(NOT_FOUND, "kernel %s is in no library of FAKE_CUDA_KERNELS (%s)",
		                f->name,
		                settings()->kernels ? settings()->kernels : "which is not set");
	return is_alike(f, f->harness->kernel)
	               ? 0
	               : complain(NOT_FOUND, "the library's %s has other parameters", f->name);
}

/* ---- limits */
static int
check_shared(const Function *f, unsigned dynamic)
{
	uint64_t all = (uint64_t)f->shared + dynamic;

	if (all > SHARED_BYTES)
		return complain(BAD_VALUE, "%s: %u + %u bytes of shared memory", f->name, f->shared,
		                dynamic);
	if (all > OWN_SHARED_BYTES && dynamic > f->dynamic)
		return complain(BAD_VALUE,
		                "%s: %u bytes of shared memory, of which %u were allowed", f->name,
		                dynamic, f->dynamic);
	return 0;
}

static int
check_block(const Function *f, uint64_t threads)
{
	uint64_t warps = (threads + WARP - 1) / WARP,
		 registers = ((uint64_t)f->registers + 7) / 8 * 8;

	if (threads == 0 || threads > MOST_BLOCK ||
	    (f->most_threads && threads > (uint64_t)f->most_threads))
		return complain(BAD_VALUE, "%s: a block of %llu threads, at most %d", f->name,
		                (unsigned long long)threads,
		                f->most_threads ? f->most_threads : MOST_BLOCK);
	if (warps * WARP * registers > MOST_REGISTERS)
		return complain(TOO_MANY_RESOURCES, "%s: %llu threads with %d registers", f->name,
		                (unsigned long long)threads, f->registers);
	return 0;
}

static int
check_parameters(const Function *f, void **parameters)
{
	if (f->n_parameters && !parameters)
		return complain(BAD_VALUE, "%s: no parameters", f->name);
	for (int i = 0; i < f->n_parameters; i++)
		if (!parameters[i])
			return complain(BAD_VALUE, "%s: parameter %d is not given", f->name, i);
	return 0;
}

static Launch *
launch_new(const Function *f, unsigned blocks, int threads, void **parameters)
{
	size_t bytes = 0;

	for (int i = 0; i < f->n_parameters; i++) {
		size_t end = f->parameters[i].offset + f->parameters[i].bytes;
		bytes = bytes > end ? bytes : end;
	}
	Launch *l = calloc(1, sizeof(*l) + bytes);
	if (!l)
		abort();
	*l = (Launch){.function = f, .blocks = blocks, .threads = threads};
	for (int i = 0; i < f->n_parameters; i++)
		memcpy(l->values + f->parameters[i].offset, parameters[i], f->parameters[i].bytes);
	return l;
}

static int
check_launch(Function *f, uint64_t threads, unsigned shared_bytes, void **parameters)
{
	int code = check_block(f, threads);

	if (!code)
		code = check_shared(f, shared_bytes);
	if (!code)
		code = check_parameters(f, parameters);
	return code ? code : check_harness(f);
}

int
fake_LaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **parameters, void **extra)
{
	ENTER(LaunchKernel);
	Function *f = object_find(function, OBJECT_FUNCTION);
	Stream *s = stream_find(stream);

	if (!f || !s)
		return BAD_HANDLE;
	if (f->object.device != s->object.device)
		return complain(BAD_HANDLE, "%s is launched on another device's stream", f->name);
	if (grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_x > INT32_MAX ||
	    grid_y > MOST_GRID_YZ || grid_z > MOST_GRID_YZ || extra)
		return complain(BAD_VALUE, "%s: a grid of %u x %u x %u blocks", f->name, grid_x,
		                grid_y, grid_z);
	int code = check_launch(f, (uint64_t)block_x * block_y * block_z, shared_bytes, parameters);
	if (code)
		return code;
	if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1)
		return complain(NOT_SUPPORTED, "%s: the harness has grids and blocks of one axis",
		                f->name);
	Work *w = work_new(WORK_KERNEL);
	w->owned = launch_new(f, grid_x, (int)block_x, parameters);
	return submit(s, w, false);
}

/* ---- runs */
static void
sleep_forever(const char *name)
{
	complain(0, "%s never ends, as planned", name);
	for (;;)
		pause();
}

static void
shuffle(unsigned *order, unsigned n, uint64_t *state)
{
	for (unsigned i = n; i > 1; i--) {
		unsigned j = (unsigned)(random_next(state) % i), x = order[i - 1];
		order[i - 1] = order[j];
		order[j] = x;
	}
}

static void
run_blocks(Stream *s, const Launch *l, void **parameters)
{
	const Harness *h = l->function->harness;
	unsigned *order = malloc(sizeof(*order) * l->blocks);

	if (!order)
		abort();
	for (unsigned i = 0; i < l->blocks; i++)
		order[i] = i;
	if (!settings()->in_order)
		shuffle(order, l->blocks, &s->random);
	pthread_mutex_lock(&run_lock);
	h->grid[0] = l->blocks;
	h->grid[1] = h->grid[2] = 1;
	for (unsigned i = 0; i < l->blocks; i++)
		h->run_block(order[i], l->threads, h->kernel->run, parameters);
	pthread_mutex_unlock(&run_lock);
	free(order);
}

/* Replaces the device's address by the address of the memory for this thread. */
static int
translate(const Function *f, int i, void **value)
{
	char *address = *value;

	if (!address)
		return 0;
	*value = memory_argument(address);
	return *value ? 0
	              : complain(BAD_ADDRESS,
	                         "kernel %s: parameter %d is %p, which is no memory of the GPU",
	                         f->name, i, (void *)address);
}

static int
check_tails(const Launch *l)
{
	const Function *f = l->function;

	for (int i = 0; i < f->n_parameters; i++) {
		void *address;
		if (!f->harness->kernel->pointers[i])
			continue;
		memcpy(&address, l->values + f->parameters[i].offset, sizeof(address));
		if (address && memory_is_hurt(address))
			return complain(BAD_ADDRESS, "kernel %s has written behind parameter %d",
			                f->name, i);
	}
	return 0;
}

int
kernel_run(Stream *s, const Work *w)
{
	const Launch *l = w->owned;
	const Function *f = l->function;
	void *values[MOST_PARAMETERS], *parameters[MOST_PARAMETERS];

	if (settings()->stuck && strstr(f->name, settings()->stuck))
		sleep_forever(f->name);
	for (int i = 0; i < f->n_parameters; i++) {
		parameters[i] = (void *)(l->values + f->parameters[i].offset);
		if (!f->harness->kernel->pointers[i])
			continue;
		memcpy(&values[i], parameters[i], sizeof(void *));
		int code = translate(f, i, &values[i]);
		if (code)
			return code;
		parameters[i] = &values[i];
	}
	run_blocks(s, l, parameters);
	return check_tails(l);
}
