/* Opens NCCL (libnccl.so.2) with dlopen. The declarations here are gradc's own, for the interface that NCCL's nccl.h
 * describes. */
#ifndef GRADC_RUNTIME_COMM_NCCL_NCCL_LIBRARY_H
#define GRADC_RUNTIME_COMM_NCCL_NCCL_LIBRARY_H

#include "base/base.h"

typedef struct NcclHandle *NcclComm;
typedef struct {
	char bytes[128];
} NcclId;
/* NCCL's ncclConfig_t, as of version 2.14. Newer versions read `size` and `version`, and take defaults for fields that are
 * missing here. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} NcclConfig;
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u

/* The values of ncclResult_t, ncclRedOp_t and ncclDataType_t that gradc uses. */
enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_SUM = 0, NCCL_MAX = 2 };
enum {
	NCCL_U8 = 1,
	NCCL_S32 = 2,
	NCCL_S64 = 4,
	NCCL_F16 = 6,
	NCCL_F32 = 7,
	NCCL_F64 = 8,
	NCCL_BF16 = 9,
};

typedef struct {
	void *library;
	int version; /* 22705 for 2.27.5 */
#define NCCL_SYMBOL(name, parameters) int(*name) parameters;
#define NCCL_TEXT(name, parameters) const char *(*name)parameters;
#define NCCL_OPTIONAL(name, parameters) int(*name) parameters; /* NULL if this version lacks it */
#include "runtime/comm/nccl/nccl_symbols.def"
#undef NCCL_SYMBOL
#undef NCCL_TEXT
#undef NCCL_OPTIONAL
} NcclLibrary;

/* EXIT_SYSTEM, saying what is missing, if NCCL is not found or too old. NCCL stays loaded. */
Status nccl_library_open(NcclLibrary *out);
/* Writes "2.27.5" to `out`, which has NCCL_VERSION_TEXT bytes, and returns it. */
enum { NCCL_VERSION_TEXT = 40 };
const char *nccl_version_text(int version, char *out);

#endif
