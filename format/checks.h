/* Private header of format/: the checks of an executable's tables, which format_read runs. */
#ifndef GRADC_FORMAT_CHECKS_H
#define GRADC_FORMAT_CHECKS_H

#include "format/format.h"

/* A Status with one line about a fault of the tables. */
#define FAULT(...) status_annotate(status_error(EXIT_SYSTEM, __VA_ARGS__), "executable tables")

/* index.c: an index of tables, which need not have been checked. */
typedef struct {
	const Format *f;
	/* by state: the weight whose codes the state holds; NULL: no codes */
	const FourBitRecord **four_bit;
	const ProgramRecord **programs; /* in ascending order of their keys */
} FormatIndex;
FormatIndex format_index_open(const Format *f);
void format_index_close(FormatIndex *x);
/* As format_program and format_weight_type. */
const ProgramRecord *format_index_program(const FormatIndex *x, const ProgramKey *key);
FormatType format_index_weight_type(const FormatIndex *x, int state);
/* Finds two programs with equal keys: returns the first, and sets *program to the number of the second; NULL: all keys
 * differ. */
const ProgramRecord *format_index_twin(const FormatIndex *x, int *program);

/* check_totals.c: limits shared strings, arguments and ports, so that checking takes time linear in the length of the file. */
Status format_check_totals(const Format *f);
/* check.c: checks every record. The sections are known to lie inside the blob. */
Status format_check(const Format *f);
/* Check a string or a shape of record `index` of kind `what`. shape: dtype, rank, first dimension. *bytes gets the shape's size. */
Status format_check_string(const Format *f, StrRef s, const char *what, int index);
Status format_check_shape(const Format *f, const char *what, int index, const uint32_t shape[3],
                          int64_t *bytes);
/* check_adapters.c: check one record. */
Status format_check_four_bit(const FormatIndex *x, int i);
Status format_check_adapter(const FormatIndex *x, int i);
Status format_check_kept_adapter(const Format *f, int i);
/* Check that no state belongs to two adapters, and that every export of factors has an adapter with magnitudes. */
Status format_check_adapters_apart(const Format *f);
Status format_check_factors(const Format *f);
/* check_program.c: checks one program's instructions, arguments and ports. limits: sizes of the regions that all programs share. */
Status format_check_program(const Format *f, int program, const RunFacts *facts,
                            const int64_t limits[N_SPACES]);
/* share.c: format_check_world with an existing index. */
Status format_check_world_by(const FormatIndex *x, const RunFacts *facts);

/* The size of the header of a blob with this many sections; the last section may be missing. */
static inline int64_t
format_header_bytes(int n_sections)
{
	return (int64_t)(offsetof(FormatHeader, sections) +
	                 (size_t)n_sections * sizeof(((FormatHeader *)0)->sections[0]));
}

/* Is [first, first+n) inside [0, total)? */
static inline bool
in_range(uint64_t first, uint64_t n, int total)
{
	return first <= (uint64_t)total && n <= (uint64_t)total - first;
}

#endif
