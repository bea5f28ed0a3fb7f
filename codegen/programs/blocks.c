/* Finds the outermost loops and branches among instructions. Instructions added later, such as a
 * WAIT, must stand before or after the whole loop or branch: inside, they might run many times or
 * not at all. */
#include "codegen/programs/blocks.h"

OuterBlocks
outermost_blocks(Arena *arena, int n, const Instruction *list)
{
	OuterBlocks b = {NEW_ARRAY(arena, int, n + 1), NEW_ARRAY(arena, int, n + 1)};
	int depth = 0, open = 0;

	for (int i = 0; i < n; i++) {
		open = depth == 0 ? i : open;
		depth += instruction_opens(list[i].kind) - (list[i].kind == END);
		b.first[i] = open;
	}
	for (int i = n - 1; i >= 0; i--)
		b.last[i] = i + 1 < n && b.first[i + 1] == b.first[i] ? b.last[i + 1] : i;
	return b;
}
