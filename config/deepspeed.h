/* What the files that read DeepSpeed's configuration share. */
#ifndef GRADC_CONFIG_DEEPSPEED_H
#define GRADC_CONFIG_DEEPSPEED_H

#include "config/config.h"

#include <jansson.h>

typedef struct {
	const DeepspeedFile *file;
	json_t *root;
	Arena *arena;
	Diag *diag;
	DeepspeedOptions *out;
	int faults;
} DeepspeedReader;

/* ---- deepspeed_comments.c: the n bytes of text, with spaces in the place of comments and of commas behind the last member. */
char *deepspeed_without_comments(Arena *arena, const char *text, size_t n);

/* ---- deepspeed.c */
/* By path; NULL: it is not there, or "auto" or null, which leave it open. */
const json_t *deepspeed_get(const DeepspeedReader *r, const char *path);
bool deepspeed_is_on(const DeepspeedReader *r, const char *path);
bool deepspeed_is_given(const DeepspeedReader *r, const char *option); /* name NULL: false */
/* "FILE: key: value: what", and the hint where there is one. value NULL: none is shown. */
void deepspeed_fault(DeepspeedReader *r, const char *key, const json_t *value, const char *what,
                     const char *hint);
/* As an option has it: a bool by the row of the path, a word by its names, a whole number with words as one of them. */
const char *deepspeed_text(DeepspeedReader *r, const char *path, const json_t *value);
/* The nth word of a|b|c; NULL: there are fewer. */
const char *deepspeed_word(Arena *arena, const char *words, int n);
int deepspeed_word_find(const char *words, const char *word); /* -1: none */

/* ---- deepspeed_map.c */
void deepspeed_map(DeepspeedReader *r);
void deepspeed_put(DeepspeedReader *r, const char *option, const char *value, const char *key,
                   const char *unless);

/* ---- deepspeed_types.c: `optimizer` for gradc, `optimizer` and `scheduler` for the executable */
void deepspeed_map_types(DeepspeedReader *r);

#endif
