/* An LLVM module to machine code of a CPU: passes, target machine, object or text. The one file that knows
 * LLVM's versions. */
#include "codegen/llvm/llvm.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Error.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <llvm-c/Transforms/PassBuilder.h>

#include <string.h>

/* Loops and vectors are as they should be: what is left is memory to registers, repeated arithmetic, and
 * what loops need not do again. */
static const char passes[] =
	"function(sroa,early-cse<memssa>,loop-mssa(licm),early-cse,simplifycfg)";

static Status
llvm_fault(const char *what, char *message)
{
	Status status = status_error(EXIT_SYSTEM, "LLVM: %s: %s", what, message ? message : "");

	LLVMDisposeMessage(message);
	return status;
}

/* "sse3 avx" as "+sse3,+avx" */
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

/* Code of any x86-64 with those features; the CPU's name does not matter, so that what the executable
 * looks for at start is all that it needs. */
static Status
open_target(const CpuTarget *cpu, LLVMTargetMachineRef *out)
{
	char *triple = LLVMGetDefaultTargetTriple(), *message = NULL;
	LLVMTargetRef target;
	Text features = {0};

	*out = NULL;
	LLVMInitializeNativeTarget();
	LLVMInitializeNativeAsmPrinter();
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

/* Checks, optimizes and compiles a module, which is gone afterwards. */
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

static Status
compile_kernels(const Module *m, const CpuTarget *target, const char *table, LlvmOutput output,
                Text *out)
{
	LLVMTargetMachineRef machine;

	RETURN_IF_ERROR(open_target(target, &machine));
	LLVMContextRef context = LLVMContextCreate();
	Status status = compile_module(llvm_print_kernels(context, m, table), machine, output, out);
	LLVMContextDispose(context);
	LLVMDisposeTargetMachine(machine);
	return status;
}

Status
llvm_compile(const Module *m, const CpuTarget *target, LlvmOutput output, Text *out)
{
	return compile_kernels(m, target, "gradc_kernels", output, out);
}

static Status
build_tables(Build *b, const void *blob, int64_t bytes)
{
	LLVMTargetMachineRef machine;
	Text object = {0};

	RETURN_IF_ERROR(open_target(&(CpuTarget){"x86-64", ""}, &machine));
	LLVMContextRef context = LLVMContextCreate();
	Status status = compile_module(llvm_print_tables(context, b, blob, bytes), machine,
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
	for (int i = 0; i < b->options->n_targets; i++) {
		Text object = {0};
		Status status = compile_kernels(m, &b->options->targets[i], build_table(b, i),
		                                LLVM_OBJECT, &object);
		if (!status)
			status = build_object(b, arena_printf(b->arena, "kernels%d.o", i), &object);
		text_free(&object);
		RETURN_IF_ERROR(status);
	}
	return build_tables(b, blob, bytes);
}

const KernelPrinter printer_llvm = {.name = "llvm", .build = llvm_build};
