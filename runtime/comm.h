/* What training needs of other ranks: collectives that are started, tested and finished, so that
 * they can overlap with compute. Every rank makes the same calls in the same order. */
#ifndef GRADC_COMM_H
#define GRADC_COMM_H

#include "format/format.h"

typedef struct Comm Comm;
typedef struct CommRequest CommRequest;
typedef struct {
	void *to;
	const void *from; /* equal to `to`: in place */
	int64_t n;        /* elements on this rank: of `from`; reduce_scatter: of `to` */
	DType dtype;
	CommReduction reduction;
} CommBuffers;

typedef struct {
	const char *name;
	Status (*open)(Comm **out);
	void (*close)(Comm *comm); /* NULL is allowed */
	/* This rank cannot go on: ends all of them with that exit code where the launcher can. Returns for
	 * one rank alone. */
	void (*abort)(Comm *comm, int exit_code);
	int (*rank)(const Comm *comm);
	int (*size)(const Comm *comm);
	/* Each starts; the buffers belong to the communicator until finish. */
	Status (*all_reduce)(Comm *comm, const CommBuffers *b, CommRequest **out);
	Status (*all_gather)(Comm *comm, const CommBuffers *b, CommRequest **out);
	Status (*reduce_scatter)(Comm *comm, const CommBuffers *b, CommRequest **out);
	Status (*broadcast)(Comm *comm, const CommBuffers *b, int root, CommRequest **out);
	Status (*test)(Comm *comm, CommRequest *request, bool *done);
	Status (*finish)(Comm *comm, CommRequest *request); /* waits; the request is gone */
	int64_t (*traffic)(const Comm *comm);               /* bytes this rank has sent */
} CommOps;

#define COMM(name) extern const CommOps comm_##name;
#include "runtime/comm_list.def"
#undef COMM
extern const CommOps *const comm_table[]; /* of comm_list.def; ends with NULL */

/* ---- comm.c */
/* "auto": the one for the launcher that started this process. NULL: unknown. */
const CommOps *comm_find(const char *name);
Status comm_check(
	const char
		*name); /* it exists, and what a launcher's variables say makes sense; EXIT_USAGE */
/* The sum over all ranks, in place and waited for. */
Status comm_sum(const CommOps *ops, Comm *comm, DType dtype, void *values, int64_t n);

#endif
