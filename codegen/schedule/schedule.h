/* The order of instructions, the streams they run on, and where values lie in memory. Each
 * section declares the functions of the .c file that it is named after. */
#ifndef GRADC_CODEGEN_SCHEDULE_SCHEDULE_H
#define GRADC_CODEGEN_SCHEDULE_SCHEDULE_H

#include "format/format.h"
#include "ir/loop/loop.h"
#include "ir/programs/programs.h"

/* ---- by_iteration.c */
/* Elements of an argument for each iteration of the kernel, if iteration i touches [i * each, (i
 * + 1) * each) and nothing else. 0: an iteration touches more, or a library call may touch more. */
int64_t kernel_each(const Kernel *k, int buffer);

/* ---- fill.c: does the kernel only write zeros? */
bool kernel_fills_zero(const Kernel *k);

/* ---- memory.c */
/* Bytes of the workspace for f's values. The values of f's loops and branches lie after the
 * workspace and are not counted. */
int64_t function_workspace(const Function *f);

/* ---- shard.c: does the mode change the program of f? */
bool shard_changes(const Function *f, DataParallelMode mode);

/* ---- offload.c */
/* offload_changes: does f, in that mode, update states that lie in the host's memory?
 * offload_on_host: do f's kernels then run on the host's CPU, because the optimizer's states lie
 * in the host's memory? */
bool offload_changes(const Function *f, DataParallelMode mode);
bool offload_on_host(const Function *f, DataParallelMode mode);

#endif
