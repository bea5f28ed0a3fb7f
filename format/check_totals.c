/* Limits how often records of an executable's tables share strings, arguments or ports. The compiler lets a few records
 * share them. Without a limit a short file could take very long to check and to print: a million kernels that each have
 * all arguments, or a million records with one name of a megabyte. So the total over all records may be at most a few
 * times what the file itself holds. */
#include "format/checks.h"

#include <string.h>

enum {
	NAMED_RECORDS = 64,   /* most references, as a multiple of the records at both ends */
	NAMED_TEXT = 64,      /* limit as a multiple of the bytes of the tables */
	GROUPS_OF_PLANS = 256 /* limit of groups of plans, one group for each kind of GPU */
};

static const struct {
	Section section;
	size_t size; /* size of a record */
	int n;
	size_t at[4]; /* offsets of a record's strings */
} texts[] = {
	{SECTION_INFO,
         sizeof(InfoRecord),
         2,
         {offsetof(InfoRecord, key), offsetof(InfoRecord, value)}},
	{SECTION_STATES,
         sizeof(StateRecord),
         4,
         {offsetof(StateRecord, name), offsetof(StateRecord, why), offsetof(StateRecord, path),
          offsetof(StateRecord, parameter)}},
	{SECTION_SLOTS, sizeof(Slot), 1, {offsetof(Slot, name)}},
	{SECTION_INSTRUCTIONS, sizeof(Instruction), 1, {offsetof(Instruction, origin)}},
	{SECTION_KERNELS, sizeof(KernelRecord), 1, {offsetof(KernelRecord, name)}},
	{SECTION_BINDINGS, sizeof(BindingRecord), 1, {offsetof(BindingRecord, text)}},
	{SECTION_PORTS, sizeof(PortRecord), 1, {offsetof(PortRecord, name)}},
	{SECTION_ADAPTERS,
         sizeof(AdapterRecord),
         2,
         {offsetof(AdapterRecord, product), offsetof(AdapterRecord, table)}},
	{SECTION_KEPT_ADAPTERS, sizeof(KeptAdapterRecord), 1, {offsetof(KeptAdapterRecord, name)}},
	{SECTION_PLANS,
         sizeof(PlanRecord),
         3,
         {offsetof(PlanRecord, gpu), offsetof(PlanRecord, version), offsetof(PlanRecord, text)}},
};

static const char *
records_of(const Format *f, Section s)
{
	return (const char *)f->header + f->header->sections[s].offset;
}

/* Adds the lengths of a record's strings. The check of the record itself reports strings outside the pool. */
static Status
add_texts(const Format *f, int row, const char *record, uint64_t *total)
{
	uint64_t most = NAMED_TEXT * (uint64_t)f->header->bytes;

	for (int k = 0; k < texts[row].n; k++) {
		StrRef s;
		memcpy(&s, record + texts[row].at[k], sizeof(s));
		if (s < (uint32_t)f->n[SECTION_STRINGS])
			*total += strlen(format_text(f, s));
	}
	return *total <= most ? NULL
	                      : FAULT("the names of all records have more than %llu bytes, "
	                              "%d times the tables",
	                              (unsigned long long)most, NAMED_TEXT);
}

static Status
check_texts(const Format *f)
{
	uint64_t total = 0;

	for (int row = 0; row < COUNT(texts); row++) {
		int n = f->n[texts[row].section];
		/* A section that the tables leave out has no offset. */
		const char *at = n ? records_of(f, texts[row].section) : NULL;
		for (int i = 0; i < n; i++, at += texts[row].size)
			RETURN_IF_ERROR(add_texts(f, row, at, &total));
	}
	return NULL;
}

static Status
check_total(const char *what, uint64_t named, int by, int there)
{
	if (named <= NAMED_RECORDS * ((uint64_t)there + (uint64_t)by))
		return NULL;
	return FAULT("%s are named %llu times, there are %d", what, (unsigned long long)named,
	             there);
}

static Status
check_plans(const Format *f)
{
	int groups = 0;

	for (int i = 1; i < f->n[SECTION_PLANS]; i++)
		groups += f->plans[i].gpu != f->plans[i - 1].gpu;
	return groups < GROUPS_OF_PLANS
	               ? NULL
	               : FAULT("plans are for another GPU than the one before %d times", groups);
}

Status
format_check_totals(const Format *f)
{
	uint64_t of_kernels = 0, of_instructions = 0, ports = 0;

	for (int i = 0; i < f->n[SECTION_KERNELS]; i++)
		of_kernels += f->kernels[i].n_arguments;
	for (int i = 0; i < f->n[SECTION_INSTRUCTIONS]; i++)
		of_instructions += f->instructions[i].n_args;
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		ports += (uint64_t)f->programs[i].n_inputs + f->programs[i].n_outputs;
	RETURN_IF_ERROR(check_total("arguments of kernels", of_kernels, f->n[SECTION_KERNELS],
	                            f->n[SECTION_KERNEL_ARGUMENTS]));
	RETURN_IF_ERROR(check_total("arguments of instructions", of_instructions,
	                            f->n[SECTION_INSTRUCTIONS], f->n[SECTION_ARGUMENTS]));
	RETURN_IF_ERROR(check_total("ports", ports, f->n[SECTION_PROGRAMS], f->n[SECTION_PORTS]));
	RETURN_IF_ERROR(check_plans(f));
	return check_texts(f);
}
