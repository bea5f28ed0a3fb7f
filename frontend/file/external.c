/* Reads tensor data from external files, which a model names by paths relative to its folder. Such
 * a file must be regular and have no second hard link. pread, unlike a mapping, gives an error
 * instead of a signal if the file shrinks meanwhile. */
#include "frontend/file/external.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
	int fd;
	int64_t size;
	bool tried;
} ExternalFile;

static bool
parse_whole(const char *text, int64_t *out)
{
	if (!*text || strlen(text) > 19)
		return false;
	*out = 0;
	for (const char *p = text; *p; p++) {
		if (*p < '0' || *p > '9' || !size_mul(*out, 10, out) ||
		    !size_add(*out, *p - '0', out))
			return false;
	}
	return true;
}

/* Keys that other programs add and gradc ignores. `prepacked_0`: onnxruntime's copy of a weight in
 * the order of its kernels. `basepath`: the folder from which onnx's tools loaded the data. */
static bool
is_passed_over(const char *key)
{
	static const char prepacked[] = "prepacked_";

	return strcmp(key, "basepath") == 0 || strncmp(key, prepacked, sizeof(prepacked) - 1) == 0;
}

/* Sets a key of the standard. Returns a fault or NULL. */
static const char *
set_key(ExternalData *e, unsigned *seen, const char *key, const char *value)
{
	static const char *const keys[] = {"location", "offset", "length", "checksum"};
	int k = 0;

	while (k < COUNT(keys) && strcmp(key, keys[k]))
		k++;
	if (k == COUNT(keys))
		return is_passed_over(key) ? NULL : "has an unknown key of external data";
	if (*seen >> k & 1)
		return "has a key of external data twice";
	*seen |= 1u << k;
	if (k == 0)
		e->location = value;
	if (k == 1 && !parse_whole(value, &e->offset))
		return "has an external offset that is no whole number";
	if (k == 2 && !parse_whole(value, &e->length))
		return "has an external length that is no whole number";
	if (k == 3)
		e->checksum = value;
	return NULL;
}

static const char save_again[] =
	"in Python `onnx.save(onnx.load(FILE), NEW, save_as_external_data=True)` writes a model with "
	"its data beside it, by the keys location, offset and length";

bool
external_parse(const Model *model, const TensorProto *t, ExternalData *out, Diag *diag)
{
	const char *fault = NULL, *at = NULL;
	unsigned seen = 0;

	*out = (ExternalData){.length = -1};
	for (size_t i = 0; i < t->n_external_data && !fault; i++) {
		const Onnx__StringStringEntryProto *p = t->external_data[i];
		at = p->key ? p->key : "";
		fault = set_key(out, &seen, at, p->value ? p->value : "");
	}
	if (!fault) {
		fault = external_location(model->arena, out->location, &out->location);
		at = out->location;
	}
	if (!fault)
		return true;
	model_error(model, diag, EXIT_INVALID, "tensor %s %s%s%s",
	            quoted(model, t->name ? t->name : ""), fault, at ? ": " : "",
	            at ? quoted(model, at) : "");
	diag_hint(diag, "%s", save_again);
	return false;
}

static bool
file_fault(const Model *model, const char *location, int exit_code, const char *what, Diag *diag)
{
	model_error(model, diag, exit_code, "external data %s: %s", quoted(model, location), what);
	return false;
}

static bool
open_fault(const Model *model, const char *location, const char *path, int error, Diag *diag)
{
	bool outside = path && (error == ELOOP || error == EXDEV), two = error == ENOTUNIQ;
	const char *folder = model->folders.n ? quoted(model, model->folders.at[0]) : "its folder";

	file_fault(model, location,
	           outside || two || error == ENXIO || error == ELOOP ? EXIT_INVALID : EXIT_SYSTEM,
	           outside ? "a link leads out of the model's folder"
	           : two   ? "there are two files of that name"
	                   : strerror(error),
	           diag);
	if (two)
		diag_hint(diag,
		          "%s is a link: one file lies beside the link, the other beside the "
		          "link's target; remove the file that is not the model's, or give the "
		          "path of the target",
		          quoted(model, model->path));
	if (outside)
		diag_hint(diag,
		          "the link leads to %s; copy that file into %s, or copy the model beside "
		          "that file",
		          quoted(model, path), folder);
	if (error == ENOENT)
		diag_hint(diag,
		          "the model's data are in a second file; put it into %s under the name "
		          "that the model gives: %s",
		          folder, quoted(model, location));
	return false;
}

static bool
open_file(Model *model, const char *location, ExternalFile *file, Diag *diag)
{
	const char *path;
	struct stat st;

	file->fd = external_open_path(model->arena, &model->folders, location, &path);
	if (file->fd < 0)
		return open_fault(model, location, path, errno, diag);
	bool regular = fstat(file->fd, &st) == 0 && S_ISREG(st.st_mode);
	if (!regular || st.st_nlink != 1) {
		close(file->fd);
		file_fault(model, location, EXIT_INVALID, "not a regular file with one name", diag);
		/* refused as in onnxruntime: a second hard link may be any file of this disk */
		if (regular)
			diag_hint(diag,
			          "it is a hard link, one of %lld names of the file; a copy "
			          "(`cp FILE COPY; mv COPY FILE`) has a name of its own",
			          (long long)st.st_nlink);
		return false;
	}
	file->size = st.st_size;
	vec_push(model->arena, &model->fds, file->fd);
	return true;
}

bool
external_open(Model *model, const TensorProto *t, const ExternalData *e, int64_t bytes, int *fd,
              Diag *diag)
{
	ExternalFile *file = strmap_get(model->files, e->location);
	int64_t end;

	if (!file) {
		file = NEW(model->arena, ExternalFile);
		file->fd = -1;
		strmap_put(model->files, e->location, file);
	}
	/* A file is opened once for all its tensors. If an earlier attempt failed but `diag` has no
	 * error, this is another import of the same model: try again, to report the fault there. */
	if (file->fd < 0 && (!file->tried || diag_errors(diag) == 0) &&
	    !open_file(model, e->location, file, diag))
		file->fd = -1;
	file->tried = true;
	*fd = file->fd;
	if (file->fd < 0)
		return false;
	const char *name = quoted(model, t->name ? t->name : "");
	if (e->length >= 0 && e->length != bytes) {
		model_error(model, diag, EXIT_INVALID,
		            "tensor %s: external length is %lld bytes, its "
		            "shape needs %lld",
		            name, (long long)e->length, (long long)bytes);
		return false;
	}
	if (!size_add(e->offset, bytes, &end) || e->offset > file->size) {
		model_error(model, diag, EXIT_INVALID,
		            "tensor %s: external offset %lld is after the end of a file of %lld "
		            "bytes",
		            name, (long long)e->offset, (long long)file->size);
		return false;
	}
	if (end > file->size) {
		model_error(model, diag, EXIT_SYSTEM,
		            "tensor %s: needs bytes %lld to %lld of external data %s, which has "
		            "only %lld",
		            name, (long long)e->offset, (long long)end, quoted(model, e->location),
		            (long long)file->size);
		if (file->size < 512)
			diag_hint(diag, "a file this small may be a pointer of Git LFS: `git lfs "
			                "pull` fetches the data");
		return false;
	}
	return true;
}

void
external_close_all(Model *model)
{
	for (int i = 0; i < model->fds.n; i++)
		close(model->fds.at[i]);
	model->fds.n = 0;
}
