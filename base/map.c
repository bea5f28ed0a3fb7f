/* Hash tables with open addressing and linear probing, which are at most 3/4 full and never shrink; and hash functions.
 * hash_bytes is XXH64, https://xxhash.com. */
#include "base/base.h"

#include <string.h>

#define MIN_SLOTS 16

typedef struct {
	const char *key; /* NULL: free slot */
	void *value;
	uint64_t hash;
} StrSlot;

struct StrMap {
	Arena *arena;
	StrSlot *slots;
	size_t n, n_slots; /* n_slots is a power of two */
};

typedef struct {
	uint64_t key, value;
	bool used;
} IntSlot;

struct IntMap {
	Arena *arena;
	IntSlot *slots;
	size_t n, n_slots;
};

static bool
is_full(size_t n, size_t n_slots)
{
	return n + 1 > n_slots / 4 * 3;
}

/* The slot that holds the key, or the free slot where it belongs. */
static StrSlot *
str_slot(StrSlot *slots, size_t n_slots, const char *key, uint64_t hash)
{
	size_t i = hash & (n_slots - 1);

	while (slots[i].key && (slots[i].hash != hash || strcmp(slots[i].key, key) != 0))
		i = (i + 1) & (n_slots - 1);
	return &slots[i];
}

StrMap *
strmap_new(Arena *arena)
{
	StrMap *map = NEW(arena, StrMap);

	map->arena = arena;
	map->n_slots = MIN_SLOTS;
	map->slots = NEW_ARRAY(arena, StrSlot, map->n_slots);
	return map;
}

void *
strmap_get(const StrMap *map, const char *key)
{
	return str_slot(map->slots, map->n_slots, key, hash_bytes(key, strlen(key), 0))->value;
}

static void
strmap_grow(StrMap *map)
{
	size_t n_slots = 2 * map->n_slots;
	StrSlot *slots = NEW_ARRAY(map->arena, StrSlot, n_slots);

	for (size_t i = 0; i < map->n_slots; i++) {
		const StrSlot *old = &map->slots[i];
		if (old->key)
			*str_slot(slots, n_slots, old->key, old->hash) = *old;
	}
	map->slots = slots;
	map->n_slots = n_slots;
}

void
strmap_put(StrMap *map, const char *key, void *value)
{
	uint64_t hash = hash_bytes(key, strlen(key), 0);
	StrSlot *slot;

	if (is_full(map->n, map->n_slots))
		strmap_grow(map);
	slot = str_slot(map->slots, map->n_slots, key, hash);
	map->n += slot->key == NULL;
	*slot = (StrSlot){.key = slot->key ? slot->key : key, .value = value, .hash = hash};
}

static IntSlot *
int_slot(IntSlot *slots, size_t n_slots, uint64_t key)
{
	size_t i = hash_mix(key, 0) & (n_slots - 1);

	while (slots[i].used && slots[i].key != key)
		i = (i + 1) & (n_slots - 1);
	return &slots[i];
}

IntMap *
intmap_new(Arena *arena)
{
	IntMap *map = NEW(arena, IntMap);

	map->arena = arena;
	map->n_slots = MIN_SLOTS;
	map->slots = NEW_ARRAY(arena, IntSlot, map->n_slots);
	return map;
}

bool
intmap_get(const IntMap *map, uint64_t key, uint64_t *value)
{
	const IntSlot *slot = int_slot(map->slots, map->n_slots, key);

	if (value)
		*value = slot->value;
	return slot->used;
}

static void
intmap_grow(IntMap *map)
{
	size_t n_slots = 2 * map->n_slots;
	IntSlot *slots = NEW_ARRAY(map->arena, IntSlot, n_slots);

	for (size_t i = 0; i < map->n_slots; i++) {
		const IntSlot *old = &map->slots[i];
		if (old->used)
			*int_slot(slots, n_slots, old->key) = *old;
	}
	map->slots = slots;
	map->n_slots = n_slots;
}

void
intmap_put(IntMap *map, uint64_t key, uint64_t value)
{
	IntSlot *slot;

	if (is_full(map->n, map->n_slots))
		intmap_grow(map);
	slot = int_slot(map->slots, map->n_slots, key);
	map->n += !slot->used;
	*slot = (IntSlot){.key = key, .value = value, .used = true};
}

#define PRIME1 0x9E3779B185EBCA87u
#define PRIME2 0xC2B2AE3D27D4EB4Fu
#define PRIME3 0x165667B19E3779F9u
#define PRIME4 0x85EBCA77C2B2AE63u
#define PRIME5 0x27D4EB2F165667C5u

static uint64_t
rotate_left(uint64_t x, int by)
{
	return x << by | x >> (64 - by);
}

/* Reads n bytes as a little-endian number on every machine. */
static uint64_t
read_le(const uint8_t *p, int n)
{
	uint64_t x = 0;

	for (int i = 0; i < n; i++)
		x |= (uint64_t)p[i] << 8 * i;
	return x;
}

static uint64_t
xxh_round(uint64_t acc, uint64_t lane)
{
	return rotate_left(acc + lane * PRIME2, 31) * PRIME1;
}

/* Hashes the blocks of 32 bytes in four lanes, which are merged at the end. */
static uint64_t
xxh_blocks(const uint8_t *p, size_t n_blocks, uint64_t seed)
{
	uint64_t lane[4] = {seed + PRIME1 + PRIME2, seed + PRIME2, seed, seed - PRIME1};
	uint64_t h;

	for (; n_blocks; n_blocks--)
		for (int i = 0; i < 4; i++, p += 8)
			lane[i] = xxh_round(lane[i], read_le(p, 8));
	h = rotate_left(lane[0], 1) + rotate_left(lane[1], 7) + rotate_left(lane[2], 12) +
	    rotate_left(lane[3], 18);
	for (int i = 0; i < 4; i++)
		h = (h ^ xxh_round(0, lane[i])) * PRIME1 + PRIME4;
	return h;
}

/* Hashes the last n < 32 bytes. */
static uint64_t
xxh_tail(uint64_t h, const uint8_t *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8)
		h = rotate_left(h ^ xxh_round(0, read_le(p, 8)), 27) * PRIME1 + PRIME4;
	if (n >= 4) {
		h = rotate_left(h ^ read_le(p, 4) * PRIME1, 23) * PRIME2 + PRIME3;
		n -= 4;
		p += 4;
	}
	for (; n; n--, p++)
		h = rotate_left(h ^ *p * PRIME5, 11) * PRIME1;
	return h;
}

static uint64_t
xxh_finish(uint64_t h)
{
	h = (h ^ h >> 33) * PRIME2;
	h = (h ^ h >> 29) * PRIME3;
	return h ^ h >> 32;
}

uint64_t
hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
	size_t n_blocks = n / 32;
	uint64_t h = n_blocks ? xxh_blocks(bytes, n_blocks, seed) : seed + PRIME5;

	h += n;
	if (n % 32)
		h = xxh_tail(h, (const uint8_t *)bytes + 32 * n_blocks, n % 32);
	return xxh_finish(h);
}

uint64_t
hash_mix(uint64_t a, uint64_t b)
{
	uint64_t h = rotate_left(a ^ xxh_round(PRIME5, b), 27) * PRIME1 + PRIME4;

	return xxh_finish(h);
}
