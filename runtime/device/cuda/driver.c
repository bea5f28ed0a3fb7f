/* Opens CUDA's driver, and translates its error codes into messages. */
#include "runtime/device/cuda/driver.h"
#include "base/base.h"

#include <dlfcn.h>
#include <stdlib.h>

#define LIBRARY "libcuda.so.1"

enum {
	LEAST_VERSION =
		12000 /* the oldest driver with the needed graphs and pools, and code for sm_90 */
};

static const LibrarySymbol symbols[] = {
#define CUDA_SYMBOL(name, symbol, parameters) {symbol, offsetof(CudaDriver, name), false},
#include "runtime/device/cuda/driver_symbols.def"
#undef CUDA_SYMBOL
	{0}};

static Status
too_old(const CudaDriver *d, const char *lacks)
{
	return status_error(
		EXIT_SYSTEM,
		"the NVIDIA driver here is made for CUDA %d.%d%s%s: gradc needs one for "
		"CUDA %d.%d or newer (from 525.60 on); `nvidia-smi` shows its version",
		d->version / 1000, d->version % 1000 / 10, lacks ? " and has no " : "",
		lacks ? lacks : "", LEAST_VERSION / 1000, LEAST_VERSION % 1000 / 10);
}

static Status
no_library(void)
{
	const char *why = dlerror();

	return status_error(EXIT_SYSTEM,
	                    "the NVIDIA driver's library " LIBRARY
	                    " cannot be opened (%s): there is "
	                    "no driver, or this container was started without its GPUs (docker: "
	                    "--gpus all)",
	                    why ? why : "no reason given");
}

Status
cuda_driver_open(CudaDriver *out)
{
	*out = (CudaDriver){.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};
	if (!out->library)
		return no_library();
	const char *lacks = symbols_find(out->library, symbols, out);
	if (out->DriverGetVersion)
		out->DriverGetVersion(&out->version);
	if (lacks || out->version < LEAST_VERSION)
		return too_old(out, lacks);
	int code = out->Init(0);
	if (code == CUDA_UNKNOWN) /* in other calls CUDA_UNKNOWN means a lost GPU */
		return status_error(
			EXIT_SYSTEM,
			"CUDA: the driver does not start, and does not say why "
			"(CUDA_ERROR_UNKNOWN): often the kernel module nvidia-uvm is not loaded "
			"(`nvidia-modprobe -u -c 0`), or a GPU needs a reset; the system's log "
			"(dmesg) says more");
	return code == CUDA_NO_DEVICE ? gpu_none(out)
	                              : cuda_status(out, code, "start of the driver");
}

/* ---- codes */
typedef struct {
	int code; /* a CUresult */
	int exit_code;
	const char *meaning, *hint;
} CodeRow;

#define KERNEL_HINT                                                                              \
	"this is a fault of gradc's: please report it, with the model; compute-sanitizer shows " \
	"the kernel"
#define LOST_HINT                                                                                    \
	"the GPU cannot be used again until it is reset: `nvidia-smi` and the system's log (dmesg) " \
	"say more; training resumes from its last checkpoint with --resume=auto"
#define VISIBLE_HINT "see `nvidia-smi -L`, and CUDA_VISIBLE_DEVICES, which hides GPUs"

static const CodeRow code_table[] = {
	{CUDA_OUT_OF_MEMORY, EXIT_SYSTEM, "the GPU does not have enough memory",
         "`nvidia-smi` shows what else uses it; fewer rows (gradc compile --batch, and --accumulate "
         "here) need less"},
	{3, EXIT_SYSTEM, "the driver does not start", NULL},
	{46, EXIT_SYSTEM,
         "another process has exclusive use of the GPU, or the GPU is not available",
         "`nvidia-smi` shows who uses it; compute mode must be Default"},
	{CUDA_NO_DEVICE, EXIT_SYSTEM, "no GPU is visible", VISIBLE_HINT},
	{101, EXIT_SYSTEM, "there is no such GPU", VISIBLE_HINT},
	{200, EXIT_SYSTEM, "the driver cannot read this code",
         "a newer driver is needed, or other code: gradc compile --target=cuda:NAME"},
	{209, EXIT_SYSTEM, "the code is not for this GPU", "compile for it: --target=cuda:NAME"},
	{214, EXIT_COMM, "the GPU's memory has a fault that cannot be corrected (ECC)", LOST_HINT},
	{218, EXIT_SYSTEM, "the driver cannot compile this PTX", NULL},
	{220, EXIT_COMM, "a link between GPUs has failed (NVLink)", LOST_HINT},
	{222, EXIT_SYSTEM, "this PTX is newer than the driver",
         "update the driver, or compile for this GPU: --target=cuda:NAME"},
	{226, EXIT_COMM, "the GPU has a fault", LOST_HINT},
	{304, EXIT_SYSTEM, "the operating system refused what the driver asked for", NULL},
	{700, EXIT_SYSTEM, "a kernel touched memory that it does not own", KERNEL_HINT},
	{701, EXIT_SYSTEM, "a kernel asks for more than the GPU has", KERNEL_HINT},
	{702, EXIT_HANG, "a kernel ran longer than the driver lets one run on a GPU with a display",
         "use a GPU without one"},
	{710, EXIT_SYSTEM, "a kernel failed an assertion", KERNEL_HINT},
	{714, EXIT_COMM, "the GPU's stack is damaged", LOST_HINT},
	{715, EXIT_SYSTEM, "a kernel has an instruction that the GPU lacks", KERNEL_HINT},
	{716, EXIT_SYSTEM,
         "a kernel touched memory at an address that is not a multiple of the access's size",
         KERNEL_HINT},
	{717, EXIT_SYSTEM, "a kernel touched memory of the wrong kind", KERNEL_HINT},
	{718, EXIT_SYSTEM, "a kernel jumped to where there is no code", KERNEL_HINT},
	{719, EXIT_SYSTEM, "a kernel failed", KERNEL_HINT},
	{802, EXIT_SYSTEM, "the machine's GPUs are not ready",
         "on machines with NVSwitch the service nvidia-fabricmanager must run"},
	{803, EXIT_SYSTEM, "driver and kernel module are of different versions",
         "restart the machine after an update of the driver"},
	{804, EXIT_SYSTEM, "the forward compatibility package does not support this GPU", NULL},
	{CUDA_UNKNOWN, EXIT_COMM, "the driver has lost the GPU", LOST_HINT},
};

static const CodeRow *
find_code(int code)
{
	for (int i = 0; i < COUNT(code_table); i++)
		if (code_table[i].code == code)
			return &code_table[i];
	return NULL;
}

Status
cuda_status(const CudaDriver *d, int code, const char *what)
{
	const CodeRow *row = find_code(code);
	const char *name = NULL, *text = NULL;

	if (code == CUDA_OK)
		return NULL;
	d->GetErrorName(code, &name);
	d->GetErrorString(code, &text);
	if (!row)
		return status_error(EXIT_SYSTEM, "CUDA: %s%s%s (%s)", what ? what : "",
		                    what ? ": " : "", text ? text : "unknown fault",
		                    name ? name : "no name");
	return status_error(row->exit_code, "CUDA: %s%s%s (%s)%s%s", what ? what : "",
	                    what ? ": " : "", row->meaning, name ? name : "no name",
	                    row->hint ? ": " : "", row->hint ? row->hint : "");
}
