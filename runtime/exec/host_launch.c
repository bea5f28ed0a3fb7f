/* Runs kernels for the host's processors while other programs run on another device. For example, updates of offloaded states
 * run on the host while a GPU computes gradients. Each launch is a task of the host, queued in a stream of the other device;
 * the task passes the kernel to a CPU device. Such kernels touch only memory that the host can read and write. */
#include "runtime/exec/walk.h"

#include <string.h>

#include <stdatomic.h>

/* The executor owns a launch and reuses it after the task has run. A closed device may drop queued tasks. */
struct HostLaunch {
	Executor *x;
	Launch launch;
	_Atomic bool queued;
	void *buffers[];
};

static Status
run_task(HostTask *task, bool *done)
{
	HostLaunch *h = task->context;
	Executor *x = h->x;

	*done = true;
	h->launch.buffers = h->buffers;
	Status status = device_cpu.run(x->host_device, 0, x->host_code, &h->launch);
	atomic_store(&h->queued, false);
	return status;
}

/* Finds a HostLaunch that is not queued, or makes a new one. */
static HostLaunch *
take_launch(Executor *x)
{
	for (int i = 0; i < x->host_launches.n; i++)
		if (!atomic_load(&x->host_launches.at[i]->queued))
			return x->host_launches.at[i];
	HostLaunch *h = arena_alloc(x->arena, sizeof(*h) + sizeof(void *) * x->most_arguments);
	vec_push(x->arena, &x->host_launches, h);
	return h;
}

Status
host_launch(Executor *x, int stream, const Launch *launch)
{
	HostLaunch *h = take_launch(x);

	h->x = x;
	h->launch = *launch;
	h->launch.before = NULL; /* the CPU device does not use this field */
	atomic_store(&h->queued, true);
	if (launch->n_buffers)
		memcpy(h->buffers, launch->buffers, sizeof(void *) * launch->n_buffers);
	return x->ops->call(x->device, stream, &(HostTask){.poll = run_task, .context = h});
}

static Status
check_slot(const Executor *x, const Instruction *n, uint32_t i)
{
	const Format *f = x->format;
	const Slot *s = &f->slots[f->arguments[n->args + i].slot];

	if (!executor_is_apart(x) || space_table[space_table[s->space].twin].on_host)
		return NULL;
	return status_error(
		EXIT_SYSTEM,
		"kernel \"%s\" is for the host and reads or writes %s, which is in the memory of "
		"device %s",
		format_text(f, f->kernels[n->what].name), space_table[s->space].name, x->ops->name);
}

bool
host_runs(const Executor *x, const ProgramRecord *p)
{
	return x->host_target != x->target && p->target == (uint32_t)x->host_target &&
	       p->mode == (uint32_t)x->facts.mode && p->on_host;
}

static Status
check_program(const Executor *x, const ProgramRecord *p)
{
	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *n = &x->format->instructions[p->first_instruction + i];

		for (uint32_t a = 0; n->kind == RUN_KERNEL && a < n->n_args; a++)
			RETURN_IF_ERROR(check_slot(x, n, a));
	}
	return NULL;
}

Status
host_open(Executor *x, const CodeImage *image, const DeviceOptions *options)
{
	CodeSource source = {image, 1, x->format, (int)image->target, x->facts.mode};
	DeviceOptions host = *options;

	host.ordinal = 0; /* the other device's number means nothing for a CPU */
	host.watch = (DeviceWatch){0};

	x->host_target = (int)image->target;
	for (int i = 0; i < x->format->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &x->format->programs[i];
		if (!host_runs(x, p))
			continue;
		RETURN_IF_ERROR(check_program(x, p));
		x->host_reads_io |= p->role != ROLE_UPDATE;
	}
	RETURN_IF_ERROR(device_cpu.open(&host, &x->host_device));
	RETURN_IF_ERROR(device_cpu.load(x->host_device, &source, &x->host_code));
	return library_alloc(&device_cpu, x->host_device, x->host_code, &x->host_library);
}

void
host_close(Executor *x)
{
	if (x->host_code)
		device_cpu.unload(x->host_device, x->host_code);
	library_free(&device_cpu, x->host_device, &x->host_library);
	device_cpu.close(x->host_device);
	x->host_device = NULL;
	x->host_code = NULL;
}
