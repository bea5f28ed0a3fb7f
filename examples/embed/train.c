/* Trains a compiled model from inside a program: open, step, evaluate, save, export, close. */
#include "runtime/gradc.h"

#include <math.h>
#include <stdio.h>

GRADC_MODEL(
	gpt2); /* the symbol in libgpt2.so, written by `gradc compile --emit=library -o libgpt2.so` */

static Status
train(Gradc *run, int64_t steps)
{
	GradcStep step;
	GradcEval eval;

	RETURN_IF_ERROR(gradc_bind_data(run));
	for (int64_t i = 0; i < steps; i++) {
		RETURN_IF_ERROR(gradc_step(run, &step));
		if ((i + 1) % 10 == 0)
			printf("step %lld: loss %.4f\n", (long long)step.step, step.loss);
	}
	RETURN_IF_ERROR(gradc_evaluate(run, &eval));
	printf("held out: loss %.4f, perplexity %.2f\n", eval.loss, eval.perplexity);
	RETURN_IF_ERROR(gradc_save(run, eval.loss));
	RETURN_IF_ERROR(gradc_save_poll(run, true)); /* waits until the checkpoint is on disk */
	return gradc_export(run, "trained.onnx");
}

int
main(int argc, char **argv)
{
	GradcOptions options = gradc_default_options();
	Gradc *run;

	if (argc != 3) {
		fprintf(stderr, "usage: %s TEXT HELD_OUT_TEXT\n", argv[0]);
		return 2;
	}
	options.text = argv[1];
	options.eval_text = argv[2];
	options.steps = 40;
	options.lr = 0.003;
	options.save = "checkpoints";
	Status status = gradc_open(&gradc_model_gpt2, &options, NULL, &run);
	if (!status) {
		status = train(run, options.steps);
		gradc_close(run);
	}
	if (status) {
		int code = status->exit_code;
		fprintf(stderr, "%s: %s\n", argv[0], status->message);
		status_free(status);
		return code;
	}
	return 0;
}
