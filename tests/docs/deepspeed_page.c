/* Writes docs/deepspeed.md from the rows of config/deepspeed_keys.c and deepspeed_types.c: `make docs`. With a file and
 * "gradc" or "executable", prints that program's options from the file, one per line, for tests/test_deepspeed_config.py. */
#include "config/config.h"

#include <string.h>

static const char head[] =
	"# DeepSpeed's configuration\n"
	"\n"
	"`--config FILE` takes DeepSpeed's JSON ([its page](https://www.deepspeed.ai/docs/config-json/)) where FILE begins with `{`, in\n"
	"`gradc` and in executables. Comments (`#`, `//`, `/* */`) and a comma behind the last member are ignored, as in DeepSpeed. An example stands in [training.md](training.md#deepspeeds-configuration). This page is written by\n"
	"`make docs` from the table that the programs read.\n"
	"\n"
	"- One file serves both programs. Each program reads its own keys and ignores the other program's keys; the column *read by*\n"
	"  says which program reads a key.\n"
	"- The command line wins: an option on the command line replaces the keys that stand for it. For example, with `--precision`\n"
	"  gradc ignores `bf16.enabled`, and it does not refuse `amp.enabled`.\n"
	"- `\"auto\"` and `null` leave a key open, as if it were not there.\n"
	"- An unknown key, a value of another type or out of range, and a refused key are errors (exit 2). One run reports all errors.\n"
	"  A refused key is accepted while it turns nothing on: `false`, `0`, `{\"enabled\": false}`.\n"
	"- `train_batch_size` must be `train_micro_batch_size_per_gpu` times `gradient_accumulation_steps` times the number of ranks.\n"
	"  Both programs report a contradiction within the file. The executable, which knows the number of ranks, checks the product.\n";

static const char *
whose(unsigned of)
{
	return of == OF_BOTH ? "both" : of == OF_GRADC ? "gradc" : "executable";
}

/* Escapes bars, which would end the table cell. */
static void
print_cell(const char *text)
{
	for (; *text; text++)
		printf("%s%c", *text == '|' ? "\\" : "", *text);
}

/* Prints "`--batch`, the executable's `--micro-batch`". */
static void
print_options(const DeepspeedKey *k)
{
	bool same = k->compile && k->run && strcmp(k->compile, k->run) == 0;

	if (k->compile)
		printf("`gradc compile --%s%s%s`%s", k->compile, k->on ? " " : "",
		       k->on ? k->on : "",
		       same     ? " and"
		       : k->run ? ","
		                : "");
	if (k->run)
		printf("%s`--%s`", k->compile ? " the executable's " : "", k->run);
	if ((k->compile || k->run) && k->words) {
		printf(" ");
		print_cell(k->names ? k->names : k->words);
	}
}

static void
print_key(const DeepspeedKey *k)
{
	static const char *const fates[] = {"becomes", "ignored", "refused"};

	printf("| `%s` | %s | %s | ", k->path, whose(k->of), fates[k->fate]);
	if (k->fate == KEY_MAPPED && (k->compile || k->run)) {
		print_options(k);
		printf("%s", k->says ? ": " : "");
	}
	if (k->words && strrchr(k->path, '*') && !strrchr(k->path, '*')[1]) {
		print_cell(k->words);
		printf(": ");
	}
	if (k->says)
		print_cell(k->says);
	if (k->hint)
		printf("; instead: %s", k->hint);
	printf(" |\n");
}

static void
print_types(const char *title, const DeepspeedType *rows)
{
	printf("\n## %s\n\n| `type` | becomes | DeepSpeed's defaults that differ from gradc's | |\n|---|---|---|---|\n",
	       title);
	for (const DeepspeedType *t = rows; t->type; t++)
		printf("| %s | %s%s%s | %s | %s%s%s |\n", t->type, t->name ? "`" : "",
		       t->name ? t->name : "refused", t->name ? "`" : "",
		       t->defaults      ? t->defaults
		       : t->run_default ? t->run_default
		                        : "",
		       t->says ? t->says : "", t->hint ? "; instead: " : "",
		       t->hint ? t->hint : "");
}

static int
print_page(void)
{
	printf("%s\n## Keys\n\n| key | read by | | the option that it sets, or why it is ignored or refused |\n|---|---|---|---|\n",
	       head);
	for (const DeepspeedKey *k = deepspeed_keys; k->path; k++)
		print_key(k);
	print_types("Optimizers", deepspeed_optimizers);
	print_types("Schedulers", deepspeed_schedulers);
	return 0;
}

static int
print_options_of(const char *path, const char *of)
{
	Arena *arena = arena_new();
	Diag *diag = diag_new("deepspeed_page", stderr);
	DeepspeedOptions options = {0};
	void *text;
	int64_t n;
	bool ok = !diag_status(diag, file_read(arena, path, 1 << 20, &text, &n));

	if (ok) {
		DeepspeedFile file = {.path = path, .text = text, .n = (size_t)n};
		file.of = strcmp(of, "gradc") == 0 ? OF_GRADC : OF_EXECUTABLE;
		ok = deepspeed_read(&file, &options, arena, diag);
	}
	for (int i = 0; i < options.n; i++)
		printf("%s = %s\n", options.at[i].name, options.at[i].value);
	int code = ok ? EXIT_OK : diag_exit_code(diag);
	diag_free(diag);
	arena_free(arena);
	return code;
}

int
main(int argc, char **argv)
{
	return argc == 3 ? print_options_of(argv[1], argv[2]) : print_page();
}
