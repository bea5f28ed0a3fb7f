/* Keeps the output of NVRTC (NVIDIA's compiler for CUDA C) on disk, so that an unchanged kernel
 * is not compiled again: $XDG_CACHE_HOME/gradc/KEY.cuda, or ~/.cache/gradc.
 *
 * Any number of processes may use the cache at the same time. An entry gets its name only when it
 * is complete, and every process would write the same bytes under this name. If an entry is
 * removed while a process has it open, that process can still read it. An entry is only used if
 * its header, key and checksum agree; otherwise it is written again. Errors of the file system
 * are treated like a missing entry. */
#include "codegen/cuda/nvrtc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ENTRY_MAGIC 0x3155434441524721ull /* "!GRADCU1" */
#define ENTRY_SUFFIX ".cuda"
enum { KEY_DIGITS = 32, STALE_SECONDS = 3600 };

typedef struct {
	uint64_t magic;
	CacheKey key;
	int64_t log_bytes, code_bytes;       /* the log ends with NUL */
	char architecture[16], compiler[16]; /* for --list */
	uint64_t checksum;                   /* of everything except the checksum itself */
} EntryHeader;

/* ---- the folder */
CudaCache
cuda_cache_open(Arena *arena)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

	/* The XDG base directory specification says to ignore a relative path. */
	if (cache && *cache == '/')
		return (CudaCache){path_join(arena, cache, "gradc")};
	if (home && *home == '/')
		return (CudaCache){path_join(arena, home, ".cache/gradc")};
	return (CudaCache){0};
}

static const char *
entry_path(const CudaCache *c, Arena *arena, CacheKey key)
{
	return path_join(arena, c->folder,
	                 arena_printf(arena, "%016llx%016llx" ENTRY_SUFFIX,
	                              (unsigned long long)key.words[0],
	                              (unsigned long long)key.words[1]));
}

/* ---- an entry */
static CacheKey
add_text(CacheKey key, const char *text)
{
	for (int i = 0; i < COUNT(key.words); i++)
		key.words[i] = hash_bytes(text, strlen(text) + 1, key.words[i]);
	return key;
}

CacheKey
cuda_cache_key(const char *source, const char *architecture, const Nvrtc *compiler)
{
	CacheKey key = add_text((CacheKey){{0, 1}}, compiler->identity);

	for (int i = 0; i < N_NVRTC_OPTIONS; i++)
		key = add_text(key, nvrtc_options[i]);
	return add_text(add_text(key, architecture), source);
}

static uint64_t
checksum(const EntryHeader *h, const char *log, const char *code)
{
	EntryHeader without = *h;

	without.checksum = 0;
	uint64_t hash = hash_bytes(&without, sizeof(without), 0);
	hash = hash_bytes(log, (size_t)h->log_bytes, hash);
	return hash_bytes(code, (size_t)h->code_bytes, hash);
}

/* Is the entry complete and undamaged? key NULL: any key. */
static bool
is_sound(const char *bytes, int64_t n, const CacheKey *key)
{
	const EntryHeader *h = (const EntryHeader *)bytes;

	if (n < (int64_t)sizeof(*h) || h->magic != ENTRY_MAGIC)
		return false;
	if (key && memcmp(&h->key, key, sizeof(*key)) != 0)
		return false;
	int64_t rest = n - (int64_t)sizeof(*h);
	if (h->log_bytes < 1 || h->log_bytes > rest || h->code_bytes != rest - h->log_bytes)
		return false;
	const char *log = bytes + sizeof(*h), *code = log + h->log_bytes;
	return h->checksum == checksum(h, log, code) && code[-1] == '\0' &&
	       memchr(h->architecture, '\0', sizeof(h->architecture)) &&
	       memchr(h->compiler, '\0', sizeof(h->compiler));
}

static bool
read_sound(Arena *arena, const char *path, const CacheKey *key, void **bytes)
{
	int64_t n;
	Status status = file_read(arena, path, CUDA_CACHE_BYTES, bytes, &n);
	bool sound = !status && is_sound(*bytes, n, key);

	status_free(status);
	return sound;
}

bool
cuda_cache_get(const CudaCache *c, Arena *arena, CacheKey key, CudaCode *out)
{
	void *bytes;

	if (!c->folder)
		return false;
	const char *path = entry_path(c, arena, key);
	if (!read_sound(arena, path, &key, &bytes))
		return false;
	const EntryHeader *h = bytes;
	out->log = (const char *)(h + 1);
	out->at = out->log + h->log_bytes;
	out->n = h->code_bytes;
	/* sets the time of the entry's last use to now */
	utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
	return true;
}

static Status
write_entry(const char *path, const EntryHeader *h, const CudaCode *code)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open_name(path, &w));
	Status status = file_writer_add(w, h, sizeof(*h));
	if (!status)
		status = file_writer_add(w, code->log, h->log_bytes);
	if (!status)
		status = file_writer_add(w, code->at, h->code_bytes);
	return file_writer_end(w, status);
}

void
cuda_cache_put(const CudaCache *c, CacheKey key, const char *architecture, const char *compiler,
               const CudaCode *code)
{
	EntryHeader h = {.magic = ENTRY_MAGIC,
	                 .key = key,
	                 .log_bytes = (int64_t)strlen(code->log) + 1,
	                 .code_bytes = code->n};

	if (!c->folder)
		return;
	snprintf(h.architecture, sizeof(h.architecture), "%s", architecture);
	snprintf(h.compiler, sizeof(h.compiler), "%s", compiler);
	h.checksum = checksum(&h, code->log, code->at);
	Arena *arena = arena_new();
	Status status = folder_make(c->folder);
	if (!status)
		status = write_entry(entry_path(c, arena, key), &h, code);
	status_free(status);
	arena_free(arena);
}

/* ---- all entries */
static bool
is_entry(const char *name)
{
	return strspn(name, "0123456789abcdef") == KEY_DIGITS &&
	       strcmp(name + KEY_DIGITS, ENTRY_SUFFIX) == 0;
}

/* Is this a file that a killed process left? file_writer_open chooses such names. */
static bool
is_temporary(const char *name)
{
	size_t n = strlen(name);

	return strncmp(name, ".gradc-", 7) == 0 && n > 4 && strcmp(name + n - 4, ".tmp") == 0;
}

typedef struct {
	const char *path, *name;
	int64_t bytes;
	struct timespec used;
	bool temporary;
} Found;
typedef VEC(Found) Founds;

/* Lists the cache's files; other files are ignored. */
static Status
scan(const CudaCache *c, Arena *arena, Founds *out)
{
	DIR *folder = c->folder ? opendir(c->folder) : NULL;

	*out = (Founds){0};
	if (!folder)
		return !c->folder || errno == ENOENT
		               ? NULL
		               : status_error(EXIT_SYSTEM, "%s: %s", c->folder, strerror(errno));
	for (struct dirent *e; (e = readdir(folder));) {
		struct stat st;
		Found f = {.name = e->d_name, .temporary = is_temporary(e->d_name)};
		if ((!f.temporary && !is_entry(e->d_name)) ||
		    fstatat(dirfd(folder), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		f.name = arena_strdup(arena, e->d_name);
		f.path = path_join(arena, c->folder, f.name);
		f.bytes = st.st_size;
		f.used = st.st_mtim;
		vec_push(arena, out, f);
	}
	closedir(folder);
	return NULL;
}

static int
latest_first(const void *a, const void *b)
{
	const Found *x = a, *y = b;

	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? 1 : -1;
	if (x->used.tv_nsec != y->used.tv_nsec)
		return x->used.tv_nsec < y->used.tv_nsec ? 1 : -1;
	return strcmp(x->name, y->name);
}

static void
sort(Founds *list)
{
	if (list->n)
		qsort(list->at, (size_t)list->n, sizeof(*list->at), latest_first);
}

void
cuda_cache_trim(const CudaCache *c)
{
	Arena *arena = arena_new();
	Founds all;
	int64_t bytes = 0;

	status_free(scan(c, arena, &all));
	sort(&all);
	for (int i = 0; i < all.n; i++) {
		const Found *f = &all.at[i];
		bool stale = f->temporary && time(NULL) - f->used.tv_sec > STALE_SECONDS;
		bytes += f->temporary ? 0 : f->bytes;
		if (stale || (!f->temporary && bytes > CUDA_CACHE_BYTES))
			unlink(f->path);
	}
	arena_free(arena);
}

Status
cuda_cache_list(const CudaCache *c, Arena *arena, CudaCacheEntries *out)
{
	Founds all;

	*out = (CudaCacheEntries){0};
	RETURN_IF_ERROR(scan(c, arena, &all));
	sort(&all);
	for (int i = 0; i < all.n; i++) {
		const Found *f = &all.at[i];
		CudaCacheEntry e = {.key = arena_strndup(arena, f->name, KEY_DIGITS),
		                    .bytes = f->bytes,
		                    .used = f->used.tv_sec};
		Arena *of_file = arena_new();
		void *bytes;
		if (!f->temporary && read_sound(of_file, f->path, NULL, &bytes)) {
			const EntryHeader *h = bytes;
			e.architecture = arena_strdup(arena, h->architecture);
			e.compiler = arena_strdup(arena, h->compiler);
		}
		arena_free(of_file);
		if (!f->temporary)
			vec_push(arena, out, e);
	}
	return NULL;
}

Status
cuda_cache_clear(const CudaCache *c, Arena *arena, int *files, int64_t *bytes)
{
	Founds all;

	*files = 0;
	*bytes = 0;
	RETURN_IF_ERROR(scan(c, arena, &all));
	for (int i = 0; i < all.n; i++) {
		if (unlink(all.at[i].path) == 0) {
			*files += 1;
			*bytes += all.at[i].bytes;
		} else if (errno != ENOENT) { /* another process may have removed the file */
			return status_error(EXIT_SYSTEM, "%s: %s", all.at[i].path, strerror(errno));
		}
	}
	return NULL;
}
