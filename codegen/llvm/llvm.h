/* Compiles loop IR to machine code through LLVM's C API. print.c builds an LLVM module, object.c
 * compiles it. No other folder calls LLVM. This header is private to codegen/llvm. */
#ifndef GRADC_CODEGEN_LLVM_LLVM_H
#define GRADC_CODEGEN_LLVM_LLVM_H

#include "codegen/build/build.h"

#include <llvm-c/Core.h>

/* ---- print.c */
/* The kernels of a part (kernels that are compiled together) as functions of one LLVM module,
 * for a CPU with these features. target: the target's number in the build. */
LLVMModuleRef llvm_print_kernels(LLVMContextRef context, const KernelPart *part,
                                 const char *features, int target);
/* The kernel's symbol: its number and its ONNX name, which profilers show. */
const char *llvm_symbol(Arena *arena, const Kernel *k, int target);

/* ---- tables.c: the GradcModel */
LLVMModuleRef llvm_print_tables(LLVMContextRef context, Build *b, const Module *m, const void *blob,
                                int64_t bytes);

#endif
