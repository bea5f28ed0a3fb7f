/* format/bundle/bundle.c: the code for a GPU, and the detection of damaged code. */
#include "format/bundle/bundle.h"
#include "tests/unit/runtime/runtime_tiny.h"

enum { MOST_BYTES = 4096, N_MODULES = 2 };

typedef struct {
	Arena *arena;
	Format f;
	_Alignas(64) char bytes[MOST_BYTES];
	CodeImage image;
} Bench;

/* Distributes the tiny model's kernels over two modules in turn. */
static void
bench_open(Bench *t)
{
	BundleKernel kernels[N_KERNELS];
	const FilePart modules[N_MODULES] = {{"first cubin", 11}, {"second", 6}};
	Text text = {0};
	int64_t bytes;

	t->arena = arena_new();
	void *blob = tiny_blob(t->arena, true, &bytes);
	must(format_read(blob, bytes, &t->f));
	for (int i = 0; i < N_KERNELS; i++) {
		const KernelRecord *r = &t->f.kernels[i];
		kernels[i] = (BundleKernel){
			.facts = kernel_facts(r, t->f.kernel_arguments + r->first_argument),
			.module = 1 + (uint32_t)i % N_MODULES,
			.threads = 128,
			.parts = 128};
	}
	bundle_write(&text, kernels, N_KERNELS, modules, N_MODULES);
	assert_true(text.n <= MOST_BYTES);
	memcpy(t->bytes, text.at, text.n);
	t->image = (CodeImage){"sm_90a", "", IMAGE_BYTES, t->bytes, (int64_t)text.n, 0};
	text_free(&text);
}

static void
test_modules_come_back(void **state)
{
	Bundle b;
	Bench t;

	(void)state;
	bench_open(&t);
	must(bundle_read(&t.image, &t.f, &b));
	const BundleModule *second = &b.modules[b.kernels[1].module - 1];
	assert_int_equal(b.header->n_modules, N_MODULES);
	assert_int_equal(second->bytes, 6);
	assert_memory_equal(t.bytes + second->offset, "second", 6);
	assert_int_equal(second->offset % 64, 0);
	arena_free(t.arena);
}

/* Images cut at every length: none is read behind its end, and only the whole image is accepted. */
static void
test_shorter_ones_are_refused(void **state)
{
	Bundle b;
	Bench t;

	(void)state;
	bench_open(&t);
	for (int64_t n = t.image.size - 1; n >= 0; n--) {
		char *copy = arena_copy(t.arena, t.bytes, (size_t)n);
		CodeImage image = t.image;
		image.data = copy;
		image.size = n;
		expect_status(bundle_read(&image, &t.f, &b), EXIT_SYSTEM,
		              "code for sm_90a is damaged");
		if (n >= (int64_t)sizeof(BundleHeader)) {
			((BundleHeader *)copy)->bytes = n;
			expect_status(bundle_read(&image, &t.f, &b), EXIT_SYSTEM, "is damaged");
		}
	}
	arena_free(t.arena);
}

static void
expect_fault(const char *words,
             void (*change)(Bench *t, BundleHeader *h, BundleKernel *k, BundleModule *m))
{
	Bundle b;
	Bench t;

	bench_open(&t);
	BundleHeader *h = (BundleHeader *)t.bytes;
	BundleKernel *kernels = (BundleKernel *)(h + 1);
	change(&t, h, kernels, (BundleModule *)(kernels + h->n_kernels));
	expect_status(bundle_read(&t.image, &t.f, &b), EXIT_SYSTEM, words);
	arena_free(t.arena);
}

#define CHANGE(name, statement)                                                       \
	static void name(Bench *t, BundleHeader *h, BundleKernel *k, BundleModule *m) \
	{                                                                             \
		(void)t, (void)h, (void)k, (void)m;                                   \
		statement;                                                            \
	}
CHANGE(other_magic, h->magic++)
CHANGE(many_kernels, h->n_kernels = UINT32_MAX)
CHANGE(many_modules, h->n_modules = UINT32_MAX)
CHANGE(one_kernel_less, h->n_kernels--)
CHANGE(far_module, m[1].offset = INT64_MAX)
CHANGE(module_in_the_tables, m[1].offset = 8)
CHANGE(long_module, m[1].bytes = INT64_MAX)
CHANGE(empty_module, m[0].bytes = 0)
CHANGE(unaligned_module, m[0].offset += 8; m[0].bytes = 1)
CHANGE(reserved, k[2].reserved = 1)
CHANGE(ptx_without_end, t->image.name = "compute_100")
CHANGE(no_module, k[2].module = 0)
CHANGE(unknown_module, k[2].module = 3)
CHANGE(other_facts, k[2].facts++)
CHANGE(no_threads, k[2].threads = 0)
CHANGE(many_threads, k[2].threads = 1025)
CHANGE(no_parts, k[2].parts = 0)
CHANGE(other_target, t->image.target = 1)
CHANGE(unaligned, t->image.data = t->bytes + 1)

static void
test_faults_are_named(void **state)
{
	(void)state;
	expect_fault("its header", other_magic);
	expect_fault("its tables are longer than the image", many_kernels);
	expect_fault("its tables are longer than the image", many_modules);
	expect_fault("is damaged", one_kernel_less);
	expect_fault("a module lies outside the image", far_module);
	expect_fault("a module lies outside the image", module_in_the_tables);
	expect_fault("a module lies outside the image", long_module);
	expect_fault("a module lies outside the image", empty_module);
	expect_fault("a module is not aligned", unaligned_module);
	expect_fault("a reserved field is not 0", reserved);
	expect_fault("code for compute_100 is damaged: PTX without an end", ptx_without_end);
	expect_fault("code for sm_90a lacks kernel", no_module);
	expect_fault("code for sm_90a lacks kernel", unknown_module);
	expect_fault("than its code was made from", other_facts);
	expect_fault("a kernel's block of threads differs from the tables", no_threads);
	expect_fault("a kernel's block of threads differs from the tables", many_threads);
	expect_fault("a kernel's block of threads differs from the tables", no_parts);
	expect_fault("its target is none of the executable tables", other_target);
	expect_fault("is damaged: it is none", unaligned);
}

/* Computes the hash again after a deliberate change. */
static void
hash_again(Bench *t)
{
	BundleHeader *h = (BundleHeader *)t->bytes;

	h->hash = hash_bytes(h + 1, (size_t)h->bytes - sizeof(*h), 0);
}

/* A change that no table shows: in the code itself. */
static void
test_changed_code_is_refused(void **state)
{
	Bundle b;
	Bench t;

	(void)state;
	bench_open(&t);
	BundleModule *modules = (BundleModule *)((BundleKernel *)(t.bytes + sizeof(BundleHeader)) +
	                                         N_KERNELS);
	for (int i = 0; i < N_MODULES; i++) {
		char *middle = &t.bytes[modules[i].offset + modules[i].bytes / 2];
		*middle ^= 1;
		expect_status(bundle_read(&t.image, &t.f, &b), EXIT_SYSTEM,
		              "code for sm_90a is damaged: its bytes have changed");
		*middle ^= 1;
	}
	must(bundle_read(&t.image, &t.f, &b));
	arena_free(t.arena);
}

/* The NUL at the end of PTX is one of its bytes. */
static void
test_ptx_has_an_end(void **state)
{
	Bundle b;
	Bench t;

	(void)state;
	bench_open(&t);
	t.image.name = "compute_100";
	BundleKernel *kernels = (BundleKernel *)(t.bytes + sizeof(BundleHeader));
	BundleModule *modules = (BundleModule *)(kernels + N_KERNELS);
	for (int i = 0; i < N_MODULES; i++)
		t.bytes[modules[i].offset + modules[i].bytes - 1] = '\0';
	hash_again(&t);
	must(bundle_read(&t.image, &t.f, &b));
	arena_free(t.arena);
}

/* Kernels that no program of the image's target launches need no module. */
static void
test_other_targets_kernels_need_no_module(void **state)
{
	Bundle b;
	Bench t;

	(void)state;
	bench_open(&t);
	KernelRecord *records = arena_copy(t.arena, t.f.kernels, sizeof(*records) * N_KERNELS);
	records[2].targets = 2;
	t.f.kernels = records;
	((BundleKernel *)(t.bytes + sizeof(BundleHeader)))[2].module = 0;
	hash_again(&t);
	must(bundle_read(&t.image, &t.f, &b));
	arena_free(t.arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_modules_come_back),
		cmocka_unit_test(test_shorter_ones_are_refused),
		cmocka_unit_test(test_faults_are_named),
		cmocka_unit_test(test_changed_code_is_refused),
		cmocka_unit_test(test_ptx_has_an_end),
		cmocka_unit_test(test_other_targets_kernels_need_no_module),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
