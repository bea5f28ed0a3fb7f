/* Prints the executable's tables and the list of its kernels as constant data of an LLVM module. */
#include "codegen/llvm/llvm.h"

#include <string.h>

static LLVMValueRef
add_constant(LLVMModuleRef module, const char *name, LLVMValueRef value, unsigned alignment)
{
	LLVMValueRef v = LLVMAddGlobal(module, LLVMTypeOf(value), name);

	LLVMSetInitializer(v, value);
	LLVMSetGlobalConstant(v, true);
	LLVMSetAlignment(v, alignment);
	return v;
}

static LLVMValueRef
add_text(LLVMContextRef context, LLVMModuleRef module, const char *text)
{
	LLVMValueRef bytes = LLVMConstStringInContext(context, text, (unsigned)strlen(text), false);
	LLVMValueRef v = add_constant(module, "", bytes, 1);

	LLVMSetLinkage(v, LLVMPrivateLinkage);
	return v;
}

/* The KernelCode of a target's kernels by number; zeros for kernels that the target does not
 * need. */
static LLVMValueRef
add_kernels(LLVMContextRef context, LLVMModuleRef module, Build *b, const Module *m, int target)
{
	LLVMTypeRef pointer = LLVMPointerTypeInContext(context, 0);
	LLVMTypeRef word = LLVMInt64TypeInContext(context);
	LLVMTypeRef parts[] = {pointer, word};
	LLVMTypeRef row = LLVMStructTypeInContext(context, parts, COUNT(parts), false);
	LLVMValueRef *all = NEW_ARRAY(b->arena, LLVMValueRef, m->kernels.n + 1);
	Kernel **kernels = build_kernels(b->arena, m, b->options->targets[target].target);

	for (int i = 0; i < m->kernels.n; i++) {
		if (!kernels[i]) {
			all[i] = LLVMConstNull(row);
			continue;
		}
		const char *symbol = llvm_symbol(b->arena, kernels[i], target);
		LLVMValueRef fields[] = {
			LLVMAddGlobal(module, pointer, symbol),
			LLVMConstInt(word, kernel_code_facts(b->arena, kernels[i]), false)};
		LLVMSetVisibility(fields[0], LLVMHiddenVisibility);
		all[i] = LLVMConstStructInContext(context, fields, COUNT(fields), false);
	}
	all[m->kernels.n] = LLVMConstNull(row);
	LLVMValueRef table = LLVMConstArray(row, all, (unsigned)m->kernels.n + 1);
	LLVMValueRef v = add_constant(module, "", table, 16);
	LLVMSetLinkage(v, LLVMPrivateLinkage);
	return v;
}

/* An image of kind IMAGE_BYTES. */
static LLVMValueRef
byte_image(LLVMContextRef context, LLVMModuleRef module, const ByteImage *image)
{
	LLVMTypeRef word = LLVMInt64TypeInContext(context);
	LLVMValueRef bytes = LLVMConstStringInContext(context, image->bytes.at,
	                                              (unsigned)image->bytes.n, true);
	LLVMValueRef data = add_constant(module, "", bytes, 64);
	LLVMValueRef fields[] = {add_text(context, module, image->name),
	                         add_text(context, module, ""),
	                         LLVMConstInt(word, IMAGE_BYTES, true),
	                         data,
	                         LLVMConstInt(word, image->bytes.n, false),
	                         LLVMConstInt(word, (unsigned long long)image->target, true)};

	LLVMSetLinkage(data, LLVMPrivateLinkage);
	return LLVMConstStructInContext(context, fields, COUNT(fields), false);
}

/* The CodeImages; zeros end the list. */
static LLVMValueRef
add_images(LLVMContextRef context, LLVMModuleRef module, Build *b, const Module *m)
{
	LLVMTypeRef pointer = LLVMPointerTypeInContext(context, 0);
	LLVMTypeRef word = LLVMInt64TypeInContext(context);
	LLVMTypeRef parts[] = {pointer, pointer, word, pointer, word, word};
	LLVMTypeRef row = LLVMStructTypeInContext(context, parts, COUNT(parts), false);
	int n_cpus = b->options->n_targets, n = n_cpus + b->images.n;
	LLVMValueRef *rows = NEW_ARRAY(b->arena, LLVMValueRef, n + 1);

	for (int i = 0; i < n_cpus; i++) {
		const CpuTarget *target = &b->options->targets[i];
		LLVMValueRef fields[] = {
			add_text(context, module, target->cpu),
			add_text(context, module, target->features),
			LLVMConstInt(word, IMAGE_FUNCTIONS, true),
			add_kernels(context, module, b, m, i),
			LLVMConstInt(word, (unsigned long long)m->kernels.n, true),
			LLVMConstInt(word,
		                     (unsigned long long)build_target(b->arena, m, target->target),
		                     true)};
		rows[i] = LLVMConstStructInContext(context, fields, COUNT(fields), false);
	}
	for (int i = n_cpus; i < n; i++)
		rows[i] = byte_image(context, module, &b->images.at[i - n_cpus]);
	rows[n] = LLVMConstNull(row);
	LLVMValueRef v = add_constant(module, "", LLVMConstArray(row, rows, (unsigned)n + 1), 16);
	LLVMSetLinkage(v, LLVMPrivateLinkage);
	return v;
}

/* A reference to the ABI symbol of the runtime, so that linking with another runtime fails. */
static void
add_abi(LLVMContextRef context, LLVMModuleRef module)
{
	LLVMValueRef abi = LLVMAddGlobal(module, LLVMPointerTypeInContext(context, 0),
	                                 GRADC_ABI_NAME);

	LLVMSetVisibility(add_constant(module, "gradc_abi_needed", abi, 8), LLVMHiddenVisibility);
}

LLVMModuleRef
llvm_print_tables(LLVMContextRef context, Build *b, const Module *m, const void *blob,
                  int64_t bytes)
{
	LLVMModuleRef module = LLVMModuleCreateWithNameInContext("gradc_tables", context);
	LLVMTypeRef word = LLVMInt64TypeInContext(context);
	LLVMValueRef data = add_constant(
		module, "", LLVMConstStringInContext(context, blob, (unsigned)bytes, true), 64);

	LLVMSetLinkage(data, LLVMPrivateLinkage);
	LLVMValueRef model[] = {LLVMConstInt(word, GRADC_ABI, true), data,
	                        LLVMConstInt(word, (unsigned long long)bytes, true),
	                        add_images(context, module, b, m),
	                        LLVMConstNull(LLVMPointerTypeInContext(context, 0))};
	add_constant(module, build_model_symbol(b),
	             LLVMConstStructInContext(context, model, COUNT(model), false), 16);
	if (!b->options->library)
		add_abi(context, module);
	return module;
}
