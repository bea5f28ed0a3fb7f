/* The Status that a test expects. */
#ifndef GRADC_EXPECT_STATUS_H
#define GRADC_EXPECT_STATUS_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static inline void
must(Status status)
{
	if (status)
		fail_msg("%s", status->message);
}

static inline void
expect_status(Status status, int exit_code, const char *words)
{
	assert_non_null(status);
	if (!strstr(status->message, words))
		fail_msg("\"%s\" does not say \"%s\"", status->message, words);
	assert_int_equal(status->exit_code, exit_code);
	status_free(status);
}

#endif
