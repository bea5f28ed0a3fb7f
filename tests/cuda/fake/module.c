/* Modules of the pretended driver: facts about kernels, read from cubins. */
#include "tests/cuda/fake/fake.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

enum {
	MACHINE_CUDA = 190,
	ABI_NEW = 8, /* ABI of CUDA 13, with the architecture in the second byte of the flags */
	FLAG_ALL_GPUS = 4, /* else the code is for one architecture only */
	INFO_MAX_THREADS = 0x05,
	INFO_PARAMETER = 0x17,
	INFO_REGISTERS = 0x2f,
	INFO_SIZED = 4,
};

typedef struct {
	const char *base;
	const Elf64_Ehdr *head;
	const Elf64_Shdr *sections;
	const char *names;
} Elf;
typedef struct {
	const unsigned char *at;
	uint8_t attribute;
	uint16_t bytes;
} Info;

Function *
module_add(Module *m, const char *name, size_t n)
{
	Function *f = object_new(OBJECT_FUNCTION, sizeof(*f));

	f->module = m;
	f->name = strndup(name, n);
	if (!f->name)
		abort();
	f->next = m->first;
	m->first = f;
	return f;
}

static const Elf64_Shdr *
find_section(const Elf *e, const char *prefix, const char *name)
{
	size_t n = strlen(prefix);

	for (int i = 0; i < e->head->e_shnum; i++) {
		const char *own = e->names + e->sections[i].sh_name;
		if (strncmp(own, prefix, n) == 0 && strcmp(own + n, name) == 0)
			return &e->sections[i];
	}
	return NULL;
}

/* The next attribute of a section .nv.info. Attributes without a size field are skipped. */
static bool
next_info(const Elf *e, const Elf64_Shdr *section, size_t *offset, Info *out)
{
	while (section && *offset + 4 <= section->sh_size) {
		const unsigned char *at = (const unsigned char *)e->base + section->sh_offset +
		                          *offset;
		*out = (Info){.at = at + 4, .attribute = at[1], .bytes = 0};
		if (at[0] == INFO_SIZED)
			memcpy(&out->bytes, at + 2, 2);
		*offset += 4 + (size_t)out->bytes;
		if (at[0] == INFO_SIZED)
			return true;
	}
	return false;
}

static uint32_t
word(const Info *info, int i)
{
	uint32_t x;

	memcpy(&x, info->at + 4 * i, 4);
	return x;
}

static void
read_parameter(Function *f, const Info *info)
{
	int ordinal = (int)(word(info, 1) & 0xffff);

	if (ordinal >= MOST_PARAMETERS)
		return;
	f->parameters[ordinal] = (Parameter){.offset = word(info, 1) >> 16,
	                                     .bytes = word(info, 2) >> 18};
	if (ordinal >= f->n_parameters)
		f->n_parameters = ordinal + 1;
}

/* The name of symbol number i. */
static const char *
symbol_name(const Elf *e, uint32_t i)
{
	const Elf64_Shdr *symbols = find_section(e, ".symtab", "");

	if (!symbols || i >= symbols->sh_size / sizeof(Elf64_Sym))
		return "";
	const Elf64_Sym *symbol = (const Elf64_Sym *)(e->base + symbols->sh_offset) + i;
	return e->base + e->sections[symbols->sh_link].sh_offset + symbol->st_name;
}

static void
read_function(Module *m, const Elf *e, const Elf64_Shdr *text)
{
	const char *name = e->names + text->sh_name + strlen(".text.");
	const Elf64_Shdr *shared = find_section(e, ".nv.shared.", name);
	Function *f = module_add(m, name, strlen(name));
	Info info;

	f->shared = shared ? (uint32_t)shared->sh_size : 0;
	for (size_t at = 0; next_info(e, find_section(e, ".nv.info.", name), &at, &info);) {
		if (info.attribute == INFO_PARAMETER)
			read_parameter(f, &info);
		if (info.attribute == INFO_MAX_THREADS)
			f->most_threads = (int)(word(&info, 0) * word(&info, 1) * word(&info, 2));
	}
	for (size_t at = 0; next_info(e, find_section(e, ".nv.info", ""), &at, &info);)
		if (info.attribute == INFO_REGISTERS &&
		    strcmp(symbol_name(e, word(&info, 0)), name) == 0)
			f->registers = (int)word(&info, 1);
}

/* Code for another minor compute capability runs on newer GPUs of the same major one, unless it uses architecture-specific
 * features. */
static bool
runs_here(const Elf *e)
{
	unsigned flags = e->head->e_flags;
	bool is_new = e->head->e_ident[EI_ABIVERSION] >= ABI_NEW;
	int of = (int)(is_new ? flags >> 8 & 0xff : flags & 0xff);
	int have = settings()->major * 10 + settings()->minor;

	return of == have ||
	       ((!is_new || flags & FLAG_ALL_GPUS) && of / 10 == have / 10 && of < have);
}

int
elf_read(Module *m, const char *image, char *log, size_t bytes)
{
	Elf e = {.base = image, .head = (const Elf64_Ehdr *)image};

	if (e.head->e_machine != MACHINE_CUDA || e.head->e_shentsize != sizeof(Elf64_Shdr) ||
	    e.head->e_shstrndx >= e.head->e_shnum) {
		snprintf(log, bytes, "no code of a GPU");
		return BAD_IMAGE;
	}
	if (!runs_here(&e)) {
		snprintf(log, bytes, "code with flags %x is not for capability %d.%d",
		         e.head->e_flags, settings()->major, settings()->minor);
		return OTHER_GPU;
	}
	e.sections = (const Elf64_Shdr *)(image + e.head->e_shoff);
	e.names = image + e.sections[e.head->e_shstrndx].sh_offset;
	for (int i = 0; i < e.head->e_shnum; i++)
		if (strncmp(e.names + e.sections[i].sh_name, ".text.", strlen(".text.")) == 0)
			read_function(m, &e, &e.sections[i]);
	return 0;
}

/* ---- calls */
static void
find_log(unsigned n, const int *options, void **values, char **log, size_t **bytes)
{
	for (unsigned i = 0; i < n; i++) {
		if (options[i] == CUDA_JIT_LOG)
			*log = values[i];
		if (options[i] == CUDA_JIT_LOG_BYTES)
			*bytes = (size_t *)&values[i];
	}
}

int
fake_ModuleLoadDataEx(void **module, const void *image, unsigned n_options, const int *options,
                      void **values)
{
	ENTER(ModuleLoadDataEx);
	char text[256] = "", *log = NULL;
	size_t *bytes = NULL;

	*module = NULL;
	if (!image)
		return BAD_VALUE;
	find_log(n_options, options, values, &log, &bytes);
	Module *m = object_new(OBJECT_MODULE, sizeof(*m));
	int code = memcmp(image, ELFMAG, SELFMAG) == 0 ? elf_read(m, image, text, sizeof(text))
	                                               : ptx_read(m, image, text, sizeof(text));
	if (log && bytes && *bytes) {
		snprintf(log, *bytes, "%s", text);
		*bytes = strlen(log);
	}
	if (code) {
		m->object.dead = true;
		return complain(code, "%s", text);
	}
	*module = m;
	return 0;
}

int
fake_ModuleUnload(void *module)
{
	ENTER(ModuleUnload);
	Module *m = object_find(module, OBJECT_MODULE);
	if (!m)
		return BAD_HANDLE;
	m->object.dead = true;
	for (Function *f = m->first; f; f = f->next)
		f->object.dead = true;
	return 0;
}

int
fake_ModuleGetFunction(void **function, void *module, const char *name)
{
	ENTER(ModuleGetFunction);
	Module *m = object_find(module, OBJECT_MODULE);
	if (!m)
		return BAD_HANDLE;
	*function = NULL;
	for (Function *f = m->first; f && !*function; f = f->next)
		if (strcmp(f->name, name) == 0)
			*function = f;
	return *function ? 0 : NOT_FOUND;
}

int
fake_FuncSetAttribute(void *function, int attribute, int value)
{
	ENTER(FuncSetAttribute);
	Function *f = object_find(function, OBJECT_FUNCTION);
	if (!f)
		return BAD_HANDLE;
	if (attribute != CUDA_FUNCTION_DYNAMIC_SHARED)
		return complain(BAD_VALUE, "function attribute %d is not pretended", attribute);
	if (value < 0 || (int64_t)value + f->shared > SHARED_BYTES)
		return complain(BAD_VALUE, "%s: %d bytes of shared memory beside %u", f->name,
		                value, f->shared);
	f->dynamic = (uint32_t)value;
	return 0;
}
