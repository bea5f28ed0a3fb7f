/* The list of devices by name. */
#include "runtime/device.h"

#include <string.h>

const DeviceOps *const device_table[] = {
#define DEVICE(name) &device_##name,
#include "runtime/device_list.def"
#undef DEVICE
	NULL,
};

const DeviceOps *
device_find(const char *name)
{
	for (int i = 0; device_table[i]; i++)
		if (strcmp(device_table[i]->name, name) == 0)
			return device_table[i];
	return NULL;
}
