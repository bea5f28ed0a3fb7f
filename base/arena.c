/* Arenas: memory whose allocations are freed together, by one call. An arena is a list of zeroed blocks from the system
 * (chunks), each filled from front to back. Chunks double in size up to CHUNK_MAX. A request too large for a chunk gets
 * a chunk of its own, linked after the current chunk in the list; the free part of the current chunk stays in use. */
#include "base/base.h"

#include <limits.h>
#include <string.h>

#define ALIGNMENT 16
#define CHUNK_MIN ((size_t)4 << 10)
#define CHUNK_MAX ((size_t)1 << 20)

typedef struct Chunk {
	struct Chunk *next;
	size_t used, size; /* bytes of data */
	_Alignas(ALIGNMENT) unsigned char data[];
} Chunk;

struct Arena {
	Chunk *current;
	size_t bytes;
};

static Chunk *
chunk_new(Arena *arena, size_t size)
{
	if (size > SIZE_MAX - sizeof(Chunk))
		out_of_memory();
	Chunk *chunk = memory_zeroed(1, sizeof(Chunk) + size);
	chunk->size = size;
	arena->bytes += sizeof(Chunk) + size;
	return chunk;
}

Arena *
arena_new(void)
{
	Arena *arena = memory_get(sizeof(*arena));

	*arena = (Arena){.bytes = sizeof(*arena)};
	arena->current = chunk_new(arena, CHUNK_MIN);
	return arena;
}

void
arena_free(Arena *arena)
{
	if (!arena)
		return;
	for (Chunk *chunk = arena->current, *next; chunk; chunk = next) {
		next = chunk->next;
		memory_free(chunk);
	}
	memory_free(arena);
}

/* A chunk with room for `bytes`: for a large request a chunk of its own, else a new current chunk. */
static Chunk *
chunk_for(Arena *arena, size_t bytes)
{
	Chunk *current = arena->current;
	size_t size = current->size < CHUNK_MAX ? 2 * current->size : CHUNK_MAX;
	Chunk *fresh;

	if (bytes > size / 2) {
		fresh = chunk_new(arena, bytes);
		fresh->next = current->next;
		current->next = fresh;
		return fresh;
	}
	fresh = chunk_new(arena, size);
	fresh->next = current;
	arena->current = fresh;
	return fresh;
}

void *
arena_alloc(Arena *arena, size_t bytes)
{
	Chunk *chunk = arena->current;
	void *p;

	if (bytes > SIZE_MAX - ALIGNMENT)
		out_of_memory();
	bytes = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
	if (bytes > chunk->size - chunk->used)
		chunk = chunk_for(arena, bytes);
	p = chunk->data + chunk->used;
	chunk->used += bytes;
	return p;
}

void *
arena_copy(Arena *arena, const void *from, size_t bytes)
{
	void *p = arena_alloc(arena, bytes);

	if (bytes)
		memcpy(p, from, bytes);
	return p;
}

char *
arena_strndup(Arena *arena, const char *text, size_t n)
{
	size_t length = strnlen(text, n);
	char *copy = arena_alloc(arena, length + 1);

	memcpy(copy, text, length);
	return copy;
}

char *
arena_strdup(Arena *arena, const char *text)
{
	return arena_copy(arena, text, strlen(text) + 1);
}

char *
arena_vprintf(Arena *arena, const char *fmt, va_list args)
{
	Text text = {0};
	char *copy;

	text_vprintf(&text, fmt, args);
	copy = arena_copy(arena, text.at, text.n + 1);
	text_free(&text);
	return copy;
}

char *
arena_printf(Arena *arena, const char *fmt, ...)
{
	va_list args;
	char *text;

	va_start(args, fmt);
	text = arena_vprintf(arena, fmt, args);
	va_end(args);
	return text;
}

size_t
arena_bytes(const Arena *arena)
{
	return arena->bytes;
}

/* Moves a full array: copies n elements and leaves room for at least one more. */
void *
vec_grow(Arena *arena, void *at, int n, int *cap, size_t size)
{
	void *grown;

	if (*cap > INT_MAX / 2)
		out_of_memory();
	*cap = *cap ? 2 * *cap : 4; /* most lists are short */
	grown = arena_alloc(arena, (size_t)*cap * size);
	if (n)
		memcpy(grown, at, (size_t)n * size);
	return grown;
}
