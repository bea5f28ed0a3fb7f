/* Private to lower: shared by the files that lower kernels with reductions. */
#ifndef GRADC_CODEGEN_LOWER_REDUCE_H
#define GRADC_CODEGEN_LOWER_REDUCE_H

#include "codegen/lower/nest.h"

typedef struct {
	Lower *lw;
	const ReduceTiles *tiles; /* the target's */
	LoopNest nest;
	/* number of kept loops (not summed over); they stand before the reduced loops */
	int n_kept;
	int n_parallel; /* how many of the kept loops, from the outermost on, are parallel */
	bool by_column;
	bool is_long; /* a row has a whole processor's team (take_processor) */
	const Spaces *spaces;
	/* number of full, row and chunk values (fuse.h); chunks 0: no chunk values */
	int64_t full, rows, chunks;
	/* rows of a block whose columns are summed beside the reductions of rows; 0: no such sums */
	int64_t block_rows;
	/* by node id: how many passes over the row must end before the node's value is known */
	int *depth;
	int depths;
	VEC(const Node *) row_reduces, chunk_reduces, column_reduces;
	int *column_sums; /* by number in column_reduces: a member's own array of sums */
	int shared_sums; /* array of the team: the sums of all outer members, one column after the other */
	/* Number of groups (outer members) into which the team is divided; 0: the team is not
	 * divided. Each group takes one row at a time. But with by_column or shares_rows, all
	 * groups work on the same results: each adds up some of the elements, and the sums of all
	 * groups are added up in the end. */
	int team_rows;
	bool shares_rows;  /* not by_column: outer members share the reduced elements of a row */
	int row_loop;      /* by_column or shares_rows: the reduced loop that outer members share */
	LoopValue member;  /* by_column or shares_rows: the current outer member */
	int *partial_sums; /* by_column, by node id: array with the sums of every outer member */
	int column_loop;   /* by_column: the innermost kept loop, along a tile of results */
	Affine flat_full, flat_row, flat_chunk;
} Rows;

/* ---- reduce_plan.c */
AccumulateKind reduce_kind(const Node *n);
DType reduce_type(const Node *n);
LoopValue reduce_identity(LoopBuilder *lb, const Node *n);
LoopValue rows_element(Rows *r, const Value *v, Affine flat);
IterSpace rows_space(const Rows *r, const Value *v);
/* Finds the reductions of each space, and how many passes each value needs. */
void find_passes(Rows *r);
/* Number of passes that must end before v is known. */
int value_depth(const Rows *r, const Value *v);
/* Does pass `k` (from 1) sum or store anything over the reduced loops? */
bool pass_has_work(const Rows *r, int k);
/* Lists the reductions of pass k; returns how many. */
int pass_reduces(const Rows *r, int k, const Node **out);
/* Stores the results of the full space that are known in pass k. */
void store_full(Rows *r, int k);
/* Opens reduced loop `dim` and sets *step to the iteration. If R outer members share the loop,
 * outer member m has the iterations m, m + R, m + 2R ... Returns how many loops were opened; the
 * caller closes them. */
int open_reduced(Rows *r, int dim, Affine *step);

/* ---- row_cache.c: declares arrays in the current block for values that several passes need. */
void plan_cache(Rows *r);

/* How many elements of a row each member has, if these are the same elements in every pass and few enough for registers;
 * otherwise 0. */
int64_t own_numbers(const Rows *r);

/* ---- block_columns.c: sums of the columns of a block of rows, in registers while the rows are reduced. */
void open_block_columns(Rows *r); /* before the first row of a block: the sums begin */
void
add_block_columns(Rows *r,
                  int k); /* adds the current element of the operands that are known in pass k */
void close_block_columns(Rows *r); /* behind the last row: stores the sums */

/* ---- reduce_parts.c: chooses which kept loops are parallel, and how the members of a team share
 * a part. */
void cut_rows(Rows *r);

/* ---- rows.c, columns.c: emits pass k over the reduced loops. */
void row_pass(Rows *r, int k);
void column_pass(Rows *r, int k);
void declare_columns(Rows *r);
/* Emits `body` for each column. Of a divided team, only the first outer member runs it. */
void once_by_column(Rows *r, void (*body)(Rows *r, Affine j, void *ctx), void *ctx);

#endif
