/* The list of devices by name. */
#include "runtime/device.h"

#include <string.h>

static const DeviceOps *const devices[] = {&device_cpu, &device_async};

const DeviceOps *
device_find(const char *name)
{
	for (int i = 0; i < COUNT(devices); i++)
		if (strcmp(devices[i]->name, name) == 0)
			return devices[i];
	return NULL;
}
