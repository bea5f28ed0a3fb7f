/* Private to groups: scores on teams (threads of a GPU's block). Tiles of scores and sums are tiles of
 * loop IR, in the layout of the matrix unit. A part has one block of rows along one axis of the scores,
 * called outer, and goes through the blocks of the other axis, called inner. Blocks of matrices, such as
 * 64 rows of keys, lie in team memory; of those along the inner axis there are two stages, so that the
 * next block is copied while the current one is multiplied. */
#ifndef GRADC_CODEGEN_GROUPS_TEAM_SCORES_H
#define GRADC_CODEGEN_GROUPS_TEAM_SCORES_H

#include "codegen/groups/attention_parts.h"

typedef struct {
	ScoreTiles s; /* lw, scores, type and at; the other fields are of CPUs */
	/* of blocks of matrices and of scores that are multiplied: a type of 16 bits that all of them
	 * have, or the type of sums */
	DType stored;
	bool tf32;        /* may operands of f32 be rounded to tf32? */
	int query, key;   /* axes of the scores */
	int outer, inner; /* the same axes: rows and columns of a tile */
	Affine first;     /* the part's first row along the outer axis */
	TeamScoreBlock block;
} TeamScores;
/* Rows of a block along an axis, queries or keys. */
int64_t team_rows_of(const TeamScores *t, int axis);
/* Chooses the first block of the list for matrices of this width with which n matrices, and scores if
 * they lie in team memory, too, fit into the target's limit. False: there is no such block. */
bool team_choose_block(TeamScores *t, const TeamScoreBlock *list, int64_t most_bytes, int64_t width,
                       int n, const ScoreMatrix *const *matrices);
/* PAD: most numbers that an array has behind each row. team_padded: a width in whole steps of any matrix
 * unit. */
enum { PAD = COPY_BYTES / 2 };
int64_t team_padded(int64_t width);

/* A block of a matrix's rows in team memory: [stage, row, number], or [stage, number, row] if rows lie
 * side by side in memory (across). Rows and numbers beyond the matrix are zeros. */
typedef struct {
	const ScoreMatrix *m;
	int64_t rows, width; /* width: in whole steps of the matrix unit */
	int stages;
	bool across;
	bool copied; /* by instructions that copy `unit` elements each; else elements are computed */
	int unit;
	int array;
} TeamPanel;
TeamPanel team_panel(TeamScores *t, const ScoreMatrix *m);
void team_panel_declare(TeamScores *t, TeamPanel *p, const char *name);
/* Brings rows first, first + 1, ... of the matrix. After it: lb_commit, lb_wait and lb_barrier. */
void team_panel_bring(TeamScores *t, const TeamPanel *p, Affine stage, Affine first);
/* Windows for the products: element (i, j) is number j of row i, or number i of row j. */
LoopWindow team_rows(const TeamPanel *p, const Affine *place);
LoopWindow team_columns(const TeamPanel *p, const Affine *place);
Affine team_stage_place(LoopBuilder *lb, const TeamPanel *p, Affine stage);

/* An element of a tile of scores. Opens loops that run once if the element's query and key exist, and
 * sets t->s.at. Returns their number, for lb_end. first: of the block along the inner axis. */
int team_open_element(TeamScores *t, const TileElement *e, Affine first);
/* The same for an element of a tile whose rows belong to the outer axis. */
int team_open_row(TeamScores *t, LoopValue row);
/* Stores x as an element of a result, if the element's row exists. Closes the loop of lb_each. */
void team_store(TeamScores *t, const TileElement *e, const ScoreResult *to, LoopValue x);
void team_close(LoopBuilder *lb, int n);

/* Opens a parallel loop over the blocks along an axis. Returns the block's first row. */
Affine team_open_blocks(TeamScores *t, int axis);
/* Do queries or keys end inside a block? */
bool team_has_edges(const TeamScores *t);
/* The rows along the inner axis that matter to the part: keys that some query of the block sees, or queries
 * that see some key of the block. */
KeysSeen team_seen(TeamScores *t, const ScoreRange *range);

/* Sets all elements of a tile, with one axis or two. */
void team_fill(LoopBuilder *lb, int tile, double x);

/* A loop over the blocks of the inner axis. Order: team_blocks_open, copies of the block `next`, which lies in stage
 * `stage`; team_blocks_work, the work on the block that begins at `first`, which lies in stage
 * `arrived`; team_blocks_close. */
typedef struct {
	int64_t size, count; /* of the blocks */
	LoopValue s;         /* block number s comes, block s - 1 is here */
	LoopValue begin, n;  /* the first block, and how many there are; -1: all */
	Affine next, stage, first, arrived;
} TeamBlocks;
/* seen: the rows that matter, or NULL. */
TeamBlocks team_blocks_open(TeamScores *t, const KeysSeen *seen);
void team_blocks_work(TeamScores *t, TeamBlocks *b);
void team_blocks_close(TeamScores *t, TeamBlocks *b);

#endif
