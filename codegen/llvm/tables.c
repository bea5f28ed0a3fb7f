/* The executable's tables and the list of its kernels, as data of an LLVM module. */
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

/* The kernels of a target by number, a null at the end. */
static LLVMValueRef
add_kernels(LLVMContextRef context, LLVMModuleRef module, Build *b, const Module *m, int target)
{
	LLVMTypeRef pointer = LLVMPointerTypeInContext(context, 0);
	LLVMValueRef *all = NEW_ARRAY(b->arena, LLVMValueRef, m->kernels.n + 1);

	for (int i = 0; i < m->kernels.n; i++) {
		const char *symbol = llvm_symbol(b->arena, m->kernels.at[i], target);
		all[i] = LLVMAddGlobal(module, pointer, symbol);
		LLVMSetVisibility(all[i], LLVMHiddenVisibility);
	}
	all[m->kernels.n] = LLVMConstNull(pointer);
	LLVMValueRef table = LLVMConstArray(pointer, all, (unsigned)m->kernels.n + 1);
	LLVMValueRef v = add_constant(module, "", table, 16);
	LLVMSetLinkage(v, LLVMPrivateLinkage);
	return v;
}

/* KernelVariant gradc_variants[], ended by nulls. */
static void
add_variants(LLVMContextRef context, LLVMModuleRef module, Build *b, const Module *m)
{
	LLVMTypeRef pointer = LLVMPointerTypeInContext(context, 0);
	LLVMTypeRef parts[] = {pointer, pointer, pointer};
	LLVMTypeRef row = LLVMStructTypeInContext(context, parts, 3, false);
	int n = b->options->n_targets;
	LLVMValueRef *rows = NEW_ARRAY(b->arena, LLVMValueRef, n + 1);

	for (int i = 0; i < n; i++) {
		const CpuTarget *target = &b->options->targets[i];
		LLVMValueRef fields[] = {add_text(context, module, target->cpu),
		                         add_text(context, module, target->features),
		                         add_kernels(context, module, b, m, i)};
		rows[i] = LLVMConstStructInContext(context, fields, 3, false);
	}
	rows[n] = LLVMConstNull(row);
	add_constant(module, "gradc_variants", LLVMConstArray(row, rows, (unsigned)n + 1), 16);
}

LLVMModuleRef
llvm_print_tables(LLVMContextRef context, Build *b, const Module *m, const void *blob,
                  int64_t bytes)
{
	LLVMModuleRef module = LLVMModuleCreateWithNameInContext("gradc_tables", context);
	LLVMTypeRef pointer = LLVMPointerTypeInContext(context, 0);
	LLVMValueRef abi = LLVMAddGlobal(module, pointer, GRADC_ABI_NAME);

	add_constant(module, "gradc_blob",
	             LLVMConstStringInContext(context, blob, (unsigned)bytes, true), 64);
	add_constant(module, "gradc_blob_bytes",
	             LLVMConstInt(LLVMInt64TypeInContext(context), (unsigned long long)bytes, true),
	             8);
	add_constant(module, "gradc_abi_needed", abi, 8);
	add_variants(context, module, b, m);
	return module;
}
