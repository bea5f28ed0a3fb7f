/* The table of recipes. */
#include "passes/pass.h"

#include <string.h>

#define RECIPE(name) extern const Recipe recipe_##name;
#include "passes/recipes/recipe_list.def"
#undef RECIPE

const Recipe *const recipe_table[] = {
#define RECIPE(name) &recipe_##name,
#include "passes/recipes/recipe_list.def"
#undef RECIPE
	NULL,
};

const Recipe *
recipe_find(const char *name)
{
	for (int i = 0; name && recipe_table[i]; i++)
		if (strcmp(recipe_table[i]->name, name) == 0)
			return recipe_table[i];
	return name ? NULL : recipe_table[0];
}

Precision
recipe_precision(const Recipe *recipe, const Node *n)
{
	for (const char *const *op = recipe->high; op && *op; op++)
		if (strcmp(op_row(n)->name, *op) == 0)
			return PRECISION_HIGH;
	return op_row(n)->precision;
}

bool
recipe_is_mixed(const Recipe *recipe)
{
	return recipe->products != recipe->floats;
}

const Recipe *
recipe_of_option(Pass *p, const char *name, bool (*allowed)(const Recipe *recipe))
{
	const Recipe *found = recipe_find(name);
	Text names = {0};

	if (found && allowed(found))
		return found;
	for (int i = 0; recipe_table[i]; i++)
		if (allowed(recipe_table[i]))
			text_printf(&names, "%s%s", names.n ? ", " : "", recipe_table[i]->name);
	diag_error(p->diag, EXIT_USAGE, "pass %s: to=%s: need one of %s", p->row->name, name,
	           names.at);
	text_free(&names);
	return NULL;
}
