/* Reads checkpoints, to verify them or to load their states. Checks that the manifest fits the model, that the shards fit the
 * manifest, and that every byte is covered by a checksum that matches. Files may be damaged or hostile. */
#include "runtime/checkpoint/parts.h"
#include "runtime/host/host.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- manifest against model */

static Status
check_type(Arena *arena, const char *path, const Format *f, const SavedTensor *t,
           const StateRecord *s)
{
	const int64_t *dims = f->dims + s->first_dim;

	if (t->dtype == (DType)s->dtype && t->rank == (int)s->rank &&
	    memcmp(t->dims, dims, sizeof(*dims) * s->rank) == 0)
		return NULL;
	return status_error(EXIT_CHECKPOINT,
	                    "%s: tensor \"%s\" is %s%s, this model's is %s%s: the checkpoint is of "
	                    "another model",
	                    path, t->name, dtype_info[t->dtype].name,
	                    shape_text(arena, t->rank, t->dims), dtype_info[s->dtype].name,
	                    shape_text(arena, (int)s->rank, dims));
}

/* Checks that every tensor is a saved state of the model, and that no tensor comes twice. */
static Status
match_tensors(Checkpoint *c, const char *path, const Format *f, const int *saved, int n, bool *seen)
{
	StrMap *names = strmap_new(c->arena);

	for (int i = 0; i < n; i++)
		strmap_put(names, format_text(f, f->states[saved[i]].name), (void *)&saved[i]);
	for (int i = 0; i < c->manifest.n_tensors; i++) {
		const SavedTensor *t = &c->manifest.tensors[i];
		const int *state = strmap_get(names, t->name);

		if (!state)
			return status_error(EXIT_CHECKPOINT,
			                    "%s: this model saves no tensor \"%s\": the checkpoint "
			                    "is of another model or optimizer",
			                    path, t->name);
		if (seen[*state])
			return status_error(EXIT_CHECKPOINT, "%s: tensor \"%s\" is there twice",
			                    path, t->name);
		c->states[i] = *state;
		seen[*state] = true;
		RETURN_IF_ERROR(check_type(c->arena, path, f, t, &f->states[*state]));
	}
	return NULL;
}

static Status
match_model(Checkpoint *c, const char *path, const Format *f)
{
	bool *seen = NEW_ARRAY(c->arena, bool, f->n[SECTION_STATES]);
	int n, *saved = saved_states(c->arena, f, &n);
	char hex[2][CHECKSUM_HEX + 1];

	RETURN_IF_ERROR(match_tensors(c, path, f, saved, n, seen));
	for (int i = 0; i < n; i++)
		if (!seen[saved[i]])
			return status_error(EXIT_CHECKPOINT,
			                    "%s: tensor \"%s\" is missing: the checkpoint is of "
			                    "another model or optimizer",
			                    path, format_text(f, f->states[saved[i]].name));
	uint64_t model = facts_model(f);
	if (c->manifest.model != model)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: the checkpoint is of another model or optimizer: its "
		                    "fingerprint is %s, this one's %s",
		                    path, checksum_text(hex[0], c->manifest.model),
		                    checksum_text(hex[1], model));
	return NULL;
}

/* Sorts the pieces by shard. */
static void
sort_pieces(Checkpoint *c)
{
	const Manifest *m = &c->manifest;
	int *next = NEW_ARRAY(c->arena, int, m->n_shards);
	int n = 0;

	c->first_piece = NEW_ARRAY(c->arena, int, m->n_shards + 1);
	for (int i = 0; i < m->n_tensors; i++)
		for (int k = 0; k < m->tensors[i].n_pieces; k++, n++)
			c->first_piece[m->tensors[i].pieces[k].shard + 1]++;
	for (int i = 0; i < m->n_shards; i++) {
		c->first_piece[i + 1] += c->first_piece[i];
		next[i] = c->first_piece[i];
	}
	c->pieces = NEW_ARRAY(c->arena, PieceRef, n);
	for (int i = 0; i < m->n_tensors; i++)
		for (int k = 0; k < m->tensors[i].n_pieces; k++)
			c->pieces[next[m->tensors[i].pieces[k].shard]++] = (PieceRef){i, k};
}

Status
checkpoint_open(Arena *arena, const Format *f, const char *path, Checkpoint *out)
{
	const char *manifest = path_join(arena, path, MANIFEST_FILE);

	*out = (Checkpoint){.arena = arena, .path = path};
	RETURN_IF_ERROR(manifest_read(arena, manifest, &out->manifest));
	out->states = NEW_ARRAY(arena, int, out->manifest.n_tensors);
	sort_pieces(out);
	return match_model(out, manifest, f);
}

/* ---- shards against manifest */

/* The file is read through a window: a buffer that fits into a core's cache. Many small tensors are then read with one system
 * call. */
enum { SHARD_WINDOW = 1 << 20 };
typedef struct {
	const Checkpoint *checkpoint;
	const CheckpointSink *sink;
	const char *path;
	int index; /* number of the shard */
	int fd;
	int64_t bytes; /* size of the file */
	char *window;
	int64_t first, last; /* range of the file in the window */
} ShardReader;

static Status
move_window(ShardReader *r, int64_t offset)
{
	int64_t left = r->bytes - offset, n = left < SHARD_WINDOW ? left : SHARD_WINDOW;

	r->first = r->last = offset;
	RETURN_IF_ERROR(file_pread(r->fd, r->path, r->window, n, offset));
	r->last = offset + n;
	return NULL;
}

/* Returns the file's bytes at `offset`, which it reads into the window. *n: how many bytes are in the window there, at most
 * `want`. */
static Status
see(ShardReader *r, int64_t offset, int64_t want, const char **bytes, int64_t *n)
{
	if (offset < r->first || offset >= r->last)
		RETURN_IF_ERROR(move_window(r, offset));
	*bytes = r->window + (offset - r->first);
	*n = r->last - offset < want ? r->last - offset : want;
	return NULL;
}

/* A range of bytes inside the file. */
typedef struct {
	int64_t offset, n;
	int state;     /* the state that the bytes belong to; -1 if they belong to no state */
	int64_t first; /* offset in the state */
} FileBytes;

/* Computes the checksum of the range. Bytes of a state also go to the sink. */
static Status
read_bytes(ShardReader *r, const FileBytes *b, uint64_t *checksum)
{
	Status status = NULL;
	const char *bytes;
	Checksum c;

	checksum_begin(&c);
	for (int64_t at = 0, part; at < b->n && !status; at += part) {
		status = see(r, b->offset + at, b->n - at, &bytes, &part);
		if (status)
			break;
		checksum_add(&c, bytes, part);
		if (r->sink && b->state >= 0)
			status = r->sink->take(r->sink->context, b->state, b->first + at, bytes,
			                       part);
	}
	*checksum = checksum_end(&c);
	if (status)
		status->exit_code = EXIT_CHECKPOINT;
	return status;
}

/* Reads the bytes before the tensors. safetensors_open has checked that the file has them. */
static Status
read_header(ShardReader *r, uint64_t *checksum)
{
	const char *length;
	int64_t n = 0, got;

	RETURN_IF_ERROR(see(r, 0, 8, &length, &got));
	for (int i = 0; i < got; i++)
		n |= (int64_t)(uint8_t)length[i] << 8 * i;
	return read_bytes(r, &(FileBytes){0, n + got, -1, 0}, checksum);
}

static const SavedTensor *
tensor_of(const ShardReader *r, PieceRef ref)
{
	return &r->checkpoint->manifest.tensors[ref.tensor];
}

/* `tensor "w"`, or `tensor "w", elements [0, 4),` for a piece. */
static const char *
piece_text(const ShardReader *r, PieceRef ref)
{
	const SavedTensor *t = tensor_of(r, ref);
	const SavedPiece *p = &t->pieces[ref.piece];
	Arena *arena = r->checkpoint->arena;

	return t->n_pieces == 1
	               ? arena_printf(arena, "tensor \"%s\"", t->name)
	               : arena_printf(arena, "tensor \"%s\", elements [%lld, %lld),", t->name,
	                              (long long)p->first, (long long)(p->first + p->count));
}

/* Checks a tensor's shape in the shard: a piece is stored with one axis, a whole tensor with its shape. */
static bool
has_type(const SafeTensor *got, const SavedTensor *t, const SavedPiece *p)
{
	int rank = t->n_pieces > 1 ? 1 : t->rank;
	const int64_t *dims = t->n_pieces > 1 ? &p->count : t->dims;

	return got->dtype == t->dtype && got->rank == rank &&
	       memcmp(got->dims, dims, sizeof(*dims) * (size_t)rank) == 0;
}

static FileBytes
bytes_of(const ShardReader *r, PieceRef ref)
{
	const SavedTensor *t = tensor_of(r, ref);
	const SavedPiece *p = &t->pieces[ref.piece];

	return (FileBytes){.n = dtype_bytes(t->dtype, p->count),
	                   .state = r->checkpoint->states[ref.tensor],
	                   .first = dtype_bytes(t->dtype, p->first)};
}

static bool
is_wanted(const ShardReader *r, PieceRef ref)
{
	FileBytes b = bytes_of(r, ref);

	return !r->sink || r->sink->wants(r->sink->context, b.state, b.first, b.n);
}

static Status
read_piece(ShardReader *r, const SafeTensor *t, PieceRef ref)
{
	const SavedPiece *want = &tensor_of(r, ref)->pieces[ref.piece];
	FileBytes bytes = bytes_of(r, ref);
	uint64_t checksum;
	char hex[2][CHECKSUM_HEX + 1];

	if (!has_type(t, tensor_of(r, ref), want))
		return status_error(EXIT_CHECKPOINT,
		                    "%s: %s has another type than the manifest says", r->path,
		                    piece_text(r, ref));
	if (!is_wanted(r, ref))
		return NULL;
	bytes.offset = t->offset;
	RETURN_IF_ERROR(read_bytes(r, &bytes, &checksum));
	if (checksum != want->checksum)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: %s is damaged: bytes %lld to %lld have the "
		                    "checksum %s, the manifest says %s",
		                    r->path, piece_text(r, ref), (long long)t->offset,
		                    (long long)(t->offset + t->n_bytes),
		                    checksum_text(hex[0], checksum),
		                    checksum_text(hex[1], want->checksum));
	return NULL;
}

/* The pieces of this shard; their number is *n. */
static const PieceRef *
pieces_of(const ShardReader *r, int *n)
{
	const Checkpoint *c = r->checkpoint;
	const int *first = &c->first_piece[r->index];

	*n = first[1] - first[0];
	return c->pieces + *first;
}

/* Checks that the shard holds exactly the pieces that the manifest lists for it. */
static Status
read_pieces(ShardReader *r, const SafeTensors *st)
{
	StrMap *found = strmap_new(r->checkpoint->arena);
	int n;
	const PieceRef *pieces = pieces_of(r, &n);

	for (int i = 0; i < st->n_tensors; i++)
		strmap_put(found, st->tensors[i].name, &st->tensors[i]);
	for (int i = 0; i < n; i++) {
		const SafeTensor *t = strmap_get(found, tensor_of(r, pieces[i])->name);
		if (!t)
			return status_error(EXIT_CHECKPOINT, "%s: %s is missing", r->path,
			                    piece_text(r, pieces[i]));
		RETURN_IF_ERROR(read_piece(r, t, pieces[i]));
	}
	if (n != st->n_tensors)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: %d tensors, the manifest has %d of this file", r->path,
		                    st->n_tensors, n);
	return NULL;
}

static Status
check_header(ShardReader *r)
{
	const Shard *shard = &r->checkpoint->manifest.shards[r->index];
	uint64_t checksum;
	char hex[2][CHECKSUM_HEX + 1];

	if (r->bytes != shard->bytes)
		return status_error(EXIT_CHECKPOINT, "%s: %lld bytes, the manifest says %lld",
		                    r->path, (long long)r->bytes, (long long)shard->bytes);
	RETURN_IF_ERROR(read_header(r, &checksum));
	if (checksum != shard->header)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: the header is damaged: its checksum is %s, the manifest "
		                    "says %s",
		                    r->path, checksum_text(hex[0], checksum),
		                    checksum_text(hex[1], shard->header));
	return NULL;
}

/* Adds to an error the names of the tensors in the damaged file: "PATH: why; it holds "w" and 3 more". */
static Status
name_tensors(const ShardReader *r, Status why)
{
	int n;
	const PieceRef *pieces = pieces_of(r, &n);

	if (!why || n == 0)
		return why;
	Status status = status_error(EXIT_CHECKPOINT, "%s; it holds tensor \"%s\" and %d more",
	                             why->message, tensor_of(r, pieces[0])->name, n - 1);
	status_free(why);
	return status;
}

static bool
is_shard_wanted(const ShardReader *r)
{
	int n;
	const PieceRef *pieces = pieces_of(r, &n);

	for (int i = 0; i < n; i++)
		if (is_wanted(r, pieces[i]))
			return true;
	return !r->sink;
}

static Status
read_shard(ShardReader *r)
{
	struct stat info = {0};
	SafeTensors st;

	if (!is_shard_wanted(r))
		return NULL;
	RETURN_IF_ERROR(name_tensors(
		r, safetensors_open(r->checkpoint->arena, r->path, EXIT_CHECKPOINT, &st)));
	fstat(st.fd, &info);
	r->fd = st.fd;
	r->bytes = info.st_size;
	Status status = name_tensors(r, check_header(r));
	if (!status)
		status = read_pieces(r, &st);
	safetensors_close(&st);
	return status;
}

Status
checkpoint_verify(const Checkpoint *c, const CheckpointSink *sink)
{
	char *window = arena_alloc(c->arena, SHARD_WINDOW);

	for (int i = 0; i < c->manifest.n_shards; i++) {
		const char *path = path_join(c->arena, c->path, c->manifest.shards[i].file);

		RETURN_IF_ERROR(read_shard(&(ShardReader){.checkpoint = c,
		                                          .sink = sink,
		                                          .path = path,
		                                          .index = i,
		                                          .window = window}));
	}
	return NULL;
}
