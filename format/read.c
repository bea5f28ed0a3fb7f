/* Opens the tables of an executable (a blob, format.h): checks the header and the sections, then
 * every record. Then come functions that look up records. Nothing is copied: the tables point into
 * the blob. */
#include "format/checks.h"

#include <math.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };

static const size_t record_sizes[N_SECTIONS] = {
	[SECTION_INFO] = sizeof(InfoRecord),
	[SECTION_DIMS] = sizeof(int64_t),
	[SECTION_STATES] = sizeof(StateRecord),
	[SECTION_SLOTS] = sizeof(Slot),
	[SECTION_ARGUMENTS] = sizeof(Argument),
	[SECTION_INSTRUCTIONS] = sizeof(Instruction),
	[SECTION_KERNELS] = sizeof(KernelRecord),
	[SECTION_KERNEL_ARGUMENTS] = sizeof(KernelArgument),
	[SECTION_LIBRARY] = sizeof(LibraryRecord),
	[SECTION_COLLECTIVES] = sizeof(CollectiveRecord),
	[SECTION_BINDINGS] = sizeof(BindingRecord),
	[SECTION_TARGETS] = sizeof(TargetRecord),
	[SECTION_PORTS] = sizeof(PortRecord),
	[SECTION_PROGRAMS] = sizeof(ProgramRecord),
	[SECTION_EXPORT] = sizeof(ExportRecord),
	[SECTION_LITERAL] = 1,
	[SECTION_STRINGS] = 1,
	[SECTION_ADAPTERS] = sizeof(AdapterRecord),
	[SECTION_FOUR_BIT] = sizeof(FourBitRecord),
	[SECTION_KEPT_ADAPTERS] = sizeof(KeptAdapterRecord),
	[SECTION_KEPT] = 1,
	[SECTION_PLANS] = sizeof(PlanRecord),
};

static Status
check_header(const FormatHeader *h, int64_t bytes)
{
	if (h->magic != FORMAT_MAGIC)
		return FAULT("no gradc tables: the first bytes are %016llx",
		             (unsigned long long)h->magic);
	if (h->version != FORMAT_VERSION)
		return FAULT("version %u, this build reads %d", h->version, FORMAT_VERSION);
	if (h->n_sections != N_SECTIONS && h->n_sections != SECTION_PLANS)
		return FAULT("%u sections instead of %d or %d", h->n_sections, SECTION_PLANS,
		             N_SECTIONS);
	if (h->bytes != bytes)
		return FAULT("the header says %lld bytes, there are %lld", (long long)h->bytes,
		             (long long)bytes);
	if (h->state_bytes < 0 || h->weights_bytes < 0)
		return FAULT("negative size of the state region or the weights");
	return NULL;
}

/* Checks that the sections follow each other, so they cannot overlap. */
static Status
check_sections(const FormatHeader *h)
{
	int n = (int)h->n_sections;
	int64_t end = format_header_bytes(n);

	for (int s = 0; s < n; s++) {
		int64_t offset = h->sections[s].offset, count = h->sections[s].count, size;

		if (offset < end || offset % 16 != 0)
			return FAULT(
				"section %d starts at %lld, before the end of the one before it "
				"or unaligned",
				s, (long long)offset);
		if (count < 0 || count > INT32_MAX ||
		    !size_mul(count, (int64_t)record_sizes[s], &size) || size > h->bytes - offset)
			return FAULT(
				"section %d with %lld records at %lld goes beyond the %lld bytes",
				s, (long long)count, (long long)offset, (long long)h->bytes);
		end = offset + size;
	}
	return NULL;
}

static const void *
section(const void *blob, Section s)
{
	return (const char *)blob + ((const FormatHeader *)blob)->sections[s].offset;
}

Status
format_read(const void *blob, int64_t bytes, Format *out)
{
	*out = (Format){0};
	if (bytes < format_header_bytes(N_SECTIONS) || (uintptr_t)blob % 16 != 0)
		return FAULT("%lld bytes are too few or unaligned", (long long)bytes);
	RETURN_IF_ERROR(check_header(blob, bytes));
	RETURN_IF_ERROR(check_sections(blob));

	Format f = {
		.header = blob,
		.info = section(blob, SECTION_INFO),
		.dims = section(blob, SECTION_DIMS),
		.states = section(blob, SECTION_STATES),
		.slots = section(blob, SECTION_SLOTS),
		.arguments = section(blob, SECTION_ARGUMENTS),
		.instructions = section(blob, SECTION_INSTRUCTIONS),
		.kernels = section(blob, SECTION_KERNELS),
		.kernel_arguments = section(blob, SECTION_KERNEL_ARGUMENTS),
		.library = section(blob, SECTION_LIBRARY),
		.collectives = section(blob, SECTION_COLLECTIVES),
		.bindings = section(blob, SECTION_BINDINGS),
		.targets = section(blob, SECTION_TARGETS),
		.ports = section(blob, SECTION_PORTS),
		.programs = section(blob, SECTION_PROGRAMS),
		.exports = section(blob, SECTION_EXPORT),
		.literal = section(blob, SECTION_LITERAL),
		.strings = section(blob, SECTION_STRINGS),
		.adapters = section(blob, SECTION_ADAPTERS),
		.four_bit = section(blob, SECTION_FOUR_BIT),
		.kept_adapters = section(blob, SECTION_KEPT_ADAPTERS),
		.kept = section(blob, SECTION_KEPT),
	};
	int n = (int)f.header->n_sections;
	for (int s = 0; s < n; s++)
		f.n[s] = (int)f.header->sections[s].count;
	if (n > SECTION_PLANS)
		f.plans = section(blob, SECTION_PLANS);
	RETURN_IF_ERROR(format_check(&f));
	*out = f;
	return NULL;
}

const char *
format_text(const Format *f, StrRef s)
{
	return f->strings + s;
}

const ProgramRecord *
format_program(const Format *f, const ProgramKey *key)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *p = &f->programs[i];
		if (p->role == key->role && p->binding == (uint32_t)key->binding &&
		    p->stage == (uint32_t)key->stage && p->mode == (uint32_t)key->mode &&
		    p->target == (uint32_t)key->target)
			return p;
	}
	return NULL;
}

uint32_t
offload_set(const char *list)
{
	uint32_t set = 0;

	for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
		for (int i = 0; i < N_OFFLOADS; i++)
			if (strcspn(at, ",") == strlen(offload_names[i]) &&
			    strncmp(at, offload_names[i], strlen(offload_names[i])) == 0)
				set |= 1u << i;
	return set;
}

bool
format_offloads(const Format *f, Offload what)
{
	return offload_set(format_info_get(f, "offload")) >> what & 1;
}

const char *
format_info_get(const Format *f, const char *key)
{
	for (int i = 0; i < f->n[SECTION_INFO]; i++)
		if (strcmp(format_text(f, f->info[i].key), key) == 0)
			return format_text(f, f->info[i].value);
	return NULL;
}

double
format_info_double(const Format *f, const char *key, double otherwise)
{
	const char *text = format_info_get(f, key);
	double value;

	return text && parse_double(text, &value) ? value : otherwise;
}

bool
format_info_is(const Format *f, const char *key, const char *value)
{
	const char *text = format_info_get(f, key);

	return text && strcmp(text, value) == 0;
}

const FourBitRecord *
format_four_bit(const Format *f, int state)
{
	for (int i = 0; i < f->n[SECTION_FOUR_BIT]; i++)
		if (f->four_bit[i].codes == (uint32_t)state)
			return &f->four_bit[i];
	return NULL;
}

FormatType
format_weight_type(const Format *f, int state)
{
	const FourBitRecord *r = format_four_bit(f, state);
	const StateRecord *s = &f->states[state];

	return r ? (FormatType){(DType)r->dtype, r->rank, r->first_dim}
	         : (FormatType){(DType)s->dtype, s->rank, s->first_dim};
}

double
format_adapter_scale(const Format *f, const AdapterRecord *a)
{
	double rank = (double)f->dims[f->states[a->b].first_dim + 1];

	return a->alpha / (a->rslora ? sqrt(rank) : rank);
}

int
format_state(const Format *f, const char *name)
{
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (strcmp(format_text(f, f->states[i].name), name) == 0)
			return i;
	return -1;
}

int
format_state_of_kind(const Format *f, uint32_t kind)
{
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].kind == kind)
			return i;
	return -1;
}

int64_t
format_plan_bytes(const Format *f, const char *gpu)
{
	int64_t most = 0;

	for (int i = 0; i < f->n[SECTION_PLANS]; i++) {
		const PlanRecord *p = &f->plans[i];
		if ((!gpu || strcmp(gpu, format_text(f, p->gpu)) == 0) && p->scratch > most)
			most = p->scratch;
	}
	return (most + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
}

static bool
has_training(const Format *f)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		if (f->programs[i].role == ROLE_ACCUMULATE)
			return true;
	return false;
}

int64_t
format_space_bytes(const Format *f, Space space, int target)
{
	int64_t most = space == SPACE_STATE ? f->header->state_bytes : 0;
	bool trains = has_training(f);

	for (int i = 0; i < f->n[SECTION_PROGRAMS] && space != SPACE_STATE; i++) {
		const ProgramRecord *p = &f->programs[i];
		if ((target == EVERY_TARGET || p->target == (uint32_t)target) &&
		    !(trains && p->role == ROLE_FORWARD))
			most = p->bytes[space] > most ? p->bytes[space] : most;
	}
	return most;
}

int64_t
format_region_bytes(const Format *f, Space space, int target, const RunFacts *facts)
{
	const SpaceRow *row = &space_table[space];

	if (!only_applies(row->only, facts))
		return 0;
	if (row->by_slots)
		return format_slots_bytes(f, space, facts);
	if (space == SPACE_STATE)
		return format_state_bytes(f, facts->mode);
	return format_space_bytes(f, space, target) * turn_copies(row->turn);
}

uint32_t
format_event(uint32_t event, const uint8_t turns[N_TURNS])
{
	/* IN_FLIGHT numbers for each shared event; the program's own events follow */
	return event < N_SHARED_EVENTS ? IN_FLIGHT * event + turns[event_table[event].turn]
	                               : (IN_FLIGHT - 1) * N_SHARED_EVENTS + event;
}

Groups
format_groups(const Format *f, const ExportRecord *e, int64_t dims[MAX_RANK])
{
	for (uint32_t i = 0; i < e->rank; i++)
		dims[i] = f->dims[f->states[e->state].first_dim + e->perm[i]];
	return (Groups){(int)e->rank, dims, e->group};
}

bool
format_port_rows(const Format *f, const PortRecord *p, int64_t rows, PortRows *out)
{
	const int64_t *dims = f->dims + p->first_dim;
	int64_t blocks = rows * (int64_t)p->repeats;

	*out = (PortRows){0};
	uint32_t axis = p->row_axis;
	if (blocks <= 0 || dims[axis] % blocks != 0)
		return false;
	out->before = format_elements(f, p->first_dim, axis) * (int64_t)p->repeats;
	out->after = format_elements(f, p->first_dim + axis + 1, p->rank - axis - 1) *
	             (dims[axis] / blocks);
	return true;
}

int64_t
format_elements(const Format *f, uint32_t first_dim, uint32_t rank)
{
	int64_t n = 1;

	for (uint32_t i = 0; i < rank; i++)
		n *= f->dims[first_dim + i];
	return n;
}
