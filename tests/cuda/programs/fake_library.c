/* With the pretended GPU (fake/), memory is found through that driver's fake_cuda_at. */
#include "tests/cuda/programs/fake_library.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TF32_BITS = 11 };

typedef void *(*Readable)(const void *device_address);

/* Work objects live until the process ends. */
typedef struct Work {
	struct Work *next;
	void (*run)(void *work);
	Readable readable; /* NULL: addresses are readable as they are */
	_Alignas(max_align_t) char copy[];
} Work;
static Work *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local Readable now_readable;

static void
run_work(void *argument)
{
	Work *w = argument;

	now_readable = w->readable;
	w->run(w->copy);
	now_readable = NULL;
}

static Work *
keep(void (*run)(void *work), const void *work, size_t bytes)
{
	Work *w = malloc(sizeof(*w) + bytes);

	if (!w)
		abort();
	w->run = run;
	w->readable = NULL;
	memcpy(w->copy, work, bytes);
	pthread_mutex_lock(&lock);
	w->next = kept;
	kept = w;
	pthread_mutex_unlock(&lock);
	return w;
}

bool
fake_enqueue(void *stream, void (*run)(void *work), const void *work, size_t bytes)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	int (*launch)(void *stream, void (*function)(void *), void *argument) = NULL;
	Work *w = keep(run, work, bytes);

	if (!driver) {
		run_work(w);
		return true;
	}
	*(void **)&launch = dlsym(driver, "cuLaunchHostFunc");
	*(void **)&w->readable = dlsym(driver, "fake_cuda_at");
	bool taken = launch && launch(stream, run_work, w) == 0;
	dlclose(driver); /* another owner keeps it open */
	return taken;
}

void *
fake_readable(const void *address)
{
	void *at = now_readable ? now_readable(address) : (void *)(uintptr_t)address;

	if (!at) {
		fprintf(stderr, "a pretended library: %p is no memory of the device\n", address);
		abort();
	}
	return at;
}

double
fake_round_to_tf32(double x)
{
	int exponent;
	double fraction = frexp(x, &exponent);

	return isfinite(x) ? ldexp(nearbyint(ldexp(fraction, TF32_BITS)), exponent - TF32_BITS) : x;
}
