/* The table of gradc's subcommands. */

#include "tools/tools.h"

#include <string.h>

const Command commands[] = {
	{"compile", "writes a training executable (-o)", command_compile, "MODEL.onnx",
         COMMAND_COMPILE},
	{"check", "parameters, and all that is unsupported", command_check, "MODEL.onnx",
         COMMAND_CHECK},
	{"run", "forward once, to --output-dir", command_run, "MODEL.onnx", COMMAND_RUN},
	{"grad", "loss and gradients once, to --output-dir", command_grad, "MODEL.onnx",
         COMMAND_GRAD},
	{"dump", "the module after a stage", command_dump, "MODEL.onnx|EXE|FILE.gir", COMMAND_DUMP},
	{"opt", "runs --passes on text IR", command_opt, "FILE.gir", COMMAND_OPT},
	{"quantize", "writes a quantized model (-o)", command_quantize, "MODEL.onnx",
         COMMAND_QUANTIZE},
	{"ops", "the ONNX operators that can be read", command_ops, "", COMMAND_OPS},
	{"passes", "the passes in order", command_passes, "", COMMAND_PASSES},
	{"cache", "compiled CUDA kernels: --list, --clear", command_cache, "", COMMAND_CACHE},
	{"completion", "a script that completes command lines", command_completion, "bash|zsh|fish",
         COMMAND_COMPLETION},
	{0},
};

const Command *
command_find(const char *name)
{
	for (const Command *c = commands; c->name; c++)
		if (strcmp(c->name, name) == 0)
			return c;
	return NULL;
}
