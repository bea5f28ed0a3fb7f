/* What the files of this folder share. */
#ifndef GRADC_FORMAT_IMPL_H
#define GRADC_FORMAT_IMPL_H

#include "format/format.h"

/* One line naming what is wrong with the tables. */
#define FAULT(...) status_annotate(status_error(EXIT_SYSTEM, __VA_ARGS__), "executable tables")

/* check.c: every record of sections that are known to lie inside the blob. */
Status format_check(const Format *f);
/* Of record number `index` of a kind that is called `what`. shape: dtype, rank, first dimension; bytes: that it takes. */
Status format_check_string(const Format *f, StrRef s, const char *what, int index);
Status format_check_shape(const Format *f, const char *what, int index, const uint32_t shape[3],
                          int64_t *bytes);
/* check_adapters.c: one record. */
Status format_check_four_bit(const Format *f, int i);
Status format_check_adapter(const Format *f, int i);
Status format_check_kept_adapter(const Format *f, int i);
/* check_program.c: one program's instructions, arguments and ports. */
Status format_check_program(const Format *f, int program, const RunFacts *facts);

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
