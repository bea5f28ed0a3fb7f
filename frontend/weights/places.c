/* Places: what an operator does with each of its inputs. MatMul multiplies by input 1, so a tensor
 * there is likely a weight; Clip takes input 1 as a bound, which is not trained. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"

#define MICROSOFT "com.microsoft."
static const struct {
	PlaceKind kind;
	const char *op;
	unsigned inputs; /* bit i: input i */
} places[] = {
	{WEIGHT_PLACE, "Conv", 6},
	{WEIGHT_PLACE, "ConvTranspose", 6},
	{WEIGHT_PLACE, "DeformConv", 10},
	{WEIGHT_PLACE, "Gemm", 7},
	{WEIGHT_PLACE, "MatMul", 3},
	{WEIGHT_PLACE, "BatchNormalization", 6},
	{WEIGHT_PLACE, "LayerNormalization", 6},
	{WEIGHT_PLACE, "InstanceNormalization", 6},
	{WEIGHT_PLACE, "GroupNormalization", 6},
	{WEIGHT_PLACE, "RMSNormalization", 2},
	{WEIGHT_PLACE, "PRelu", 2},
	{WEIGHT_PLACE, "RNN", 14},
	{WEIGHT_PLACE, "GRU", 14},
	{WEIGHT_PLACE, "LSTM", 142},
	{WEIGHT_PLACE, "CausalConvWithState", 6},
	{WEIGHT_PLACE, "SimplifiedLayerNormalization", 2},
	{WEIGHT_PLACE, MICROSOFT "Attention", 6},
	{WEIGHT_PLACE, MICROSOFT "BiasGelu", 2},
	{WEIGHT_PLACE, MICROSOFT "DynamicQuantizeLSTM", 136},
	{WEIGHT_PLACE, MICROSOFT "DynamicQuantizeMatMul", 16},
	{WEIGHT_PLACE, MICROSOFT "EmbedLayerNormalization", 124},
	{WEIGHT_PLACE, MICROSOFT "FastGelu", 2},
	{WEIGHT_PLACE, MICROSOFT "FusedConv", 6},
	{WEIGHT_PLACE, MICROSOFT "FusedGemm", 7},
	{WEIGHT_PLACE, MICROSOFT "FusedMatMul", 3},
	{WEIGHT_PLACE, MICROSOFT "GroupNorm", 6},
	{WEIGHT_PLACE, MICROSOFT "MatMulIntegerToFloat", 64},
	{WEIGHT_PLACE, MICROSOFT "MoE", 252},
	{WEIGHT_PLACE, MICROSOFT "MultiHeadAttention", 8},
	{WEIGHT_PLACE, MICROSOFT "NhwcConv", 6},
	{WEIGHT_PLACE, MICROSOFT "NhwcFusedConv", 6},
	{WEIGHT_PLACE, MICROSOFT "SkipGroupNorm", 22},
	{WEIGHT_PLACE, MICROSOFT "SkipLayerNormalization", 28},
	{WEIGHT_PLACE, MICROSOFT "SkipSimplifiedLayerNormalization", 12},
	{WEIGHT_PLACE, MICROSOFT "TransposeMatMul", 3},
	{WEIGHT_PLACE, "Einsum", 7},
	{WEIGHT_PLACE, "Gather", 1},
	{STEERING_PLACE, "RotaryEmbedding", 6},
	{STEERING_PLACE, MICROSOFT "RotaryEmbedding", 12},
	{STEERING_PLACE, MICROSOFT "GroupQueryAttention", 384},
	{STEERING_PLACE, "Resize", 14},
	{STEERING_PLACE, "Upsample", 2},
	{STEERING_PLACE, "GridSample", 2},
	{STEERING_PLACE, "RoiAlign", 2},
	{STEERING_PLACE, "MaxRoiPool", 2},
	{STEERING_PLACE, "STFT", 4},
	{STEERING_PLACE, "MelWeightMatrix", 24},
	{STEERING_PLACE, "Split", 2}, /* of version 1 */
	{STEERING_PLACE, "Tile", 6},  /* before opset 6 */
	{STEERING_PLACE, "Pow", 2},
	{STEERING_PLACE, "Clip", 6},
	{STEERING_PLACE, "Range", 7},
	{STEERING_PLACE, "Pad", 4},
	{STEERING_PLACE, "OneHot", 6},
	{STEERING_PLACE, "Mod", 2},
	{STEERING_PLACE, "Equal", 3},
	{STEERING_PLACE, "Less", 3},
	{STEERING_PLACE, "Greater", 3},
	{STEERING_PLACE, "LessOrEqual", 3},
	{STEERING_PLACE, "GreaterOrEqual", 3},
	{STEERING_PLACE, "IsNaN", 1},
	{STEERING_PLACE, "IsInf", 1},
	{STEERING_PLACE, "Dropout", 2},
	{STEERING_PLACE, "Shape", 1},
	{STEERING_PLACE, "Size", 1},
	{STEERING_PLACE, "CastLike", 2},
	{STEERING_PLACE, "ConstantOfShape", 1},
	{STEERING_PLACE, "EyeLike", 1},
	{STEERING_PLACE, "Max", 3},
	{STEERING_PLACE, "Min", 3},
	{STEERING_PLACE, "SoftmaxCrossEntropyLoss", 4},
	{STEERING_PLACE, "NegativeLogLikelihoodLoss", 4},
	{FILLING_PLACE, "Concat", ~0u},
	{FILLING_PLACE, "Where", 6},
	{FILLING_PLACE, "ScatterElements", 5},
	{FILLING_PLACE, "ScatterND", 5},
	{FILLING_PLACE, "Scatter", 5},
	{FILLING_PLACE, "Expand", 1},
	{FILLING_PLACE, "GatherElements", 1},
	{FILLING_PLACE, "GatherND", 1},
	{FACTOR_PLACE, "Mul", 3},
	{FACTOR_PLACE, "Div", 3},
	{TERM_PLACE, "Add", 3},
	{TERM_PLACE, "Sub", 3},
	{JOINING_PLACE, "Einsum", 7},
	{JOINING_PLACE, "Where", 6},
	{JOINING_PLACE, "Mul", 3},
	{LAYER_PLACE, "MatMul", 1},
	{LAYER_PLACE, "Gemm", 1},
	{LAYER_PLACE, MICROSOFT "FusedGemm", 1},
	{LAYER_PLACE, MICROSOFT "FusedMatMul", 1},
	{CHANNEL_PLACE, "Conv", 4},
	{CHANNEL_PLACE, "ConvTranspose", 4},
	{CHANNEL_PLACE, "Gemm", 4},
	{CHANNEL_PLACE, "BatchNormalization", 6},
	{CHANNEL_PLACE, "LayerNormalization", 6},
	{CHANNEL_PLACE, "InstanceNormalization", 6},
	{CHANNEL_PLACE, "GroupNormalization", 6},
	{CHANNEL_PLACE, "RMSNormalization", 2},
	{CHANNEL_PLACE, "PRelu", 2},
	{STATE_PLACE, "RNN", 32},
	{STATE_PLACE, "GRU", 32},
	{STATE_PLACE, "LSTM", 96},
	{STATE_PLACE, MICROSOFT "DynamicQuantizeLSTM", 96},
	{STATE_PLACE, "Loop", ~3u},
	{STATISTIC_PLACE, "BatchNormalization", 24},
};

/* ~0u means all inputs, however many. */
static bool
has_input(unsigned inputs, int input)
{
	return input >= 0 && (input < 32 ? inputs >> input & 1 : inputs == ~0u);
}

bool
in_place(const Reader *reader, PlaceKind kind)
{
	for (int i = 0; i < COUNT(places); i++)
		if (places[i].kind == kind && has_input(places[i].inputs, reader->input) &&
		    is_op(reader->node->proto, places[i].op))
			return true;
	return false;
}

bool
all_in(const Case *c, PlaceKind kind)
{
	for (int i = 0; i < c->n; i++)
		if (!in_place(&c->readers[i], kind))
			return false;
	return c->n > 0;
}

bool
any_in(const Case *c, PlaceKind kind)
{
	for (int i = 0; i < c->n; i++)
		if (in_place(&c->readers[i], kind))
			return true;
	return false;
}
