/* Tensor data in files beside the model. A location is opened by descriptor, below the model's
 * folder and through no link; it must be a regular file with one name. Data is read with pread, so
 * that a file that shrinks is an error and no signal. */
#define _GNU_SOURCE
#include "frontend/frontend_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
	int fd;
	int64_t size;
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

/* One of the keys that the standard knows; a fault or NULL. */
static const char *
set_key(ExternalData *e, unsigned *seen, const char *key, const char *value)
{
	static const char *const keys[] = {"location", "offset", "length", "checksum", "basepath"};
	int k = 0;

	while (k < COUNT(keys) && strcmp(key, keys[k]))
		k++;
	if (k == COUNT(keys))
		return "has an unknown key of external data";
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
	return k == 4 ? "has a basepath, which is not supported" : NULL;
}

/* Relative, no empty, `.` or `..` component, no backslash or drive letter. */
static const char *
location_fault(const char *s)
{
	if (!s || !*s)
		return "has external data without a location";
	if (strlen(s) > 4095)
		return "has an external location of more than 4095 bytes";
	if (strchr(s, '\\') || (s[0] && s[1] == ':'))
		return "has an external location with a backslash or a drive letter";
	for (const char *p = s;; p++) {
		size_t n = strcspn(p, "/");
		if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && !strncmp(p, "..", 2)))
			return "has an external location that is not a plain path below the "
			       "model's folder";
		p += n;
		if (!*p)
			return NULL;
	}
}

bool
external_parse(const Model *model, const TensorProto *t, ExternalData *out, Diag *diag)
{
	const char *fault = NULL;
	unsigned seen = 0;

	*out = (ExternalData){.length = -1};
	for (size_t i = 0; i < t->n_external_data && !fault; i++) {
		const Onnx__StringStringEntryProto *p = t->external_data[i];
		fault = set_key(out, &seen, p->key ? p->key : "", p->value ? p->value : "");
	}
	if (!fault)
		fault = location_fault(out->location);
	if (fault)
		model_error(model, diag, EXIT_INVALID, "tensor %s %s%s%s",
		            quoted(model, t->name ? t->name : ""), fault, out->location ? ": " : "",
		            out->location ? quoted(model, out->location) : "");
	return !fault;
}

/* The kernel resolves the whole path; where it cannot (before Linux 5.6), component by component. */
static int
open_below(int folder, const char *location)
{
	struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
	                       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
	long fd = syscall(SYS_openat2, folder, location, &how, sizeof(how));

	if (fd >= 0 || errno != ENOSYS)
		return (int)fd;
	int at = dup(folder);
	while (at >= 0) {
		char part[256];
		size_t n = strcspn(location, "/");
		if (n >= sizeof(part)) {
			close(at);
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(part, location, n);
		part[n] = 0;
		int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
		int next = openat(at, part, location[n] ? flags | O_DIRECTORY : flags);
		int error = errno;
		close(at);
		errno = error;
		at = next;
		if (!location[n])
			break;
		location += n + 1;
	}
	return at;
}

static bool
file_fault(const Model *model, const char *location, int exit_code, const char *what, Diag *diag)
{
	model_error(model, diag, exit_code, "external data %s: %s", quoted(model, location), what);
	return false;
}

static bool
open_file(Model *model, const char *location, ExternalFile *file, Diag *diag)
{
	int folder = open(model->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat st;

	if (folder < 0)
		return file_fault(model, location, EXIT_SYSTEM, strerror(errno), diag);
	file->fd = open_below(folder, location);
	int error = errno;
	close(folder);
	if (file->fd < 0 && (error == ELOOP || error == EXDEV))
		return file_fault(model, location, EXIT_INVALID,
		                  "leads out of the model's folder or "
		                  "through a link",
		                  diag);
	if (file->fd < 0)
		return file_fault(model, location, error == ENXIO ? EXIT_INVALID : EXIT_SYSTEM,
		                  strerror(error), diag);
	if (fstat(file->fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1) {
		close(file->fd);
		return file_fault(model, location, EXIT_INVALID, "not a regular file with one name",
		                  diag);
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
		strmap_put(model->files, e->location, file);
		if (!open_file(model, e->location, file, diag))
			file->fd = -1;
	}
	*fd = file->fd;
	if (file->fd < 0)
		return false; /* reported when it was opened */
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
		            "tensor %s: external offset %lld of a file of "
		            "%lld bytes",
		            name, (long long)e->offset, (long long)file->size);
		return false;
	}
	if (end > file->size) {
		model_error(model, diag, EXIT_SYSTEM,
		            "tensor %s: bytes %lld to %lld of external data "
		            "%s, which has %lld",
		            name, (long long)e->offset, (long long)end, quoted(model, e->location),
		            (long long)file->size);
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
