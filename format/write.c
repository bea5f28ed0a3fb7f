/* Writes the tables of an executable as one blob: the header, then each section at a multiple of 16
 * bytes. */
#include "format/checks.h"

#include <string.h>

#define SECTION_ALIGNMENT 16

FormatWriter *
format_writer_new(Arena *arena)
{
	FormatWriter *w = NEW(arena, FormatWriter);

	w->arena = arena;
	w->interned = strmap_new(arena);
	text_add_bytes(&w->strings, "", 1); /* string reference 0 is "" */
	return w;
}

StrRef
format_string(FormatWriter *w, const char *text)
{
	if (!text || !*text)
		return 0;
	uintptr_t known = (uintptr_t)strmap_get(w->interned, text);
	if (known)
		return (StrRef)known;
	StrRef ref = (StrRef)w->strings.n;
	text_add_bytes(&w->strings, text, strlen(text) + 1);
	strmap_put(w->interned, arena_strdup(w->arena, text), (void *)(uintptr_t)ref);
	return ref;
}

uint32_t
format_dims(FormatWriter *w, int rank, const int64_t *dims)
{
	uint32_t first = (uint32_t)w->dims.n;

	for (int i = 0; i < rank; i++)
		vec_push(w->arena, &w->dims, dims[i]);
	return first;
}

uint32_t
format_slot(FormatWriter *w, Slot slot)
{
	vec_push(w->arena, &w->slots, slot);
	return (uint32_t)w->slots.n - 1;
}

void
format_info(FormatWriter *w, const char *key, const char *fmt, ...)
{
	va_list args;
	InfoRecord record = {.key = format_string(w, key)};

	va_start(args, fmt);
	record.value = format_string(w, arena_vprintf(w->arena, fmt, args));
	va_end(args);
	vec_push(w->arena, &w->info, record);
}

typedef struct {
	const char *what;
	const void *at;
	int64_t count;
	size_t size;
} Source;

static void
gather_sections(const FormatWriter *w, Source out[N_SECTIONS])
{
	const Source sections[N_SECTIONS] = {
		[SECTION_INFO] = {"facts", w->info.at, w->info.n, sizeof(InfoRecord)},
		[SECTION_DIMS] = {"sizes", w->dims.at, w->dims.n, sizeof(int64_t)},
		[SECTION_STATES] = {"states", w->states.at, w->states.n, sizeof(StateRecord)},
		[SECTION_SLOTS] = {"places", w->slots.at, w->slots.n, sizeof(Slot)},
		[SECTION_ARGUMENTS] = {"arguments of launches", w->arguments.at, w->arguments.n,
	                               sizeof(Argument)},
		[SECTION_INSTRUCTIONS] = {"instructions", w->instructions.at, w->instructions.n,
	                                  sizeof(Instruction)},
		[SECTION_KERNELS] = {"kernels", w->kernels.at, w->kernels.n, sizeof(KernelRecord)},
		[SECTION_KERNEL_ARGUMENTS] = {"arguments of kernels", w->kernel_arguments.at,
	                                      w->kernel_arguments.n, sizeof(KernelArgument)},
		[SECTION_LIBRARY] = {"library calls", w->library.at, w->library.n,
	                             sizeof(LibraryRecord)},
		[SECTION_COLLECTIVES] = {"collectives", w->collectives.at, w->collectives.n,
	                                 sizeof(CollectiveRecord)},
		[SECTION_TARGETS] = {"targets", w->targets.at, w->targets.n, sizeof(TargetRecord)},
		[SECTION_BINDINGS] = {"bindings", w->bindings.at, w->bindings.n,
	                              sizeof(BindingRecord)},
		[SECTION_PORTS] = {"inputs and outputs", w->ports.at, w->ports.n,
	                           sizeof(PortRecord)},
		[SECTION_PROGRAMS] = {"programs", w->programs.at, w->programs.n,
	                              sizeof(ProgramRecord)},
		[SECTION_EXPORT] = {"parts of the exported model", w->exports.at, w->exports.n,
	                            sizeof(ExportRecord)},
		[SECTION_LITERAL] = {"bytes of the exported model", w->literal.at,
	                             (int64_t)w->literal.n, 1},
		[SECTION_STRINGS] = {"bytes of names", w->strings.at, (int64_t)w->strings.n, 1},
		[SECTION_ADAPTERS] = {"adapters", w->adapters.at, w->adapters.n,
	                              sizeof(AdapterRecord)},
		[SECTION_FOUR_BIT] = {"weights of 4 bits", w->four_bit.at, w->four_bit.n,
	                              sizeof(FourBitRecord)},
		[SECTION_KEPT_ADAPTERS] = {"adapters that go along", w->kept_adapters.at,
	                                   w->kept_adapters.n, sizeof(KeptAdapterRecord)},
		[SECTION_KEPT] = {"bytes of adapters", w->kept.at, (int64_t)w->kept.n, 1},
		[SECTION_PLANS] = {"plans of library calls", w->plans.at, w->plans.n,
	                           sizeof(PlanRecord)},
	};

	memcpy(out, sections, sizeof(sections));
}

static int64_t
align_up(int64_t n)
{
	return (n + SECTION_ALIGNMENT - 1) / SECTION_ALIGNMENT * SECTION_ALIGNMENT;
}

/* References are record numbers, which a reader counts with int. */
static Status
check_counts(const Source sections[N_SECTIONS])
{
	for (int s = 0; s < N_SECTIONS; s++)
		if (sections[s].count > INT32_MAX)
			return status_error(EXIT_UNSUPPORTED,
			                    "the model has %lld %s, an executable's tables at most "
			                    "%d",
			                    (long long)sections[s].count, sections[s].what,
			                    INT32_MAX);
	return NULL;
}

static void *
lay_out(const FormatWriter *w, const Source sections[N_SECTIONS], int64_t *bytes)
{
	int n_sections = w->plans.n ? N_SECTIONS : SECTION_PLANS;
	FormatHeader header = {
		.magic = FORMAT_MAGIC,
		.version = FORMAT_VERSION,
		.n_sections = (uint32_t)n_sections,
		.state_bytes = w->state_bytes,
		.weights_bytes = w->weights_bytes,
		.weights_hash = w->weights_hash,
	};
	int64_t header_bytes = format_header_bytes(n_sections);
	int64_t offset = align_up(header_bytes);

	for (int s = 0; s < n_sections; s++) {
		header.sections[s].offset = offset;
		header.sections[s].count = sections[s].count;
		offset = align_up(offset + sections[s].count * (int64_t)sections[s].size);
	}
	header.bytes = *bytes = offset;

	char *blob = arena_alloc(w->arena, (size_t)offset);
	memcpy(blob, &header, (size_t)header_bytes);
	for (int s = 0; s < n_sections; s++)
		if (sections[s].count > 0)
			memcpy(blob + header.sections[s].offset, sections[s].at,
			       (size_t)sections[s].count * sections[s].size);
	return blob;
}

Status
format_finish(FormatWriter *w, void **blob, int64_t *bytes)
{
	Source sections[N_SECTIONS];

	*blob = NULL;
	*bytes = 0;
	gather_sections(w, sections);
	Status status = check_counts(sections);
	if (!status)
		*blob = lay_out(w, sections, bytes);
	format_writer_free(w);
	return status;
}

void
format_writer_free(FormatWriter *w)
{
	text_free(&w->literal);
	text_free(&w->strings);
	text_free(&w->kept);
}
