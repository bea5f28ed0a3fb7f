/* Prints kernels as CUDA C for NVRTC. CUDA C is a dialect of the C printed by codegen/c/. A
 * block of threads runs each part (iteration of the parallel loops). */
#include "codegen/cuda/print.h"
#include "codegen/cuda/cuda.h"

#include <string.h>

enum { MOST_BLOCKS = 16 /* blocks that a multiprocessor holds, on every architecture */ };

int
cuda_threads(const Kernel *k)
{
	int threads = k->n_team ? 1 : LONE_THREADS;

	for (int i = 0; i < k->n_team; i++)
		threads *= k->team[i];
	return threads;
}

int64_t
cuda_blocks(const Kernel *k, int64_t begin, int64_t end)
{
	return k->n_team ? end - begin : (end - begin + LONE_THREADS - 1) / LONE_THREADS;
}

static bool
declares_inner_tile(const Kernel *k)
{
	int depth = 0;

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		depth += s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM;
		depth -= s->kind == LOOP_STATEMENT_END && k->body.at[s->match].mode == LOOP_TEAM;
		if (depth && s->kind == LOOP_STATEMENT_LOCAL &&
		    k->buffers.at[s->buffer].kind == BUFFER_TILE)
			return true;
	}
	return false;
}

static const char *
tile_refusal(const Kernel *k, const Target *target)
{
	int inner = k->n_team == 2 ? k->team[1] : cuda_threads(k);

	if (!kernel_has_tiles(k))
		return NULL;
	if (k->n_team == 0 || cuda_threads(k) % WARP ||
	    (k->n_team == 2 && inner != WARP && declares_inner_tile(k)))
		return "a tile is spread over whole warps of 32 members";
	for (int i = 0; i < k->buffers.n; i++)
		if (k->buffers.at[i].kind == BUFFER_TILE && k->buffers.at[i].type->rank == 1 &&
		    tile_in_registers(k->buffers.at[i].type->dtype))
			return "a tile of rows has no 16 bits";
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].kind == LOOP_STATEMENT_MMA &&
		    !cuda_multiplies_tiles(k, target, &k->body.at[i]))
			return "a tile of 16 bits is the first operand of a matrix unit only";
	for (int i = 0; i < k->body.n; i++)
		for (int a = 0; a < k->body.at[i].n_accumulators; a++)
			if (k->body.at[i].accumulators[a].level == ACC_ROW &&
			    k->body.at[i].accumulators[a].number < 8)
				return "rows of a tile are reduced in eight partials or more";
	return NULL;
}

const char *
cuda_refusal(const Kernel *k, const Target *target)
{
	if (k->n_team == 2 && k->team[1] > WARP)
		return "a team inside of a team is more than a warp of 32 members";
	if (k->n_team && kernel_shared_bytes(k) > target->shared_bytes)
		return "its arrays are more than the shared memory that a block of the target may have";
	return tile_refusal(k, target);
}

/* ---- the kernel's first lines, which compute the number of its part */
/* How many blocks a multiprocessor should hold at the same time. Together these blocks have 512
 * threads, so a thread may have 128 registers. Without this number, ptxas uses 64 registers in
 * some kernels of gpt2_124m and spills other values to memory. If the number is 1, ptxas uses 168
 * to 199 registers per thread, and a second block has no room. In kernels with tiles, more
 * registers help more than more threads: only 256 threads share all registers. */
static int
least_blocks(const Kernel *k)
{
	int n = (kernel_has_tiles(k) ? 256 : 512) / cuda_threads(k);

	return n < 1 ? 1 : n > MOST_BLOCKS ? MOST_BLOCKS : n;
}

static void
open_kernel(CPrinter *p, const char *suffix)
{
	const Kernel *k = p->k;

	text_printf(p->out, "extern \"C\" __global__ void __launch_bounds__(%d, %d)\ngradc_%s%s(",
	            cuda_threads(k), least_blocks(k), k->name, suffix);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		text_printf(p->out, "%s%s *%s, ", i < k->n_inputs ? "const " : "",
		            c_storage_names[k->buffers.at[i].type->dtype], c_name(p, i));
	text_add(p->out, "const Scalar *scalars, int64_t begin, int64_t end)\n{\n");
	if (k->n_team)
		text_add(p->out, "\tconst int64_t part = begin + blockIdx.x;\n");
	else
		text_add(
			p->out,
			"\tconst int64_t part = begin + (int64_t)blockIdx.x * blockDim.x + threadIdx.x;\n"
			"\tif (part >= end)\n\t\treturn;\n");
	cuda_declare_shared(p);
}

static void
close_kernel(CPrinter *p)
{
	text_add(p->out, "}\n");
}

/* ---- loops */
static void
print_parallel(CPrinter *p, const LoopStatement *s, int at)
{
	int depth = parallel_depth(p->k, at);
	bool narrow = p->k->iterations <= INT32_MAX;
	int64_t inner = 1;

	for (int i = depth - 1; i >= 0; i--) {
		s = &p->k->body.at[at + i];
		c_indent(p);
		text_printf(p->out, "const %s v%d = %spart", c_type_name(p, s->result), s->result,
		            narrow ? "(uint32_t)" : "");
		if (inner > 1)
			text_printf(p->out, " / %lld", (long long)inner);
		if (i)
			text_printf(p->out, " %% %lld", (long long)(s->extent ? s->extent : 1));
		text_add(p->out, ";\n");
		inner *= s->extent ? s->extent : 1;
	}
	c_print_block(p, at + depth, p->k->body.at[at + depth - 1].match);
}

/* Prints a loop that runs once or not at all as an `if`. */
static void
print_once(CPrinter *p, const LoopStatement *s, int at)
{
	c_indent(p);
	text_printf(p->out, "if (%s > 0) {\n", c_affine(p, s->place));
	p->depth++;
	c_indent(p);
	text_printf(p->out, "const %s v%d = 0;\n", c_type_name(p, s->result), s->result);
	c_print_block(p, at + 1, s->match);
	p->depth--;
	c_indent(p);
	text_add(p->out, "}\n");
}

static void
print_for(CPrinter *p, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_PARALLEL)
		print_parallel(p, s, at);
	else if (s->mode == LOOP_TEAM)
		cuda_print_team_loop(p, s, at);
	else if (s->place && s->extent == 1 && s->n_accumulators == 0)
		print_once(p, s, at);
	else if (cuda_is_short_vector(p, s))
		cuda_print_vector(p, s, at);
	else
		c_print_for(p, s, at);
}

extern const char cuda_prelude[]; /* prelude.cuh */

/* Scalar functions that the prelude defines with a GPU instruction instead of printed code. f64
 * to 16 bits is missing: no instruction does it with one rounding. The instruction for f8e5m2
 * turns infinity into a large number, so the prelude's function keeps infinity itself. */
#define HAS_F8 "__CUDA_ARCH__ >= 890"
#define ON_GPU "__CUDA_ARCH__ >= 800"
static const OwnFunction own_functions[] = {
	{"load_f16", NULL},
	{"store_f16", NULL},
	{"f32_to_f16_nearest_default", NULL},
	{"load_bf16", NULL},
	{"store_bf16", NULL},
	{"f32_to_bf16_nearest_default", NULL},
	{"load_f8e5m2", NULL},
	{"load_f8e4m3", HAS_F8},
	{"store_f8e4m3", HAS_F8},
	{"f32_to_f8e4m3_nearest_default", HAS_F8},
	{"exp_fast_f32", ON_GPU},
	{NULL, NULL},
};

static const CDialect cuda_dialect = {
	.prelude = cuda_prelude,
	.function = "static __device__ __forceinline__",
	.own = own_functions,
	.math = "",
	.nan64 = "__longlong_as_double(INT64_C(0x7ff8000000000000))",
	.nan32 = "__int_as_float(0x7fc00000)",
	.infinity64 = "__longlong_as_double(INT64_C(0x7ff0000000000000))",
	.infinity32 = "__int_as_float(0x7f800000)",
	.simd = "",
	.unroll = "#pragma unroll %lld\n",
	.narrow = true,
	.open = open_kernel,
	.close = close_kernel,
	.array = cuda_array,
	.place = cuda_place,
	.print = {[LOOP_STATEMENT_OP] = c_print_definition,
                  [LOOP_STATEMENT_CONST] = c_print_definition,
                  [LOOP_STATEMENT_CAST] = c_print_definition,
                  [LOOP_STATEMENT_AFFINE] = c_print_definition,
                  [LOOP_STATEMENT_SCALAR] = c_print_definition,
                  [LOOP_STATEMENT_LOAD] = cuda_print_load,
                  [LOOP_STATEMENT_STORE] = cuda_print_store,
                  [LOOP_STATEMENT_LOCAL] = cuda_print_local,
                  [LOOP_STATEMENT_FOR] = print_for,
                  [LOOP_STATEMENT_ACCUMULATE] = c_print_accumulate,
                  [LOOP_STATEMENT_IF] = c_print_if,
                  [LOOP_STATEMENT_BARRIER] = cuda_print_barrier,
                  [LOOP_STATEMENT_EACH] = cuda_print_each,
                  [LOOP_STATEMENT_MMA] = cuda_print_mma,
                  [LOOP_STATEMENT_COPY] = cuda_print_copy,
                  [LOOP_STATEMENT_COMMIT] = cuda_print_commit,
                  [LOOP_STATEMENT_WAIT] = cuda_print_wait,
                  [LOOP_STATEMENT_END] = c_print_nothing},
};

void
cuda_print_part(Text *out, const Target *target, const KernelPart *part)
{
	c_print_file(out, &cuda_dialect, target, part, "");
}
