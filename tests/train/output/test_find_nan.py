"""--find-nan: the first ONNX node whose result is not finite, and what its operands were; nothing where there is nothing to find."""
import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

ROWS, WIDTH, OUT = 4, 8, 3
RANDOM = np.random.default_rng(0)
MPIRUN = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
W1, W2 = (np.abs(RANDOM.standard_normal(shape)).astype(np.float32) for shape in ((WIDTH, 16), (16, OUT)))
X, Y = np.abs(RANDOM.standard_normal((8 * ROWS, WIDTH))).astype(np.float32), np.ones((8 * ROWS, OUT), np.float32)


def save(folder, nodes, weights, x=X, y=Y):
    """nodes: (name, op, inputs), whose result has the node's name; from x[n,8] to y[n,3]. Writes the data, too."""
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [name], name=name, **dict(*rest)) for name, op, inputs, *rest in nodes], "g",
        [helper.make_tensor_value_info("x", 1, ["n", WIDTH])], [helper.make_tensor_value_info("y", 1, ["n", OUT])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)


def bad(row, value, x=X):
    """The data with one element of that row changed."""
    x = x.copy()
    x[row, 1] = value
    return x


@pytest.fixture
def find(run, tmp_path):
    """find(nodes, weights, OPTION..., x=, compile=): compiles, trains to exit 8; (last line of the log, the lines of the error)."""
    def find_it(nodes, weights, *options, x=X, y=Y, compile=(), launch=(), exit=8):
        save(tmp_path, nodes, weights, x, y)
        run("compile", "model.onnx", "-o", "train", "--loss=mse", f"--batch={ROWS}", "--optimizer=sgd", *compile)
        program = tmp_path / "train"
        command = [tmp_path / launch[0], *launch[1:], program] if launch else [program]
        done = run(*command, "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--table=off", "--progress=off", "--log=log.jsonl",
                   "--find-nan", *options, exit=exit)
        lines = (tmp_path / "log.jsonl").read_text().splitlines()
        return json.loads(lines[-1]), done.stderr.splitlines()
    return find_it


def tensor(found, role, name):
    return next(t for t in found["tensors"] if t["role"] == role and t["name"] == name)


LOG = [("fc1", "MatMul", ["x", "w1"]), ("log", "Log", ["fc1"]), ("y", "MatMul", ["log", "w2"])]
WEIGHTS = {"w1": W1, "w2": W2}


def test_log_of_a_negative_number(find):
    line, said = find(LOG, WEIGHTS, "--lr=0", x=bad(2 * ROWS + 1, -1e3))
    found = line["not_finite"]
    assert line["step"] == 3 and line["loss"] is None
    assert found["nodes"] == ["log"] and found["phase"] == "forward" and found["micro_batch"] == 1
    result, operand = tensor(found, "result", "log"), tensor(found, "operand", "fc1")
    product = bad(2 * ROWS + 1, -1e3)[2 * ROWS:3 * ROWS] @ W1
    assert result["nan"] == np.sum(product < 0) == 16 and result["inf"] == 0
    assert (operand["min"], operand["max"]) == pytest.approx((product.min(), product.max()), rel=1e-5)
    assert operand["nan"] == 0 and operand["elements"] == product.size and operand["dtype"] == "f32"
    assert said[0].startswith("gradc: error: step 3: the loss is nan") and said[1].startswith('\tthe first NaN is a result of "log"')
    assert any(s.startswith('\tresult "log" (f32, 64 elements): 16 NaN, the rest from ') for s in said)
    assert f'\toperand "fc1" (f32, 64 elements): from {operand["min"]:g} to {operand["max"]:g}' in said


@pytest.mark.parametrize("precision", ["f64", "bf16"])
def test_other_types(find, precision):
    found = find(LOG, WEIGHTS, x=bad(1, -1e3), compile=[f"--precision={precision}"])[0]["not_finite"]
    assert "log" in found["nodes"] and any(t["nan"] == 16 for t in found["tensors"] if t["role"] == "result")


def test_only_the_gradient(find):
    """The square root of 0 is 0; its derivative is not finite."""
    x = X.copy()
    x[ROWS + 2] = 0
    line, said = find([("fc1", "MatMul", ["x", "w1"]), ("sqrt", "Sqrt", ["fc1"]), ("y", "MatMul", ["sqrt", "w2"])], WEIGHTS, x=x)
    assert line["step"] == 2 and np.isfinite(line["loss"]) and line["grad_norm"] is None
    assert "sqrt" in line["not_finite"]["gradients"] and line["not_finite"]["phase"] == "backward"
    assert 'the first infinity is a result of the gradient of "sqrt"' in said[1] and "norm of the gradients" in said[0]
    assert '\tthe infinity became NaN in the gradient of "fc1"' in said


def test_an_infinity_that_becomes_nan(find):
    """exp overflows, and the product after it makes NaN of infinities."""
    w2 = W2.copy()
    w2[:8] *= -1
    line, said = find([("fc1", "MatMul", ["x", "w1"]), ("exp", "Exp", ["fc1"]), ("y", "MatMul", ["exp", "w2"])], {"w1": W1, "w2": w2},
                      x=bad(1, 1e4))
    found = line["not_finite"]
    assert found["nodes"] == ["exp"] and tensor(found, "result", "exp")["inf"] == 16 and found["nan"] == '"y"'
    assert said[1].startswith('\tthe first infinity is a result of "exp" (forward, ') and said[-1] == '\tthe infinity became NaN in "y"'


def test_an_infinity_that_may_be_a_mask(find):
    """The logarithm of 0. Where NaN is made of it is named, and where it is from is said of the operand."""
    x, w2 = X.copy(), W2.copy()
    x[1] = 0
    w2[:8] *= -1
    line, _ = find(LOG, {"w1": W1, "w2": w2}, x=x)
    assert line["not_finite"]["nodes"] == ["y"] and line["not_finite"]["nan"] is None
    operand = tensor(line["not_finite"], "operand", "log")
    assert operand["minus_inf"] == 16 and operand["since"] == 'from "log"'


def test_nan_that_is_thrown_away(find):
    """The logarithm's NaN goes no further than Where; the failure comes after it."""
    nodes = [("fc1", "MatMul", ["x", "w1"]), ("log", "Log", ["fc1"]), ("fc2", "MatMul", ["log", "one"]), ("good", "Greater", ["fc2", "low"]),
             ("where", "Where", ["good", "fc2", "zero"]), ("fc3", "MatMul", ["where", "wide"]), ("exp", "Exp", ["fc3"]), ("y", "MatMul", ["exp", "w2"])]
    weights = WEIGHTS | {"one": np.eye(16, dtype=np.float32), "low": np.float32(-1e30), "zero": np.float32(0), "wide": np.full((16, 16), 1e4, np.float32)}
    line, _ = find(nodes, weights, x=bad(1, -1e3), compile=["--freeze=one"])
    assert "exp" in line["not_finite"]["nodes"] and "log" not in line["not_finite"]["nodes"]


def test_an_input(find):
    line, said = find([("y", "MatMul", ["x", "w"])], {"w": W1[:, :OUT]}, x=bad(3 * ROWS, np.inf))
    assert line["step"] == 4 and line["not_finite"]["phase"] == ""
    assert said[1].startswith('\tinput "x" held it before the step, and was read first by "y"')
    assert tensor(line["not_finite"], "operand", "x")["inf"] == 1


def test_a_parameter(find):
    w1 = W1.copy()
    w1[2, 3] = np.nan
    line, said = find(LOG, {"w1": w1, "w2": W2})
    assert line["step"] == 1 and said[1].startswith('\tparameter "w1" held it before the step, and was read first by "fc1"')
    assert any(s.startswith('\toperand parameter "w1" (f32[8,16]): 1 NaN, the rest from ') for s in said)


def test_a_weight_that_an_update_made_infinite(find):
    """NaN is made of it at once."""
    line, said = find([("fc1", "MatMul", ["x", "w1"]), ("y", "MatMul", ["fc1", "w2"])], WEIGHTS, "--lr=1e38", x=X - 1)
    assert line["step"] == 2 and line["not_finite"]["phase"] == "" and line["not_finite"]["nan"] == '"fc1"'
    assert said[1].startswith('\tparameter "w1" held it before the step, and was read first by "fc1"') and '\tthe infinity became NaN in "fc1"' in said


def attention(mask):
    nodes = [("fc1", "MatMul", ["x", "w1"]), ("masked", "Add", ["fc1", "mask"]), ("soft", "Softmax", ["masked"]), ("fc2", "MatMul", ["soft", "w2"]),
             ("shift", "Sub", ["fc2", "c"]), ("y", "Log", ["shift"])]
    return nodes, {"w1": W1, "mask": np.float32([mask]), "w2": W2, "c": np.float32(0)}


HALF = [0] * 8 + [-np.inf] * 8


def test_a_mask_is_no_finding(find):
    nodes, weights = attention(HALF)
    weights["c"] = np.float32(100)
    line, said = find(nodes, weights, compile=["--freeze=mask"])
    assert "y" in line["not_finite"]["nodes"] and "mask" not in "".join(said)


def test_a_mask_beside_an_overflow(find):
    """NaN is made of the infinity of exp and of the mask's, which was met sooner. Attention is one kernel, named after its second product."""
    nodes, weights = attention(HALF)
    nodes[3:] = [("fc2", "MatMul", ["soft", "wide"]), ("exp", "Exp", ["fc2"]), ("fc3", "MatMul", ["exp", "wide"]), ("again", "Add", ["fc3", "mask"]),
                 ("soft2", "Softmax", ["again"]), ("y", "MatMul", ["soft2", "w2"])]
    line, _ = find(nodes, weights | {"wide": np.full((16, 16), 1e4, np.float32)}, compile=["--freeze=mask"])
    assert line["not_finite"]["nodes"] == ["exp"] and "y" in line["not_finite"]["nan"]


def test_a_mask_of_everything(find):
    nodes, weights = attention([-np.inf] * 16)
    line, said = find(nodes, weights, compile=["--freeze=mask"])
    assert line["not_finite"]["nodes"] == ["fc2"] and line["not_finite"]["phase"] == "forward"  # attention, named after its second product
    assert tensor(line["not_finite"], "operand", "mask")["minus_inf"] == 16


def test_weights_that_overflow(find):
    line, _ = find([("fc1", "MatMul", ["x", "w1"]), ("y", "MatMul", ["fc1", "w2"])], WEIGHTS, "--lr=1e30")
    assert line["step"] == 2 and line["not_finite"]["nodes"] == ["y"] and line["not_finite"]["phase"] == "forward"
    assert tensor(line["not_finite"], "operand", "w2")["min"] < -1e28


@pytest.mark.parametrize("device", ["cpu", "async"])
def test_the_micro_batch(find, device):
    """With batch statistics, which each micro-batch hands on, and a row of the second one; on a device of its own memory, too."""
    nodes = [("fc1", "MatMul", ["x", "w1"]), ("log", "Log", ["fc1"]), ("norm", "BatchNormalization", ["log", "scale", "bias", "mean", "var"]),
             ("y", "MatMul", ["norm", "w2"])]
    vectors = {k: np.full(16, v, np.float32) for k, v in dict(scale=1, bias=0, mean=0, var=1).items()}
    line, said = find(nodes, WEIGHTS | vectors, f"--device={device}", "--accumulate=2", x=bad(3 * ROWS, -1e3), compile=["--train-mode=restore"])
    assert line["step"] == 2 and line["not_finite"]["micro_batch"] == 2 and "log" in line["not_finite"]["nodes"]
    assert any("micro-batch 2 of 2" in s for s in said)


def test_nothing_to_find(run, find, tmp_path):
    """Not a bit changes, and nothing is said: also with dynamic loss scaling, whose steps are skipped."""
    nodes, weights = attention(HALF)
    for name, options in {"plain": ["--freeze=mask"], "f16": ["--precision=f16", "--freeze=mask", "--loss-scale=torch,init=1e30"]}.items():
        _, said = find(nodes, weights, f"--export={name}.onnx", "--lr=0.01", compile=options, exit=0)
        line = (tmp_path / "log.jsonl").read_text()
        assert "not_finite" not in line and ("overflowed" in line) == (name == "f16")
        assert not [s for s in said if "NaN" in s or "find" in s]
        run(tmp_path / "train", "--data=x=x.npy", "--data=labels=y.npy", "--shuffle=off", "--lr=0.01", "--export=other.onnx")
        assert (tmp_path / "other.onnx").read_bytes() == (tmp_path / f"{name}.onnx").read_bytes()


def test_overflow_at_the_least_scale(find):
    line, said = find([("y", "MatMul", ["x", "w"])], {"w": W1[:, :OUT]}, y=1e8 * Y, compile=["--precision=f16", "--loss-scale=megatron,init=2,least=1"])
    assert line["step"] == 3 and line["overflows"] == 2 and "at the least loss scale" in said[0]
    assert line["not_finite"]["gradients"] and any(t["dtype"] == "f16" and t["minus_inf"] == 12 for t in line["not_finite"]["tensors"])


def test_one_of_two_ranks(gradc, run, find, tmp_path):
    if not shutil.which(MPIRUN[0]):
        pytest.skip(f"{MPIRUN[0]} is not installed")
    # Step 2 is rows 8 to 15, the second half of them rank 1's.
    line, said = find(LOG, WEIGHTS, "--threads=1", x=bad(3 * ROWS, -1e3), launch=[shutil.which(MPIRUN[0]), *MPIRUN[1:]])
    assert line["step"] == 2 and "not_finite" not in line
    errors = [s for s in said if "error: " in s]
    assert sorted("rank 1: step 2" in s for s in errors) == [False, True]
    assert sum("the first NaN is a result of" in s for s in said) == 1
