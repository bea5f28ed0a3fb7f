/* What the files of this folder share. */
#ifndef GRADC_FORMAT_IMPL_H
#define GRADC_FORMAT_IMPL_H

#include "format/format.h"

/* One line naming what is wrong with the tables. */
#define FAULT(...) status_annotate(status_error(EXIT_SYSTEM, __VA_ARGS__), "executable tables")

/* check.c: every record of sections that are known to lie inside the blob. */
Status format_check(const Format *f);
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
