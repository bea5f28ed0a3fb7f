/* The passes from tensor IR to kernels, schedule and memory. What else a room gives to others its own header says: target/ who runs
 * loops, cuda/ architectures, emit/ tables and the link. */
#ifndef GRADC_CODEGEN_CODEGEN_H
#define GRADC_CODEGEN_CODEGEN_H

#include "ir/ir.h"

/* ---- fuse.c, lower.c, schedule.c, memory.c: see pass_list.def */
#define PASS(name) extern const PassRow pass_##name;
#include "codegen/pass_list.def"
#undef PASS

/* Loops are cut for so many cores, wherever they run. */
enum { DEFAULT_CORES = 64, MAX_CORES = 4096 };

/* ---- multiversion.c: options of the pass */
typedef struct {
	const char *targets; /* of targets/target_list.def, with `+` between them */
} MultiversionOptions;

/* ---- memory.c: options of the pass */
typedef struct {
	const char *modes;   /* data-parallel modes, with `+` between them */
	const char *offload; /* what lies in the host's memory, likewise */
} MemoryOptions;

#endif
