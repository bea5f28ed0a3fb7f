/* Reads the rows of a program's inputs from files and brings them to the device. A port is an input of a program, as the
 * executable's tables describe it. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_DATA_DATA_H
#define GRADC_RUNTIME_DATA_DATA_H

#include "base/files/files.h"
#include "runtime/run/run.h"

enum { MOST_READERS = 8 }; /* threads that read a micro-batch */
typedef struct Readers Readers;

/* ---- source.c: rows of one input, from files, tokens or constants */
typedef struct {
	const char *path;
	int fd;
	NpyInfo info; /* rank 1 for a token file */
	int64_t first_row, rows;
	char *kept; /* the file's data in memory, info.n_bytes; NULL if rows are read on demand */
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
	int64_t rows;     /* -1: any number of rows */
	int64_t elements; /* elements of a sample; of the whole port if it has no samples */
	FileSet set;
	/* number of tokens that the source skips at the beginning of the stream; 1 for labels, which are the next tokens */
	int64_t shift;
	int64_t chunk; /* samples that are read together */
	const char *constant;
	bool allow_nan;
	double scale, offset;
	const float *mean, *std; /* per channel; NULL without --mean-std */
	int64_t channels, channel_stride;
	/* table [channels][256] of the value that each byte becomes; NULL without a table */
	const void *bytes;
	bool raw; /* the image gets the file's bytes, and the device looks them up */
};
bool source_is_sampled(const Source *s);

/* ---- files.c */
/* Opens all files that `pairs` lists for this name, in order. */
Status files_open(Arena *arena, const GradcPairs *pairs, const char *name, FileSet *out);
void files_close(FileSet *set);

/* ---- bind.c */
/* the value of the last pair with this name; NULL if there is no such pair */
const char *pairs_get(const GradcPairs *pairs, const char *name);

/* Fills `out` with the numbers of --scale and --mean-std for this input; it has no files. */
Status bind_preprocessing(Gradc *run, const PortRecord *port, Source *out);

/* ---- data.c: all inputs of a program, bound to files */
typedef struct {
	const GradcPairs *data, *fill, *scale, *mean_std;
	const char *tokens, *text;
	const char *option; /* "--data" or "--eval-data", for messages */
	/* true for a single run on whole inputs (--once): there are no epochs, and NaN is allowed */
	bool whole;
	/* the binding must be the one of this dataset; NULL: any binding */
	const Dataset *like;
	/* the pairs may also name inputs that only programs of other roles have, such as the labels */
	bool spare;
} DataOptions;
/* Rows that --split holds out of training for evaluation. */
typedef struct {
	const int64_t *held; /* numbers of the held-out rows in the files, ascending */
	int64_t n, rows;     /* held-out rows; rows of the files */
} Split;
struct Dataset {
	int binding;
	const ProgramRecord *program;
	Source *sources;
	int n_sources;
	int64_t rows, micro_rows;
	int64_t token_elements; /* tokens in a row; 0 if the data are not tokens */
	bool has_weight, shuffle;
	uint64_t seed;
	/* NULL: the dataset has all rows of the files. Otherwise it has the held-out rows, or all other rows. */
	const Split *split;
	bool held_out;
	int64_t *picked; /* numbers of the micro-batch's rows in the files */
	/* Buffers of each reader (readers.c): for a chunk in the files' types, and for samples before they are copied to their
	 * places along the sample axis. */
	struct {
		char *raw, *sample;
	} buffers[MOST_READERS];
	/* a micro-batch is small and in memory, so that reading it is faster than waking the prefetch thread */
	bool at_hand;
	FileSet *sets;
	int n_sets;
	RawInputs raw; /* inputs of raw sources */
};
/* A micro-batch: positions [first, end) in the epoch's order of rows. If there are fewer positions than the micro-batch has
 * rows, the other rows are padding. */
typedef struct {
	Dataset *dataset;
	int64_t epoch, first, end;
} MicroRows;
Status dataset_open(Gradc *run, Role role, const DataOptions *options, Dataset **out);
void dataset_close(Dataset *d);
/* Reads all inputs of a micro-batch to their places in an image: memory with the layout of the io region. Only one thread may
 * call at a time. readers: threads that help; NULL: none. */
Status dataset_read(const MicroRows *rows, char *image, Readers *readers);
/* Copies the program's inputs from `image`, a separate image, to the executor's io slots. No run of the program may be under
 * way. */
void dataset_write(const Dataset *d, Executor *x, const char *image);

/* ---- readers.c: threads that help to read the rows of a micro-batch */
/* How many threads should read for the device, the caller included: 1 where the host computes. */
int readers_wanted(const Executor *x);
/* Starts n - 1 helpers. orphans: as in prefetch_open. After a fault, too, *out is to be closed. */
Status readers_open(Arena *arena, int n, MemoryOrphans **orphans, Readers **out);
void readers_close(Readers *r); /* r may be NULL */
/* A task; reader: number of the thread that runs it, below n of readers_open. */
typedef Status ReadTask(void *context, int reader, int number);
/* Runs tasks 0 to n - 1, in any order, on all threads; r NULL: in order. Returns the fault of the first task that failed. */
Status readers_run(Readers *r, int n, ReadTask *task, void *context);

/* ---- split.c: --split X[,SEED] */
/* EXIT_USAGE if the text is not a share between 0 and 1, perhaps with a seed. */
Status split_parse(const char *text, double *share, uint64_t *seed);
/* Chooses round(share * rows) of `rows` >= 2 rows, at least one and not all. labels: class of each row, so that each class gives
 * its share; NULL: any rows. */
Split *split_choose(Arena *arena, const int64_t *labels, int64_t rows, double share, uint64_t seed);
/* The number in the files of the index-th held-out row, or of the index-th row that is not held out. */
int64_t split_row(const Split *s, bool held_out, int64_t index);
/* Divides the rows between two datasets of the same files, as options.split says. */
Status split_datasets(Gradc *run, Dataset *train, Dataset *eval);

/* ---- prefetch.c: a thread reads the next micro-batch while this one is computed */
/* orphans: receives memory that the thread's calls could not free because they ran out of memory. */
Status prefetch_open(Arena *arena, Executor *x, Trace *trace, MemoryOrphans **orphans,
                     Prefetch **out);
void prefetch_close(Prefetch *p); /* waits for a read under way; p may be NULL */
/* Asks the thread to read rows. Returns immediately, unless other rows are being read. */
void prefetch_ask(Prefetch *p, const MicroRows *rows);
typedef struct {
	bool waited; /* the caller had to wait, because the rows were still being read */
	/* Begin and length of the wait. A wait for the device, until it no longer uses the image, does not count. */
	double begin, seconds;
} DataWait;
/* The rows are in the io slots when prefetch_take returns. */
Status prefetch_take(Prefetch *p, const MicroRows *rows, DataWait *out);
/* Called after prefetch_take has returned a fault: fills the io slots with zeros instead of rows. */
Status prefetch_take_zeros(Prefetch *p);

/* ---- unread_rows.c */
/* Like prefetch_take, but with several ranks a fault is not returned: the first fault is kept in *unread (owned by the caller),
 * the io slots are filled with zeros, and the rank continues. */
Status unread_take(Gradc *run, const MicroRows *rows, Status *unread, DataWait *wait);
/* Called before a micro-batch of zeros runs. Makes the step's count of targets NaN. Also changes *micro so that it is not the
 * step's first micro-batch, because the first one would overwrite the count. */
Status unread_spoil_count(Gradc *run, MicroBatch *micro);
/* Called by every rank with the count of targets over all ranks. Ranks exchange messages here only if the count is NaN. Takes
 * *unread. If ranks have faults, the first of these ranks returns its own fault; all other ranks return a fault with the same
 * exit code and no message. NULL if no rank has a fault. */
Status unread_share(Gradc *run, double count, Status *unread);

/* ---- inputs.c: guards input files: while the run is open, nothing in this process may write over the files that the options
 * name and the files of the bound data */
void inputs_guard_named(Gradc *run);
void inputs_guard_bound(Gradc *run);

#endif
