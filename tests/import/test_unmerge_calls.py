"""The text that dynamo's exporter keeps of each node's call says which of merged tensors the node read."""
import numpy as np
import onnx
import pytest
from test_origins import ONE, RANDOM, check, write

ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)
W, CONV, NORM = RANDOM.standard_normal((4, 4)).astype(np.float32), RANDOM.standard_normal((3, 3, 1)).astype(np.float32), "LayerNormalization"
FX = "pkg.torch.onnx.fx_node"


def text(result, function, *arguments):
    return f"%{result} : [num_users=1] = call_function[target=torch.ops.aten.{function}.default](args = ({', '.join(arguments)}), kwargs = {{}})"


def norm(x, weight, bias, y, *names):
    """Reads weight and bias, and by the text `names`."""
    return (NORM, [x, weight, bias], y), text(y, "layer_norm", f"%{x}", "[4]", *names)


def layer(op, inputs, y, function, *names, **attributes):
    return (op, inputs, y, "", attributes), text(y, function, *names)


def dense(inputs, y, *names):
    return layer("Gemm", inputs, y, "linear", *names)


A = {"a.weight": ONES, "a.bias": ZEROS}
FIRST = norm("x", "a.weight", "a.bias", "h", "%p_a_weight", "%p_a_bias")
FLAT = (("Reshape", ["h", "flat"], "i"), text("i", "view", "%h"))
BACK = (("Reshape", ["j", "back"], "y"), text("y", "view", "%j"))
# nodes and texts, tensors, further names of the module, what is restored
CASES = {
    "merged": ([FIRST, norm("h", "a.weight", "a.bias", "y", "%p_b_weight", "%p_b_bias")], A, ["b.weight", "b.bias"], ["b.weight", "b.bias"]),
    "tied": ([FIRST, norm("h", "a.weight", "a.bias", "i", "%p_c_weight", "%p_c_bias"), norm("i", "a.weight", "a.bias", "y", "%p_c_weight", "%p_c_bias")],
             A, ["b.weight", "b.bias", "c.weight", "c.bias"], ["c.weight", "c.bias"]),
    "the same one": ([FIRST, norm("h", "a.weight", "a.bias", "y", "%p_a_weight", "%p_a_bias")], A, ["b.weight", "b.bias"], []),
    "other names": ([FIRST, norm("h", "a.weight", "a.bias", "y", "%p_m_gamma", "%p_m_beta")], A, ["m.gamma", "m.beta"], ["m.gamma", "m.beta"]),
    "a norm without weights": ([FIRST, norm("h", "a.weight", "a.bias", "y", "None", "None")], A, [], ["a.weight_in_code", "a.bias_in_code"]),
    "a factor of a norm without weights": (
        [FIRST, norm("h", "a.weight", "a.bias", "i", "None", "None"), layer("Mul", ["i", "a.weight"], "y", "mul", "%i", "%p_m_weight")],
        A, ["m.weight"], ["a.weight_in_code", "a.bias_in_code", "m.weight"]),
    "a value that was folded": ([FIRST, layer("Mul", ["h", "a.weight"], "y", "mul", "%h", "%add")], A, ["m.weight"], []),
    "twice in one call": ([FIRST, (("Mul", ["h", "a.weight"], "i"), text("y", "own", "%h", "%p_m_weight")),
                           (("Mul", ["i", "a.weight"], "y"), text("y", "own", "%h", "%p_m_weight"))], A, ["m.weight"], []),
    "one of two of a call": ([FIRST, layer("Mul", ["h", "a.weight"], "y", "own", "%h", "%p_m_s", "%p_m_t")], A, ["m.s", "m.t"], []),
    "buffer": ([FIRST, layer("Sub", ["h", "a.bias"], "y", "sub", "%h", "%b_m_mean")], A, ["m.mean"], ["m.mean"]),
    "equal by copy": ([layer("MatMul", ["x", "a.weight"], "h", "matmul", "%x", "%p_a_weight"), layer("MatMul", ["h", "a.weight"], "y", "matmul", "%h", "%p_b_weight")],
                      {"a.weight": W}, ["b.weight"], ["b.weight"]),
    "statistics": ([(("Reshape", ["x", "six"], "h"), text("h", "view", "%x")),
                    layer("BatchNormalization", ["h", "a.weight", "a.bias", "a.bias", "a.weight"], "j", "batch_norm", "%h", "%p_a_weight", "%p_a_bias",
                          "%b_a_running_mean", "%b_a_running_var"), BACK], A, ["a.running_mean", "a.running_var"], ["a.running_mean", "a.running_var"]),
    "statistics without weights": ([FIRST, (("Reshape", ["h", "six"], "i"), text("i", "view", "%h")),
                                    layer("BatchNormalization", ["i", "a.weight", "a.bias", "a.bias", "a.weight"], "j", "batch_norm", "%i", "None", "None",
                                          "%b_n_running_mean", "%b_n_running_var"), BACK], A, ["n.running_mean", "n.running_var"],
                                   ["n.running_mean", "n.running_var", "a.weight_in_code", "a.bias_in_code"]),
    "a dropped bias": ([FIRST, FLAT, dense(["i", "l.weight"], "j", "%i", "%p_l_weight", "%p_l_bias"), BACK], A | {"l.weight": W}, ["l.bias"], ["l.bias"]),
    "an unused bias": ([FIRST, FLAT, dense(["i", "l.weight"], "j", "%i", "%p_l_weight"), BACK], A | {"l.weight": W}, ["l.bias"], []),
    "a bias that is added later": ([FIRST, FLAT, dense(["i", "l.weight"], "k", "%i", "%p_l_weight"), layer("Add", ["k", "a.bias"], "j", "add", "%k", "%p_l_bias"), BACK],
                                   A | {"l.weight": W}, ["l.bias"], ["l.bias"]),
    "a folded norm": ([layer("Conv", ["x", "l.weight"], "y", "batch_norm", "%conv", "%p_n_weight", "%p_n_bias", "%b_n_running_mean", "%b_n_running_var")],
                      {"l.weight": CONV}, ["n.weight", "n.bias", "n.running_mean", "n.running_var"], []),
    "computed": ([layer("Mul", ["x", "val_1"], "h", "mul", "%x", "%p_a_weight"), layer("Mul", ["h", "val_1"], "y", "mul", "%h", "%p_b_weight")],
                 {"val_1": ONES}, ["a.weight", "b.weight"], ["val_1_1"]),
}


def write_case(path, nodes, tensors, more):
    buffers = ("mean", "var")
    signature = [n for n in tensors if n != "val_1"] + more
    write(path, [node for node, _ in nodes], {k: (v, dict(FOLDED="['a.weight', 'unsqueeze']") if k == "val_1" else ONE) for k, v in tensors.items()},
          [("BUFFER" if n.endswith(buffers) else "PARAMETER", n) for n in signature])
    model = onnx.load(path)
    for prop in model.graph.metadata_props:
        for i, name in enumerate(signature):
            prop.value = prop.value.replace(f"p_{i}: ", f"{'b' if name.endswith(buffers) else 'p'}_{name.replace('.', '_')}: ")
    for made, (_, words) in zip(model.graph.node, nodes):
        prop = made.metadata_props.add()
        prop.key, prop.value = FX, words
    shapes = {"flat": [-1, 4], "six": [6, 4], "back": [2, 3, 4]}
    used = {i for n in model.graph.node for i in n.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array(v), k) for k, v in shapes.items() if k in used)
    onnx.save(model, path)


@pytest.mark.parametrize("nodes, tensors, more, restored", CASES.values(), ids=CASES)
def test_texts_of_calls_decide(run, tmp_path, nodes, tensors, more, restored):
    write_case(tmp_path / "model.onnx", nodes, tensors, more)
    rows, said = check(run)
    assert set(rows) == set(tensors) | set(restored)
    assert all(rows[n]["kind"] != "trainable" for n in rows if n.endswith(("mean", "var", "in_code")))
    computed = ["a.weight", "b.weight"] if "val_1" in tensors else []
    lost = [n for n in more if n not in restored + computed and not n.endswith(("mean", "var"))]
    notes = [note for note in said["notes"] if "in inference form" not in note]
    assert len(notes) == bool(lost) and all(f'"{n}"' in notes[0] for n in lost)
    x = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    outputs = []
    for options in [], ["--no-repair=unmerge", "--no-repair=biases"]:
        run("run", "model.onnx", "--input=x=x.npy", "--output-dir=out", *options)
        outputs.append(np.load(tmp_path / "out/y.npy"))
    assert np.array_equal(*outputs)


def test_a_lost_weight_is_no_bias(run, tmp_path):
    """Without the repair of merged tensors the second layer goes on reading the first one's weight, and has no bias."""
    nodes = [layer("Conv", ["x", "a.weight"], "h", "conv1d", "%x", "%p_a_weight"), layer("Conv", ["h", "a.weight"], "y", "conv1d", "%h", "%p_b_weight")]
    write_case(tmp_path / "model.onnx", nodes, {"a.weight": CONV}, ["b.weight"])
    assert set(check(run)[0]) == {"a.weight", "b.weight"}
    assert set(check(run, "--no-repair=unmerge")[0]) == {"a.weight"}


@pytest.mark.parametrize("lost, restored", [(["b2"], ["b2"]), (["w2", "b2"], [])])
def test_addmm_has_its_bias_first(run, tmp_path, lost, restored):
    tensors = {"w1": W, "b1": W[0]} | ({} if "w2" in lost else {"w2": W + 1})
    w2 = "w2" if "w2" in tensors else "w1"
    nodes = [(("Reshape", ["x", "flat"], "i"), text("i", "view", "%x")),
             layer("Gemm", ["i", "w1", "b1"], "k", "addmm", "%p_b1", "%i", "%p_w1"), layer("Gemm", ["k", w2, "b1"], "j", "addmm", "%p_b2", "%k", "%p_w2"), BACK]
    write_case(tmp_path / "model.onnx", nodes, tensors, lost)
    assert set(check(run)[0]) == set(tensors) | set(restored)


def test_a_matrix_of_the_code_is_no_bias(run, tmp_path):
    """The second product takes a bias of the module and ones of the code, which are equal to the first one's weight."""
    nodes = [(("Reshape", ["x", "flat"], "i"), text("i", "view", "%x")), layer("Gemm", ["i", "a.weight", "a.bias"], "k", "addmm", "%p_a_bias", "%i", "%p_a_weight"),
             layer("Gemm", ["k", "a.weight", "a.bias"], "j", "addmm", "%p_m_bias", "%k"), BACK]
    write_case(tmp_path / "model.onnx", nodes, {"a.weight": np.ones((4, 4), np.float32), "a.bias": W[0]}, ["m.bias"])
    assert set(check(run)[0]) == {"a.weight", "a.bias", "m.bias", "a.weight_in_code"}
