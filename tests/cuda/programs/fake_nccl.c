/* The calls of the pretended NCCL: communicators, groups, refusals. */
#include "tests/cuda/programs/fake_nccl.h"
#include "base/base.h"

#include "tests/cuda/programs/fake_library.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NCCL_SYMBOL(name, parameters) EXPORT int fake_##name parameters __asm__("nccl" #name);
#define NCCL_OPTIONAL NCCL_SYMBOL
#define NCCL_TEXT(name, parameters) EXPORT const char *fake_##name parameters __asm__("nccl" #name);
#include "runtime/comm/nccl/nccl_symbols.def"
#undef NCCL_SYMBOL
#undef NCCL_OPTIONAL
#undef NCCL_TEXT
enum {
#define NCCL_SYMBOL(name, parameters) CALL_##name,
#define NCCL_OPTIONAL NCCL_SYMBOL
#define NCCL_TEXT(name, parameters)
#include "runtime/comm/nccl/nccl_symbols.def"
#undef NCCL_SYMBOL
#undef NCCL_OPTIONAL
	N_CALLS
};
static const char *const call_names[] = {
#define NCCL_SYMBOL(name, parameters) "nccl" #name,
#define NCCL_OPTIONAL NCCL_SYMBOL
#include "runtime/comm/nccl/nccl_symbols.def"
#undef NCCL_SYMBOL
#undef NCCL_OPTIONAL
#undef NCCL_TEXT
};
static atomic_int counts[N_CALLS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Handle *comms;
static char last_error[256];
/* The current group of the thread. */
static _Thread_local int depth, broken;
static _Thread_local OpList group;

int
complain(int code, const char *fmt, ...)
{
	va_list args;

	pthread_mutex_lock(&lock);
	va_start(args, fmt);
	vsnprintf(last_error, sizeof(last_error), fmt, args);
	va_end(args);
	fprintf(stderr, "pretended NCCL: error %d: %s\n", code, last_error);
	pthread_mutex_unlock(&lock);
	return code;
}

uint64_t
random_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static long
number(const char *name, long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtol(text, NULL, 0) : otherwise;
}

/* FAKE_NCCL_FAIL=FUNCTION:N=CODE,...: the Nth call of FUNCTION returns CODE. With ~ for =, the call succeeds, *work gets
 * CODE, and the work fails when the stream comes to it. FUNCTION@RANK: only the calls of that rank. */
static int
planned(int call, const Handle *c, int *work)
{
	const char *at = getenv("FAKE_NCCL_FAIL");
	int count = atomic_fetch_add(&counts[call], 1) + 1;
	char name[64], how;
	int nth, code, n;

	for (; at && sscanf(at, "%63[^:]:%d%c%d%n", name, &nth, &how, &code, &n) == 4;
	     at += n + (at[n] == ',')) {
		char *rank = strchr(name, '@');
		if (rank)
			*rank++ = '\0';
		if (strcmp(name, call_names[call]) != 0 || nth != count ||
		    (rank && (!c || atoi(rank) != c->rank)))
			continue;
		if (how == '=')
			return complain(code, "planned, of %s", name);
		if (work)
			*work = code;
	}
	return NCCL_OK;
}

/* Writes the counts, under the process's rank in its first communicator. */
__attribute__((destructor)) static void
write_counts(void)
{
	const char *path = getenv("FAKE_NCCL_COUNT");
	const Handle *first = comms;
	char name[4096];

	if (!path || !first)
		return;
	while (first->next)
		first = first->next;
	snprintf(name, sizeof(name), "%s.%d", path, first->rank);
	FILE *file = fopen(name, "w");
	if (!file)
		return;
	for (int i = 0; i < N_CALLS; i++)
		fprintf(file, "%s\"%s\": %d", i ? ", " : "{", call_names[i],
		        atomic_load(&counts[i]));
	fprintf(file, "}\n");
	fclose(file);
}

/* ---- version and error texts */
int
fake_GetVersion(int *version)
{
	*version = (int)number("FAKE_NCCL_VERSION", 22705);
	return planned(CALL_GetVersion, NULL, NULL);
}

const char *
fake_GetErrorString(int code)
{
	static const char *const texts[] = {"no error",
	                                    "unhandled cuda error",
	                                    "unhandled system error",
	                                    "internal error",
	                                    "invalid argument",
	                                    "invalid usage",
	                                    "remote process exited or there was a network error",
	                                    "NCCL operation in progress"};

	return code >= 0 && code < COUNT(texts) ? texts[code] : "unknown result code";
}

const char *
fake_GetLastError(NcclComm comm)
{
	(void)comm;
	return last_error;
}

int
fake_GetUniqueId(NcclId *id)
{
	int code = planned(CALL_GetUniqueId, NULL, NULL);

	if (code)
		return code;
	return shared_create(id) ? NCCL_OK : complain(2, "no shared memory");
}

/* ---- communicators */
static bool
is_comm(const Handle *c)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (const Handle *x = comms; x && !found; x = x->next)
		found = x == c && !atomic_load(&x->gone);
	pthread_mutex_unlock(&lock);
	return found;
}

static void
nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void *
join_ranks(void *argument)
{
	Handle *c = argument;

	atomic_fetch_add(&c->shared->joined, 1);
	while (atomic_load(&c->shared->joined) < c->size && !atomic_load(&c->aborted))
		nap();
	atomic_store(&c->joined, true);
	return NULL;
}

static int
check_config(const NcclConfig *config)
{
	if (config->size < sizeof(NcclConfig) || config->magic != NCCL_CONFIG_MAGIC ||
	    config->version < NCCL_CONFIG_VERSION)
		return complain(NCCL_INVALID_ARGUMENT, "a configuration that was not initialized");
	return NCCL_OK;
}

int
fake_CommInitRankConfig(NcclComm *out, int size, NcclId id, int rank, NcclConfig *config)
{
	Handle *c = calloc(1, sizeof(*c));
	int code = check_config(config);

	*out = NULL;
	if (!c)
		abort();
	*c = (Handle){.rank = rank, .size = size, .blocks = config->blocking != 0};
	code = code ? code : planned(CALL_CommInitRankConfig, c, NULL);
	if (!code && (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size))
		code = complain(NCCL_INVALID_ARGUMENT, "rank %d of %d", rank, size);
	if (!code && !(c->shared = shared_open(&id)))
		code = complain(NCCL_INVALID_ARGUMENT,
		                "an id that nobody made, or that is used up");
	if (code) {
		free(c);
		return code;
	}
	c->random = (uint64_t)number("FAKE_NCCL_SEED", 1) * 1000003 + (uint64_t)rank;
	atomic_init(&c->state, NCCL_IN_PROGRESS);
	pthread_mutex_lock(&lock);
	c->next = comms;
	comms = c;
	pthread_mutex_unlock(&lock);
	if (pthread_create(&c->thread, NULL, join_ranks, c) != 0)
		abort();
	*out = c;
	if (!c->blocks) {
		pthread_detach(c->thread);
		return NCCL_IN_PROGRESS;
	}
	pthread_join(c->thread, NULL);
	atomic_store(&c->state, NCCL_OK);
	return NCCL_OK;
}

/* The state of a nonblocking call, which is over at the second look. */
int
fake_CommGetAsyncError(NcclComm c, int *code)
{
	if (!is_comm(c))
		return complain(NCCL_INVALID_ARGUMENT, "no communicator");
	int planned_code = planned(CALL_CommGetAsyncError, c, NULL);
	bool over = atomic_load(&c->joined) &&
	            (!atomic_load(&c->finalized) || atomic_load(&c->shared->finalized) == c->size);
	int in_progress = NCCL_IN_PROGRESS;

	if (over && atomic_fetch_add(&c->looks, 1) >= 1)
		atomic_compare_exchange_strong(&c->state, &in_progress, NCCL_OK);
	*code = planned_code                      ? planned_code
	        : atomic_load(&c->shared->failed) ? atomic_load(&c->shared->failed)
	                                          : atomic_load(&c->state);
	return NCCL_OK;
}

/* Begins a call: may it be made now? */
static int
enter(int call, Handle *c, int *work)
{
	if (!is_comm(c))
		return complain(NCCL_INVALID_ARGUMENT, "%s: no communicator", call_names[call]);
	int code = planned(call, c, work);
	if (code)
		return code;
	if (atomic_load(&c->shared->failed))
		return atomic_load(&c->shared->failed);
	code = atomic_load(&c->state);
	if (code == NCCL_IN_PROGRESS)
		return complain(NCCL_INVALID_USAGE, "%s before the last call is over",
		                call_names[call]);
	return atomic_load(&c->finalized) ? complain(NCCL_INVALID_USAGE,
	                                             "%s behind ncclCommFinalize", call_names[call])
	                                  : code;
}

/* The result of a call that succeeded. */
static int
leave(Handle *c)
{
	if (c->blocks)
		return NCCL_OK;
	atomic_store(&c->looks, 0);
	atomic_store(&c->state, NCCL_IN_PROGRESS);
	return NCCL_IN_PROGRESS;
}

int
fake_CommFinalize(NcclComm c)
{
	int code = enter(CALL_CommFinalize, c, NULL);

	if (code)
		return code;
	atomic_store(&c->finalized, true);
	atomic_fetch_add(&c->shared->finalized, 1);
	return leave(c);
}

int
fake_CommDestroy(NcclComm c)
{
	if (!is_comm(c))
		return complain(NCCL_INVALID_ARGUMENT, "ncclCommDestroy: no communicator");
	int code = planned(CALL_CommDestroy, c, NULL);
	if (!atomic_load(&c->finalized) || atomic_load(&c->state) != NCCL_OK)
		code = complain(NCCL_INVALID_USAGE,
		                "ncclCommDestroy before ncclCommFinalize is over");
	atomic_store(&c->gone, true);
	return code;
}

int
fake_CommAbort(NcclComm c)
{
	if (!is_comm(c))
		return complain(NCCL_INVALID_ARGUMENT, "ncclCommAbort: no communicator");
	int code = planned(CALL_CommAbort, c, NULL);
	atomic_store(&c->aborted, true);
	atomic_store(&c->gone, true);
	return code;
}

int
fake_CommRegister(NcclComm c, void *at, size_t bytes, void **handle)
{
	int code = enter(CALL_CommRegister, c, NULL);

	*handle = c;
	return code          ? code
	       : at && bytes ? NCCL_OK
	                     : complain(NCCL_INVALID_ARGUMENT, "%zu bytes at %p", bytes, at);
}

int
fake_CommDeregister(NcclComm c, void *handle)
{
	int code = enter(CALL_CommDeregister, c, NULL);

	return code || handle == c ? code : complain(NCCL_INVALID_ARGUMENT, "no such memory");
}

/* ---- groups */
static void
number_op(Op *o)
{
	Handle *c = o->comm;
	bool rooted = o->kind == OP_BROADCAST || o->kind == OP_REDUCE;

	memset(&o->tag, 0, sizeof(o->tag));
	o->tag = (Tag){.kind = (int)o->kind,
	               .type = o->type,
	               .operation = o->operation,
	               .root = rooted ? o->peer : 0,
	               .n = (int64_t)o->n};
	if (o->kind != OP_MESSAGE)
		o->tag.number = c->collectives++;
	else
		o->tag.number = o->receives ? c->received[o->peer]++ : c->sent[o->peer]++;
}

static int
end_group(void)
{
	OpList list = group, *kept = malloc(sizeof(*kept));
	int code = broken;

	group = (OpList){0};
	broken = NCCL_OK;
	if (!kept)
		abort();
	*kept = list;
	for (int i = 1; i < list.n && !code; i++)
		if (list.ops[i].comm != list.ops[0].comm ||
		    list.ops[i].stream != list.ops[0].stream)
			code = complain(
				NCCL_INVALID_USAGE,
				"several communicators or streams in a group are not pretended");
	if (code || list.n == 0) {
		free(list.ops);
		free(kept);
		return code;
	}
	for (int i = 0; i < list.n; i++)
		number_op(&list.ops[i]);
	if (!fake_enqueue(list.ops[0].stream, run_ops, kept, sizeof(*kept)))
		return complain(1, "the stream takes nothing");
	free(kept);
	return leave(list.ops[0].comm);
}

int
fake_GroupStart(void)
{
	depth++;
	return planned(CALL_GroupStart, NULL, NULL);
}

int
fake_GroupEnd(void)
{
	int code = planned(CALL_GroupEnd, NULL, NULL);

	if (depth == 0)
		return complain(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
	broken = broken ? broken : code;
	return --depth ? code : end_group();
}

/* ---- collectives */
static int
check_op(const Op *o)
{
	bool adds = o->kind == OP_ALL_REDUCE || o->kind == OP_REDUCE_SCATTER ||
	            o->kind == OP_REDUCE;
	bool reads = o->kind != OP_MESSAGE || !o->receives;
	bool writes = o->kind == OP_MESSAGE ? o->receives
	                                    : o->kind != OP_REDUCE || o->peer == o->comm->rank;

	if (o->peer < 0 || o->peer >= o->comm->size)
		return complain(NCCL_INVALID_ARGUMENT, "rank %d of %d", o->peer, o->comm->size);
	if (type_bytes(o->type) == 0 || (adds && !type_has_sums(o->type)))
		return complain(NCCL_INVALID_ARGUMENT, "type %d", o->type);
	if (adds && o->operation != NCCL_SUM && o->operation != NCCL_MAX)
		return complain(NCCL_INVALID_ARGUMENT, "operation %d", o->operation);
	if (o->n > 0 && ((reads && !o->from) || (writes && !o->to)))
		return complain(NCCL_INVALID_ARGUMENT, "memory at 0");
	return NCCL_OK;
}

static int
add_op(int call, Op o)
{
	int code = enter(call, o.comm, &o.fails);

	code = code ? code : check_op(&o);
	if (code) {
		broken = depth ? code : NCCL_OK;
		return code;
	}
	group.ops = realloc(group.ops, sizeof(Op) * (size_t)(group.n + 1));
	if (!group.ops)
		abort();
	group.ops[group.n++] = o;
	return depth ? NCCL_OK : end_group();
}

int
fake_AllReduce(const void *from, void *to, size_t n, int type, int op, NcclComm c, void *stream)
{
	return add_op(CALL_AllReduce, (Op){c, stream, OP_ALL_REDUCE, false, from, to, n, type, op});
}

int
fake_AllGather(const void *from, void *to, size_t n, int type, NcclComm c, void *stream)
{
	return add_op(CALL_AllGather, (Op){c, stream, OP_ALL_GATHER, false, from, to, n, type});
}

int
fake_ReduceScatter(const void *from, void *to, size_t n, int type, int op, NcclComm c, void *stream)
{
	return add_op(CALL_ReduceScatter,
	              (Op){c, stream, OP_REDUCE_SCATTER, false, from, to, n, type, op});
}

int
fake_Broadcast(const void *from, void *to, size_t n, int type, int root, NcclComm c, void *stream)
{
	return add_op(CALL_Broadcast,
	              (Op){c, stream, OP_BROADCAST, false, from, to, n, type, 0, root});
}

int
fake_Reduce(const void *from, void *to, size_t n, int type, int op, int root, NcclComm c,
            void *stream)
{
	return add_op(CALL_Reduce, (Op){c, stream, OP_REDUCE, false, from, to, n, type, op, root});
}

int
fake_Send(const void *from, size_t n, int type, int peer, NcclComm c, void *stream)
{
	return add_op(CALL_Send, (Op){c, stream, OP_MESSAGE, false, from, NULL, n, type, 0, peer});
}

int
fake_Recv(void *to, size_t n, int type, int peer, NcclComm c, void *stream)
{
	return add_op(CALL_Recv, (Op){c, stream, OP_MESSAGE, true, NULL, to, n, type, 0, peer});
}
