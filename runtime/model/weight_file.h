/* Private header: files of weights for --load, and names of weights in such files. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_MODEL_WEIGHT_FILE_H
#define GRADC_RUNTIME_MODEL_WEIGHT_FILE_H

#include "base/files/files.h"
#include "runtime/run/run.h"

/* ---- weight_file.c: one interface for safetensors and ONNX */
typedef struct {
	SafeTensor
		of; /* `data`: the elements, in the file's arena; NULL: they are read from a file, at `offset` */
	const char *from; /* external file of an ONNX model, a location; NULL: the file itself */
} WeightTensor;
typedef VEC(WeightTensor) WeightTensors;
typedef struct {
	const char *path;
	bool onnx;
	WeightTensors tensors;
	StrMap *by_name;    /* name -> WeightTensor */
	int fd;             /* of a safetensors file */
	Arena *arena;       /* of all the file's memory */
	StringList folders; /* of an ONNX model's external data */
} WeightFile;
/* Opens a file and checks it: ONNX if the path ends in .onnx, else safetensors. */
Status weight_file_open(const char *path, WeightFile *out);
/* Reads the elements of a tensor; `to` has of.n_bytes bytes. */
Status weight_file_read(const WeightFile *w, const WeightTensor *t, void *to);
void weight_file_close(WeightFile *w);
/* A matrix of `rows` times `columns` elements of `size` bytes, transposed, in the arena. */
void *matrix_transposed(Arena *arena, const char *from, int64_t rows, int64_t columns,
                        int64_t size);

/* ---- onnx_weights.c */
/* Adds the tensors of an ONNX file: initializers, and the values of Constant nodes. bytes: the file's content, which must live as
 * long as the tensors. */
Status onnx_weights_read(Arena *arena, const char *path, const void *bytes, int64_t n,
                         WeightTensors *out);

/* ---- weight_names.c: how a state is called in a file of weights */
/* A tensor that a state takes its numbers from. */
typedef struct {
	const WeightTensor *tensor; /* NULL: no tensor */
	bool turned;                /* the tensor is the state's transpose: a module's matrix */
} WeightMatch;
typedef struct {
	const WeightFile *file;
	/* prefix that the file's names have and the model's lack, or the other way round; "": the names are the same */
	const char *file_prefix, *model_prefix;
	int matched;      /* number of states with a tensor */
	const char *also; /* another prefix that matches as many states; NULL: there is none */
} WeightNames;
/* Does --load read the state? Parameters and statistics. */
bool state_is_loadable(const StateRecord *s);
/* Finds how the names of model and file agree: as they are, or without one prefix on either side if then every state has a
 * tensor. */
WeightNames weight_names(Arena *arena, const Format *f, const WeightFile *file);
WeightMatch weight_match(Arena *arena, const WeightNames *names, const Format *f, int state);

/* ---- weights_export.c */
/* Writes parameters and statistics as safetensors, under the names of the module, without adapters. merged: adapters are added to
 * their weights. */
Status weights_export(Gradc *run, const char *path, bool merged);

#endif
