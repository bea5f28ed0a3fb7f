/* Private to programs: the outermost loops and branches among instructions. */
#ifndef GRADC_CODEGEN_PROGRAMS_BLOCKS_H
#define GRADC_CODEGEN_PROGRAMS_BLOCKS_H

#include "ir/programs/programs.h"

/* For instruction i of a list: first[i] and last[i] are the opening and the END of the outermost
 * loop or branch around it. Outside of loops and branches both are i. */
typedef struct {
	int *first, *last;
} OuterBlocks;
OuterBlocks outermost_blocks(Arena *arena, int n, const Instruction *list);

#endif
