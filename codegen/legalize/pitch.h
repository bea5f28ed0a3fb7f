/* Private to the pass `pitch`. Padding is elements that no kernel reads as part of the tensor: behind each row (columns), or
 * behind the last row (rows). */
#ifndef GRADC_CODEGEN_LEGALIZE_PITCH_H
#define GRADC_CODEGEN_LEGALIZE_PITCH_H

#include "codegen/target/target.h"

enum { PAD_COLUMNS = 1, PAD_ROWS = 2 };

/* ---- pitch_calls.c: a library's products, whose operands may have padding */
/* The padding (PAD_COLUMNS, PAD_ROWS) that this buffer needs so that all axes of the kernel's product can be padded; 0: none. */
int product_padding(const Kernel *k, int buffer, const LibraryLimits *l);
/* PAD_COLUMNS if rows of this operand should begin at multiples of 16 bytes, even if no axis can be padded; 0: no. */
int product_pitch(const Kernel *k, int buffer, const LibraryLimits *l);
/* Could the library be given the padded size: has each operand room? operand_zero[i]: is the padding of operand i (first,
 * second) zeros? */
bool product_can_pad(const Kernel *k, ProductAxis axis, int64_t alignment,
                     const bool operand_zero[2]);
/* Gives the axis its padded size in every operand of the kernel's call. */
void product_pad(Arena *arena, Kernel *k, ProductAxis axis, int64_t alignment);

/* ---- pitch_copy.c */
/* A kernel of the module that copies a tensor of this type, row by row. */
Kernel *row_copy_kernel(Module *m, Arena *scratch, Type t, int members);

#endif
