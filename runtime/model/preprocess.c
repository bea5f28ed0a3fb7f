/* --export-preprocessing: chooses how the inputs of an exported model are preprocessed, and computes the numbers of --scale and
 * --mean-std that the template's records stand for. The nodes themselves are in the template. */
#include "runtime/data/data.h"
#include "runtime/model/values.h"

#include <string.h>

static const PortRecord *
port_named(const Format *f, const char *name)
{
	for (int i = 0; i < f->n[SECTION_PORTS]; i++)
		if (f->ports[i].kind == PORT_INPUT &&
		    strcmp(format_text(f, f->ports[i].name), name) == 0)
			return &f->ports[i];
	return NULL;
}

static const ExportRecord *
record_named(const Format *f, const char *name)
{
	for (int i = 0; i < f->n[SECTION_EXPORT]; i++)
		if (f->exports[i].kind == EXPORT_INPUT_TYPE &&
		    strcmp(format_text(f, f->exports[i].name), name) == 0)
			return &f->exports[i];
	return NULL;
}

static bool
is_scaled(const GradcOptions *o, const char *name)
{
	return pairs_get(&o->scale, name) || pairs_get(&o->mean_std, name);
}

static bool
has_port(const Format *f, const char *name)
{
	for (int i = 0; i < f->n[SECTION_PORTS]; i++)
		if (port_is_input(f->ports[i].kind) &&
		    strcmp(format_text(f, f->ports[i].name), name) == 0)
			return true;
	return false;
}

static Status
check_pairs(const Format *f, const char *option, const GradcPairs *pairs)
{
	const char *why = format_info_get(f, "no_preprocessing");

	for (int i = 0; i < pairs->n; i++) {
		const char *name = pairs->at[i].name;
		if (!has_port(f, name))
			return status_error(EXIT_USAGE,
			                    "%s %s: the model has no input of this name; --info "
			                    "lists them",
			                    option, name);
		if (port_named(f, name) && !record_named(f, name))
			return status_error(
				EXIT_UNSUPPORTED,
				"--export-preprocessing: nodes for input \"%s\" cannot "
				"be added to the exported model: %s",
				name, why && *why ? why : "the file's input is not f32 or f64");
	}
	return NULL;
}

Status
preprocess_check(const Format *f, const GradcOptions *o)
{
	if (!o->export_preprocessing)
		return NULL;
	if (o->scale.n + o->mean_std.n == 0)
		return status_error(EXIT_USAGE,
		                    "--export-preprocessing=on: no input is preprocessed: give "
		                    "--scale NAME=MUL[,ADD] or --mean-std NAME=FILE");
	RETURN_IF_ERROR(check_pairs(f, "--scale", &o->scale));
	return check_pairs(f, "--mean-std", &o->mean_std);
}

/* The type of the input's data files; U8 if no data are bound. */
static DType
type_of_files(const Gradc *run, const char *name)
{
	for (int i = 0; run->train && i < run->train->n_sources; i++) {
		const Source *s = &run->train->sources[i];
		if (strcmp(s->name, name) == 0 && s->set.n_files > 0)
			return s->set.files[0].info.dtype;
	}
	return U8;
}

void
preprocess_describe(const Gradc *run, Text *out)
{
	const Format *f = &run->format;

	for (int i = 0; run->options.export_preprocessing && i < f->n[SECTION_EXPORT]; i++) {
		const ExportRecord *e = &f->exports[i];
		const char *name = format_text(f, e->name);
		if (e->kind != EXPORT_INPUT_TYPE || e != record_named(f, name) ||
		    !is_scaled(&run->options, name))
			continue;
		text_add(out, "; ");
		text_add_quoted(out, name);
		text_printf(out, " takes %s", dtype_info[type_of_files(run, name)].name);
	}
}

/* bind.c looks for the channels along the first axis of a sample, then along the last one. */
static ExportMean
mean_of(const Format *f, const Source *s)
{
	uint32_t first = s->port->sample_axis == 0;

	if (!s->mean)
		return MEAN_NONE;
	return first < s->port->rank && f->dims[s->port->first_dim + first] == s->channels
	               ? MEAN_FIRST
	               : MEAN_LAST;
}

static Status
choose(Gradc *run, const char *name, PreprocessedPort *out)
{
	const PortRecord *port = port_named(&run->format, name);
	const char *scale = pairs_get(&run->options.scale, name);

	if (!port || !run->options.export_preprocessing || !is_scaled(&run->options, name))
		return NULL;
	RETURN_IF_ERROR(bind_preprocessing(run, port, &out->source));
	out->from = type_of_files(run, name);
	out->chosen = export_preprocessing(!scale               ? SCALE_NONE
	                                   : strchr(scale, ',') ? SCALE_MUL_ADD
	                                                        : SCALE_MUL,
	                                   mean_of(&run->format, &out->source));
	return NULL;
}

bool
preprocess_writes(const Preprocessing *p, const ExportRecord *e)
{
	uint32_t chosen = e->input > 0 && e->input <= (uint32_t)p->n ? p->at[e->input - 1].chosen
	                                                             : NO_PREPROCESSING;

	return e->input == 0 || e->when == 0 || (e->when & chosen);
}

/* Adds the bytes of a record whose length in the graph the template does not contain. */
static int64_t
more_bytes(const Preprocessing *p, const ExportRecord *e)
{
	if (e->when == 0 || e->kind == EXPORT_INPUT_TYPE)
		return 0;
	return (preprocess_writes(p, e) ? e->bytes : 0) -
	       (e->when & NO_PREPROCESSING ? e->bytes : 0);
}

Status
preprocess_open(Gradc *run, ExportedModel which, ExportForm form, Preprocessing *out)
{
	const Format *f = &run->format;
	int n = 0;

	for (int i = 0; i < f->n[SECTION_EXPORT]; i++)
		if ((int)f->exports[i].input > n)
			n = (int)f->exports[i].input;
	*out = (Preprocessing){.at = NEW_ARRAY(run->arena, PreprocessedPort, n), .n = n};
	for (int i = 0; i < n; i++)
		out->at[i].chosen = NO_PREPROCESSING;
	for (int i = 0; i < f->n[SECTION_EXPORT]; i++) {
		const ExportRecord *e = &f->exports[i];
		if (e->kind == EXPORT_INPUT_TYPE && e->of == (uint32_t)which &&
		    e->form == (uint32_t)form)
			RETURN_IF_ERROR(
				choose(run, format_text(f, e->name), &out->at[e->input - 1]));
	}
	for (int i = 0; i < f->n[SECTION_EXPORT]; i++)
		if (f->exports[i].of == (uint32_t)which && f->exports[i].form == (uint32_t)form)
			out->more_bytes += more_bytes(out, &f->exports[i]);
	return NULL;
}

uint8_t
preprocess_type(const Format *f, const Preprocessing *p, const ExportRecord *e)
{
	const PreprocessedPort *port = &p->at[e->input - 1];
	DType type = port->chosen == NO_PREPROCESSING ? (DType)e->dtype : port->from;

	return (uint8_t)f->literal[e->offset + type];
}

/* The numbers of a record, in f64. */
Status
preprocess_numbers(Arena *arena, const Preprocessing *p, const ExportRecord *e, double **out)
{
	const Source *s = &p->at[e->input - 1].source;
	bool is_scalar = e->kind == EXPORT_MUL || e->kind == EXPORT_ADD;
	const float *channels = e->kind == EXPORT_MEAN ? s->mean : s->std;

	if (e->block != (is_scalar ? 1 : s->channels))
		return status_error(EXIT_DATA,
		                    "--export-preprocessing: \"%s\": %lld channels, the model's "
		                    "file has %lld",
		                    s->name, (long long)s->channels, (long long)e->block);
	*out = NEW_ARRAY(arena, double, e->block);
	for (int64_t i = 0; i < e->block; i++)
		(*out)[i] = e->kind == EXPORT_MUL   ? s->scale
		            : e->kind == EXPORT_ADD ? s->offset
		                                    : (double)channels[i];
	return NULL;
}
