/* --load-adapter NAME=DIR: puts the adapter in folder DIR into the executable. A run with
 * --adapter=NAME then starts from this adapter. */
#include "driver/session.h"

#include <jansson.h>
#include <string.h>

enum { MOST_BYTES = 1 << 30 };
const char *const adapter_files[2] = {"adapter_config.json", "adapter_model.safetensors"};

/* Appends a file's bytes to the tables; sets their position and number. */
static Status
keep_file(Session *s, FormatWriter *w, const char *path, int64_t *at, int64_t *n)
{
	void *bytes;

	RETURN_IF_ERROR(file_read_regular(s->arena, path, EXIT_CHECKPOINT, MOST_BYTES, &bytes, n));
	*at = (int64_t)w->kept.n;
	text_add_bytes(&w->kept, bytes, (size_t)*n);
	return NULL;
}

/* Refuses files that no executable would accept, whatever its adapters are. */
static Status
check_files(Session *s, const char *config_path, const char *path)
{
	json_error_t fault;
	SafeTensors st;
	void *text;
	int64_t n;

	RETURN_IF_ERROR(
		file_read_regular(s->arena, config_path, EXIT_CHECKPOINT, MOST_BYTES, &text, &n));
	json_t *config = json_loadb(text, (size_t)n, 0, &fault);
	if (!config)
		return status_error(EXIT_CHECKPOINT, "%s: line %d: %s", config_path, fault.line,
		                    fault.text);
	json_decref(config);
	RETURN_IF_ERROR(safetensors_open(s->arena, path, EXIT_CHECKPOINT, &st));
	safetensors_close(&st);
	return NULL;
}

static bool
keep(Session *s, FormatWriter *w, const char *option)
{
	const char *name, *folder;
	KeptAdapterRecord r = {0};

	if (!split_pair(s, "load-adapter", option, &name, &folder))
		return false;
	if (!*folder) {
		diag_error(s->diag, EXIT_USAGE, "--load-adapter=%s: need NAME=DIR", option);
		return false;
	}
	if (s->m->adapters.n == 0) {
		diag_error(s->diag, EXIT_USAGE,
		           "--load-adapter=%s: the model has no adapters; give --lora", option);
		return false;
	}
	const char *config = path_join(s->arena, folder, adapter_files[0]);
	const char *tensors = path_join(s->arena, folder, adapter_files[1]);
	r.name = format_string(w, name);
	Status status = check_files(s, config, tensors);
	if (!status)
		status = keep_file(s, w, config, &r.config, &r.config_bytes);
	if (!status)
		status = keep_file(s, w, tensors, &r.tensors, &r.tensors_bytes);
	if (status) {
		diag_status(s->diag, status_annotate(status, "--load-adapter=%s", name));
		return false;
	}
	vec_push(w->arena, &w->kept_adapters, r);
	return true;
}

bool
kept_adapters_write(Session *s, FormatWriter *w)
{
	Text names = {0};
	bool ok = true;

	for (int i = 0; i < s->o->kept_adapters.n; i++)
		ok &= keep(s, w, s->o->kept_adapters.at[i]);
	for (int i = 0; i < w->kept_adapters.n; i++)
		text_printf(&names, "%s%s", i ? ", " : "",
		            w->strings.at + w->kept_adapters.at[i].name);
	if (names.n)
		format_info(w, "adapters", "%s", names.at);
	text_free(&names);
	return ok;
}
