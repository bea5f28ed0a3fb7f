/* The interface of the pretended cuDNN. It refuses wrong types and counts as the real library does, and descriptors that are
 * finished too early or too late. Variables: FAKE_CUDNN_NO_GPU=1: no handle can be made; FAKE_CUDNN_DEVICE: the compute
 * capability of its GPU, 900; FAKE_CUDNN_ENGINES: see fake_cudnn_engines.c. */
#include "tests/cuda/programs/fake_cudnn.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The exported functions. A type that differs from the runtime's list does not compile; a missing symbol does not link. */
#define EXPORTED __attribute__((visibility("default")))
#define CUDNN_SYMBOL(name, type, parameters) EXPORTED type cudnn##name parameters;
#include "cudnn/symbols.def"
#undef CUDNN_SYMBOL
typedef void (*AnyFunction)(void);
#define CUDNN_SYMBOL(name, type, parameters) (AnyFunction) cudnn##name,
__attribute__((used)) static const AnyFunction all[] = {
#include "cudnn/symbols.def"
};
#undef CUDNN_SYMBOL
EXPORTED int fake_cudnn_alive(void); /* number of handles and descriptors not yet destroyed */

enum { HANDLE_MAGIC = 0x48444e4e, DESCRIPTOR_MAGIC = 0x44444e4e };

static atomic_int alive;

int
fake_cudnn_alive(void)
{
	return atomic_load(&alive);
}

static void *
new_object(size_t bytes)
{
	void *object = calloc(1, bytes);

	if (!object)
		abort();
	atomic_fetch_add(&alive, 1);
	return object;
}

static void
free_object(void *object)
{
	*(uint32_t *)object = 0;
	free(object);
	atomic_fetch_sub(&alive, 1);
}

/* ---- handles */
typedef struct {
	uint32_t magic;
	void *stream;
} Handle;

static Handle *
find_handle(void *handle)
{
	return handle && *(uint32_t *)handle == HANDLE_MAGIC ? handle : NULL;
}

int
cudnnCreate(void **handle)
{
	if (!handle)
		return BAD_POINTER;
	if (getenv("FAKE_CUDNN_NO_GPU"))
		return NOT_STARTED;
	Handle *h = new_object(sizeof(*h));
	h->magic = HANDLE_MAGIC;
	*handle = h;
	return CUDNN_OK;
}

int
cudnnDestroy(void *handle)
{
	if (!find_handle(handle))
		return BAD_VALUE;
	free_object(handle);
	return CUDNN_OK;
}

int
cudnnSetStream(void *handle, void *stream)
{
	Handle *h = find_handle(handle);

	if (!h)
		return BAD_VALUE;
	h->stream = stream;
	return CUDNN_OK;
}

/* ---- versions and error texts */
size_t
cudnnGetVersion(void)
{
	return FAKE_VERSION;
}

const char *
cudnnGetErrorString(int status)
{
	static const struct {
		int status;
		const char *name;
	} names[] = {{CUDNN_OK, "CUDNN_STATUS_SUCCESS"},
	             {NOT_STARTED, "CUDNN_STATUS_NOT_INITIALIZED"},
	             {OTHER_VERSION, "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH"},
	             {BAD_VALUE, "CUDNN_STATUS_BAD_PARAM"},
	             {BAD_POINTER, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
	             {MISALIGNED, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
	             {NOT_FINISHED, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
	             {BAD_COUNT, "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"},
	             {BAD_SHAPE, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
	             {BAD_TYPE, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
	             {BAD_DESCRIPTOR, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
	             {NOT_SUPPORTED, "CUDNN_STATUS_NOT_SUPPORTED"},
	             {OTHER_GPU, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"},
	             {FAILED, "CUDNN_STATUS_EXECUTION_FAILED"}};

	for (int i = 0; i < COUNT(names); i++)
		if (names[i].status == status)
			return names[i].name;
	return "unknown";
}

/* ---- descriptors */
static FakeDescriptor *
find_descriptor(void *descriptor)
{
	return descriptor && *(uint32_t *)descriptor == DESCRIPTOR_MAGIC ? descriptor : NULL;
}

int
cudnnBackendCreateDescriptor(int type, void **descriptor)
{
	if (!descriptor)
		return BAD_POINTER;
	if (!fake_rows(type))
		return NOT_SUPPORTED;
	FakeDescriptor *d = new_object(sizeof(*d));
	d->magic = DESCRIPTOR_MAGIC;
	d->type = type;
	*descriptor = d;
	return CUDNN_OK;
}

int
cudnnBackendDestroyDescriptor(void *descriptor)
{
	FakeDescriptor *d = find_descriptor(descriptor);

	if (!d)
		return BAD_VALUE;
	for (int i = 0; i < MOST_ATTRIBUTES; i++)
		free(d->at[i].bytes);
	free_object(d);
	return CUDNN_OK;
}

/* ---- attributes */
static bool
is_operation(int type)
{
	return type == CUDNN_FORWARD_DESCRIPTOR || type == CUDNN_GRAD_INPUT_DESCRIPTOR ||
	       type == CUDNN_GRAD_WEIGHT_DESCRIPTOR;
}

static int
copy_inner(const AttributeRow *row, void *const *from, FakeValue *to)
{
	const FakeDescriptor *inner = find_descriptor(*from);

	if (!inner)
		return BAD_POINTER;
	if (row->inner == ANY_OPERATION ? !is_operation(inner->type) : inner->type != row->inner)
		return BAD_DESCRIPTOR;
	if (!inner->finished)
		return NOT_FINISHED;
	*to = inner->value;
	return CUDNN_OK;
}

static int
set_row(FakeAttribute *a, const AttributeRow *row, int type, int64_t n, const void *values)
{
	int code = CUDNN_OK;

	if (type != row->type)
		return BAD_TYPE;
	if (n < 1 || n > row->most)
		return BAD_COUNT;
	if (!values)
		return BAD_POINTER;
	char *bytes = calloc((size_t)n, fake_bytes(type));
	if (!bytes)
		abort();
	if (type == CUDNN_DESCRIPTORS)
		code = copy_inner(row, values, (FakeValue *)(void *)bytes);
	else
		memcpy(bytes, values, (size_t)n * fake_bytes(type));
	if (!code && type == CUDNN_HANDLES && !find_handle(*(void *const *)values))
		code = BAD_VALUE;
	free(code ? bytes : a->bytes);
	if (!code)
		*a = (FakeAttribute){type, n, bytes};
	return code;
}

int
cudnnBackendSetAttribute(void *descriptor, int attribute, int type, int64_t n, const void *values)
{
	FakeDescriptor *d = find_descriptor(descriptor);

	if (!d)
		return BAD_POINTER;
	if (d->finished)
		return NOT_STARTED;
	const AttributeRow *row = fake_rows(d->type);
	for (int i = 0; row[i].number; i++)
		if (row[i].number == attribute)
			return set_row(&d->at[i], &row[i], type, n, values);
	return BAD_VALUE;
}

int
cudnnBackendFinalize(void *descriptor)
{
	FakeDescriptor *d = find_descriptor(descriptor);

	if (!d)
		return BAD_POINTER;
	if (d->finished)
		return BAD_VALUE;
	const AttributeRow *row = fake_rows(d->type);
	for (int i = 0; row[i].number; i++)
		if (row[i].needed && !d->at[i].bytes)
			return BAD_VALUE;
	int code = fake_finish(d);
	d->finished = !code;
	return code;
}

int
cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t most, int64_t *n,
                         void *values)
{
	const FakeDescriptor *d = find_descriptor(descriptor);

	if (!d || !n || (most > 0 && !values))
		return BAD_POINTER;
	if (!d->finished)
		return NOT_FINISHED;
	return fake_read(d, attribute, type, most, n, values);
}

/* ---- work */
int
cudnnBackendExecute(void *handle, void *plan, void *buffers)
{
	const Handle *h = find_handle(handle);
	const FakeDescriptor *p = find_descriptor(plan), *b = find_descriptor(buffers);

	if (!h || !p || !b)
		return BAD_POINTER;
	if (p->type != CUDNN_PLAN_DESCRIPTOR || b->type != CUDNN_BUFFERS_DESCRIPTOR)
		return BAD_DESCRIPTOR;
	if (!p->finished || !b->finished)
		return NOT_FINISHED;
	if (p->value.plan.handle != handle)
		return BAD_VALUE;
	return fake_convolve(&p->value.plan, &b->value.buffers, h->stream);
}
