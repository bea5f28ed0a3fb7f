/* The passes from tensor IR to kernels, schedule and memory. The public header of each
 * subfolder declares its functions for other folders: target/target.h the targets, cuda/cuda.h the
 * GPU architectures, emit/emit.h tables and linking, and so on. */
#ifndef GRADC_CODEGEN_CODEGEN_H
#define GRADC_CODEGEN_CODEGEN_H

#include "ir/ir.h"

/* ---- the passes, in the order of pass_list.def */
#define PASS(name) extern const PassRow pass_##name;
#include "codegen/pass_list.def"
#undef PASS

/* Parallel loops are cut for DEFAULT_CORES cores unless an option says otherwise, whatever
 * machine compiles or runs them; MAX_CORES is the most that the option takes. */
enum { DEFAULT_CORES = 64, MAX_CORES = 4096 };

/* ---- multiversion.c: options of the pass */
typedef struct {
	const char *targets; /* names in target/target_list.def, joined by `+` */
} MultiversionOptions;

/* ---- memory.c: options of the pass */
typedef struct {
	const char *modes;   /* data-parallel modes, joined by `+` */
	const char *offload; /* parts that lie in the host's memory, joined by `+` */
} MemoryOptions;

#endif
