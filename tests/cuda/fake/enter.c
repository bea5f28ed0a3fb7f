/* The begin of every call of the pretended driver: settings, planned faults, contexts, counts. */
#include "tests/cuda/fake/fake.h"

#include <stdlib.h>
#include <string.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
_Thread_local int current_device = -1;
_Thread_local bool in_host_function;
static _Thread_local int planned_work;
static atomic_int fault, counts[N_CALLS];
static atomic_bool started;

/* A reference to each function, so that the linker reports missing ones. */
static const struct {
	const char *name;
	void (*function)(void);
} call_table[] = {
#define CUDA_SYMBOL(name, symbol, parameters) {symbol, (void (*)(void))fake_##name},
#include "runtime/device/cuda/driver_symbols.def"
#undef CUDA_SYMBOL
};

/* ---- settings */
static long long
number(const char *name, long long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

/* Reads CUDA_VISIBLE_DEVICES: a list of numbers, valid up to the first entry that is not a device. */
static void
find_visible(Settings *s, int n)
{
	const char *at = getenv("CUDA_VISIBLE_DEVICES");
	char *end;

	for (int i = 0; !at && i < n && i < MOST_DEVICES; i++)
		s->device[s->n_devices++] = i;
	while (at && s->n_devices < MOST_DEVICES) {
		long device = strtol(at, &end, 10);
		if (end == at || device < 0 || device >= n)
			break;
		s->device[s->n_devices++] = (int)device;
		at = *end == ',' ? end + 1 : end;
	}
}

static Settings all;

static void
read_settings(void)
{
	const char *capability = getenv("FAKE_CUDA_CAPABILITY");
	const char *order = getenv("FAKE_CUDA_ORDER");

	all = (Settings){.version = (int)number("FAKE_CUDA_VERSION", 13000),
	                 .bytes = (size_t)number("FAKE_CUDA_MEMORY", 8ll << 30),
	                 .has_pools = number("FAKE_CUDA_POOLS", 1) != 0,
	                 .fill = (unsigned char)number("FAKE_CUDA_FILL", 0xa5),
	                 .pause = (long)number("FAKE_CUDA_DELAY", 300),
	                 .slow = (int)number("FAKE_CUDA_SLOW", -1),
	                 .in_order = order && strcmp(order, "0") == 0,
	                 .seed = (uint64_t)number("FAKE_CUDA_SEED", 1),
	                 .stuck = getenv("FAKE_CUDA_STUCK"),
	                 .kernels = getenv("FAKE_CUDA_KERNELS")};
	if (!capability || sscanf(capability, "%d.%d", &all.major, &all.minor) != 2) {
		all.major = 9;
		all.minor = 0;
	}
	find_visible(&all, (int)number("FAKE_CUDA_DEVICES", 1));
}

const Settings *
settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_settings);
	return &all;
}

uint64_t
random_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* ---- faults */
int
complain(int code, const char *fmt, ...)
{
	char text[512];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fprintf(stderr, "pretended GPU: error %d: %s\n", code, text);
	return code;
}

int
spent(void)
{
	return atomic_load(&fault);
}

void
spend(int code)
{
	int none = 0;

	atomic_compare_exchange_strong(&fault, &none, code);
	pthread_mutex_lock(&fake_lock);
	pthread_cond_broadcast(&fake_changed);
	pthread_mutex_unlock(&fake_lock);
}

int
take_planned(void)
{
	int code = planned_work;

	planned_work = 0;
	return code;
}

static bool
is_sticky(int code)
{
	return code == 214 || code == 220 || code == 226 || code == 999 ||
	       (code >= 700 && code < 900 && code != NOT_PERMITTED && code != NOT_SUPPORTED);
}

/* FAKE_CUDA_FAIL=FUNCTION:N=CODE,...: the Nth call of FUNCTION returns CODE. With ~ for =, the call succeeds and its work
 * fails when the stream comes to it. */
static int
planned(int call, int count)
{
	const char *at = getenv("FAKE_CUDA_FAIL");
	char name[64], how;
	int nth, code, n;

	for (; at && sscanf(at, "%63[^:]:%d%c%d%n", name, &nth, &how, &code, &n) == 4;
	     at += n + (at[n] == ',')) {
		if (strcmp(name, call_table[call].name) != 0 || nth != count)
			continue;
		if (how == '~') {
			planned_work = code;
			return 0;
		}
		if (is_sticky(code))
			spend(code);
		return code;
	}
	return 0;
}

/* ---- calls */
enum {
	ALWAYS = 1,             /* gives information that needs no device */
	BEFORE_START = 2,       /* allowed before cuInit */
	ANY_CONTEXT = 4,        /* allowed without a context */
	DESPITE_FAULT = 8,      /* allowed after the device has failed */
	NO_CAPTURE = 16,        /* refused during a capture */
	NO_STRICT_CAPTURE = 32, /* refused during a capture unless its mode is relaxed */
};
static const unsigned char call_flags[N_CALLS] = {
	[CALL_Init] = BEFORE_START | ANY_CONTEXT,
	[CALL_DriverGetVersion] = ALWAYS,
	[CALL_GetErrorName] = ALWAYS,
	[CALL_GetErrorString] = ALWAYS,
	[CALL_DeviceGetCount] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DeviceGet] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DeviceGetName] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DeviceGetAttribute] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DeviceGetPCIBusId] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DeviceGetUuid] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DeviceTotalMem] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_DevicePrimaryCtxRetain] = ANY_CONTEXT,
	[CALL_DevicePrimaryCtxRelease] = ANY_CONTEXT | NO_CAPTURE,
	[CALL_CtxSetCurrent] = ANY_CONTEXT | DESPITE_FAULT,
	[CALL_MemPoolDestroy] = NO_CAPTURE,
	[CALL_MemPoolTrimTo] = NO_CAPTURE,
	[CALL_MemAllocFromPoolAsync] = NO_CAPTURE,
	[CALL_MemFreeAsync] = NO_CAPTURE,
	[CALL_MemAlloc] = NO_CAPTURE,
	[CALL_MemFree] = NO_CAPTURE,
	[CALL_MemHostAlloc] = NO_CAPTURE,
	[CALL_MemFreeHost] = NO_CAPTURE,
	[CALL_ModuleLoadDataEx] = NO_CAPTURE,
	[CALL_ModuleUnload] = NO_CAPTURE,
	[CALL_EventQuery] = NO_STRICT_CAPTURE,
	[CALL_StreamQuery] = NO_STRICT_CAPTURE,
};

static int
refusal(int call)
{
	unsigned flags = call_flags[call];
	const char *name = call_table[call].name;

	if (in_host_function)
		return complain(NOT_PERMITTED, "%s called by a function of cuLaunchHostFunc", name);
	if (!atomic_load(&started) && !(flags & BEFORE_START))
		return complain(NOT_STARTED, "%s before cuInit", name);
	if (spent() && !(flags & DESPITE_FAULT))
		return spent();
	if (current_device < 0 && !(flags & ANY_CONTEXT))
		return complain(NO_CONTEXT, "%s by a thread without a context", name);
	if (!(flags & (NO_CAPTURE | NO_STRICT_CAPTURE)))
		return 0;
	pthread_mutex_lock(&fake_lock);
	bool forbidden = capture_forbids(flags & NO_CAPTURE);
	pthread_mutex_unlock(&fake_lock);
	return forbidden ? complain(CAPTURE_REFUSES, "%s during a capture", name) : 0;
}

int
enter(int call)
{
	int count = atomic_fetch_add(&counts[call], 1) + 1;

	if (call_flags[call] & ALWAYS)
		return 0;
	int code = refusal(call);
	return code ? code : planned(call, count);
}

int
fake_Init(unsigned flags)
{
	ENTER(Init);
	if (flags)
		return BAD_VALUE;
	if (settings()->n_devices == 0)
		return CUDA_NO_DEVICE;
	atomic_store(&started, true);
	return 0;
}

__attribute__((destructor)) static void
write_counts(void)
{
	const char *path = getenv("FAKE_CUDA_COUNT");
	FILE *file = path ? fopen(path, "w") : NULL;

	if (!file)
		return;
	for (int i = 0; i < N_CALLS; i++)
		fprintf(file, "%s\"%s\": %d", i ? ", " : "{", call_table[i].name,
		        atomic_load(&counts[i]));
	fprintf(file, "}\n");
	fclose(file);
}

/* ---- objects */
static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;
static Object *objects; /* list of all objects, to find leaks */

void *
object_new(ObjectKind kind, size_t bytes)
{
	Object *o = calloc(1, bytes);

	if (!o)
		abort();
	o->kind = kind;
	o->device = current_device;
	pthread_mutex_lock(&objects_lock);
	o->next = objects;
	objects = o;
	pthread_mutex_unlock(&objects_lock);
	return o;
}

void *
object_find(void *handle, ObjectKind kind)
{
	static const char *const names[] = {"context", "pool",     "stream", "event",
	                                    "module",  "function", "graph",  "executable graph"};
	Object *o = handle;

	if (o && o->kind == kind && !o->dead)
		return o;
	complain(BAD_HANDLE, "%p is no %s%s", handle, names[kind - OBJECT_CONTEXT],
	         o && o->kind == kind ? " any more" : "");
	return NULL;
}
