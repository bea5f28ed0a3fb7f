/* Prints the lines before training: the device and why, each parameter with its shape, whether it is trained and why, then the
 * memory and the work of a step, and the rows. Long tables are cut in the middle. */
#include "runtime/cli/cli.h"

#include <limits.h>
#include <string.h>

enum { MAX_ROWS = 40 };

/* Is the state a part of an adapter? */
static bool
is_part(const Format *f, uint32_t state)
{
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++) {
		const AdapterRecord *a = &f->adapters[i];
		if (state == a->a || state == a->b || state + 1 == a->magnitude)
			return true;
	}
	return false;
}

static const char *
role_of(const Format *f, const StateRecord *s)
{
	if (s->kind == STATE_STATISTIC)
		return "state";
	if (!s->trainable)
		return "frozen";
	return is_part(f, (uint32_t)(s - f->states)) ? "adapter" : "trainable";
}

/* "f32" or "nf4"; *bytes: bytes of the weight, scales included. */
static const char *
format_of(const Format *f, const StateRecord *s, int64_t *bytes)
{
	const FourBitRecord *r = format_four_bit(f, (int)(s - f->states));

	*bytes = s->bytes;
	if (!r)
		return dtype_info[s->dtype].name;
	*bytes += f->states[r->absmax].bytes;
	if (r->nested)
		*bytes += f->states[r->nested - 1].bytes + f->states[r->offset - 1].bytes;
	return four_bit_names[r->kind];
}

/* Quotes the name: control characters must not reach the terminal. A name that is wider than `width` is cut, but keeps its end;
 * unless all is shown. */
static void
add_name(Text *t, const char *name, int width, bool full)
{
	Text quoted = {0};

	text_add_quoted(&quoted, name);
	int n = text_add_cut(t, quoted.at, full ? INT_MAX : width);
	for (; n < width; n++)
		text_add(t, " ");
	text_free(&quoted);
}

/* A parameter's name, followed by its module path if the name does not contain the path. */
static const char *
names_of(const Format *f, const StateRecord *s, Text *names)
{
	const char *name = format_text(f, s->name), *path = format_text(f, s->path);

	text_add(names, name);
	if (*path && !strstr(name, path))
		text_printf(names, " (%s)", path);
	return names->at;
}

static void
print_row(FILE *out, const Format *f, const StateRecord *s, bool full)
{
	Text line = {0}, shape = {0}, names = {0}, type_text = {0};
	FormatType type = format_weight_type(f, (int)(s - f->states));
	char amount[32];
	int64_t bytes;

	for (uint32_t i = 0; i < type.rank; i++)
		text_printf(&shape, "%s%lld", i ? "," : "", (long long)f->dims[type.first_dim + i]);
	add_name(&line, names_of(f, s, &names), 44, full);
	text_printf(&type_text, " %s[%s]", format_of(f, s, &bytes), shape.at ? shape.at : "");
	fprintf(out, "  %s%-19s %10s  %-9s  ", line.at, type_text.at,
	        bytes_text(amount, (double)bytes), role_of(f, s));
	line.n = 0;
	text_add_quoted(&line, format_text(f, s->why));
	fprintf(out, "%s\n", s->why ? line.at : "");
	text_free(&line);
	text_free(&shape);
	text_free(&names);
	text_free(&type_text);
}

static bool
is_listed(const StateRecord *s)
{
	return s->kind == STATE_PARAMETER || s->kind == STATE_STATISTIC;
}

static void
print_rows(FILE *out, const Format *f, bool full)
{
	int total = 0, row = 0;

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		total += is_listed(&f->states[i]);
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		bool cut = !full && total > MAX_ROWS && row >= MAX_ROWS / 2 &&
		           row < total - MAX_ROWS / 2;

		if (!is_listed(&f->states[i]))
			continue;
		if (!cut)
			print_row(out, f, &f->states[i], full);
		else if (row == MAX_ROWS / 2)
			fprintf(out, "  ... %d more, --table=full shows them\n",
			        total - MAX_ROWS / 2 * 2);
		row++;
	}
}

/* Prints a note if no library runs the 16-bit matrix products on this machine: then they are correct, but slow. */
static void
print_loops(FILE *out, const Gradc *run)
{
	int by_loops, n = gradc_narrow_products(run, &by_loops);
	const char *precision = format_info_get(gradc_tables(run), "precision");

	if (n > 0 && by_loops == n)
		fprintf(out,
		        "note: no library runs the products of %s here, loops do, which takes longer "
		        "than f32: on a CPU oneDNN needs AVX-512 BF16 or AMX for bf16, and has no f16\n",
		        precision ? precision : "16 bits");
}

static void
print_parts(FILE *out, const Gradc *run)
{
	Text line = {0};

	if (gradc_describe_parts(run, &line))
		fprintf(out, "%s\n", line.at);
	text_free(&line);
}

/* ---- lines above and below the parameters */
static void
print_model(FILE *out, const Format *f)
{
	const char *keys[] = {"model", "loss", "optimizer", "precision", "target"};

	for (int i = 0; i < COUNT(keys); i++) {
		Text value = {0};
		text_add_quoted(&value,
		                format_info_get(f, keys[i]) ? format_info_get(f, keys[i]) : "");
		fprintf(out, "%s%s %s", i ? ", " : "", keys[i], value.at);
		text_free(&value);
	}
	fprintf(out, "\n");
}

static void
print_device(FILE *out, const Gradc *run)
{
	Text device = {0}, precision = {0};
	char name[CPU_NAME];
	int64_t taken, total;

	gradc_describe_device(run, &device);
	gradc_describe_precision(run, &precision);
	fprintf(out, "device: ");
	if (!gradc_gpu_memory(run, &taken, &total))
		fprintf(out, "%s, ", cpu_name(name));
	fprintf(out, "%s (%s)\nprecision: %s\n", device.at, gradc_why_device(run), precision.at);
	text_free(&device);
	text_free(&precision);
	print_loops(out, run);
}

/* Bytes of the memory in which training runs. */
static int64_t
machine_bytes(const Gradc *run)
{
	int64_t taken, total;

	if (gradc_gpu_memory(run, &taken, &total))
		return total;
	return results_machine_bytes();
}

static void
print_memory(FILE *out, const Gradc *run)
{
	GradcRegion regions[GRADC_MAX_REGIONS];
	int n = gradc_regions(run, regions);
	int64_t on_gpu = gradc_gpu_bytes(run);
	char text[32];

	fprintf(out, "memory:");
	for (int i = 0; i < n; i++)
		fprintf(out, " %s %s%s,", regions[i].name,
		        bytes_text(text, (double)regions[i].bytes),
		        regions[i].in_file ? " in a file" : "");
	fprintf(out, " peak %s", bytes_text(text, (double)gradc_peak_bytes(run)));
	if (on_gpu > 0)
		fprintf(out, ", %s of it on the GPU", bytes_text(text, (double)on_gpu));
	fprintf(out, "; the %s has %s\n", on_gpu > 0 ? "GPU" : "machine",
	        bytes_text(text, (double)machine_bytes(run)));
}

/* "a step: 3.2M FLOPs, 1.2 MiB of memory traffic, some 0.05 ms (predicted)" */
static void
print_step(FILE *out, const Gradc *run)
{
	const GradcPeak *peak = gradc_peak(run);
	char text[32];

	fprintf(out, "a step: %s FLOPs, ", count_text(text, (double)gradc_step_flops(run)));
	fprintf(out, "%s of memory traffic, ", bytes_text(text, gradc_step_bytes(run)));
	double ms = 1e3 * gradc_predict_step(run);
	fprintf(out, "some %.*f ms (predicted)", ms < 1 ? 3 : ms < 10 ? 1 : 0, ms);
	if (peak->flops > 0)
		fprintf(out, "; peak %sFLOP/s (%s)", count_text(text, peak->flops), peak->source);
	fprintf(out, "\n");
}

/* "engines of libraries: 31 timed in 1.8 s, 4 known, 2 first choices" */
static void
print_engines(FILE *out, const Gradc *run)
{
	GradcEngines e = gradc_engines(run);
	const char *between = ": ";

	if (e.tried + e.known + e.first + e.faulty == 0)
		return;
	fprintf(out, "engines of libraries");
	if (e.tried)
		fprintf(out, "%s%d timed in %.1f s", between, e.tried, e.seconds);
	between = e.tried ? ", " : between;
	if (e.known)
		fprintf(out, "%s%d known", between, e.known);
	between = e.known ? ", " : between;
	if (e.first)
		fprintf(out, "%s%d first choice%s", between, e.first, e.first > 1 ? "s" : "");
	between = e.tried + e.known + e.first ? "; " : ": ";
	if (e.faulty)
		fprintf(out, "%s%d left out as faulty", between, e.faulty);
	fprintf(out, "\n");
}

static void
print_data(FILE *out, const Gradc *run)
{
	GradcRows rows = gradc_rows(run);

	fprintf(out, "data: %lld rows", (long long)rows.train);
	if (rows.eval > 0)
		fprintf(out, ", %lld for evaluation%s", (long long)rows.eval,
		        rows.held_out ? " (held out)" : "");
	fprintf(out, "; %lld rows a step, %lld step%s an epoch, %lld in all\n",
	        (long long)rows.step, (long long)rows.steps_per_epoch,
	        rows.steps_per_epoch == 1 ? "" : "s", (long long)gradc_total_steps(run));
}

static void
print_ranks(FILE *out, const Gradc *run)
{
	if (gradc_ranks(run) == 1)
		return;
	fprintf(out, "ranks: %d, sums over them %s (--reduce=%s)\n", gradc_ranks(run),
	        strcmp(gradc_reduce(run), "fast") == 0 ? "as the library adds" : "in their order",
	        gradc_reduce(run));
	fprintf(out, "collectives: %s\n", gradc_collectives(run));
}

void
table_print(FILE *out, const Gradc *run, const CliOptions *o)
{
	const Format *f = gradc_tables(run);

	if (strcmp(o->table, "off") == 0)
		return;
	print_model(out, f);
	print_device(out, run);
	if (o->verbose)
		info_products_print(out, run);
	print_rows(out, f, strcmp(o->table, "full") == 0);
	print_memory(out, run);
	state_bytes_print(out, f);
	print_step(out, run);
	print_engines(out, run);
	print_data(out, run);
	print_ranks(out, run);
	print_parts(out, run);
	const char *binding = format_text(f, f->bindings[gradc_binding(run)].text);
	if (*binding) {
		Text plain = {0};
		text_add_plain(&plain, binding);
		fprintf(out, "binding: %s\n", plain.at);
		text_free(&plain);
	}
}
