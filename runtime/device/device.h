/* What the executor needs of a device: a table of functions. A new device is a file with
 * that table and a line of device_list.def; tests/unit/runtime/runtime_device_test.c, written once, is run
 * on each of the list.
 *
 * Calls on one stream run in order; nothing else is promised: work on two streams is ordered only
 * by RECORD and WAIT, and the host sees results after sync. Every call returns a Status; *out is
 * NULL on failure. Sizes are bytes.
 *
 * A device on which something that was queued failed is spent: the rest, on whatever stream, is dropped, but for the
 * recordings of events, so that no wait hangs; `fault` and `sync` tell what failed, as often as they are asked. */
#ifndef GRADC_DEVICE_H
#define GRADC_DEVICE_H

#include "format/format.h"

typedef struct Device Device;
typedef struct Code Code;
typedef struct Recorded Recorded; /* launches of a stream, to be launched again at once */
typedef enum {
	MEMORY_DEVICE, /* where kernels read and write */
	MEMORY_PINNED, /* host memory that copies from and to the device like best */
} MemoryKind;
typedef struct {
	char *at;
	int64_t bytes;
} Span;
/* A copy to the host's memory, and the checksum (checksum.c) of its bytes. */
typedef struct {
	Span to;
	const void *from;
	uint64_t checksum;
} HashedCopy;
/* One run of a kernel. The list of buffers belongs to the caller and may change after the call. */
typedef struct {
	uint32_t kernel;
	uint32_t n_buffers;
	/* Of an argument of which there is a part, where all of it would begin; and how many of its bytes lie in front of the part. NULL:
	 * all are there. */
	void *const *buffers;
	const int64_t *before;
	const Scalar *scalars; /* N_SCALARS of them, in the device's memory; NULL: none */
	int64_t begin, end;
	int64_t grain; /* fewer iterations are not worth a thread */
} Launch;
/* Something of the host's that has its turn in a stream: poll is called until it says done, by whichever thread, and
 * returns soon. The device copies the task. */
typedef struct HostTask HostTask;
struct HostTask {
	Status (*poll)(HostTask *task, bool *done);
	void *context;
	void *state[14]; /* the caller's own */
};
/* Called now and then while the host waits for the device, from any thread: looks after others for whom that may be waiting. It was
 * last seen to finish something at `moved`, of seconds_now. *waits: it may be waiting for them, so it is not stuck. A fault the
 * device keeps; then it calls `end`, which ends what was queued for them, so that streams drain. */
typedef struct {
	Status (*look)(void *context, double moved, bool *waits); /* NULL: there are none */
	void (*end)(void *context);
	void *context;
} DeviceWatch;
typedef struct {
	int ordinal; /* of the devices of its kind */
	int threads; /* that compute on the host; 0: one for each CPU that the process may use */
	bool deterministic; /* the same bits with any number of them */
	bool no_libraries;  /* generated code for everything */
	bool tf32;          /* products of f32 may round their operands to 11 bits */
	int n_events;       /* events are numbers below it; 0: N_DEVICE_EVENTS */
	const char *
		autotune; /* of a GPU: the file of what its libraries found by trying, as long as the device; NULL: none */
	bool autotune_times; /* what it lacks is tried */
	DeviceWatch watch;
} DeviceOptions;
/* What a device runs. All of it must outlive the Code. */
typedef struct {
	const CodeImage *images; /* of one target: a device takes the first that it can load */
	int n_images;
	const Format *tables; /* of these kernels; NULL: no libraries for them */
	int target;           /* of the tables: whose programs are run, so which kernels */
	int mode;             /* in which those are run */
} CodeSource;

/* On what, beside the options, results may depend in their last bits. */
typedef struct {
	int threads;         /* that compute on the host */
	int cpus;            /* of the machine: the library's products may be cut by them */
	const char *library; /* "oneDNN 2.6.0", as long as the device; NULL: none */
	const char *gpu;     /* "NVIDIA H100 80GB HBM3", as long as the device; NULL: none */
	int driver;          /* of a GPU: the CUDA that it is made for, 13000; 0: none */
} DeviceFacts;

/* Bytes of its memory: what its owner got by alloc, what nobody has, all. */
typedef struct {
	int64_t own, free, total;
} DeviceMemory;

typedef struct {
	const char *name;
	bool host_memory; /* MEMORY_DEVICE is the host's to read and write, in the order of its calls */
	ImageKind image_kind; /* of the code that it runs */
	bool for_tests;       /* not offered to people */
	int (*count)(void);   /* devices of its kind; NULL: one */
	/* What tells that device from all others, of other machines, too, for those that each belong to one rank; NULL: ranks
	 * share them. */
	Status (*identity)(int ordinal, uint64_t out[2]);
	/* NULL: the device of that number runs the image, which is of its kind; else why not. */
	Status (*runs)(int ordinal, const CodeImage *image);
	Status (*open)(const DeviceOptions *options, Device **out);
	void (*close)(Device *device); /* NULL is allowed; waits for what runs */
	Status (*alloc)(Device *device, MemoryKind kind, int64_t bytes, Span *out); /* zeroed */
	void (*free)(Device *device, MemoryKind kind, Span span);
	Status (*copy)(Device *device, int stream, Span to,
	               const void *from); /* to.bytes of them */
	/* All n copies, to ascending addresses, with their checksums; done when it returns. NULL where the device has
	 * none: a core that copies has the bytes in its cache, a copy engine has not. */
	Status (*copy_hashed)(Device *device, HashedCopy *copies, int n);
	Status (*fill_zero)(Device *device, int stream, Span to);
	/* Whole pages of the device's memory hold those of the file from offset on, read when they are touched
	 * and never written back. NULL where the device has none: they are copied. */
	Status (*map)(Device *device, Span to, int fd, int64_t offset);
	/* The same bytes in memory like any other, before all of what was mapped is written: that would be done
	 * page by page, and into small pages. */
	Status (*unmap)(Device *device, Span span);
	/* Without an image that it can load it says so with EXIT_SYSTEM: code_functions does for those that run functions
	 * of the process. */
	Status (*load)(Device *device, const CodeSource *source, Code **out);
	void (*unload)(Device *device, Code *code);
	Status (*run)(Device *device, int stream, const Code *code, const Launch *launch);
	Status (*call)(Device *device, int stream, const HostTask *task);
	/* Waiting for an event that was never recorded returns at once; one recorded again means the newest recording
	 * when wait is called. */
	Status (*record)(Device *device, int stream, int event);
	Status (*wait)(Device *device, int stream, int event);
	/* The host waits: from any thread, where no task of the host stands before that recording. What failed is told by
	 * sync and fault. */
	Status (*host_wait)(Device *device, int event);
	Status (*fault)(Device *device); /* the first that failed */
	/* Is the newest recording done? Does not wait. */
	bool (*is_done)(Device *device, int event);
	Status (*elapsed)(Device *device, int from_event, int to_event, double *seconds);
	Status (*sync)(Device *device); /* waits for everything; the first that failed */
	/* The stream as libraries know it, for work that one queues there at once, or into what is recorded; the device is current in
	 * this thread from then on. NULL where libraries know none. */
	Status (*native_stream)(Device *device, int stream, void **out);
	/* What is queued between begin and end, on all streams, is recorded and not run; launch runs it, as often as one likes. NULL
	 * where the device has none. */
	Status (*capture_begin)(Device *device);
	Status (*capture_end)(Device *device, Recorded **out);
	Status (*launch)(Device *device, const Recorded *recorded);
	void (*forget)(Device *device, Recorded *recorded);
	bool (*memory)(const Device *device,
	               DeviceMemory *out); /* NULL: the host's, of which nothing is known */
	/* For people; NULL where there is nothing to say. What computes: "2 threads (libgomp), oneDNN
	 * 2.6.0"; the same for a checkpoint. What runs a kernel that a library may: an implementation's name or "generated". */
	void (*describe)(const Device *device, Text *out);
	DeviceFacts (*facts)(const Device *device);
	const char *(*implementation)(const Code *code, int kernel);
	/* Memory that the libraries of loaded code want, of the device and aligned to 64; it is there before the first run, and until
	 * behind unload. NULL: none. */
	int64_t (*library_bytes)(const Code *code);
	void (*place_library)(Code *code, char *memory);
} DeviceOps;

#define DEVICE(name) extern const DeviceOps device_##name;
#include "runtime/device/device_list.def"
#undef DEVICE
extern const DeviceOps *const device_table[];   /* of device_list.def; ends with NULL */
const DeviceOps *device_find(const char *name); /* NULL: unknown */
/* EXIT_SYSTEM: the source has no code for that device, which runs code for such a kind; what to compile for. */
Status device_no_code(const CodeSource *source, const char *device, const char *kind,
                      const char *target);
/* `runs` of devices that run functions of the process. */
Status functions_run(int ordinal, const CodeImage *image);
/* The functions among the images, for a device of that name. They are what the tables say: every kernel of the target is
 * there, printed from the record that it has. */
Status code_functions(const CodeSource *source, const char *device, const KernelCode **out);

/* ---- variant.c */
typedef struct {
	const DeviceOps *ops;
	int ordinal;        /* of the devices of its kind; -1: not known yet */
	Status why_not_gpu; /* why code for GPUs is there and not run, where nobody asked for a device; NULL: it is run, or not there */
} DeviceChoice;
/* device: "cpu", "cuda", "cuda:1"; NULL: a GPU that runs some of the code (of the target that is asked for), else the CPU. Of
 * several GPUs each rank of a machine takes another one. */
Status device_choose(const CodeImage *all, const char *device, const char *target,
                     DeviceChoice *out);
/* Bit i: this device runs all[i]. asked: no other than that one, "cpu:x86-64-v3"; NULL: any. EXIT_SYSTEM, saying why, when
 * it runs none of them; EXIT_USAGE when there is none of that name. */
Status variant_list(const CodeImage *all, const char *asked, const DeviceChoice *device,
                    uint64_t *out);
/* That which may use most, of a set of them; NULL: of none. */
const CodeImage *variant_best(const CodeImage *all, uint64_t of);
/* Of those that this device runs. */
Status variant_pick(const CodeImage *all, const char *asked, const DeviceChoice *device,
                    const CodeImage **out);

#endif
