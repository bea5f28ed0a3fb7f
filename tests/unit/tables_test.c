/* What has no room in the tables is refused by name. */
#include "codegen/codegen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
	Arena *arena;
	Diag *diag;
	char *said; /* what the diag printed */
	size_t length;
	FILE *stream;
	Module *m;
	FormatWriter *w;
	bool ok;
} Case;

static Case
case_open(const char *text)
{
	Case c = {.arena = arena_new()};

	c.stream = open_memstream(&c.said, &c.length);
	c.diag = diag_new("test", c.stream);
	c.m = module_parse(text, "tables", NULL, c.diag);
	fflush(c.stream);
	if (!c.m)
		fail_msg("%s", c.said);
	c.w = format_writer_new(c.arena);
	c.ok = tables_write(
		c.w, &(Tables){.m = c.m, .bindings = &(BindingInfo){"batch=1", 1}, .n_bindings = 1},
		c.diag);
	fflush(c.stream);
	return c;
}

static void
case_close(Case *c)
{
	format_writer_free(c->w);
	module_free(c->m);
	diag_free(c->diag);
	fclose(c->stream);
	free(c->said);
	arena_free(c->arena);
}

/* A launch of a kernel with so many inputs. */
static char *
wide_text(int n)
{
	Text t = {0};

	text_add(&t, "module @m {\n  kernel @k(");
	for (int i = 0; i < n; i++)
		text_printf(&t, "x%d: in f32[1], ", i);
	text_add(&t, "y0: out f32[1]) flops 0 {\n    v0 = load x0[0] : f32\n    store y0[0] = v0\n"
	             "  }\n  func @f(%x: f32[1] at io+0) -> (f32[1]) role forward {\n"
	             "    %0 = launch ");
	for (int i = 0; i < n; i++)
		text_printf(&t, "%s%%x", i ? ", " : "");
	text_add(&t, " {kernel = @k} : f32[1] at io+64 loc \"/wide/Sum\"\n    return %0\n  }\n}\n");
	return t.at;
}

static void
test_many_arguments(void **state)
{
	(void)state;
	for (int n = UINT16_MAX - 1; n <= 70000; n += 70000 - (UINT16_MAX - 1)) {
		char *text = wide_text(n);
		Case c = case_open(text);
		bool fits = n < UINT16_MAX;
		assert_int_equal(c.ok, fits);
		if (fits) {
			assert_int_equal(c.w->instructions.at[0].n_args, UINT16_MAX);
		} else {
			assert_int_equal(diag_exit_code(c.diag), EXIT_UNSUPPORTED);
			assert_non_null(strstr(c.said,
			                       "node \"/wide/Sum\": its kernel @k has 70001 "
			                       "arguments, at most 65535"));
		}
		case_close(&c);
		memory_free(text);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_arguments),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
