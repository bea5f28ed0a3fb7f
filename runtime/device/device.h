/* The executor's interface to a device, such as the CPU or an NVIDIA GPU: a table of functions. A new device is a file with
 * such a table and a line in device_list.def. tests/unit/runtime/runtime_device_test.c is written once and runs on each device
 * of the list.
 *
 * A stream is a queue of work that runs in order. Work on two streams is ordered only by events: one stream records an event,
 * the other waits for it. The host sees results only after sync. Every call returns a Status; *out is NULL on failure. Sizes
 * are in bytes.
 *
 * After queued work has failed, the device can no longer be used: work on all streams is dropped. Events are still recorded, so
 * that no wait hangs. `fault` and `sync` return the failure each time they are called. */
#ifndef GRADC_RUNTIME_DEVICE_DEVICE_H
#define GRADC_RUNTIME_DEVICE_DEVICE_H

#include "format/format.h"

typedef struct Device Device;
typedef struct Code Code;
typedef struct Recorded Recorded; /* recorded work of a program, which can be launched again */
/* Which events a launch of recorded work uses: event e in [first, first + n) becomes e + by; other events stay. */
typedef struct {
	int first, n, by;
} EventShift;
static inline int
event_shifted(const EventShift *s, int event)
{
	return event >= s->first && event - s->first < s->n ? event + s->by : event;
}
typedef enum {
	MEMORY_DEVICE, /* memory that kernels read and write */
	MEMORY_PINNED, /* host memory with the fastest copies to and from the device */
} MemoryKind;
typedef struct {
	char *at;
	int64_t bytes;
} Span;
/* A copy to the host's memory, with the checksum of its bytes (runtime/host/checksum.c). */
typedef struct {
	Span to;
	const void *from;
	uint64_t checksum;
} HashedCopy;
/* One launch of a kernel. The list of buffers belongs to the caller, who may change it after the call. */
typedef struct {
	uint32_t kernel;
	uint32_t n_buffers;
	/* Addresses of whole arguments. If only a part of argument i exists, buffers[i] is where the whole would begin, and
	 * before[i] the number of its bytes before the part. before is NULL if all arguments are whole. */
	void *const *buffers;
	const int64_t *before;
	const Scalar *scalars; /* N_SCALARS scalars in the device's memory; NULL without scalars */
	int64_t begin, end;
	int64_t grain; /* fewest iterations for which a thread pays */
} Launch;
/* Element i of `to` becomes entry from[i] of a table with 256 entries. Each channel has its own table; `stride` neighbouring
 * elements belong to the same channel. For example, bytes of images become normalized floats (runtime/data/decode.c). */
typedef struct {
	void *to;
	const uint8_t *from; /* memory of the host; for look_up of a device, MEMORY_PINNED */
	const void *tables;  /* [channels][256] elements */
	int64_t n;           /* elements; a multiple of channels * stride */
	int64_t channels, stride;
	int64_t bytes; /* of an element: 2, 4 or 8 */
} LookUp;
/* Work of the host in a stream. The device calls `poll`, from any thread, until poll sets *done; poll must return soon. The
 * device copies the task. */
typedef struct HostTask HostTask;
struct HostTask {
	Status (*poll)(HostTask *task, bool *done);
	void *context;
	void *state[14]; /* private to the caller */
};
/* Watches other ranks while the host waits for the device. The device calls `look` now and then, from any thread. moved: when
 * the device last finished something, in seconds_now(). *waits: the device may be waiting for other ranks, so it is not stuck.
 * If `look` returns a fault, the device keeps it and calls `end`, which ends the collectives, so that streams drain. */
typedef struct {
	/* NULL: there is nothing to watch */
	Status (*look)(void *context, double moved, bool *waits);
	void (*end)(void *context);
	void *context;
} DeviceWatch;
typedef struct {
	int ordinal;        /* number among the devices of this kind */
	int threads;        /* threads on the host; 0: one per CPU that the process may use */
	bool deterministic; /* same bits with any number of threads */
	bool no_libraries;  /* run generated code for all kernels */
	bool tf32;          /* f32 products may round their operands to 11 bits */
	int n_events;       /* number of events; 0: N_DEVICE_EVENTS */
	/* For a GPU: which engines its libraries take. The device adds each choice, timed or first; NULL: it takes the libraries'
	 * own first choices. All of it must live as long as the device. */
	struct Tunings *tunings;
	const char *tune_file; /* to which choices are added, too; NULL: none */
	/* What trials of engines may take: so many seconds, or so many training steps (micro-batches), if they are longer.
	 * tune_seconds 0: nothing is tried. */
	double tune_seconds, tune_steps;
	DeviceWatch watch;
} DeviceOptions;
/* The code that a device loads. All of it must outlive the Code. */
typedef struct {
	/* images of one target; the device takes the first that it can load */
	const CodeImage *images;
	int n_images;
	const Format *tables; /* tables of these kernels; NULL: no libraries */
	int target;           /* target in the tables, whose programs and kernels are run */
	int mode;             /* mode in which the programs are run */
} CodeSource;

/* Facts about the device on which the last bits of results may depend. */
typedef struct {
	int threads; /* threads on the host */
	int cpus;    /* CPUs of the machine: a library may split its products by them */
	/* "oneDNN 2.6.0", valid as long as the device; NULL without a library */
	const char *library;
	/* "NVIDIA H100 80GB HBM3", valid as long as the device; NULL without a GPU */
	const char *gpu;
	int driver; /* CUDA version of a GPU's driver, such as 13000; 0 without a GPU */
} DeviceFacts;

/* Bytes of the device's memory: given out by alloc; still free; in total. */
typedef struct {
	int64_t own, free, total;
} DeviceMemory;

typedef struct {
	const char *name;
	bool host_memory; /* the host may read and write MEMORY_DEVICE, in the order of its calls */
	ImageKind image_kind; /* kind of code that it runs */
	bool for_tests;       /* not offered to people */
	int (*count)(void);   /* number of devices of this kind; NULL: 1 */
	/* A number that identifies the device among all devices of all machines. NULL if ranks may share a device of this
	 * kind. */
	Status (*identity)(int ordinal, uint64_t out[2]);
	/* Returns NULL if device `ordinal` can run the image, otherwise the reason. The image must be of the device's kind. */
	Status (*runs)(int ordinal, const CodeImage *image);
	Status (*open)(const DeviceOptions *options, Device **out);
	void (*close)(Device *device); /* waits for running work; device may be NULL */
	Status (*alloc)(Device *device, MemoryKind kind, int64_t bytes, Span *out); /* all zero */
	void (*free)(Device *device, MemoryKind kind, Span span);
	/* Copies to.bytes bytes. */
	Status (*copy)(Device *device, int stream, Span to, const void *from);
	/* Makes all n copies, to ascending addresses, computes their checksums meanwhile, and waits for them. NULL if the
	 * device cannot hash, as on a GPU, whose copy engine only copies. */
	Status (*copy_hashed)(Device *device, HashedCopy *copies, int n);
	Status (*fill_zero)(Device *device, int stream, Span to);
	/* Looks up bytes of the host's memory, in place of a copy: `to` and `tables` are memory of the device, `to` and `from`
	 * begin at multiples of 16 bytes. NULL if the device has no look-up. has_look_up: does the code have this look-up? The
	 * addresses in it do not count. */
	Status (*look_up)(Device *device, int stream, const Code *code, const LookUp *look_up);
	bool (*has_look_up)(const Code *code, const LookUp *look_up);
	/* Maps whole pages of the device's memory to the file, from offset on. A page is read when it is first touched, and
	 * never written back. NULL if the device cannot map files; then the bytes are copied. */
	Status (*map)(Device *device, Span to, int fd, int64_t offset);
	/* Replaces mapped memory by ordinary memory with the same bytes. Called before a program writes all of the memory:
	 * otherwise the operating system would copy it page by page, into small pages. */
	Status (*unmap)(Device *device, Span span);
	/* EXIT_SYSTEM if the device can load none of the images. Devices that run functions of the process use
	 * code_functions. */
	Status (*load)(Device *device, const CodeSource *source, Code **out);
	void (*unload)(Device *device, Code *code);
	Status (*run)(Device *device, int stream, const Code *code, const Launch *launch);
	Status (*call)(Device *device, int stream, const HostTask *task);
	/* Waiting for an event that was never recorded returns immediately. If the event was recorded several times, `wait`
	 * waits for the newest recording at the time of the call. */
	Status (*record)(Device *device, int stream, int event);
	Status (*wait)(Device *device, int stream, int event);
	/* The host waits for the event. Any thread may call it if no task of the host is queued before the recording. Failures
	 * are returned by sync and fault. */
	Status (*host_wait)(Device *device, int event);
	Status (*fault)(Device *device); /* the first failure */
	/* Is the newest recording done? Does not wait. */
	bool (*is_done)(Device *device, int event);
	Status (*elapsed)(Device *device, int from_event, int to_event, double *seconds);
	Status (*sync)(Device *device); /* waits for everything; returns the first failure */
	/* The stream's handle for libraries, which queue work in it, or add work to the current recording. Makes the device
	 * current in this thread. NULL if libraries do not know this device's streams. */
	Status (*native_stream)(Device *device, int stream, void **out);
	/* Work that is queued on any stream between begin and end is recorded and not run. launch runs it, any number of times,
	 * with shifted events. NULL if the device cannot record. */
	Status (*capture_begin)(Device *device);
	Status (*capture_end)(Device *device, Recorded **out);
	Status (*launch)(Device *device, const Recorded *recorded, const EventShift *shift);
	void (*forget)(Device *device, Recorded *recorded);
	/* NULL for the host's memory. */
	bool (*memory)(const Device *device, DeviceMemory *out);
	/* For people; NULL if there is nothing to say. describe: what computes, such as "2 threads (libgomp), oneDNN 2.6.0".
	 * facts: the same for a checkpoint. implementation: what runs a kernel that a library may run: the library's name for
	 * its code, or "generated". remark: why this code is slower than it could be; it returns NULL without a remark. */
	void (*describe)(const Device *device, Text *out);
	DeviceFacts (*facts)(const Device *device);
	const char *(*implementation)(const Code *code, int kernel);
	const char *(*remark)(const Code *code, int kernel);
	/* Measures the FLOP/s of a large product with the element types of the call; 0 if no library computes it. NULL: the
	 * device does not measure. */
	double (*peak)(Device *device, const LibraryCall *like);
	/* Bytes of device memory that the libraries of loaded code need, aligned to 64. The memory is placed before the first
	 * run and freed after unload. NULL: no libraries. */
	int64_t (*library_bytes)(const Code *code);
	void (*place_library)(Code *code, char *memory);
} DeviceOps;

#define DEVICE(name) extern const DeviceOps device_##name;
#include "runtime/device/device_list.def"
#undef DEVICE
extern const DeviceOps *const device_table[];   /* devices of device_list.def, then NULL */
const DeviceOps *device_find(const char *name); /* NULL if unknown */
/* EXIT_SYSTEM: the source has no code for this device. For the message: kind says for what the device runs code, such as "GPUs
 * of its kind"; target says for what to compile. */
Status device_no_code(const CodeSource *source, const char *device, const char *kind,
                      const char *target);
/* `runs` for devices that run functions of the process. */
Status functions_run(int ordinal, const CodeImage *image);
/* The functions of the images, for a device of that name. Checks that they fit the tables: the code of every kernel of the
 * target exists and was made from the kernel's record. */
Status code_functions(const CodeSource *source, const char *device, const KernelCode **out);

/* ---- look_up.c: a look-up by the host's processors, in memory of the host */
void look_up_on_host(const LookUp *l);

/* ---- variant.c */
typedef struct {
	const DeviceOps *ops;
	int ordinal; /* number among the devices of this kind; -1 before it is picked */
	/* If nobody asked for a device: why the executable's code for GPUs is not run. NULL if it is run, or if there is no
	 * such code. */
	Status why_not_gpu;
} DeviceChoice;
/* device: "cpu", "cuda", "cuda:1"; NULL: a GPU that runs some of the code for `target`, otherwise the CPU. Each rank of a
 * machine takes a GPU of its own, if there are several. */
Status device_choose(const CodeImage *all, const char *device, const char *target,
                     DeviceChoice *out);
/* Sets bit i of *out if this device runs all[i]. asked: consider only this target, such as "cpu:x86-64-v3"; NULL: all targets.
 * EXIT_SYSTEM, with the reason, if the device runs none of them; EXIT_USAGE if there is no target of that name. */
Status variant_list(const CodeImage *all, const char *asked, const DeviceChoice *device,
                    uint64_t *out);
/* The best variant in the set `of` (bit i: all[i]), for example the CPU variant with the most features; NULL for an empty
 * set. */
const CodeImage *variant_best(const CodeImage *all, uint64_t of);
/* The best variant that this device runs. */
Status variant_pick(const CodeImage *all, const char *asked, const DeviceChoice *device,
                    const CodeImage **out);

#endif
