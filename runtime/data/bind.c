/* Picks the source of each input of a program: a file, the token stream, or a constant. An input takes its --data or --fill, if
 * given. The token stream goes to the one integer input that nothing else fills. Any other input takes the fill (a constant)
 * that is customary for its name, such as ones for attention_mask. */
#include "runtime/data/sources.h"

#include <math.h>
#include <string.h>

const char *
pairs_get(const GradcPairs *pairs, const char *name)
{
	for (int i = pairs->n - 1; i >= 0; i--)
		if (strcmp(pairs->at[i].name, name) == 0)
			return pairs->at[i].value;
	return NULL;
}

const FileSet *
bind_set(const Files *files, const char *name)
{
	const GradcPairs *pairs = files->options->data;

	for (int i = 0; i < pairs->n; i++)
		if (strcmp(pairs->at[i].name, name) == 0)
			return &files->data[i];
	return NULL;
}

static bool
is_integer_port(const PortRecord *p)
{
	DTypeClass class = dtype_info[p->dtype].class;

	return class == CLASS_SIGNED || class == CLASS_UNSIGNED;
}

const PortRecord *
bind_token_port(const Files *files, const ProgramRecord *p)
{
	const Format *f = &files->run->format;
	const PortRecord *found = NULL;

	for (uint32_t i = 0; i < p->n_inputs; i++) {
		const PortRecord *port = &f->ports[p->first_input + i];
		const char *name = format_text(f, port->name);

		if (port->kind != PORT_INPUT || port->sample_axis < 0 || !is_integer_port(port) ||
		    bind_set(files, name) || pairs_get(files->options->fill, name) ||
		    fill_default(name))
			continue;
		if (found)
			return NULL;
		found = port;
	}
	return found;
}

/* Returns the axis of the input along which samples lie; -1 if a file holds the whole input. In a file, samples always lie
 * along the first axis. So with --once, the file of an input whose samples lie along another axis holds the whole input. */
static int32_t
sample_axis(const Files *files, const PortRecord *port)
{
	return files->options->whole && port->sample_axis > 0 ? -1 : port->sample_axis;
}

/* The shape of a sample, or of the whole input if it has no samples. */
static NpyInfo
sample_shape(const Files *files, const PortRecord *port)
{
	const Format *f = &files->run->format;
	NpyInfo shape = {.dtype = (DType)port->dtype, .n_elements = 1};

	for (uint32_t i = 0; i < port->rank; i++) {
		int64_t dim = f->dims[port->first_dim + i];

		if ((int32_t)i == sample_axis(files, port))
			continue;
		shape.dims[shape.rank++] = dim;
		shape.n_elements *= dim;
	}
	return shape;
}

static bool
shape_fits(const Files *files, const PortRecord *port, const FileSet *set)
{
	NpyInfo want = sample_shape(files, port);
	const NpyInfo *have = &set->files[0].info;
	int skip = sample_axis(files, port) >= 0;

	if (!skip && port->kind == PORT_LABELS &&
	    npy_merges_axes(have->rank, have->dims, want.rank, want.dims))
		return true;
	return have->rank == want.rank + skip && (skip || set->n_files == 1) &&
	       memcmp(have->dims + skip, want.dims, sizeof(int64_t) * (size_t)want.rank) == 0;
}

/* Labels with several values per row may be flat: [rows*6] instead of [rows,6], if the model's output is flat as well. */
static bool
is_flat(const Files *files, const PortRecord *port, const FileSet *set)
{
	NpyInfo want = sample_shape(files, port);
	const NpyInfo *have = &set->files[0].info;
	bool may = port->kind == PORT_LABELS && sample_axis(files, port) == 0 &&
	           format_info_is(&files->run->format, "flat_labels", "1") && want.rank > 0 &&
	           have->rank == want.rank && want.dims[0] > 0 &&
	           memcmp(have->dims + 1, want.dims + 1,
	                  sizeof(int64_t) * (size_t)(want.rank - 1)) == 0;

	for (int i = 0; may && i < set->n_files; i++)
		may = set->files[i].rows % want.dims[0] == 0;
	return may;
}

/* The same files, but with `labels` consecutive numbers taken as one row. */
static FileSet
as_rows(Arena *arena, const FileSet *set, int64_t labels)
{
	FileSet out = {NEW_ARRAY(arena, DataFile, set->n_files), set->n_files};

	for (int i = 0; i < set->n_files; i++) {
		out.files[i] = set->files[i];
		out.files[i].first_row /= labels;
		out.files[i].rows /= labels;
	}
	return out;
}

bool
bind_matches(const Files *files, const ProgramRecord *p)
{
	const Format *f = &files->run->format;

	for (uint32_t i = 0; i < p->n_inputs; i++) {
		const PortRecord *port = &f->ports[p->first_input + i];
		const FileSet *set = bind_set(files, format_text(f, port->name));

		if (set && !shape_fits(files, port, set) && !is_flat(files, port, set))
			return false;
	}
	return true;
}

/* Finds the channel axis, for --mean-std: the sample's first or last axis, whichever has as many elements as the file of means
 * has channels. */
static Status
bind_mean_std(const Files *files, Source *s, const char *path)
{
	Arena *arena = files->run->arena;
	NpyInfo info, shape = sample_shape(files, s->port);
	void *data;

	RETURN_IF_ERROR(npy_read(arena, path, &info, &data));
	if (info.dtype != F32 || info.rank != 2 || info.dims[0] != 2)
		return status_error(
			EXIT_DATA, "%s: means and deviations are f32 [2,C], this is %s%s", path,
			dtype_info[info.dtype].name, shape_text(arena, info.rank, info.dims));
	int64_t channels = info.dims[1];
	bool first = shape.rank > 0 && shape.dims[0] == channels;
	if (!first && (shape.rank == 0 || shape.dims[shape.rank - 1] != channels))
		return status_error(EXIT_DATA, "%s: %lld channels, samples of \"%s\" are %s", path,
		                    (long long)channels, s->name,
		                    shape_text(arena, shape.rank, shape.dims));
	s->mean = data;
	s->std = s->mean + channels;
	for (int64_t i = 0; i < channels; i++)
		if (!isfinite(s->mean[i]) || !(s->std[i] > 0) || !isfinite(s->std[i]))
			return status_error(
				EXIT_DATA,
				"%s: channel %lld has mean %g and deviation %g: need finite "
				"numbers, the deviation above 0",
				path, (long long)i, (double)s->mean[i], (double)s->std[i]);
	s->channels = channels;
	s->channel_stride = first && channels > 0 ? s->elements / channels : 1;
	return NULL;
}

static Status
bind_scale(const Files *files, Source *s)
{
	const char *scale = pairs_get(files->options->scale, s->name);
	const char *mean_std = pairs_get(files->options->mean_std, s->name);

	if (scale) {
		Arena *arena = files->run->arena;
		const char *comma = strchr(scale, ',');
		char *mul = arena_strndup(arena, scale,
		                          comma ? (size_t)(comma - scale) : strlen(scale));

		if (!parse_double(mul, &s->scale) || !isfinite(s->scale) ||
		    (comma && (!parse_double(comma + 1, &s->offset) || !isfinite(s->offset))))
			return status_error(EXIT_USAGE, "--scale %s: \"%s\" is not MUL or MUL,ADD",
			                    s->name, scale);
	}
	return mean_std ? bind_mean_std(files, s, mean_std) : NULL;
}

Status
bind_preprocessing(Gradc *run, const PortRecord *port, Source *out)
{
	const GradcOptions *o = &run->options;
	const DataOptions options = {.scale = &o->scale, .mean_std = &o->mean_std};
	const Files files = {.run = run, .options = &options};

	*out = (Source){.format = &run->format,
	                .port = port,
	                .name = format_text(&run->format, port->name),
	                .scale = 1,
	                .elements = sample_shape(&files, port).n_elements};
	return bind_scale(&files, out);
}

/* An input without an axis of rows is the same in every step: for example a state [layers,batch,hidden]. */
static Status
fault_shape(const Files *files, const Source *s, const DataFile *file)
{
	Arena *arena = files->run->arena;
	NpyInfo want = sample_shape(files, s->port);
	const char *have = shape_text(arena, file->info.rank, file->info.dims);
	const char *sample = shape_text(arena, want.rank, want.dims);

	if (sample_axis(files, s->port) >= 0)
		return status_error(EXIT_DATA,
		                    "%s: shape %s, \"%s\" takes any number of samples of %s",
		                    file->path, have, s->name, sample);
	if (files->options->whole)
		return status_error(EXIT_DATA, "%s: shape %s, \"%s\" takes %s", file->path, have,
		                    s->name, sample);
	return status_error(EXIT_DATA,
	                    "%s: shape %s, \"%s\" takes one array %s for every step; an input with "
	                    "rows along axis N is compiled with --batch-axis %s=N",
	                    file->path, have, s->name, sample, s->name);
}

static Status
bind_files(const Files *files, Source *s, const FileSet *set)
{
	Arena *arena = files->run->arena;
	const DataFile *file = &set->files[0];
	NpyInfo want = sample_shape(files, s->port);
	DType type = file->info.dtype;

	RETURN_IF_ERROR(bind_scale(files, s));
	s->set = *set;
	if (is_flat(files, s->port, set))
		s->set = as_rows(arena, set, want.dims[0]);
	else if (!shape_fits(files, s->port, set))
		return fault_shape(files, s, file);
	if (!validate_dtype(s->port, type, s->mean || pairs_get(files->options->scale, s->name)))
		return status_error(EXIT_DATA, "%s: values are %s, \"%s\" takes %s%s", file->path,
		                    dtype_info[type].name, s->name,
		                    dtype_info[s->port->file_dtype].name,
		                    type == U8 && dtype_is_float((DType)s->port->dtype)
		                            ? " (--scale or --mean-std converts them)"
		                            : "");
	decode_prepare(arena, s, type);
	if (sample_axis(files, s->port) >= 0) {
		const DataFile *last = &s->set.files[set->n_files - 1];
		s->rows = last->first_row + last->rows;
		return NULL;
	}
	char *whole = arena_alloc(arena, (size_t)dtype_bytes((DType)s->port->dtype, s->elements));
	char *raw = arena_alloc(arena, (size_t)file->info.n_bytes);
	DataFile one = *file;
	one.rows = 1;
	Source reader = *s;
	reader.set = (FileSet){&one, 1};
	RETURN_IF_ERROR(source_read(&reader, 0, 1, whole, raw));
	s->constant = whole;
	return NULL;
}

static Status
bind_tokens(const Files *files, Source *s, int64_t shift, int64_t length)
{
	DataFile *file = NEW(files->run->arena, DataFile);

	*file = files->tokens.files[0];
	if (s->elements != length)
		return status_error(
			EXIT_USAGE,
			"\"%s\" takes %lld values a sample, the token stream gives %lld", s->name,
			(long long)s->elements, (long long)length);
	file->rows = length > 0 && file->info.n_elements > 0 ? (file->info.n_elements - 1) / length
	                                                     : 0;
	s->set = (FileSet){file, 1};
	s->shift = shift;
	s->rows = file->rows;
	if (s->rows == 0)
		return status_error(
			EXIT_DATA,
			"%s: %lld tokens are too few for a sample of %lld and its labels",
			file->path, (long long)file->info.n_elements, (long long)length);
	return NULL;
}

static Status
bind_fill(const Files *files, Source *s, const char *text)
{
	char *constant;

	RETURN_IF_ERROR(fill_parse(files->run->arena, s->format, s->port, text, &constant));
	s->constant = constant;
	s->elements = format_elements(s->format, s->port->first_dim, s->port->rank);
	return NULL;
}

static Status
bind_port(const Files *files, const Dataset *d, Source *s)
{
	const FileSet *set = bind_set(files, s->name);
	const char *fill = pairs_get(files->options->fill, s->name);
	const PortRecord *token_port = bind_token_port(files, d->program);
	bool tokens = files->tokens.n_files > 0;

	if (set)
		return bind_files(files, s, set);
	if (fill)
		return bind_fill(files, s, fill);
	if (tokens && s->port == token_port)
		return bind_tokens(files, s, 0, d->token_elements);
	if (tokens && token_port && s->port->kind == PORT_LABELS)
		return bind_tokens(files, s, 1, d->token_elements);
	if (s->port->kind == PORT_INPUT && fill_default(s->name))
		return bind_fill(files, s, fill_default(s->name));
	bool evaluates = strcmp(files->options->option, "--eval-data") == 0;
	return status_error(EXIT_USAGE, "\"%s\" (%s %s) has no data: give %s %s=FILE.npy%s",
	                    s->name, dtype_info[s->port->file_dtype].name,
	                    shape_text(files->run->arena, (int)s->port->rank,
	                               s->format->dims + s->port->first_dim),
	                    files->options->option, s->name,
	                    !is_integer_port(s->port) || tokens ? ""
	                    : evaluates                         ? " or --eval-tokens FILE"
	                                                        : " or --tokens FILE");
}

static int64_t
row_tokens(const Files *files, const Dataset *d)
{
	const Format *f = &files->run->format;
	const PortRecord *port = bind_token_port(files, d->program);

	for (uint32_t i = 0; i < d->program->n_inputs && !port; i++) {
		const PortRecord *p = &f->ports[d->program->first_input + i];
		if (p->kind == PORT_INPUT && p->sample_axis >= 0 && p->rank == 2 &&
		    is_integer_port(p) && !fill_default(format_text(f, p->name)))
			port = p;
	}
	return port && port->rank >= 2 ? sample_shape(files, port).n_elements : 0;
}

Status
bind_sources(const Files *files, Dataset *d)
{
	const Format *f = &files->run->format;
	Status fault = NULL;

	d->token_elements = row_tokens(files, d);
	d->sources = NEW_ARRAY(files->run->arena, Source, d->program->n_inputs);
	for (uint32_t i = 0; i < d->program->n_inputs; i++) {
		const PortRecord *port = &f->ports[d->program->first_input + i];
		Source *s = &d->sources[d->n_sources++];

		*s = (Source){.format = f,
		              .port = port,
		              .name = format_text(f, port->name),
		              .rows = -1,
		              .scale = 1,
		              .allow_nan = files->options->whole,
		              .elements = sample_shape(files, port).n_elements};
		if (port->kind == PORT_WEIGHT)
			d->has_weight = true;
		else
			fault = fault_join(files->run->diag, fault, bind_port(files, d, s));
	}
	return fault;
}
