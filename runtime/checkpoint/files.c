/* Writes the files of a checkpoint. A rank that saves alone writes all files in one job. Ranks that save together write their
 * shards into one temporary folder; when all shards are on the disk, rank 0 writes the manifest and gives the folder its name. */
#include "runtime/checkpoint/parts.h"
#include "runtime/checkpoint/write.h"
#include "runtime/host/host.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Checksums of a file's parts, computed while the file is read. */
typedef struct {
	Checksum checksum; /* of part `next` so far */
	uint64_t *checksums;
	int next;
} PartChecksums;

static void
hash_part(void *context, int part, const void *bytes, int64_t n)
{
	PartChecksums *c = context;

	while (c->next < part)
		c->checksums[c->next++] = checksum_end(&c->checksum);
	checksum_add(&c->checksum, bytes, n);
}

/* The contents of a file: its parts and their checksums. */
typedef struct {
	const char *path;
	FilePart *parts;
	uint64_t *checksums;
	int n;
} PartFile;

static Status
file_begin(const SaveJob *job, const PartFile *file)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open_part(file->path, job->window.at, job->window.bytes, &w));
	return file_writer_end(w, file_writer_add_parts(w, file->parts, file->n));
}

/* Syncs the file to the disk, reads it back, and compares the checksums of its parts. */
static Status
file_complete(const SaveJob *job, const PartFile *file)
{
	PartChecksums again = {.checksums = NEW_ARRAY(job->arena, uint64_t, file->n)};
	FileSink sink = {&again, hash_part};
	int64_t at = 0;

	checksum_begin(&again.checksum);
	RETURN_IF_ERROR(file_sync_parts(file->path, file->parts, file->n, job->window.at,
	                                job->window.bytes, &sink));
	hash_part(&again, file->n, NULL, 0);
	for (int i = 0; i < file->n; at += file->parts[i++].n)
		if (file->checksums[i] != again.checksums[i])
			return status_error(EXIT_SYSTEM,
			                    "%s: bytes %lld to %lld are not what was written: the "
			                    "disk is damaged",
			                    file->path, (long long)at,
			                    (long long)(at + file->parts[i].n));
	return NULL;
}

/* ---- shards */
static SafeTensor
shard_tensor(const SaveJob *job, const SavedPlace *p, const HashedCopy *copy)
{
	const SavedTensor t = saved_tensor(job->format, &job->format->states[p->state]);
	SafeTensor out = {.name = t.name,
	                  .dtype = t.dtype,
	                  .rank = t.rank,
	                  .n_bytes = p->bytes,
	                  .data = copy->to.at};

	memcpy(out.dims, t.dims, sizeof(t.dims));
	if (p->bytes < saved_bytes(job->format, &job->format->states[p->state])) {
		out.rank = 1;
		out.dims[0] = p->count;
	}
	return out;
}

/* Describes the shard that holds places [first, first + n). */
static Status
shard_file(SaveJob *job, int first, int n, Shard *shard, PartFile *out)
{
	const HashedCopy *copies = job->snapshot.copies + first;
	SafeTensor *tensors = NEW_ARRAY(job->arena, SafeTensor, n);
	int *order = NEW_ARRAY(job->arena, int, n);

	for (int i = 0; i < n; i++)
		tensors[i] = shard_tensor(job, &job->layout->places[first + i], &copies[i]);
	*out = (PartFile){path_join(job->arena, job->temporary, shard->file),
	                  NEW_ARRAY(job->arena, FilePart, n + 1),
	                  NEW_ARRAY(job->arena, uint64_t, n + 1), n + 1};
	RETURN_IF_ERROR(safetensors_parts(job->arena, out->path, tensors, n, out->parts, order));
	out->checksums[0] = shard->header = checksum_bytes(out->parts[0].at, out->parts[0].n);
	for (int i = 0; i < n; i++)
		out->checksums[i + 1] = copies[order[i]].checksum;
	for (int i = 0; i <= n; i++)
		shard->bytes += out->parts[i].n;
	return NULL;
}

/* Begins to write the file of each of this rank's shards, and records the shards in job->own. */
static Status
begin_shards(SaveJob *job, PartFile *files)
{
	const SavedLayout *l = job->layout;

	snapshot_hash(&job->snapshot);
	job->own.checksums = NEW_ARRAY(job->arena, uint64_t, l->n);
	for (int i = 0; i < l->n; i++)
		job->own.checksums[i] = job->snapshot.copies[i].checksum;
	job->own.shards = NEW_ARRAY(job->arena, Shard, l->n_shards);
	for (int i = 0, first = 0, n; i < l->n_shards; i++, first += n) {
		Shard *shard = &job->own.shards[i];

		for (n = 0; first + n < l->n && l->places[first + n].shard == i; n++)
			;
		shard->file = shard_name(job->arena, job->rank, i);
		RETURN_IF_ERROR(shard_file(job, first, n, shard, &files[i]));
		RETURN_IF_ERROR(file_begin(job, &files[i]));
	}
	return NULL;
}

static Status
begin_manifest(SaveJob *job, PartFile *out)
{
	*out = (PartFile){path_join(job->arena, job->temporary, MANIFEST_FILE),
	                  NEW(job->arena, FilePart), NEW(job->arena, uint64_t), 1};
	RETURN_IF_ERROR(manifest_text(job->arena, out->path, &job->manifest, out->parts));
	*out->checksums = checksum_bytes(out->parts->at, out->parts->n);
	return file_begin(job, out);
}

static Status
complete(SaveJob *job, const PartFile *files, int n)
{
	for (int i = 0; i < n; i++)
		RETURN_IF_ERROR(file_complete(job, &files[i]));
	return folder_sync(job->temporary);
}

/* Writes all files, then syncs and reads back all of them. Only then does the checkpoint get its name, and only after that are
 * older checkpoints removed. */
static Status
write_all(SaveJob *job)
{
	int n = job->layout->n_shards;
	PartFile *files = NEW_ARRAY(job->arena, PartFile, n + 1);

	RETURN_IF_ERROR(begin_shards(job, files));
	shards_collect(job->arena, job->format, job->layout, &job->own, 1, &job->manifest);
	RETURN_IF_ERROR(begin_manifest(job, &files[n]));
	return complete(job, files, n + 1);
}

/* ---- the temporary folder */
/* Only rank 0's process removes the temporary folder when it ends. If another rank ends, it must not remove shards of a
 * checkpoint that may be complete by now. */
static Status
make_folder(SaveJob *job)
{
	if (!job->temporary)
		job->temporary = folder_temporary(job->arena, job->folder);
	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", job->temporary);
	int made = mkdir(job->temporary, 0777), error = errno;
	bool is_there = made == 0 || (error == EEXIST && job->stage == SAVE_SHARDS);
	job->cleanup = is_there && job->rank == 0 ? cleanup_add_path(job->temporary) : -1;
	cleanup_end_making();
	return is_there ? NULL
	                : status_error(EXIT_SYSTEM, "%s: %s", job->temporary, strerror(error));
}

static void
remove_folder(void *save_job)
{
	SaveJob *job = save_job;

	folder_remove(job->temporary);
	cleanup_forget(job->cleanup);
	job->cleanup = -1;
}

static void
end_making(void *unused)
{
	(void)unused;
	cleanup_end_making();
}

/* Gives the checkpoint its name. Not if the process is ending: its cleanup may have removed some of the files already. */
static Status
give_name(SaveJob *job)
{
	const Manifest *m = &job->manifest;
	CheckpointEntry entry = {m->step, m->serial, .run = m->run, .only_best = m->only_best};
	bool beside = false; /* the checkpoint could not have its usual name */

	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", job->temporary);
	memory_hold(end_making, NULL);
	Status status = folder_add(job->folder, job->temporary, &entry, &beside);
	memory_let_go();
	cleanup_end_making();
	if (!status && beside)
		job->beside = folder_entry_path(job->arena, job->folder, &entry);
	return status;
}

/* ---- a job */
/* Checks that rank 0 can see a shard that another rank has written. On another machine, the same path may be another disk. */
static Status
check_shard(SaveJob *job, const Shard *shard)
{
	const char *path = path_join(job->arena, job->temporary, shard->file);
	int64_t n;
	int fd;

	Status status = file_open_regular(path, EXIT_SYSTEM, &fd, &n);
	if (!status)
		close(fd);
	if (!status && n != shard->bytes)
		status = status_error(EXIT_SYSTEM, "%s: %lld bytes", path, (long long)n);
	if (!status)
		return NULL;
	Status why = status_error(EXIT_SYSTEM,
	                          "%s, of %lld that its rank has written: do all ranks see the "
	                          "same folder there?",
	                          status->message, (long long)shard->bytes);
	status_free(status);
	return why;
}

static Status
write_manifest(SaveJob *job)
{
	PartFile file;

	for (int i = 0; i < job->manifest.n_shards; i++)
		RETURN_IF_ERROR(check_shard(job, &job->manifest.shards[i]));
	RETURN_IF_ERROR(begin_manifest(job, &file));
	return complete(job, &file, 1);
}

static Status
write_shards(SaveJob *job)
{
	PartFile *files = NEW_ARRAY(job->arena, PartFile, job->layout->n_shards + 1);

	RETURN_IF_ERROR(make_folder(job));
	RETURN_IF_ERROR(begin_shards(job, files));
	return complete(job, files, job->layout->n_shards);
}

/* Ends the job: either the checkpoint gets its name, or the temporary folder is removed. */
static Status
finish(SaveJob *job)
{
	memory_hold(remove_folder, job);
	Status status = job->stage == SAVE_REMOVE ? job->why
	                : job->stage == SAVE_ALL  ? write_all(job)
	                                          : write_manifest(job);
	if (!status)
		status = give_name(job);
	memory_let_go();
	if (status)
		remove_folder(job);
	cleanup_forget(job->cleanup);
	job->cleanup = -1;
	if (!status)
		folder_rotate(job->folder, job->manifest.run, job->keep, job->best);
	return status;
}

Status
checkpoint_write(SaveJob *job)
{
	if (job->stage == SAVE_SHARDS)
		return write_shards(job);
	if (job->stage == SAVE_ALL)
		RETURN_IF_ERROR(make_folder(job));
	return finish(job);
}
