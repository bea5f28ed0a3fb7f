/* Shared by the files that lower kernels with reductions. */
#ifndef GRADC_CODEGEN_REDUCE_IMPL_H
#define GRADC_CODEGEN_REDUCE_IMPL_H

#include "codegen/lower/nest.h"

typedef struct {
	Lower *lw;
	const ReduceTiles *tiles; /* the target's */
	LoopNest nest;
	int n_kept;     /* loops of the nest before the reduced ones */
	int n_parallel; /* of these, the outermost */
	bool by_column;
	bool is_long; /* a row has all of a processor */
	const Spaces *spaces;
	int64_t full, rows, chunks; /* elements of these; chunks 0: there are none */
	int *depth;                 /* by node id: passes before its value is known */
	int depths;
	VEC(const Node *) row_reduces, chunk_reduces;
	/* Rows that outer members take at the same time, each with a team of its own; 0: the team has one. By column they are rows
	 * of what is summed, and members' sums are added up in the end. */
	int team_rows;
	bool shares_rows;  /* not by_column: they are rows of what is summed, too */
	int row_loop;      /* of these two: the reduced loop whose iterations outer members share */
	LoopValue member;  /* and the outer one at hand */
	int *partial_sums; /* by_column, by node id: of every outer member */
	int column_loop;   /* by_column: the innermost kept loop, along a tile of results */
	Affine flat_full, flat_row, flat_chunk;
} Rows;

/* lower/reduce_plan.c */
AccumulateKind reduce_kind(const Node *n);
DType reduce_type(const Node *n);
LoopValue reduce_identity(LoopBuilder *lb, const Node *n);
LoopValue rows_element(Rows *r, const Value *v, Affine flat);
IterSpace rows_space(const Rows *r, const Value *v);
/* Which nodes reduce what, and how many passes a value needs. */
void find_passes(Rows *r);
/* Passes before it is known. */
int value_depth(const Rows *r, const Value *v);
/* Does pass `k` (from 1) sum or store anything over the reduced loops? */
bool pass_has_work(const Rows *r, int k);
/* The reductions of pass k; how many. */
int pass_reduces(const Rows *r, int k, const Node **out);
/* Stores the results over the full space that pass k knows. */
void store_full(Rows *r, int k);
/* Opens reduced loop `dim`; the outer member at hand has iterations m, m + R, m + 2R ... of one. How many loops. */
int open_reduced(Rows *r, int dim, Affine *step);

/* lower/row_cache.c: declares arrays for what several passes need, in the block at hand. */
void plan_cache(Rows *r);

/* lower/reduce_parts.c: makes the kept loops parts of it, and gives members their share. */
void cut_rows(Rows *r);

/* lower/rows.c, lower/columns.c: pass k over the reduced loops. */
void row_pass(Rows *r, int k);
void column_pass(Rows *r, int k);
void declare_columns(Rows *r);
/* What is done once for each column: by the first outer member. */
void once_by_column(Rows *r, void (*body)(Rows *r, Affine j, void *ctx), void *ctx);

#endif
