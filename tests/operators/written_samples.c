/* written_samples FOLDER: writes every op that has an ONNX form, with each of its samples and the interpreter's results:
 * FOLDER/N.onnx, inputs N.NAME.npy and results N.out.I.npy. Prints one line per model, "N OP SAMPLE", and one line per sample
 * without an ONNX form, "- OP SAMPLE".
 * The samples' f64 becomes f32, because onnxruntime has few kernels for f64. Samples with indices are written twice: the second
 * time
 * with indices at and beyond both ends. */
#include "frontend/frontend.h"
#include "tests/unit/ir/sample_case.h"

static const char *folder;
static int count;

static void
write_array(const char *name, const EvalTensor *t, Arena *arena)
{
	void *data = arena_alloc(arena, (size_t)type_bytes(t->type) + 1);
	Status fault;

	eval_tensor_to(t, data);
	fault = npy_write(arena_printf(arena, "%s/%d.%s.npy", folder, count, name), t->type->dtype,
	                  t->type->rank, t->type->dims, data);
	if (fault) {
		fprintf(stderr, "%s\n", fault->message);
		exit(1);
	}
}

static void
write_case(Case *c)
{
	Diag *quiet = diag_new("written_samples", fopen("/dev/null", "w"));
	const Node *ends = function_return(c->f);
	size_t size;
	const uint8_t *bytes = ends ? module_encode_onnx(c->m, c->f, c->arena, quiet, &size) : NULL;

	printf("%s %s\n", bytes ? arena_printf(c->arena, "%d", count) : "-", c->name);
	if (bytes) {
		EvalTensor results[8];
		Interp in = interp_new(c->m, c->arena, false);

		interp_run(&in, c->f, c->args, results);
		for (int i = 0; i < c->n_args; i++)
			write_array(c->f->params.at[i]->name, &c->args[i], c->arena);
		for (int i = 0; i < ends->n_operands; i++)
			write_array(arena_printf(c->arena, "out.%d", i), &results[i], c->arena);
		Status fault = file_write(arena_printf(c->arena, "%s/%d.onnx", folder, count++),
		                          bytes, (int64_t)size);
		if (fault) {
			fprintf(stderr, "%s\n", fault->message);
			exit(1);
		}
	}
	diag_free(quiet);
}

/* Sets indices at and beyond both ends of [0, below); false if c has no indices. */
static bool
use_wild_indices(Case *c)
{
	bool any = false;

	for (int i = 0; i < c->n_args; i++) {
		int64_t below = c->values[i].below, most = INT64_MAX, least = INT64_MIN;
		if (c->args[i].type->dtype == S32)
			most = INT32_MAX, least = INT32_MIN;
		const int64_t wild[] = {-1, below - 1, below, 0, -below, most, below + 1, least};
		for (int64_t k = 0; below && k < c->args[i].type->n; k++, any = true)
			c->args[i].i[k] = wild[k % COUNT(wild)];
	}
	return any;
}

static void
write_sample(OpKind op, const Sample *s)
{
	Case c;

	case_substitute = strncmp(s->operands, "f64", 3) == 0 ? F32 : N_DTYPES;
	srand48(op + 1);
	case_open(&c, op, s);
	write_case(&c);
	if (use_wild_indices(&c))
		write_case(&c);
	case_close(&c);
}

int
main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	folder = argv[1];
	for (int op = 0; op < N_OPS; op++)
		for (const Sample *s = op_table[op]->samples; s->attrs; s++)
			if (strcmp(s->attrs, "text") != 0)
				write_sample((OpKind)op, s);
	return 0;
}
