/* The subcommand `gradc cache`: lists or removes the compiled CUDA kernels that are kept on
 * disk. */
#include "tools/tools.h"

#include <jansson.h>
#include <time.h>

/* "2026-11-25 14:03", in local time. */
static const char *
time_text(Arena *arena, int64_t seconds)
{
	time_t at = (time_t)seconds;
	struct tm parts;
	char text[32] = "";

	if (localtime_r(&at, &parts))
		strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
	return arena_strdup(arena, text);
}

static void
print_entries(Arena *arena, const CudaCache *cache, const CudaCacheEntries *list)
{
	int64_t bytes = 0;

	for (int i = 0; i < list->n; i++) {
		const CudaCacheEntry *e = &list->at[i];
		bytes += e->bytes;
		printf("%-12s NVRTC %-6s %9lld bytes  %s  %s\n",
		       e->architecture ? plain_text(arena, e->architecture) : "damaged",
		       e->compiler ? plain_text(arena, e->compiler) : "", (long long)e->bytes,
		       time_text(arena, e->used), e->key);
	}
	printf("%s: %d entries, %.1f of at most %lld MiB\n", plain_text(arena, cache->folder),
	       list->n, (double)bytes / (1 << 20), CUDA_CACHE_BYTES >> 20);
}

static json_t *
text_or_null(const char *text)
{
	return text ? json_name(text) : json_null();
}

static void
print_entries_json(const CudaCache *cache, const CudaCacheEntries *list)
{
	json_t *entries = json_array();

	for (int i = 0; i < list->n; i++) {
		const CudaCacheEntry *e = &list->at[i];
		json_array_append_new(entries,
		                      json_pack("{s:s, s:o, s:o, s:b, s:I, s:I}", "key", e->key,
		                                "architecture", text_or_null(e->architecture),
		                                "nvrtc", text_or_null(e->compiler), "damaged",
		                                !e->architecture, "bytes", (json_int_t)e->bytes,
		                                "used", (json_int_t)e->used));
	}
	json_t *root = json_pack("{s:o, s:I, s:o}", "folder", text_or_null(cache->folder),
	                         "most_bytes", (json_int_t)CUDA_CACHE_BYTES, "entries", entries);
	json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	printf("\n");
	json_decref(root);
}

static int
list_entries(const Options *o, Arena *arena, Diag *diag, const CudaCache *cache)
{
	CudaCacheEntries list;

	if (diag_status(diag, cuda_cache_list(cache, arena, &list)))
		return diag_exit_code(diag);
	if (o->json)
		print_entries_json(cache, &list);
	else if (cache->folder)
		print_entries(arena, cache, &list);
	else
		printf("there is no cache: neither XDG_CACHE_HOME nor HOME names a folder\n");
	return EXIT_OK;
}

int
command_cache(Options *o, Arena *arena, Diag *diag)
{
	CudaCache cache = cuda_cache_open(arena);
	int files;
	int64_t bytes;

	if (o->list == o->clear) {
		diag_error(diag, EXIT_USAGE, "gradc cache: need --list or --clear%s",
		           o->list ? ", not both" : "");
		return EXIT_USAGE;
	}
	if (o->list)
		return list_entries(o, arena, diag, &cache);
	if (!diag_status(diag, cuda_cache_clear(&cache, arena, &files, &bytes)))
		printf("removed %d entries, %.1f MiB\n", files, (double)bytes / (1 << 20));
	return diag_exit_code(diag);
}
