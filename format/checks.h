/* What the files of this folder share. */
#ifndef GRADC_FORMAT_CHECKS_H
#define GRADC_FORMAT_CHECKS_H

#include "format/format.h"

/* One line naming what is wrong with the tables. */
#define FAULT(...) status_annotate(status_error(EXIT_SYSTEM, __VA_ARGS__), "executable tables")

/* index.c: of tables that need not have been checked. */
typedef struct {
	const Format *f;
	const FourBitRecord **four_bit; /* by state whose codes they are; NULL: it has none */
	const ProgramRecord **programs; /* by key, ascending */
} FormatIndex;
FormatIndex format_index_open(const Format *f);
void format_index_close(FormatIndex *x);
/* As format_program and format_weight_type. */
const ProgramRecord *format_index_program(const FormatIndex *x, const ProgramKey *key);
FormatType format_index_weight_type(const FormatIndex *x, int state);
/* Two programs with one key: returns the first, and the number of the second in *program; NULL: all keys differ. */
const ProgramRecord *format_index_twin(const FormatIndex *x, int *program);

/* check_totals.c: records that share strings, arguments or ports cost no more time than the length of the file allows. */
Status format_check_totals(const Format *f);
/* check.c: every record of sections that are known to lie inside the blob. */
Status format_check(const Format *f);
/* Of record number `index` of a kind that is called `what`. shape: dtype, rank, first dimension; bytes: that it takes. */
Status format_check_string(const Format *f, StrRef s, const char *what, int index);
Status format_check_shape(const Format *f, const char *what, int index, const uint32_t shape[3],
                          int64_t *bytes);
/* check_adapters.c: one record. */
Status format_check_four_bit(const FormatIndex *x, int i);
Status format_check_adapter(const FormatIndex *x, int i);
Status format_check_kept_adapter(const Format *f, int i);
/* No state is part of two adapters; what is exported as the factors of one is there. */
Status format_check_adapters_apart(const Format *f);
Status format_check_factors(const Format *f);
/* check_program.c: one program's instructions, arguments and ports. limits: bytes of the regions that all programs share. */
Status format_check_program(const Format *f, int program, const RunFacts *facts,
                            const int64_t limits[N_SPACES]);
/* share.c: format_check_world with an index that is there. */
Status format_check_world_by(const FormatIndex *x, const RunFacts *facts);

/* Of a blob with so many sections: the last one may be left out. */
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
