/* gradc quantize: finds ranges over real data, then puts QuantizeLinear and DequantizeLinear into
 * the file's graph. */
#include "tools/tools.h"

static bool
write_results(Quantize *q)
{
	bool ok = quantize_model(q) && (!q->o->report || quantize_write_page(q));

	if (ok && q->o->json)
		quantize_print_json(q);
	else if (ok)
		quantized_print(q->arena, &q->tensors, q->snr, q->gain);
	if (ok && q->gain && !q->o->json)
		printf("results: SNR %.1f dB; `left out`: how many dB they gain if the tensor stays floats\n",
		       q->output_snr);
	return ok;
}

/* Uses two folders: the cleanup of a temporary folder removes its files, but no folders inside. */
static bool
quantize_in_folders(Quantize *q)
{
	TemporaryFolder folder, results = {0};
	bool ok = !diag_status(q->diag, temporary_folder_open(q->arena, &folder)) &&
	          !diag_status(q->diag, temporary_folder_open(q->arena, &results));

	if (ok) {
		q->folder = folder.path;
		q->results = results.path;
		q->exe = path_join(q->arena, folder.path, "once");
		ok = write_results(q);
	}
	temporary_folder_close(&results);
	temporary_folder_close(&folder);
	return ok;
}

int
command_quantize(Options *o, Arena *arena, Diag *diag)
{
	Quantize q = {.o = o, .arena = arena, .diag = diag};

	o->forward_only = true;
	if (!o->output) {
		diag_error(diag, EXIT_USAGE, "no output: give -o Q.onnx");
		return EXIT_USAGE;
	}
	bool ok = quantize_options(&q) && quantize_read_data(&q) && quantize_in_folders(&q);
	session_close(&q.s);
	return diag_exit_code(diag) ? diag_exit_code(diag) : ok ? EXIT_OK : EXIT_SYSTEM;
}
