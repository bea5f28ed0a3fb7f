/* The ops without operands: constant, and iota (each element is its index along an axis). */
#include "ir/ops/family.h"

/* ---- constant {value} */
static const Field constant_fields[] = {
	{"value", FIELD_TENSOR, offsetof(ConstantAttr, value), NULL, false}, {0}};

static void
constant_infer(Infer *in)
{
	const ConstantAttr *a = in->attr;

	if (!a->value)
		infer_error(in, "no value");
	else
		in->result[0] = a->value->type;
}

static void
constant_eval(Eval *ev)
{
	const Tensor *t = ((const ConstantAttr *)ev->attr)->value;

	ev->result[0] = eval_tensor_from(ev->arena, t->type, t->data);
}

/* Only splats are written into kernels; other constants lie in the state region. */
static LoopValue
constant_element(Lower *lw, const Node *n, const Index *at)
{
	double v = 0;

	(void)at;
	tensor_is_splat(((const ConstantAttr *)n->attr)->value, &v);
	return lb_number(lw->lb, compute_type(node_result(n, 0)->type->dtype), v);
}

/* Only a splat (all elements equal) can be cut into parts; the numbers of other constants differ
 * from part to part. */
static void
constant_factors(Partition *p)
{
	double value;

	if (tensor_is_splat(((const ConstantAttr *)p->node->attr)->value, &value))
		partition_elements(p);
}

static void
constant_cut(Module *m, Cut *cut)
{
	ConstantAttr *a = cut->attr;
	double value = 0;

	tensor_is_splat(a->value, &value);
	a->value = tensor_splat(m, cut->result[0], value);
}

static const Sample constant_samples[] = {
	{"{value = f64[2] [1.5, 2.5]}", ""},
	{"{value = s64[3,1] [1, -2, 3]}", ""},
	{"{value = f64[0] []}", ""},
	{"{value = f64[12] [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]}", ""},
	{0}};
const OpRow op_constant = {
	COLUMNS(constant, ConstantAttr, constant_fields, grad_zero, "stored numbers"),
	.results = {"y"},
	.fuse = FUSE_INDEX,
	.element = constant_element,
	.flops = flops_none,
	.precision = PRECISION_FIXED,
	.partition = {.factors = constant_factors,
                      .attrs = constant_cut,
                      .doc = "every axis if all numbers are equal; else no axis"},
};

/* ---- iota {dtype, shape, axis}: the index along an axis */
static const Field iota_fields[] = {{"dtype", FIELD_DTYPE, offsetof(IotaAttr, dtype), NULL, false},
                                    {"shape", FIELD_INTS, offsetof(IotaAttr, shape), NULL, false},
                                    {"axis", FIELD_INT, offsetof(IotaAttr, axis), NULL, true},
                                    {0}};

static void
iota_infer(Infer *in)
{
	const IotaAttr *a = in->attr;

	if (infer_axis(in, a->axis, a->shape.n))
		infer_set(in, 0, a->dtype, &a->shape);
}

static void
iota_eval(Eval *ev)
{
	const IotaAttr *a = ev->attr;
	EvalTensor *y = &ev->result[0];

	for (IndexWalk w = index_walk(y->type); w.ok; index_walk_next(&w)) {
		if (dtype_is_float(a->dtype))
			y->f[w.flat] = (double)w.at[a->axis];
		else
			y->i[w.flat] = w.at[a->axis];
	}
}

static LoopValue
iota_element(Lower *lw, const Node *n, const Index *at)
{
	const IotaAttr *a = n->attr;

	return lb_cast(lw->lb, a->dtype, lb_affine(lw->lb, at->at[a->axis]));
}

/* Along `axis`, each part starts to count at 0; SHARE_SHIFTED says that the part's first place
 * must be added. */
static void
iota_factors(Partition *p)
{
	int64_t axis = ((const IotaAttr *)p->node->attr)->axis;

	partition_elements(p);
	p->factors.at[axis]->result[0].kind = SHARE_SHIFTED;
}

static void
iota_cut(Module *m, Cut *cut)
{
	(void)m;
	((IotaAttr *)cut->attr)->shape = ints_of_type(cut->result[0]);
}

static const Sample iota_samples[] = {{"{dtype = s64, shape = [12,12], axis = 1}", ""},
                                      {"{dtype = f64, shape = [5]}", ""},
                                      {"{dtype = s32, shape = [1,0]}", ""},
                                      {0}};
const OpRow op_iota = {
	COLUMNS(iota, IotaAttr, iota_fields, grad_zero, "the index along an axis"),
	.results = {"y"},
	.fuse = FUSE_INDEX,
	.element = iota_element,
	.flops = flops_none,
	.precision = PRECISION_FIXED,
	.partition = {.factors = iota_factors,
                      .attrs = iota_cut,
                      .doc = "every axis; along `axis` a part adds its first place"},
};
