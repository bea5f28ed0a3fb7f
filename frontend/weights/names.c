/* What the name of a tensor tells about it, if there is no metadata. */
#include "frontend/weights/judge.h"

#include <string.h>
#include <strings.h>

static bool
has_word(const char *name, const char *word)
{
	size_t n = strlen(word);

	for (; *name; name++)
		if (!strncasecmp(name, word, n))
			return true;
	return false;
}

/* Is the name the word, alone or followed by a number? An empty word: is the name a number? */
static bool
is_numbered(const char *name, const char *word)
{
	size_t n = strlen(word);

	return !strncasecmp(name, word, n) && name[n + strspn(name + n, "0123456789")] == 0;
}

const char *
name_last_part(const char *name)
{
	const char *part = name;

	for (; *name; name++)
		if (strchr("./:", *name) && name[1])
			part = name + 1;
	return part;
}

size_t
name_module_length(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot ? (size_t)(dot - name) : 0;
}

bool
name_is_generated(const char *name)
{
	static const char *const words[] = {"",        "val_", "const_", "constant",
	                                    "tensor_", "t_",   "v_",     "const_fold_opt__"};

	if (!strncmp(name, "onnx::", 6) || strstr(name, "_output_") || strstr(name, "Constant_"))
		return true;
	for (int i = 0; i < COUNT(words); i++)
		if (is_numbered(name, words[i]))
			return true;
	return false;
}

/* Is the name the function's, with or without a number: "zeros", "zeros_3"? */
static bool
is_call_of(const char *name, const char *function)
{
	size_t n = strlen(function);

	return !strncmp(name, function, n) &&
	       (!name[n] || (name[n] == '_' && is_numbered(name + n + 1, "")));
}

bool
name_is_creation(const char *name)
{
	static const char *const words[] = {"zeros",      "ones",      "full",
	                                    "new_zeros",  "new_ones",  "new_full",
	                                    "zeros_like", "ones_like", "full_like"};

	for (int i = 0; i < COUNT(words); i++)
		if (is_call_of(name, words[i]))
			return true;
	return !strncmp(name_last_part(name), "ConstantOfShape_", 16);
}

bool
name_is_expansion(const char *name)
{
	static const char *const words[] = {"expand",       "expand_as", "repeat",
	                                    "broadcast_to", "tile",      "embedding"};

	for (int i = 0; i < COUNT(words); i++)
		if (is_call_of(name, words[i]))
			return true;
	return false;
}

/* The operation in the name of a TensorFlow value: "Neg" in "p_re_lu/Neg_1:0"; *n: its length. */
static const char *
tensorflow_operation(const char *name, size_t *n)
{
	const char *end = strrchr(name, ':'), *begin;

	*n = 0;
	if (!end || end[1 + strspn(end + 1, "0123456789")])
		return NULL;
	for (begin = end; begin > name && begin[-1] != '/';)
		begin--;
	*n = strcspn(begin, "_:");
	return begin;
}

static bool
is_of_operation(const char *name, const char *const *operations, int n_operations)
{
	size_t n;
	const char *operation = tensorflow_operation(name, &n);

	for (int i = 0; operation && i < n_operations; i++)
		if (n == strlen(operations[i]) && !strncmp(operation, operations[i], n))
			return true;
	return false;
}

bool
name_is_variable(const char *name)
{
	static const char *const reads[] = {"ReadVariableOp"};

	return is_of_operation(name, reads, COUNT(reads));
}

bool
name_is_variable_or_view(const char *name)
{
	static const char *const views[] = {"ReadVariableOp", "Squeeze",   "Reshape", "ExpandDims",
	                                    "transpose",      "Transpose", "Cast"};

	return is_of_operation(name, views, COUNT(views));
}

bool
name_is_like_parameter(const char *name)
{
	static const char *const words[] = {"weight", "bias",     "scale",       "gamma",
	                                    "beta",   "alpha",    "temperature", "kernel",
	                                    "token",  "embedding"};

	if (name_is_generated(name))
		return false;
	if (name_is_variable(name))
		return true;
	for (int i = 0; i < COUNT(words); i++)
		if (has_word(name, words[i]))
			return true;
	return strchr(name, '.') && !strchr(name, '/');
}

bool
name_is_scale(const char *name)
{
	static const char *const words[] = {"scale", "logit_scale", "layer_scale", "res_scale",
	                                    "temp"};

	for (int i = 0; i < COUNT(words); i++)
		if (!strcasecmp(name_last_part(name), words[i]))
			return true;
	return false;
}

bool
name_is_of_scaling(const char *name)
{
	return has_word(name_last_part(name), "scal") || has_word(name_last_part(name), "sqrt");
}

bool
name_is_own(const char *name)
{
	size_t n;

	return !name_is_generated(name) && !name_is_creation(name) && !name_is_expansion(name) &&
	       !tensorflow_operation(name, &n);
}

/* `embed_scale` and `dpa_scale_0` are fixed. A learned scale is called just `scale`, or has a word for the scaled value. */
bool
name_is_learned_number(const char *name)
{
	static const char *const words[] = {"weight", "bias",        "gamma",  "beta",
	                                    "alpha",  "temperature", "kernel", "slope"};
	const char *part = name_last_part(name);

	if (name_is_variable(name))
		return true;
	if (name_is_generated(name) || *part == '_')
		return false;
	for (int i = 0; i < COUNT(words); i++)
		if (has_word(part, words[i]))
			return true;
	if (part > name && part[-1] == '.' && (is_numbered(part, "w_") || is_numbered(part, "b_")))
		return true; /* Paddle's create_parameter: scaled_0.w_0 */
	return name_is_scale(name);
}

bool
name_is_of_layer(const char *name)
{
	const char *part = name_last_part(name);

	return part > name && (!strcmp(part, "weight") || !strcmp(part, "bias"));
}

bool
name_is_private(const char *name)
{
	return !name_is_generated(name) && *name_last_part(name) == '_';
}

/* stft.forward_basis_buffer, rotary.inv_freq, 1.melW; a number may follow. */
bool
name_is_of_table(const char *name)
{
	static const char *const words[] = {"buffer",     "basis",  "inv_freq",    "window",
	                                    "filterbank", "fbank",  "filter_bank", "melw",
	                                    "mel_fb",     "erb_fb", "dct_mat",     "anchors"};
	const char *part = name_last_part(name);

	for (int i = 0; i < COUNT(words); i++) {
		size_t n = strlen(part), word = strlen(words[i]);
		while (n && strchr("0123456789_", part[n - 1]))
			n--;
		if (n >= word && !strncasecmp(part + n - word, words[i], word))
			return true;
	}
	return false;
}
