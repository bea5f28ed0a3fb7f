/* Devices and contexts of the pretended driver. */
#include "base/base.h"
#include "tests/cuda/fake/fake.h"

#include <string.h>

typedef struct {
	Object object;
	int references;
} Context;
static Context contexts[MOST_DEVICES];

int
fake_DriverGetVersion(int *version)
{
	ENTER(DriverGetVersion);
	*version = settings()->version;
	return 0;
}

static const struct {
	int code;
	const char *name;
} code_names[] = {
	{0, "CUDA_SUCCESS"},
	{1, "CUDA_ERROR_INVALID_VALUE"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY"},
	{3, "CUDA_ERROR_NOT_INITIALIZED"},
	{46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
	{100, "CUDA_ERROR_NO_DEVICE"},
	{101, "CUDA_ERROR_INVALID_DEVICE"},
	{200, "CUDA_ERROR_INVALID_IMAGE"},
	{201, "CUDA_ERROR_INVALID_CONTEXT"},
	{209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
	{214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
	{218, "CUDA_ERROR_INVALID_PTX"},
	{220, "CUDA_ERROR_NVLINK_UNCORRECTABLE"},
	{222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
	{226, "CUDA_ERROR_CONTAINED"},
	{400, "CUDA_ERROR_INVALID_HANDLE"},
	{401, "CUDA_ERROR_ILLEGAL_STATE"},
	{500, "CUDA_ERROR_NOT_FOUND"},
	{600, "CUDA_ERROR_NOT_READY"},
	{700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	{701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
	{702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
	{719, "CUDA_ERROR_LAUNCH_FAILED"},
	{800, "CUDA_ERROR_NOT_PERMITTED"},
	{801, "CUDA_ERROR_NOT_SUPPORTED"},
	{802, "CUDA_ERROR_SYSTEM_NOT_READY"},
	{900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
	{901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
	{902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
	{903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
	{904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
	{905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
	{906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
	{907, "CUDA_ERROR_CAPTURED_EVENT"},
	{908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
	{999, "CUDA_ERROR_UNKNOWN"},
};

int
fake_GetErrorName(int code, const char **name)
{
	ENTER(GetErrorName);
	*name = NULL;
	for (int i = 0; i < COUNT(code_names); i++)
		if (code_names[i].code == code)
			*name = code_names[i].name;
	return *name ? 0 : BAD_VALUE;
}

int
fake_GetErrorString(int code, const char **text)
{
	ENTER(GetErrorString);
	*text = NULL;
	for (int i = 0; i < COUNT(code_names); i++)
		if (code_names[i].code == code)
			*text = "a fault of the pretended GPU";
	return *text ? 0 : BAD_VALUE;
}

/* ---- devices: a handle is the device's number among all devices, not among the visible ones */
static bool
is_visible(int device)
{
	for (int i = 0; i < settings()->n_devices; i++)
		if (settings()->device[i] == device)
			return true;
	return false;
}

int
fake_DeviceGetCount(int *n)
{
	ENTER(DeviceGetCount);
	*n = settings()->n_devices;
	return 0;
}

int
fake_DeviceGet(int *device, int ordinal)
{
	ENTER(DeviceGet);
	if (ordinal < 0 || ordinal >= settings()->n_devices)
		return BAD_DEVICE;
	*device = settings()->device[ordinal];
	return 0;
}

int
fake_DeviceGetName(char *name, int bytes, int device)
{
	ENTER(DeviceGetName);
	if (!is_visible(device))
		return BAD_DEVICE;
	snprintf(name, (size_t)bytes, "pretended GPU");
	return 0;
}

int
fake_DeviceGetPCIBusId(char *id, int bytes, int device)
{
	ENTER(DeviceGetPCIBusId);
	if (!is_visible(device))
		return BAD_DEVICE;
	snprintf(id, (size_t)bytes, "0000:%02x:00.0", 0x1b + device);
	return 0;
}

int
fake_DeviceGetUuid(unsigned char *uuid, int device)
{
	ENTER(DeviceGetUuid);
	if (!is_visible(device))
		return BAD_DEVICE;
	memset(uuid, 0x1b, 16);
	uuid[15] = (unsigned char)device;
	return 0;
}

int
fake_DeviceTotalMem(size_t *bytes, int device)
{
	ENTER(DeviceTotalMem);
	if (!is_visible(device))
		return BAD_DEVICE;
	*bytes = settings()->bytes;
	return 0;
}

int
fake_DeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER(DeviceGetAttribute);
	if (!is_visible(device))
		return BAD_DEVICE;
	switch (attribute) {
	case CUDA_DEVICE_PROCESSORS: *value = 132; break;
	case CUDA_DEVICE_CLOCK: *value = 1980000; break;
	case CUDA_DEVICE_MEMORY_CLOCK: *value = 2619000; break;
	case CUDA_DEVICE_BUS_WIDTH: *value = 5120; break;
	case CUDA_DEVICE_MAJOR: *value = settings()->major; break;
	case CUDA_DEVICE_MINOR: *value = settings()->minor; break;
	case CUDA_DEVICE_MOST_SHARED: *value = SHARED_BYTES; break;
	case CUDA_DEVICE_HAS_POOLS: *value = settings()->has_pools; break;
	default: return complain(BAD_VALUE, "device attribute %d is not pretended", attribute);
	}
	return 0;
}

/* ---- contexts */
int
fake_DevicePrimaryCtxRetain(void **context, int device)
{
	ENTER(DevicePrimaryCtxRetain);
	if (!is_visible(device))
		return BAD_DEVICE;
	Context *c = &contexts[device];
	pthread_mutex_lock(&fake_lock);
	c->object.kind = OBJECT_CONTEXT;
	c->object.device = device;
	c->object.dead = false;
	c->references++;
	pthread_mutex_unlock(&fake_lock);
	*context = c;
	return 0;
}

int
fake_DevicePrimaryCtxRelease(int device)
{
	ENTER(DevicePrimaryCtxRelease);
	if (!is_visible(device))
		return BAD_DEVICE;
	pthread_mutex_lock(&fake_lock);
	bool was = contexts[device].references > 0;
	contexts[device].references -= was;
	contexts[device].object.dead = contexts[device].references == 0;
	pthread_mutex_unlock(&fake_lock);
	return was ? 0 : complain(NO_CONTEXT, "a context is released that nobody has");
}

int
fake_CtxSetCurrent(void *context)
{
	ENTER(CtxSetCurrent);
	Context *c = context ? object_find(context, OBJECT_CONTEXT) : NULL;
	if (context && !c)
		return NO_CONTEXT;
	current_device = c ? c->object.device : -1;
	return 0;
}
