/* Private to cuda: shared by the files that print CUDA C. Each section is named after its .c
 * file. Members are the threads of a team, which is a block of threads. */
#ifndef GRADC_CODEGEN_CUDA_PRINT_H
#define GRADC_CODEGEN_CUDA_PRINT_H

#include "codegen/c/c.h"

enum { WARP = TEAM_OF_REGISTERS };

/* ---- team.c: loops of a team's members, stores and barriers */
void cuda_print_team_loop(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_store(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_barrier(CPrinter *p, const LoopStatement *s, int at);

/* ---- memory.c: arrays of a kernel, and copies to them */
/* Declares the shared memory that all loops of the team use: partials and staged tiles. */
void cuda_declare_shared(CPrinter *p);
const char *cuda_array(CPrinter *p, int buffer);
const char *cuda_place(CPrinter *p, int buffer, const char *place);
void cuda_print_local(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_copy(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_commit(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_wait(CPrinter *p, const LoopStatement *s, int at);

/* ---- vector.c: short vectors of a member */
bool cuda_is_short_vector(const CPrinter *p, const LoopStatement *s);
void cuda_print_vector(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_load(CPrinter *p, const LoopStatement *s, int at);

/* ---- tiles.c: tiles in the registers of warps */
/* May the mma's operands be tiles, or are they none? A tile of 16 bits must be the left operand of a matrix unit. */
bool cuda_multiplies_tiles(const Kernel *k, const Target *target, const LoopStatement *s);
void cuda_print_tile(CPrinter *p, int tile);                /* declares the tile */
const char *cuda_tile_element(const CPrinter *p, int tile); /* number of the current element */
void cuda_print_each(CPrinter *p, const LoopStatement *s, int at);
void cuda_print_mma(CPrinter *p, const LoopStatement *s, int at);

#endif
