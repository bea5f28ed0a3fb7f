/* The shared memory of a communicator's ranks: an unnamed file, which other ranks open through /proc of the process that
 * made it. The file vanishes when all ranks have ended, however they end. */
#include "tests/cuda/programs/fake_nccl.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

bool
shared_create(NcclId *id)
{
	int file = memfd_create("fake-nccl", MFD_CLOEXEC); /* open as long as the process lives */

	memset(id, 0, sizeof(*id));
	snprintf(id->bytes, sizeof(id->bytes), "/proc/%d/fd/%d", (int)getpid(), file);
	return file >= 0 && ftruncate(file, sizeof(Shared)) == 0;
}

Shared *
shared_open(const NcclId *id)
{
	bool ends = memchr(id->bytes, '\0', sizeof(id->bytes)) != NULL;
	int file = ends ? open(id->bytes, O_RDWR | O_CLOEXEC) : -1;

	if (file < 0)
		return NULL;
	void *at = mmap(NULL, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return at == MAP_FAILED ? NULL : at;
}
