/* Compiles an LLVM module to an object file or to assembly text for a CPU. Only this file has
 * code that differs between versions of LLVM. */
#include "codegen/llvm/llvm.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>

#include <pthread.h>
#include <string.h>

typedef enum { LLVM_OBJECT, LLVM_ASM, LLVM_TEXT } LlvmOutput;

/* Loops and vectors already have their final form. The passes only move memory to registers,
 * remove repeated arithmetic, and move invariant code out of loops. */
static const char passes[] =
	"function(sroa,early-cse<memssa>,loop-mssa(licm),early-cse,simplifycfg)";

static Status
llvm_fault(const char *what, char *message)
{
	Status status = status_error(EXIT_SYSTEM, "LLVM: %s: %s", what, message ? message : "");

	LLVMDisposeMessage(message);
	return status;
}

/* Called once, before threads start. */
static void
start_llvm(void)
{
	LLVMInitializeNativeTarget();
	LLVMInitializeNativeAsmPrinter();
}

/* "sse3 avx" becomes "+sse3,+avx". */
static void
feature_text(Text *out, const char *features)
{
	for (const char *at = features; *at;) {
		size_t n = strcspn(at, " ");
		text_add(out, out->n ? ",+" : "+");
		text_add_bytes(out, at, n);
		at += n + strspn(at + n, " ");
	}
}

/* Opens the target machine: x86-64 with the listed features and no particular CPU. So the code
 * needs only features that the executable checks at start. */
static Status
open_target(const CpuTarget *cpu, LLVMTargetMachineRef *out)
{
	char *triple = LLVMGetDefaultTargetTriple(), *message = NULL;
	LLVMTargetRef target;
	Text features = {0};

	*out = NULL;
	if (LLVMGetTargetFromTriple(triple, &target, &message)) {
		LLVMDisposeMessage(triple);
		return llvm_fault("no target", message);
	}
	feature_text(&features, cpu->features);
	*out = LLVMCreateTargetMachine(target, triple, "x86-64", features.n ? features.at : "",
	                               LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelDefault);
	text_free(&features);
	LLVMDisposeMessage(triple);
	return *out ? NULL : status_error(EXIT_SYSTEM, "LLVM: no code for cpu:%s", cpu->cpu);
}

static Status
optimize(LLVMModuleRef module, LLVMTargetMachineRef machine)
{
	LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
	LLVMErrorRef fault = LLVMRunPasses(module, passes, machine, options);

	LLVMDisposePassBuilderOptions(options);
	if (!fault)
		return NULL;
	char *message = LLVMGetErrorMessage(fault);
	Status status = status_error(EXIT_SYSTEM, "LLVM: %s", message);
	LLVMDisposeErrorMessage(message);
	return status;
}

static Status
emit(LLVMModuleRef module, LLVMTargetMachineRef machine, LlvmOutput kind, Text *out)
{
	LLVMMemoryBufferRef buffer = NULL;
	char *message = NULL;

	if (kind == LLVM_TEXT) {
		char *text = LLVMPrintModuleToString(module);
		text_add(out, text);
		LLVMDisposeMessage(text);
		return NULL;
	}
	if (LLVMTargetMachineEmitToMemoryBuffer(
		    machine, module, kind == LLVM_ASM ? LLVMAssemblyFile : LLVMObjectFile, &message,
		    &buffer))
		return llvm_fault("no code", message);
	text_add_bytes(out, LLVMGetBufferStart(buffer), LLVMGetBufferSize(buffer));
	LLVMDisposeMemoryBuffer(buffer);
	return NULL;
}

/* Checks, optimizes and compiles a module, then frees the module. */
static Status
compile_module(LLVMModuleRef module, LLVMTargetMachineRef machine, LlvmOutput output, Text *out)
{
	LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
	char *triple = LLVMGetTargetMachineTriple(machine), *message = NULL;
	Status status;

	LLVMSetModuleDataLayout(module, layout);
	LLVMSetTarget(module, triple);
	LLVMDisposeMessage(triple);
	LLVMDisposeTargetData(layout);
	if (LLVMVerifyModule(module, LLVMReturnStatusAction, &message)) {
		status = llvm_fault("the module is not valid", message);
	} else {
		LLVMDisposeMessage(message);
		status = optimize(module, machine);
		if (!status)
			status = emit(module, machine, output, out);
	}
	LLVMDisposeModule(module);
	return status;
}

/* Kernels for one target, compiled by a thread. */
typedef struct {
	KernelPart part;
	const CpuTarget *cpu;
	int target;
	LlvmOutput output;
	Text out;
	Status status;
	pthread_t thread;
	bool started;
} Job;

static void *
run_job(void *arg)
{
	Job *job = arg;
	LLVMTargetMachineRef machine;
	LLVMContextRef context = LLVMContextCreate();

	job->status = open_target(job->cpu, &machine);
	if (!job->status) {
		LLVMModuleRef module = llvm_print_kernels(context, &job->part, job->cpu->features,
		                                          job->target);
		job->status = compile_module(module, machine, job->output, &job->out);
		LLVMDisposeTargetMachine(machine);
	}
	LLVMContextDispose(context);
	return NULL;
}

/* The first array that is too long for LLVM's C interface, which counts elements in 32 bits; NULL: none. */
static const LoopBuffer *
too_long_array(const Kernel *k)
{
	for (int i = k->n_inputs + k->n_outputs; i < k->buffers.n; i++)
		if (k->buffers.at[i].type->n > UINT32_MAX - LOOP_LANES)
			return &k->buffers.at[i];
	return NULL;
}

static Status
check_kernels(const KernelPart *part)
{
	for (int i = 0; i < part->n; i++) {
		const Kernel *k = part->at[i];
		const LoopBuffer *b = too_long_array(k);
		if (kernel_has_tiles(k))
			return status_error(
				EXIT_UNSUPPORTED,
				"kernel @%s: the LLVM printer has no tiles, mma or copies; use C "
				"(--printer=c, --stage=c)",
				k->name);
		if (b)
			return status_error(
				EXIT_UNSUPPORTED,
				"kernel @%s: LLVM cannot have an array of %lld elements "
				"(%s); use C (--printer=c, --stage=c)",
				k->name, (long long)b->type->n, b->name);
	}
	return NULL;
}

static Status
llvm_print(Text *out, const Module *m, const CpuTarget *target, const char *language)
{
	bool text = strcmp(language, "llvm") == 0;
	Arena *arena = arena_new();
	Job job = {.part = build_list(arena, m, target->target),
	           .cpu = target,
	           .output = text ? LLVM_TEXT : LLVM_ASM};

	Status status = check_kernels(&job.part);
	if (!status) {
		start_llvm();
		run_job(&job);
		status = job.status;
	}
	if (!status)
		text_add_bytes(out, job.out.at, job.out.n);
	text_free(&job.out);
	arena_free(arena);
	return status;
}

/* Runs the jobs of all targets in parallel threads; the calling thread runs one job. */
static void
run_jobs(Job *jobs, int n)
{
	for (int i = 1; i < n; i++)
		jobs[i].started = pthread_create(&jobs[i].thread, NULL, run_job, &jobs[i]) == 0;
	for (int i = 0; i < n; i++)
		if (!jobs[i].started)
			run_job(&jobs[i]);
	for (int i = 1; i < n; i++)
		if (jobs[i].started)
			pthread_join(jobs[i].thread, NULL);
}

static Status
compile_kernels(Build *b, const Module *m)
{
	int n = 0;
	Job *jobs = NEW_ARRAY(b->arena, Job, b->options->n_targets * MAX_PARTS);
	Status first = NULL;

	for (int t = 0; t < b->options->n_targets; t++) {
		const CpuTarget *cpu = &b->options->targets[t];
		KernelPart parts[MAX_PARTS];
		int n_parts = build_parts(b->arena, m, cpu->target, parts);
		for (int i = 0; i < n_parts; i++) {
			RETURN_IF_ERROR(check_kernels(&parts[i]));
			jobs[n++] = (Job){.part = parts[i], .cpu = cpu, .target = t};
		}
	}
	run_jobs(jobs, n);
	for (int i = 0; i < n; i++) {
		Status status = jobs[i].status;
		if (!status && !first)
			status = build_object(b, arena_printf(b->arena, "kernels%d.o", i),
			                      &jobs[i].out);
		text_free(&jobs[i].out);
		first = status_first(first, status);
	}
	return first;
}

static Status
build_tables(Build *b, const Module *m, const void *blob, int64_t bytes)
{
	LLVMTargetMachineRef machine;
	int64_t most = bytes;
	Text object = {0};

	for (int i = 0; i < b->images.n; i++)
		if ((int64_t)b->images.at[i].bytes.n > most)
			most = (int64_t)b->images.at[i].bytes.n;
	if (most > UINT32_MAX)
		return status_error(
			EXIT_UNSUPPORTED,
			"LLVM cannot have a constant of %lld bytes, as the executable's "
			"tables or images need; use C (--printer=c)",
			(long long)most);
	RETURN_IF_ERROR(open_target(&(CpuTarget){"x86-64", ""}, &machine));
	LLVMContextRef context = LLVMContextCreate();
	Status status = compile_module(llvm_print_tables(context, b, m, blob, bytes), machine,
	                               LLVM_OBJECT, &object);
	LLVMContextDispose(context);
	LLVMDisposeTargetMachine(machine);
	if (!status)
		status = build_object(b, "tables.o", &object);
	text_free(&object);
	return status;
}

static Status
llvm_build(Build *b, const Module *m, const void *blob, int64_t bytes)
{
	start_llvm();
	Status status = compile_kernels(b, m);
	if (!status)
		status = build_tables(b, m, blob, bytes);
	return status;
}

static const char *const languages[] = {"llvm", "asm", NULL};
const KernelPrinter printer_llvm = {
	.name = "llvm", .languages = languages, .print = llvm_print, .build = llvm_build};
