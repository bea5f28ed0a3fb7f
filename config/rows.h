/* Private to config/: facts about one row of a table of options, for reading, help and completion. */
#ifndef GRADC_CONFIG_ROWS_H
#define GRADC_CONFIG_ROWS_H

#include "config/config.h"

/* ---- rows.c */
/* NULL: no such row. The name has n bytes. */
const OptionRow *option_row(const OptionTable *table, const char *name, size_t n);
bool option_takes_value(const OptionRow *row); /* on the command line */
bool option_is_of_command(const OptionTable *table, const OptionRow *row);
/* The names of the subcommands in a set of bits: "compile, grad". In the arena. */
const char *option_commands(Arena *arena, const OptionTable *table, unsigned commands);
/* Calls each(arg, word) with each word that stands for itself in a value of the row: choices, and names that only the completion
 * lists. A choice such as "polynomial[,power=X]" or "output:NAME" counts up to the part that varies. */
void option_each_word(Arena *arena, const OptionRow *row, void (*each)(void *arg, const char *word),
                      void *arg);

#endif
