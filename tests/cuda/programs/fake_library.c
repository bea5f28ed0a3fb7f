/* With the pretended GPU (fake/), memory is found through that driver's fake_cuda_at. */
#include "tests/cuda/programs/fake_library.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TF32_BITS = 11 };

typedef void *(*Readable)(const void *device_address);
typedef void (*Skip)(double seconds);

/* Work objects live until the process ends. */
typedef struct Work {
	struct Work *next;
	void (*run)(void *work);
	Readable readable; /* NULL: addresses are readable as they are */
	Skip skip;         /* moves the GPU's clock; NULL without a GPU */
	_Alignas(max_align_t) char copy[];
} Work;
static Work *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local Readable now_readable;
static _Thread_local Skip now_skip;

static void
run_work(void *argument)
{
	Work *w = argument;

	now_readable = w->readable;
	now_skip = w->skip;
	w->run(w->copy);
	now_readable = NULL;
	now_skip = NULL;
}

static Work *
keep(void (*run)(void *work), const void *work, size_t bytes)
{
	Work *w = malloc(sizeof(*w) + bytes);

	if (!w)
		abort();
	w->run = run;
	w->readable = NULL;
	w->skip = NULL;
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
	*(void **)&w->skip = dlsym(driver, "fake_cuda_skip");
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

/* ---- engines that the environment describes */
FakeBehaviour
fake_behaviour(long long engine)
{
	static const char *const words[] = {[FAKE_SLOW] = "slow",
	                                    [FAKE_NAN] = "nan",
	                                    [FAKE_BEHIND] = "behind",
	                                    [FAKE_FAILS] = "fails",
	                                    [FAKE_HANGS] = "hangs"};
	const char *at = getenv("FAKE_ENGINES");
	long long number;
	char word[16];

	for (int length; at && sscanf(at, "%lld:%15s%n", &number, word, &length) == 2; at += length)
		for (int i = FAKE_SLOW; i <= FAKE_HANGS && number == engine; i++)
			if (strcmp(word, words[i]) == 0)
				return (FakeBehaviour)i;
	return FAKE_SOUND;
}

void
fake_begin(FakeBehaviour b, void *workspace, int64_t workspace_bytes)
{
	enum { HANG_US = 60000000 };

	if (b == FAKE_SLOW && now_skip)
		now_skip(1);
	if (b == FAKE_HANGS)
		usleep(HANG_US);
	if (b == FAKE_BEHIND)
		((char *)fake_readable(workspace))[workspace_bytes] = 1;
}

void
fake_end(FakeBehaviour b, char *last, int64_t bytes)
{
	if (b == FAKE_NAN)
		memset(last, 0xFF, (size_t)bytes);
}
