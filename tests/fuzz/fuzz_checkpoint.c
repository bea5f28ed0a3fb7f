/* Fuzzes the reading of checkpoints. The first byte chooses the meaning of the rest: a bare manifest, a manifest behind a
 * matching checksum, or a shard with a manifest that vouches for its size and header, with whole tensors or a piece of a
 * tensor. Input is refused with one message, or it is what the writer would write again. A shard is accepted only if its
 * tensors have the bytes that the manifest says. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/host/host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SHARD "shard-00000-00000.safetensors"
#define SECOND "shard-00001-00000.safetensors"
static const double scale = 0.5;
static const float matrix[] = {1, 2, 3, 4, 5, 6};
static Format format;
static char folder[] = "/dev/shm/gradc-fuzz-XXXXXX";

static void
add_state(FormatWriter *w, const char *name, DType dtype, int rank, const int64_t *dims,
          int64_t offset, int64_t bytes)
{
	StateRecord s = {.name = format_string(w, name),
	                 .dtype = dtype,
	                 .rank = (uint32_t)rank,
	                 .first_dim = format_dims(w, rank, dims),
	                 .lifetime = LIFE_SAVED,
	                 .offset = offset,
	                 .bytes = bytes,
	                 .data_offset = -1,
	                 .file_dtype = dtype};

	vec_push(w->arena, &w->states, s);
}

/* A model of two tensors, and a folder for its checkpoint. */
static void
prepare(void)
{
	static Arena *arena;
	const int64_t dims[] = {2, 3};
	int64_t bytes;

	if (arena)
		return;
	arena = arena_new();
	FormatWriter *w = format_writer_new(arena);
	add_state(w, "scale", F64, 0, dims, 0, sizeof(scale));
	add_state(w, "matrix", F32, 2, dims, 64, sizeof(matrix));
	w->state_bytes = 128;
	void *blob;
	if (format_finish(w, &blob, &bytes) || format_read(blob, bytes, &format) ||
	    !mkdtemp(folder))
		abort();
}

static const char *
path_of(Arena *arena, const char *name)
{
	return path_join(arena, folder, name);
}

static void
must(Status status)
{
	if (status) {
		fprintf(stderr, "%s\n", status->message);
		abort();
	}
}

/* A refusal must be one non-empty line with the checkpoint's exit code. */
static void
refused(Status status)
{
	if (status->exit_code != EXIT_CHECKPOINT || !*status->message)
		abort();
	status_free(status);
}

static void
write_manifest(Arena *arena, const char *path, const Manifest *m)
{
	FilePart text;

	must(manifest_text(arena, path, m, &text));
	must(file_write(path, text.at, text.n));
}

static bool
same_pieces(const SavedTensor *a, const SavedTensor *b)
{
	bool same = a->n_pieces == b->n_pieces;

	for (int i = 0; i < a->n_pieces && same; i++) {
		const SavedPiece *x = &a->pieces[i], *y = &b->pieces[i];
		same = x->shard == y->shard && x->first == y->first && x->count == y->count &&
		       x->checksum == y->checksum;
	}
	return same;
}

static void
fuzz_manifest(Arena *arena, const char *text, size_t n)
{
	Manifest m, again;
	Status status = manifest_parse(arena, MANIFEST_FILE, text, n, &m);

	if (status) {
		refused(status);
		return;
	}
	const char *path = path_of(arena, MANIFEST_FILE);
	write_manifest(arena, path, &m);
	must(manifest_read(arena, path, &again));
	if (m.step != again.step || m.samples != again.samples || m.run != again.run ||
	    m.n_tensors != again.n_tensors || m.n_shards != again.n_shards)
		abort();
	for (int i = 0; i < m.n_tensors; i++)
		if (strcmp(m.tensors[i].name, again.tensors[i].name) != 0 ||
		    !same_pieces(&m.tensors[i], &again.tensors[i]) ||
		    memcmp(m.tensors[i].dims, again.tensors[i].dims, sizeof(m.tensors[i].dims)) !=
		            0)
			abort();
	Checkpoint c;
	status = checkpoint_open(arena, &format, folder, &c);
	if (status)
		refused(status);
}

static void
fuzz_body(Arena *arena, const char *body, size_t n)
{
	static const char head[] = "{\n \"checksum\": \"";
	char hex[17];
	Text text = {0};

	text_add(&text, head);
	text_add(&text, checksum_text(hex, checksum_bytes(body, (int64_t)n)));
	text_add_bytes(&text, body, n);
	fuzz_manifest(arena, text.at, text.n);
	text_free(&text);
}

static SavedTensor
tensor(Arena *arena, const char *name, DType dtype, int rank, const void *bytes, int64_t n)
{
	SavedTensor t = {.name = name,
	                 .dtype = dtype,
	                 .rank = rank,
	                 .dims = {rank > 0 ? 2 : 0, rank > 1 ? 3 : 0},
	                 .n_pieces = 1};

	t.pieces = saved_whole(arena, &t, 0, checksum_bytes(bytes, n));
	return t;
}

enum {
	FIRST = 2
}; /* elements of the matrix in this shard; the rest are in a second, valid shard */

static Shard
cut(Arena *arena, SavedTensor *t)
{
	const char *path = path_of(arena, SECOND);
	SafeTensor rest = {.name = "matrix",
	                   .dtype = F32,
	                   .rank = 1,
	                   .dims = {COUNT(matrix) - FIRST},
	                   .n_bytes = sizeof(matrix) - FIRST * sizeof(*matrix),
	                   .data = matrix + FIRST};
	FilePart parts[2];

	must(safetensors_write(path, &rest, 1));
	must(safetensors_parts(arena, path, &rest, 1, parts, NULL));
	t->n_pieces = 2;
	t->pieces = NEW_ARRAY(arena, SavedPiece, 2);
	t->pieces[0] = (SavedPiece){0, 0, FIRST, checksum_bytes(matrix, FIRST * sizeof(*matrix))};
	t->pieces[1] = (SavedPiece){1, FIRST, COUNT(matrix) - FIRST,
	                            checksum_bytes(rest.data, rest.n_bytes)};
	return (Shard){SECOND, parts[0].n + parts[1].n, checksum_bytes(parts[0].at, parts[0].n)};
}

static Status
take(void *context, int state, int64_t offset, const void *bytes, int64_t n)
{
	memcpy((char *)context + (state == 0 ? 0 : 8) + offset, bytes, (size_t)n);
	return NULL;
}

static bool
wants_all(void *context, int state, int64_t offset, int64_t n)
{
	(void)context, (void)state, (void)offset, (void)n;
	return true;
}

static void
fuzz_shard(Arena *arena, const uint8_t *data, size_t n, bool in_pieces)
{
	char taken[sizeof(scale) + sizeof(matrix)] = {0};
	uint64_t header = 0;
	for (int i = 0; i < 8 && n >= 8; i++)
		header |= (uint64_t)data[i] << 8 * i;
	int64_t header_bytes = header < n ? 8 + (int64_t)header : (int64_t)n;
	if (header_bytes > (int64_t)n)
		header_bytes = (int64_t)n;
	Shard shards[2] = {{SHARD, (int64_t)n, checksum_bytes(data, header_bytes)}};
	SavedTensor tensors[] = {tensor(arena, "scale", F64, 0, &scale, sizeof(scale)),
	                         tensor(arena, "matrix", F32, 2, matrix, sizeof(matrix))};
	Manifest m = {.world = 1,
	              .model = facts_model(&format),
	              .tensors = tensors,
	              .n_tensors = COUNT(tensors),
	              .shards = shards,
	              .n_shards = in_pieces ? 2 : 1};
	CheckpointSink sink = {taken, take, wants_all};
	Checkpoint c;

	if (in_pieces)
		shards[1] = cut(arena, &tensors[1]);
	must(file_write(path_of(arena, SHARD), data, (int64_t)n));
	write_manifest(arena, path_of(arena, MANIFEST_FILE), &m);
	must(checkpoint_open(arena, &format, folder, &c));
	Status status = checkpoint_verify(&c, &sink);
	if (status)
		refused(status);
	else if (memcmp(taken, &scale, sizeof(scale)) != 0 ||
	         memcmp(taken + sizeof(scale), matrix, sizeof(matrix)) != 0)
		abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Arena *arena = arena_new();

	prepare();
	if (size > 0 && data[0] == 'm')
		fuzz_manifest(arena, (const char *)data + 1, size - 1);
	else if (size > 0 && data[0] == 'b')
		fuzz_body(arena, (const char *)data + 1, size - 1);
	else if (size > 0)
		fuzz_shard(arena, data + 1, size - 1, data[0] == 'p');
	arena_free(arena);
	return 0;
}
