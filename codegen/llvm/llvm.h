/* Loop IR to machine code through LLVM's C API. print.c builds the module, object.c makes code of it;
 * nothing else knows LLVM. */
#ifndef GRADC_CODEGEN_LLVM_H
#define GRADC_CODEGEN_LLVM_H

#include "codegen/build/build.h"

#include <llvm-c/Core.h>

/* ---- print.c */
/* A part's kernels as functions of one module of that context, for a CPU with these features; target: its number among
 * the build's. */
LLVMModuleRef llvm_print_kernels(LLVMContextRef context, const KernelPart *part,
                                 const char *features, int target);
/* What a profiler shows: number and ONNX name. */
const char *llvm_symbol(Arena *arena, const Kernel *k, int target);

/* ---- tables.c: the GradcModel. */
LLVMModuleRef llvm_print_tables(LLVMContextRef context, Build *b, const Module *m, const void *blob,
                                int64_t bytes);

#endif
