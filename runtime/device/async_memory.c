#include "runtime/device/async_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

typedef struct Piece Piece;
struct Piece {
	Piece *next;
	char *host, *device;
	size_t bytes; /* a multiple of the page size */
};
struct AsyncMemory {
	pthread_rwlock_t lock;
	Piece *first;
};

Status
async_memory_open(AsyncMemory **out)
{
	AsyncMemory *m = calloc(1, sizeof(*m));

	*out = m;
	if (!m)
		return status_error(EXIT_SYSTEM, "no memory for the device");
	pthread_rwlock_init(&m->lock, NULL);
	return NULL;
}

static void
unmap_piece(Piece *p)
{
	if (p->host != MAP_FAILED)
		munmap(p->host, p->bytes);
	if (p->device != MAP_FAILED)
		munmap(p->device, p->bytes);
	free(p);
}

void
async_memory_close(AsyncMemory *m)
{
	if (!m)
		return;
	for (Piece *p = m->first, *next; p; p = next) {
		next = p->next;
		unmap_piece(p);
	}
	pthread_rwlock_destroy(&m->lock);
	free(m);
}

static Status
map_twice(int fd, Piece *p)
{
	if (fd < 0 || ftruncate(fd, (off_t)p->bytes) != 0)
		return status_error(EXIT_SYSTEM, "no memory for a region of %zu bytes: %s",
		                    p->bytes, strerror(errno));
	p->host = mmap(NULL, p->bytes, PROT_NONE, MAP_SHARED, fd, 0);
	p->device = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p->host == MAP_FAILED || p->device == MAP_FAILED)
		return status_error(EXIT_SYSTEM, "%zu bytes cannot be mapped: %s", p->bytes,
		                    strerror(errno));
	return NULL;
}

Status
async_memory_alloc(AsyncMemory *m, int64_t bytes, Span *out)
{
	Piece *p = calloc(1, sizeof(*p));

	*out = (Span){NULL, bytes};
	if (!p)
		return status_error(EXIT_SYSTEM, "no memory for a region");
	*p = (Piece){.host = MAP_FAILED,
	             .device = MAP_FAILED,
	             .bytes = ((size_t)bytes + PAGE) / PAGE * PAGE};
	int fd = memfd_create("gradc-async", MFD_CLOEXEC);
	Status status = map_twice(fd, p);
	if (fd >= 0)
		close(fd);
	if (status) {
		unmap_piece(p);
		return status;
	}
	pthread_rwlock_wrlock(&m->lock);
	p->next = m->first;
	m->first = p;
	pthread_rwlock_unlock(&m->lock);
	out->at = p->host;
	return NULL;
}

void
async_memory_free(AsyncMemory *m, Span span)
{
	pthread_rwlock_wrlock(&m->lock);
	for (Piece **link = &m->first; *link; link = &(*link)->next)
		if ((*link)->host == span.at) {
			Piece *p = *link;
			*link = p->next;
			unmap_piece(p);
			break;
		}
	pthread_rwlock_unlock(&m->lock);
}

void *
async_memory_at(AsyncMemory *m, const void *at)
{
	char *found = (char *)(uintptr_t)at;

	pthread_rwlock_rdlock(&m->lock);
	for (const Piece *p = m->first; p; p = p->next)
		if (found >= p->host && found < p->host + p->bytes) {
			found = p->device + (found - p->host);
			break;
		}
	pthread_rwlock_unlock(&m->lock);
	return found;
}
