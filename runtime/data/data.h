/* Rows of the inputs, from files to where the device reads them. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_DATA_DATA_H
#define GRADC_RUNTIME_DATA_DATA_H

#include "base/files/files.h"
#include "runtime/run/run.h"

/* ---- source.c: rows of one input from files, tokens or constants. */
typedef struct {
	const char *path;
	int fd;
	NpyInfo info; /* of a token file: rank 1 */
	int64_t first_row, rows;
	char *kept; /* info.n_bytes; NULL: rows are read when they are wanted */
} DataFile;
typedef struct {
	DataFile *files;
	int n_files;
} FileSet;
typedef struct Source Source;
struct Source {
	const Format *format;
	const PortRecord *port;
	const char *name;
	Status (*read)(Source *s, int64_t row, int64_t n,
	               char *to); /* whole samples, port's dtype */
	int64_t rows;             /* -1: as many as anybody wants */
	int64_t elements;         /* of a sample; of the whole port when it has no samples */
	FileSet set;
	int64_t shift; /* tokens: labels are one further */
	char *raw;     /* rows as they are in the file; room for `chunk` of them */
	int64_t chunk;
	const char *constant;
	bool allow_nan;
	double scale, offset;
	const float *mean, *std; /* of each channel; NULL: none */
	int64_t channels, channel_stride;
	const void *bytes; /* [channels][256]: what a byte becomes; NULL: no table */
};
bool source_is_sampled(const Source *s);

/* ---- files.c */
/* All files that `pairs` has for this name, in order. */
Status files_open(Arena *arena, const GradcPairs *pairs, const char *name, FileSet *out);
void files_close(FileSet *set);

/* ---- bind.c */
const char *pairs_get(const GradcPairs *pairs, const char *name); /* the last one; NULL: none */

/* ---- data.c: all inputs of a program, bound to files. */
typedef struct {
	const GradcPairs *data, *fill, *scale, *mean_std;
	const char *tokens, *text;
	const char *option; /* "--data" or "--eval-data", for messages */
	bool whole;         /* one run on whole inputs: no epochs, NaN is a value like any other */
} DataOptions;
struct Dataset {
	int binding;
	const ProgramRecord *program;
	Source *sources;
	int n_sources;
	int64_t rows, micro_rows;
	int64_t token_elements; /* of a row; 0: none */
	bool has_weight, shuffle;
	uint64_t seed;
	int64_t *picked; /* the rows of a micro-batch */
	char *sample;    /* some of them, before they are spread along the sample axis */
	bool at_hand; /* a micro-batch is small and in memory: waking another thread takes longer than reading it */
	FileSet *sets;
	int n_sets;
};
/* Positions [first, end) of an epoch's order, at most a micro-batch; what is missing is padded. */
typedef struct {
	Dataset *dataset;
	int64_t epoch, first, end;
} MicroRows;
Status dataset_open(Gradc *run, Role role, const DataOptions *options, Dataset **out);
void dataset_close(Dataset *d);
/* Reads all inputs of a micro-batch to where they lie in the io region whose image this is. Not for
 * two threads at a time. */
Status dataset_read(const MicroRows *rows, char *image);
/* From an image of its own to where the host fills the program's inputs, of which no run is under way. */
void dataset_write(const Dataset *d, const Executor *x, const char *image);

/* ---- prefetch.c: the next micro-batch, read by a thread while this one is computed. */
/* orphans: of what the thread's calls work on. */
Status prefetch_open(Arena *arena, Executor *x, Trace *trace, MemoryOrphans **orphans,
                     Prefetch **out);
void prefetch_close(Prefetch *p); /* waits for what is being read; NULL is allowed */
/* Returns at once, unless other rows are being read. */
void prefetch_ask(Prefetch *p, const MicroRows *rows);
typedef struct {
	bool waited; /* they were still being read */
	double begin,
		seconds; /* of the wait, without that for a device which has yet to read the rows before */
} DataWait;
/* The rows are in the io slots when it returns. */
Status prefetch_take(Prefetch *p, const MicroRows *rows, DataWait *out);
/* After prefetch_take gave a fault: fills the io slots with zeros in place of the rows. */
Status prefetch_take_zeros(Prefetch *p);

/* ---- unread_rows.c */
/* prefetch_take. Where there are several ranks, a fault is kept in *unread (the first fault; owned), the io slots are zero, and the rank
 * goes on. */
Status unread_take(Gradc *run, const MicroRows *rows, Status *unread, DataWait *wait);
/* Call it before a micro-batch of zeros runs: makes the step's count of targets NaN, and *micro a later micro-batch, which adds to the
 * count. */
Status unread_spoil_count(Gradc *run, MicroBatch *micro);
/* Every rank calls it with the count of targets over all ranks: ranks meet in it only where the count is NaN. Takes *unread. Gives the
 * fault on the first rank that has one, and the same exit code without a message on the other ranks; NULL if no rank has a fault. */
Status unread_share(Gradc *run, double count, Status *unread);

/* ---- inputs.c: the files that the options name; those that bound data are read from. */
void inputs_guard_named(Gradc *run);
void inputs_guard_bound(Gradc *run);

#endif
