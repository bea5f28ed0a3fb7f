/* Loop IR to machine code through LLVM's C API. print.c builds the module, object.c makes code of it;
 * nothing else knows LLVM. */
#ifndef GRADC_CODEGEN_LLVM_H
#define GRADC_CODEGEN_LLVM_H

#include "codegen/build.h"

#include <llvm-c/Core.h>

/* ---- print.c: the kernels as functions of one module of that context, each named after its number and
 * the ONNX node it comes from; `table` is the array of them, by number. */
LLVMModuleRef llvm_print_kernels(LLVMContextRef context, const Module *m, const char *table);

/* ---- tables.c: gradc_blob, gradc_variants and the reference to the runtime's ABI. */
LLVMModuleRef llvm_print_tables(LLVMContextRef context, Build *b, const void *blob, int64_t bytes);

#endif
