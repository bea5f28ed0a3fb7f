/* Private header of the files that read DeepSpeed's configuration. */
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

/* ---- deepspeed_comments.c: the n bytes of text, with spaces in place of comments, and of commas after the last member
 * of an object or list. */
char *deepspeed_without_comments(Arena *arena, const char *text, size_t n);

/* ---- deepspeed.c */
/* The value at a path. NULL: the key is missing, or its value is "auto" or null, which leave the choice to gradc. */
const json_t *deepspeed_get(const DeepspeedReader *r, const char *path);
bool deepspeed_is_on(const DeepspeedReader *r, const char *path);
bool deepspeed_is_given(const DeepspeedReader *r, const char *option); /* option NULL: false */
/* Reports "FILE: key = value: what", and the hint unless it is NULL. value NULL: shows no value. */
void deepspeed_fault(DeepspeedReader *r, const char *key, const json_t *value, const char *what,
                     const char *hint);
/* A key's value as the option's value. The key's row translates it: a bool by `on`, a string by `names`, a whole number by
 * `words`. */
const char *deepspeed_text(DeepspeedReader *r, const char *path, const json_t *value);
/* The nth word of a|b|c; NULL: there are fewer words. */
const char *deepspeed_word(Arena *arena, const char *words, int n);
int deepspeed_word_find(const char *words, const char *word); /* -1: not in the list */

/* ---- deepspeed_map.c */
void deepspeed_map(DeepspeedReader *r);
void deepspeed_put(DeepspeedReader *r, const char *option, const char *value, const char *key,
                   const char *unless);

/* ---- deepspeed_types.c: `optimizer` for gradc, `optimizer` and `scheduler` for the executable */
void deepspeed_map_types(DeepspeedReader *r);

#endif
