/* NCCL, libnccl.so.2, opened with dlopen. The declarations are our own, of its interface as nccl.h describes it. */
#ifndef GRADC_NCCL_LIBRARY_H
#define GRADC_NCCL_LIBRARY_H

#include "base/base.h"

typedef struct NcclHandle *NcclComm;
typedef struct {
	char bytes[128];
} NcclId;
/* ncclConfig_t of 2.14. Newer versions read its size and version, and take their defaults for the rest. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} NcclConfig;
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u

/* ncclResult_t, ncclRedOp_t and ncclDataType_t: those that are used. */
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
	int version; /* 22705: 2.27.5 */
#define NCCL_SYMBOL(name, parameters) int(*name) parameters;
#define NCCL_TEXT(name, parameters) const char *(*name)parameters;
#define NCCL_OPTIONAL(name, parameters) int(*name) parameters; /* NULL: this version has none */
#include "runtime/comm/nccl/nccl_symbols.def"
#undef NCCL_SYMBOL
#undef NCCL_TEXT
#undef NCCL_OPTIONAL
} NcclLibrary;

/* EXIT_SYSTEM, saying what is missing, where there is none, or one that is too old. It stays loaded. */
Status nccl_library_open(NcclLibrary *out);
/* "2.27.5", into room for NCCL_VERSION_TEXT bytes; `out`. */
enum { NCCL_VERSION_TEXT = 40 };
const char *nccl_version_text(int version, char *out);

#endif
