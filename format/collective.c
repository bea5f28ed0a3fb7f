/* Divides n elements among the ranks of a collective operation. Example: 10 elements among 4 ranks in blocks of 2 give
 * parts of 4, 4, 2 and 0 elements. A room is memory for the largest part, here 4 elements. */
#include "format/format.h"

int64_t
comm_part_room(int64_t n, int world, int64_t block)
{
	int64_t each = n / world + (n % world != 0);

	return each / block * block + (each % block ? block : 0);
}

CommPart
comm_part(int64_t n, int world, int rank, int64_t block)
{
	int64_t room = comm_part_room(n, world, block);
	int64_t first = room * rank < n ? room * rank : n;

	return (CommPart){first, n - first < room ? n - first : room};
}
