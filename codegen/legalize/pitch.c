/* The pass `pitch`: pads the operands and results of library products to multiples of 16 bytes. Matrix units of GPUs want rows
 * that begin at such multiples and consist of whole 16 bytes; with rows of 50257 f32 numbers they take three times as long. So
 * a value that a library multiplies or computes gets padding: a few elements behind each row, and a few rows behind the
 * last row. The padded length of a row is its pitch:
 *
 *	%1 = launch ... {kernel = @dot_29} : bf16[16384,50257]   ->   bf16[16384,50264]
 *
 * Kernels that read or write the value get new places (indices into the buffer): the element in row r and column c moves from
 * 50257 r + c to 50264 r + c (ir/loop/pitch.c). The kernel that writes the value writes zeros into the padding. If all operands
 * of a library's product have padding, the library multiplies 50264 columns, as if they were part of the tensor (pitch_calls.c).
 *
 * Only values between kernels can have padding. States, such as weights, keep the layout of their type, and so do results
 * of a program. A product that reads or computes one of them gets a copy (pitch_copy.c). A kernel that is also launched on values
 * without padding gets a twin: a copy of the kernel for values with padding. Changes no number. Takes linear time in the number
 * of places in the kernels. */
#include "codegen/codegen.h"
#include "codegen/legalize/pitch.h"

#include <string.h>

/* ---- which values */
typedef struct {
	Arena *arena;
	Module *m;
	const LibraryLimits *limits; /* alike for all targets that want an alignment */
	IntMap *padding;             /* by a value's address: PAD_COLUMNS, PAD_ROWS */
	IntMap *copies;   /* by a type, for operands and for results: the kernel that copies it */
	VEC(Value *) all; /* every value that ever had padding */
	bool dropped;     /* was a value dropped in this round? */
} Pitches;

static int
padding_of(const Pitches *p, const Value *v)
{
	uint64_t padding = 0;

	return v && intmap_get(p->padding, (uint64_t)(uintptr_t)v, &padding) ? (int)padding : 0;
}

static void
set_padding(Pitches *p, Value *v, int padding)
{
	uint64_t known;

	if (!intmap_get(p->padding, (uint64_t)(uintptr_t)v, &known))
		vec_push(p->arena, &p->all, v);
	intmap_put(p->padding, (uint64_t)(uintptr_t)v, (uint64_t)padding);
}

static int64_t
row_of(Type t)
{
	return t->dims[t->rank - 1];
}

static int64_t
round_up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

static Type
with_padding(const Pitches *p, Type t, int padding)
{
	int64_t alignment = p->limits->row_alignment, dims[MAX_RANK];

	memcpy(dims, t->dims, sizeof(*dims) * (size_t)t->rank);
	/* a result of 32 bits has as many columns as operands of 8 or 16 bits need */
	int bits = dtype_info[t->dtype].bits > 16 ? 8 : dtype_info[t->dtype].bits;
	if (padding & PAD_COLUMNS)
		dims[t->rank - 1] = round_up(row_of(t), alignment * 8 / bits);
	if (padding & PAD_ROWS) /* as many rows as any type needs */
		dims[0] = round_up(dims[0], alignment);
	return type_new(p->m, t->dtype, t->rank, dims);
}

static Value *
argument(const Node *n, int buffer)
{
	int n_inputs = launched_kernel(n)->n_inputs;

	return buffer < n_inputs ? node_operand(n, buffer) : node_result(n, buffer - n_inputs);
}

static int
n_buffers(const Kernel *k)
{
	return k->n_inputs + k->n_outputs;
}

/* Is v computed by a kernel and read by kernels only? */
static bool
is_of_kernels(const Value *v)
{
	if (!v->node || !launched_kernel(v->node))
		return false;
	for_each_use(v, u)
		if (!launched_kernel(u->user))
			return false;
	return true;
}

/* Does the function run on a target that wants an alignment? */
static bool
is_aligned(const Function *f)
{
	const Target *t = f->target ? target_find(f->target) : NULL;

	return t && t->tuning->library.row_alignment > 0;
}

static void
find_values(Pitches *p, const Function *f)
{
	for_each_node(f, n) {
		const Kernel *k = launched_kernel(n);
		for (int b = 0; k && b < n_buffers(k); b++) {
			Value *v = argument(n, b);
			int padding = product_padding(k, b, p->limits) |
			              product_pitch(k, b, p->limits);
			if (padding && is_of_kernels(v))
				set_padding(p, v, padding_of(p, v) | padding);
		}
	}
}

/* ---- which values can have padding */
/* Flags for a kernel's buffer. MOVES, STAYS: the buffer's places can move to a pitch, or cannot (0: not known yet). */
enum { MOVES = 1, STAYS = 2 };
/* only the first buffers of a kernel may have padding: the padding of all buffers is 64 bits */
enum { MOST_PITCHED = 32 };

static uint64_t
paddings_of(const Pitches *p, const Node *n)
{
	uint64_t set = 0;

	for (int b = 0; b < n_buffers(launched_kernel(n)) && b < MOST_PITCHED; b++)
		set |= (uint64_t)padding_of(p, argument(n, b)) << 2 * b;
	return set;
}

static bool
launches_differ(const Pitches *p, const Kernel *k, uint64_t set)
{
	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n)
			if (launched_kernel(n) == k && paddings_of(p, n) != set)
				return true;
	return false;
}

typedef void Visit(Pitches *p, IntMap *found, Node *n, int buffer);

static void
for_each_argument(Pitches *p, IntMap *found, Visit *visit)
{
	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n) {
			const Kernel *k = launched_kernel(n);
			for (int b = 0; k && b < n_buffers(k); b++)
				visit(p, found, n, b);
		}
}

/* Is the buffer an input, or an output that the kernel writes as a whole? Not if a result begins as the buffer. */
static bool
is_whole(const Kernel *k, int buffer)
{
	for (int b = 0; b < n_buffers(k); b++)
		if (k->buffers.at[b].from == buffer + 1)
			return false;
	return buffer < k->n_inputs || k->buffers.at[buffer].kind == BUFFER_OUT;
}

static uint64_t
buffer_key(const Kernel *k, int buffer, int padding)
{
	return hash_mix((uint64_t)(uintptr_t)k, (uint64_t)buffer << 2 | (uint64_t)padding);
}

/* Can the kernel's buffer, a tensor of type t, have this padding? */
static bool
can_pad(const Pitches *p, const Kernel *k, int buffer, Type t, int padding)
{
	return buffer < MOST_PITCHED && is_whole(k, buffer) &&
	       (!(padding & PAD_COLUMNS) || places_can_move(p->arena, k, buffer, row_of(t)));
}

static void
look_at(Pitches *p, IntMap *found, Node *n, int buffer)
{
	const Kernel *k = launched_kernel(n);
	Type t = argument(n, buffer)->type;
	int padding = padding_of(p, argument(n, buffer));
	uint64_t known, key = buffer_key(k, buffer, padding);

	if (!padding || intmap_get(found, key, &known))
		return;
	intmap_put(found, key, can_pad(p, k, buffer, t, padding) ? MOVES : STAYS);
}

/* Has k a serving kernel, or is it one? Then k gets no twin: the pair would have to be copied
 * together, which this pass does not do. */
static bool
is_served(const Pitches *p, const Kernel *k)
{
	for (int i = 0; i < p->m->kernels.n; i++)
		if (p->m->kernels.at[i]->serves == k)
			return true;
	return k->serves != NULL;
}

static void
drop_impossible(Pitches *p, IntMap *found, Node *n, int buffer)
{
	const Kernel *k = launched_kernel(n);
	Value *v = argument(n, buffer);
	int padding = padding_of(p, v);
	uint64_t bits = 0;

	if (!padding)
		return;
	intmap_get(found, buffer_key(k, buffer, padding), &bits);
	if (bits == MOVES && !(is_served(p, k) && launches_differ(p, k, paddings_of(p, n))))
		return;
	set_padding(p, v, 0);
	p->dropped = true;
}

static void
drop_all_impossible(Pitches *p)
{
	do {
		IntMap *found = intmap_new(p->arena);
		p->dropped = false;
		for_each_argument(p, found, look_at);
		for_each_argument(p, found, drop_impossible);
	} while (p->dropped);
}

/* ---- copies of values that cannot have padding */
static Kernel *
copy_kernel(Pitches *p, const Target *target, Type t, bool result)
{
	uint64_t known, key = hash_mix((uint64_t)(uintptr_t)t, result);

	if (!intmap_get(p->copies, key, &known)) {
		known = (uint64_t)(uintptr_t)row_copy_kernel(p->m, p->arena, t, target->team);
		intmap_put(p->copies, key, known);
	}
	return (Kernel *)(uintptr_t)known;
}

/* A copy of v, an operand or result of n. */
static Value *
insert_copy(Pitches *p, Node *before, const Node *n, Value *v)
{
	const Target *target = target_find(n->function->target);
	Kernel *k = copy_kernel(p, target, v->type, v->node == n);
	Node *copy = node_insert(n->function, before, OP_launch, 1, &v, &(LaunchAttr){k}, 1,
	                         &v->type, n->loc);

	copy->phase = n->phase;
	return node_result(copy, 0);
}

/* Makes n read a padded copy, written by loops, so that its padding is zeros. All products of a function read the same copy. */
static void
copy_operand(Pitches *p, IntMap *copies, Node *n, int buffer, int padding)
{
	Value *v = node_operand(n, buffer);
	uint64_t known;

	if (!intmap_get(copies, (uint64_t)(uintptr_t)v, &known)) {
		known = (uint64_t)(uintptr_t)insert_copy(p, n, n, v);
		intmap_put(copies, (uint64_t)(uintptr_t)v, known);
	}
	Value *copy = (Value *)(uintptr_t)known;
	node_set_operand(n, buffer, copy);
	set_padding(p, copy, padding_of(p, copy) | padding);
}

/* Makes all readers of n's result read a copy. */
static void
copy_result(Pitches *p, Node *n, int result, int padding)
{
	Value *v = node_result(n, result);
	Value *copy = insert_copy(p, n->next, n, v);

	for (Use *u = v->uses, *next; u; u = next) {
		next = u->next;
		if (u->user != copy->node)
			node_set_operand(u->user, use_index(u), copy);
	}
	set_padding(p, v, padding);
}

/* Is the padding of v zeros: is v written by loops? A library writes no zeros behind a result if it cannot pad its
 * product. */
static bool
has_zeros(const Pitches *p, const Value *v)
{
	return padding_of(p, v) && v->node && launched_kernel(v->node) &&
	       !launched_kernel(v->node)->library;
}

static bool
is_launched_again(const Pitches *p, const Kernel *k, const Node *launch)
{
	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n)
			if (n != launch && launched_kernel(n) == k)
				return true;
	return false;
}

/* Copies operands and results that a product wants padded but that keep their layout. */
static void
add_copies(Pitches *p, const Function *f)
{
	IntMap *copies = intmap_new(p->arena);

	for_each_node(f, n) {
		const Kernel *k = launched_kernel(n);
		if (!k || !k->library)
			continue;
		for (int i = 0; i <= LIBRARY_RESULT; i++) {
			int b = (int)k->library->operands[i].buffer;
			const Value *v = argument(n, b);
			int padding = product_padding(k, b, p->limits);
			bool has = (padding_of(p, v) & padding) == padding;
			if (!has && ((is_served(p, k) && is_launched_again(p, k, n)) ||
			             !can_pad(p, k, b, v->type, padding)))
				continue;
			if (i == LIBRARY_RESULT && !has)
				copy_result(p, n, b - k->n_inputs, padding);
			else if (i != LIBRARY_RESULT && padding && !(has && has_zeros(p, v)))
				copy_operand(p, copies, n, b, padding);
		}
	}
}

/* ---- kernels: a kernel whose launches differ gets a twin */
static void
move_buffer(const Pitches *p, Kernel *k, int buffer, int padding)
{
	LoopBuffer *b = &k->buffers.at[buffer];
	Type from = b->type, to = with_padding(p, from, padding);

	if (row_of(to) != row_of(from))
		places_move(p->m->arena, k, buffer, &(RowMove){row_of(from), row_of(to), 0});
	if (buffer >= k->n_inputs)
		places_write_zeros(p->m->arena, k, buffer, from, to);
	b->type = to;
}

static Kernel *
twin_of(const Pitches *p, const Kernel *k)
{
	const char *name = arena_printf(p->arena, "%s_pitched", k->name);

	for (int i = 2; strmap_get(p->m->kernel_names, name); i++)
		name = arena_printf(p->arena, "%s_pitched%d", k->name, i);
	return kernel_add(p->m, k, name);
}

/* The kernel for launches with this padding of arguments. */
static Kernel *
moved_kernel(Pitches *p, IntMap *moved_ones, Kernel *k, uint64_t set)
{
	uint64_t key = hash_mix((uint64_t)(uintptr_t)k, set), known;

	if (intmap_get(moved_ones, key, &known))
		return p->m->kernels.at[known];
	Kernel *to = launches_differ(p, k, set) ? twin_of(p, k) : k;
	for (int b = 0; b < n_buffers(k) && b < MOST_PITCHED; b++)
		if (set >> 2 * b & 3)
			move_buffer(p, to, b, set >> 2 * b & 3);
	kernel_finish(to);
	intmap_put(moved_ones, key, (uint64_t)to->id);
	return to;
}

/* A launch and the padding of its arguments. All are collected first, while launches still have their original kernels. */
typedef struct {
	Node *node;
	uint64_t set;
} PitchedLaunch;
typedef VEC(PitchedLaunch) PitchedLaunches;

static PitchedLaunches
pitched_launches(Pitches *p)
{
	PitchedLaunches launches = {0};

	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n) {
			uint64_t set = launched_kernel(n) ? paddings_of(p, n) : 0;
			if (set)
				vec_push(p->arena, &launches, ((PitchedLaunch){n, set}));
		}
	return launches;
}

static void
move_kernels(Pitches *p, const PitchedLaunches *launches)
{
	IntMap *moved_ones = intmap_new(p->arena);
	VEC(Kernel *) to = {0};

	for (int i = 0; i < launches->n; i++) {
		Kernel *k = ((LaunchAttr *)launches->at[i].node->attr)->kernel;
		vec_push(p->arena, &to, moved_kernel(p, moved_ones, k, launches->at[i].set));
	}
	for (int i = 0; i < launches->n; i++)
		((LaunchAttr *)launches->at[i].node->attr)->kernel = to.at[i];
}

/* ---- products: the library multiplies the padding, too */
static void
pad_products(Pitches *p, const PitchedLaunches *launches)
{
	bool *zero[2];

	for (int i = 0; i < 2; i++) {
		zero[i] = NEW_ARRAY(p->arena, bool, p->m->kernels.n);
		memset(zero[i], true, sizeof(bool) * (size_t)p->m->kernels.n);
	}
	for (int i = 0; i < launches->n; i++) {
		const Node *n = launches->at[i].node;
		const Kernel *k = launched_kernel(n);
		for (int o = 0; o < 2 && k->library; o++)
			zero[o][k->id] &= has_zeros(
				p, argument(n, (int)k->library->operands[o].buffer));
	}
	for (int i = 0; i < launches->n; i++) {
		Kernel *k = ((LaunchAttr *)launches->at[i].node->attr)->kernel;
		if (!k->library || k->library->kind != LIBRARY_DOT)
			continue;
		for (int a = 0; a < N_PRODUCT_AXES; a++)
			if (product_can_pad(k, (ProductAxis)a, p->limits->row_alignment,
			                    (bool[]){zero[0][k->id], zero[1][k->id]}))
				product_pad(p->m->arena, k, (ProductAxis)a,
				            p->limits->row_alignment);
		kernel_finish(k);
	}
	for (int i = 0; i < p->m->kernels.n; i++)
		if (p->m->kernels.at[i]->serves)
			kernel_finish(p->m->kernels.at[i]);
}

/* ---- the pass */
static const LibraryLimits *
find_limits(const Module *m)
{
	for (int i = 0; i < m->functions.n; i++)
		if (is_aligned(m->functions.at[i]))
			return &target_find(m->functions.at[i]->target)->tuning->library;
	return NULL;
}

static bool
run_pitch(Pass *pass, Module *m)
{
	Pitches p = {.arena = pass->scratch,
	             .m = m,
	             .limits = find_limits(m),
	             .padding = intmap_new(pass->scratch),
	             .copies = intmap_new(pass->scratch)};

	for (int i = 0; p.limits && i < m->functions.n; i++)
		if (is_aligned(m->functions.at[i]))
			find_values(&p, m->functions.at[i]);
	drop_all_impossible(&p);
	for (int i = 0; p.limits && i < m->functions.n; i++)
		if (is_aligned(m->functions.at[i]))
			add_copies(&p, m->functions.at[i]);
	PitchedLaunches launches = pitched_launches(&p);
	move_kernels(&p, &launches);
	pad_products(&p, &launches);
	for (int i = 0; i < p.all.n; i++) {
		Value *v = p.all.at[i];
		if (padding_of(&p, v))
			v->type = with_padding(&p, v->type, padding_of(&p, v));
	}
	pass->changed = launches.n > 0;
	return true;
}

const PassRow pass_pitch = {.name = "pitch",
                            .help = "pad operands of products on GPUs to multiples of 16 bytes",
                            .takes = STAGE_LOWERED,
                            .leaves = STAGE_LOWERED,
                            .run = run_pitch};
