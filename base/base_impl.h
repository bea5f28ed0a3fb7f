/* Private to base/: what its files share. */
#ifndef GRADC_BASE_IMPL_H
#define GRADC_BASE_IMPL_H

#include "base/base.h"

#include <sys/stat.h>

_Noreturn void out_of_memory(void);

void text_vprintf(Text *text, const char *fmt, va_list args);
/* n bytes of text from outside; control bytes, invalid UTF-8 and the bytes in `also` as \xHH. */
void text_add_escaped(Text *text, const char *s, size_t n, const char *also);

/* EXIT_USAGE when it is an input that paths_protect knows. */
Status paths_refuse(const char *path, const struct stat *st);
/* As file_pread, with the caller's exit code. */
Status file_pread_as(int exit_code, int fd, const char *path, void *to, int64_t n, int64_t offset);

#endif
