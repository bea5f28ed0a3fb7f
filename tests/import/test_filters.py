"""Front ends that no training changes, told by their values: windows, bases, filter banks, sequences; and weights that are none of these."""
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

RANDOM = np.random.default_rng(0)
PERIOD = {  # sampled windows, without the last number
    "hann": lambda n: .5 - .5 * np.cos(np.arange(n) * 2 * np.pi / n),
    "hamming": lambda n: .54 - .46 * np.cos(np.arange(n) * 2 * np.pi / n),
    "blackman": lambda n: .42 - .5 * np.cos(np.arange(n) * 2 * np.pi / n) + .08 * np.cos(np.arange(n) * 4 * np.pi / n),
    "root of hann": lambda n: np.sin(np.arange(n) * np.pi / n),
    "kaiser": lambda n: np.kaiser(n, 8), "gauss": lambda n: np.exp(-.5 * ((np.arange(n) - (n - 1) / 2) / (n / 6)) ** 2),
    "symmetric hann": np.hanning, "triangle": np.bartlett,
}
SCALES = {  # from Hz, to Hz
    "htk": (lambda f: 2595 * np.log10(1 + f / 700), lambda m: 700 * (10 ** (m / 2595) - 1)),
    "slaney": (lambda f: np.where(f < 1000, f * 3 / 200, 15 + np.log(np.maximum(f, 1) / 1000) / np.log(6.4) * 27),
               lambda m: np.where(m < 15, m * 200 / 3, 1000 * 6.4 ** ((m - 15) / 27))),
    "bark": (lambda f: 6 * np.arcsinh(f / 600), lambda m: 600 * np.sinh(m / 6)),
    "erb": (lambda f: 21.4 * np.log10(1 + .00437 * f), lambda m: (10 ** (m / 21.4) - 1) / .00437),
}


def spectrum(n):
    """Cosines, then sines, of the frequencies up to half of the sampling rate: [n + 2, n]."""
    return np.vstack([np.fft.rfft(np.eye(n)).real.T, np.fft.rfft(np.eye(n)).imag.T])


def spectrum_of_f32(n):
    """The same where f32 rounds the angles, as of torch.arange: the last sine, of half the sampling rate, is noise up to 1e-4."""
    angles = np.arange(n // 2 + 1, dtype=np.float32)[:, None] * np.arange(n, dtype=np.float32) * np.float32(2 * np.pi) / np.float32(n)
    return np.vstack([np.cos(angles), -np.sin(angles)])


def edges(scale, n):
    to, back = SCALES[scale]
    return back(np.linspace(to(np.float64(0)), to(np.float64(8000)), n + 2))


def triangles(scale, bins, filters, area=False):
    hz, at = np.linspace(0, 8000, bins)[:, None], edges(scale, filters)
    bank = np.maximum(0, np.minimum((hz - at[:-2]) / (at[1:-1] - at[:-2]), (at[2:] - hz) / (at[2:] - at[1:-1])))
    return bank * 2 / (at[2:] - at[:-2]) if area else bank


def constant_q(octaves, begin):
    """Twelve kernels an octave from 110 Hz on, at 8 kHz, each as long as its window, with zeros around."""
    frequencies = 110 * 2 ** (np.arange(12 * octaves) / 12)
    lengths = np.ceil(8000 / frequencies / (2 ** (1 / 12) - 1)).astype(int)
    kernels = np.zeros((len(lengths), 1, 2048))
    for kernel, n, f in zip(kernels[:, 0], lengths, frequencies):
        times = np.arange(n) - begin * (n // 2)
        kernel[(2048 - n) // 2:][:n] = PERIOD["hann"](n) * np.cos(2 * np.pi * f * times / 8000) / n
    return kernels


def gabor(n, size):
    y, x = np.mgrid[-(size // 2):size // 2 + 1, -(size // 2):size // 2 + 1]
    turned = x * np.cos(np.arange(n) * np.pi / n)[:, None, None] + y * np.sin(np.arange(n) * np.pi / n)[:, None, None]
    return (np.exp(-(x ** 2 + y ** 2) / 18) * np.cos(turned * np.pi / 2))[:, None]


ODD = np.geomspace(50, 7000, 40)[:, None] * np.arange(256) / 16000 * 2 * np.pi
COSINES = np.cos(np.pi / 40 * (np.arange(40) + .5)[:, None] * np.arange(13)) * np.sqrt(2 / 40)
WINDOW, BASIS, BANK = "a window", "a basis of sines, or symmetric rows", "a filter bank: one bump a line, in order"
SEQUENCE, WHOLE, SINES = "evenly spaced or geometric numbers", "whole numbers and halves only", "sines and cosines of positions"
FIXED = {
    **{f"{name}, {n}": ("Mul", window(n), WINDOW) for name, window in PERIOD.items() for n in (8, 25, 400)},
    **{f"spectrum, {name}": ("Conv", (spectrum(64) * window(64))[:, None], BASIS) for name, window in PERIOD.items() if name != "triangle"},
    **{f"back, {name}": ("ConvTranspose", (np.linalg.pinv(4 * spectrum(64)).T * PERIOD[name](64))[:, None], BASIS) for name in ("hann", "kaiser")},
    "spectrum, cosines alone": ("Conv", (spectrum(64)[:33] * PERIOD["hann"](64))[:, None], BASIS),
    "frequencies of their own, hann": ("Conv", np.vstack([np.cos(ODD), np.sin(ODD)])[:, None] * PERIOD["hann"](256), BASIS),
    "frequencies of their own, blackman": ("Conv", np.vstack([np.cos(ODD), np.sin(ODD)])[:, None] * PERIOD["blackman"](256), BASIS),
    **{f"spectrum of f32, {name}, {n}": ("Conv", (spectrum_of_f32(n) * PERIOD[name](n))[:, None], BASIS)
       for name, n in (("hann", 16), ("hann", 64), ("hamming", 256), ("symmetric hann", 400), ("root of hann", 512), ("blackman", 1024))},
    "spectrum, a product": ("MatMul", spectrum(64).T, SINES),
    "cosine transform": ("MatMul", COSINES, BASIS), "cosine transform back": ("MatMul", COSINES.T, BASIS),
    "constant Q": ("Conv", constant_q(3, 1), BASIS), "constant Q, from the beginning": ("Conv", constant_q(3, 0), BASIS),
    "gabor": ("Conv", gabor(8, 9), BASIS),
    "low pass": ("Conv", (np.sinc((np.arange(12) - 5.5) / 2) * np.kaiser(12, 4.6))[None, None], BASIS),
    **{f"{scale}, {bins} to {n}, {area}": ("MatMul", triangles(scale, bins, n, area), BANK)
       for scale in SCALES for bins, n in ((33, 8), (201, 80), (513, 128)) for area in (False, True)},
    **{f"{scale}, transposed": ("Gemm", triangles(scale, 257, 40).T, BANK) for scale in SCALES},
    **{f"{scale}, of a Conv": ("Conv", triangles(scale, 257, 40).T[:, :, None], BANK) for scale in SCALES},
    "bands side by side": ("MatMul", np.kron(np.eye(12), np.ones((8, 1))) / 8, BANK),
    **{f"{scale}, centres": ("Mul", edges(scale, 40), SEQUENCE) for scale in ("htk", "erb")},
    "rotary": ("Mul", 10000 ** (-np.arange(0, 64, 2) / 64), SEQUENCE), "powers": ("Mul", 2.0 ** np.arange(10), SEQUENCE),
    "log spaced": ("Mul", np.logspace(0, 3, 20), SEQUENCE), "evenly spaced": ("Mul", np.linspace(0, 8000, 201), SEQUENCE),
    "support": ("MatMul", np.linspace(-10, 10, 51)[:, None], SEQUENCE),
    **{f"bins, {n}": ("Conv", np.arange(float(n)).reshape(1, n, 1, 1), SEQUENCE) for n in (16, 17)},
    "anchors": ("Add", np.stack(np.meshgrid(np.arange(8) + .5, np.arange(6) + .5)).reshape(1, 2, 48), WHOLE),
    "strides": ("Mul", np.repeat([8.0, 16, 32], [64, 16, 4])[None], WHOLE),
    "positions": ("Add", np.concatenate([f(np.arange(40)[:, None] / 10000 ** (np.arange(16) / 16)) for f in (np.sin, np.cos)], 1), SINES),
}


def noisy(table, size):
    return table + size * RANDOM.standard_normal(table.shape)


def beside_noise(kernels, at, n):
    """The kernels with n numbered from `at` on made a millionth as large as the rest."""
    out = kernels.copy()
    out[at:at + n] = abs(kernels).max() * 1e-6 * RANDOM.standard_normal(out[at:at + n].shape)
    return out


DIRAC = np.zeros((8, 8, 9))
DIRAC[np.arange(8), np.arange(8), 4] = 1
LEARNED = {
    **{f"random {shape}": ("Conv", RANDOM.standard_normal(shape))
       for shape in [(64, 1, 10), (8, 1, 64), (16, 16, 3, 3), (4, 4, 1, 3), (1, 1, 1, 7), (1, 1, 1, 8), (1, 16, 1, 1), (6, 1, 25), (40, 1, 400)]},
    **{f"random {shape}": ("MatMul", RANDOM.standard_normal(shape)) for shape in [(33, 8), (8, 33), (64, 64), (16, 1), (6, 1)]},
    **{f"above zero {shape}": ("MatMul", abs(RANDOM.standard_normal(shape))) for shape in [(33, 8), (64, 64), (16, 1)]},
    "zeros": ("Conv", np.zeros((8, 1, 64))), "one value": ("Conv", np.full((8, 1, 9), 1 / 9)), "identity of a Conv": ("Conv", DIRAC),
    "identity": ("MatMul", np.eye(16)), "twice the identity": ("MatMul", 2 * np.eye(16)), "signs": ("MatMul", np.sign(RANDOM.standard_normal((16, 16)))),
    "-1, 0, 1": ("MatMul", RANDOM.integers(-1, 2, (32, 32)).astype(float)), "orthogonal": ("MatMul", np.linalg.qr(RANDOM.standard_normal((32, 32)))[0]),
    "pruned": ("MatMul", np.where(RANDOM.random((64, 32)) < .1, RANDOM.standard_normal((64, 32)), 0)),
    **{f"one tiny line of {shape}, {scale:g}": ("Conv", beside_noise(scale * RANDOM.standard_normal(shape), shape[0] - 1, 1))
       for shape in [(18, 1, 16), (66, 1, 64), (402, 1, 400)] for scale in (1e-3, 1, 30)},
    "a quarter of a basis is tiny": ("Conv", beside_noise((spectrum_of_f32(64) * PERIOD["hann"](64))[:, None], 20, 16)),
    "a basis that trained, with a tiny line": ("Conv", beside_noise(noisy(spectrum(64)[:, None], .02), 65, 1)),
    "a basis that trained": ("Conv", noisy((spectrum(64) * PERIOD["hann"](64))[:, None], .02)),
    "filters that trained": ("MatMul", noisy(triangles("htk", 201, 40), .01)),
    "a window that trained": ("Mul", noisy(PERIOD["hann"](25), .01)), "bins that trained": ("Conv", noisy(np.arange(16.0), .01).reshape(1, 16, 1, 1)),
    "smooth": ("Conv", np.cumsum(RANDOM.standard_normal((16, 1, 64)), -1)), "smoother": ("Conv", np.cumsum(np.cumsum(RANDOM.standard_normal((16, 1, 64)), -1), -1)),
    "a small blur": ("Conv", np.array([.12, .38, .37, .13]).reshape(1, 1, 1, 4)), "sorted": ("Mul", np.sort(RANDOM.standard_normal(16))),
    "near one": ("Mul", 1 + .1 * RANDOM.standard_normal(64)), "layer scale": ("Mul", np.full(64, 1e-5)),
    "logarithms": ("Mul", np.tile(np.log(np.arange(1, 17)), (32, 1))), "rank 1": ("MatMul", np.outer(*RANDOM.standard_normal((2, 32)))),
}


def node(op, name, table):
    """Reads the table and an input of its own, with that input's shape."""
    spatial = [2 * n for n in table.shape[2:]]
    shape = {"Conv": [1, *table.shape[1:2], *spatial], "ConvTranspose": [1, *table.shape[:1], *spatial],
             "MatMul": [2, table.shape[0]], "Gemm": [2, table.shape[-1]]}.get(op, [2, *table.shape])
    inputs = [f"x.{name}", name]
    return helper.make_node(op, inputs, [f"y.{name}"], **({"transB": 1} if op == "Gemm" else {})), shape


def verdicts(run, folder, cases, dtype, kind=None):
    """name -> (kind, why) of each table, all in one model."""
    nodes, inputs, outputs, tensors, infos = [], [], [], [], []
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for name, (op, table, *_) in cases.items():
        made, shape = node(op, name, table)
        nodes.append(made)
        inputs.append(helper.make_tensor_value_info(made.input[0], element, shape))
        outputs.append(helper.make_tensor_value_info(made.output[0], element, None))
        tensors.append(numpy_helper.from_array(table.astype(dtype), name))
        infos.append(helper.make_tensor_value_info(name, element, table.shape))
        if kind:
            prop = infos[-1].metadata_props.add()
            prop.key, prop.value = "pkg.torch.export.graph_signature.InputSpec.kind", kind
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, value_info=infos)
    onnx.save(helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    said = json.loads(run("check", "--json", "model.onnx").stdout)
    return {p["name"]: (p["kind"], p["why"]) for p in said["parameters"]}, {d["name"] for d in said["doubtful"]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_fixed_front_ends_are_frozen_and_in_doubt_where_a_module_named_them(run, tmp_path, dtype):
    rows, doubtful = verdicts(run, tmp_path, FIXED, dtype)
    assert {n: r for n, r in rows.items() if r[0] != "frozen"} == {}
    if dtype == np.float32:
        assert {n: r[1] for n, r in rows.items()} == {n: why for n, (_, _, why) in FIXED.items()}
    assert doubtful == set(FIXED)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_was_learned_trains(run, tmp_path, dtype):
    rows, _ = verdicts(run, tmp_path, LEARNED, dtype)
    assert {n: r for n, r in rows.items() if r[0] != "trainable"} == {}


BINOMIAL = np.outer([1.0, 2, 1], [1, 2, 1]) / 16
TURNED = np.arange(5)[:, None] / 10000 ** (np.tile(np.arange(4), 2) / 4)
SHORT = {
    "one blur": ("Conv", BINOMIAL[None, None]), "a blur of each channel": ("Conv", np.tile(BINOMIAL, (3, 1, 1, 1))),
    "a blur of 1, 2, 1 alone": ("Conv", np.tile([.25, .5, .25], (4, 1, 1))), "a derivative": ("Conv", np.outer([1, 2, 1], [-1, 0, 1])[None, None] / 8),
    "bilinear": ("ConvTranspose", np.tile(np.outer([.25, .75, .75, .25], [.25, .75, .75, .25]), (2, 1, 1, 1))),
    **{f"cosine transform of {n}": ("MatMul", np.cos(np.pi / n * (np.arange(n) + .5) * np.arange(n)[:, None])) for n in (3, 4, 5)},
    "cosine transform of 4, back": ("MatMul", np.cos(np.pi / 4 * (np.arange(4)[:, None] + .5) * np.arange(4)) / 2),
    "cosines of 5": ("Mul", np.cos(TURNED)), "sines of 5": ("Mul", np.sin(TURNED)), "sines of 4": ("Mul", np.sin(TURNED[:4])),
}
EMBEDDING = RANDOM.standard_normal((5, 8)) * (np.arange(5) > 0)[:, None]
LEARNED_SHORT = {
    **{f"random {shape}, {scale:g}": (op, scale * RANDOM.standard_normal(shape)) for scale in (1e-4, 1, 50)
       for op, shape in [("Conv", (1, 1, 3, 3)), ("Conv", (3, 1, 3, 3)), ("Conv", (1, 1, 3)), ("MatMul", (4, 4)), ("MatMul", (3, 3)), ("Mul", (5, 8)), ("Mul", (4, 2))]},
    "one kernel of its own for all": ("Conv", np.tile(RANDOM.standard_normal((3, 3)), (4, 1, 1, 1))), "half of a blur": ("Conv", np.array([[[1.0, 2, 1]]]) / 3),
    "a mean": ("Conv", np.full((3, 1, 3, 3), 1 / 9)), "an identity": ("Conv", np.tile(np.eye(3)[1][:, None] * np.eye(3)[1], (3, 1, 1, 1))),
    "a blur that trained": ("Conv", noisy(np.tile(BINOMIAL, (3, 1, 1, 1)), .01)), "sines that trained": ("Mul", noisy(np.cos(TURNED), .01)),
    "an embedding with padding": ("Mul", EMBEDDING), "orthogonal of 4": ("MatMul", np.linalg.qr(RANDOM.standard_normal((4, 4)))[0]),
    "identity of 4": ("MatMul", np.eye(4)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_short_tables_train_and_are_in_doubt(run, tmp_path, dtype):
    """Too few numbers to freeze a tensor for: a blur, a cosine transform, rotary positions."""
    rows, doubtful = verdicts(run, tmp_path, SHORT, dtype)
    assert {r[0] for r in rows.values()} == {"trainable"} and doubtful == set(SHORT)
    rows, doubtful = verdicts(run, tmp_path, LEARNED_SHORT, dtype)
    assert {n: r for n, r in rows.items() if r[0] != "trainable"} == {} and doubtful == set()


def test_a_blur_that_is_repeated_over_channels_is_in_doubt(run, tmp_path):
    nodes = [("Expand", ["blur", "s"], ["w"], {}), ("Conv", ["x", "w"], ["y"], {"group": 3})]
    kinds, doubtful, _ = one_node(run, tmp_path, nodes, {"blur": BINOMIAL.astype(np.float32), "s": np.array([3, 1, 3, 3])}, [1, 3, 8, 8])
    assert kinds == {"blur": "trainable"} and doubtful == ["blur"]


def test_a_filter_that_metadata_call_a_parameter_is_kept_and_in_doubt(run, tmp_path):
    """Parameter(requires_grad=False), as of torchlibrosa's spectrograms and of the bins of a detector; other sequences may be learned."""
    rows, doubtful = verdicts(run, tmp_path, FIXED, np.float32, "PARAMETER")
    kept = {n for n, (op, _, why) in FIXED.items() if why in (WINDOW, BASIS, BANK, SINES) or n.startswith("bins")} - {"low pass"}
    assert {n for n, r in rows.items() if r[0] == "frozen"} == kept == doubtful
    upsampling = {"one kernel for all channels": ("ConvTranspose", np.tile(np.outer(*[np.bartlett(18)[1:-1]] * 2), (4, 1, 1, 1)))}
    rows, doubtful = verdicts(run, tmp_path, LEARNED | upsampling, np.float32, "PARAMETER")
    assert {r[0] for r in rows.values()} == {"trainable"} and not doubtful


def test_counted_channels_train(run, tmp_path):
    """As tests and fresh layers have them: a bias, a norm's scale; a kernel of whole numbers is in doubt."""
    count = np.arange(1.0, 9)
    channels = {"fc.weight": ("Gemm", RANDOM.standard_normal((8, 8))), "sobel": ("Conv", np.array([[[[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]]])),
                "grid": ("Add", np.arange(8.0).reshape(2, 4)), "w": ("MatMul", np.arange(1.0, 49).reshape(6, 8))}
    assert {n: k for n, (k, _) in verdicts(run, tmp_path, channels, np.float32)[0].items()} == dict.fromkeys(channels, "trainable")
    assert {"sobel", "w"} <= verdicts(run, tmp_path, channels, np.float32)[1]
    for nodes in ([("Gemm", ["x", "w", "b"], ["y"], {})], [("MatMul", ["x", "w"], ["h"], {}), ("Add", ["h", "b"], ["y"], {})],
                  [("MatMul", ["x", "w"], ["h"], {}), ("LayerNormalization", ["h", "b"], ["y"], {})]):
        kinds, _, _ = one_node(run, tmp_path, nodes, {"w": RANDOM.standard_normal((8, 8)).astype(np.float32), "b": count.astype(np.float32)}, [2, 8])
        assert kinds == {"w": "trainable", "b": "trainable"}


def one_node(run, folder, nodes, tensors, shape, producer="other", constants=()):
    """kinds, doubts and notes of y = what the nodes make of x."""
    made = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(tensors[n], n)) for n in constants]
    made += [helper.make_node(op, inputs, outputs, **attributes) for op, inputs, outputs, attributes in nodes]
    graph = helper.make_graph(made, "g", [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info("y", 1, None)],
                              [numpy_helper.from_array(v, k) for k, v in tensors.items() if k not in constants])
    onnx.save(helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "model.onnx")
    said = json.loads(run("check", "--json", "model.onnx").stdout)
    return {p["name"]: p["kind"] for p in said["parameters"]}, [d["name"] for d in said["doubtful"]], said["notes"]


@pytest.mark.parametrize("name, is_node", [("h0", False), ("h0", True), ("const_4", False)])
@pytest.mark.parametrize("value, want", [(0, "frozen"), (0.3, "trainable")])
@pytest.mark.parametrize("op, gates, states", [("GRU", 3, 1), ("LSTM", 4, 2), ("RNN", 1, 1)])
def test_zeros_that_a_recurrence_begins_with_are_frozen(run, tmp_path, op, gates, states, value, want, name, is_node):
    """The weights train, in Constant nodes too, and so does a first state that has learned."""
    sizes = {"W": (1, gates * 3, 2), "R": (1, gates * 3, 3), "B": (1, gates * 6)}
    tensors = {k: RANDOM.standard_normal(s).astype(np.float32) for k, s in sizes.items()}
    firsts = [f"{name}{i}" for i in range(states)]
    tensors |= {n: np.full((1, 4, 3), value, np.float32) for n in firsts}
    kinds, _, _ = one_node(run, tmp_path, [(op, ["x", "W", "R", "B", "", *firsts], ["", "y"], {"hidden_size": 3})], tensors, [5, 4, 2],
                           constants=list(tensors) if is_node else ())
    assert kinds == {"W": "trainable", "R": "trainable", "B": "trainable"} | {n: "frozen" if is_node else want for n in firsts}


CODES = RANDOM.integers(-127, 127, (8, 4)).astype(np.int8)


@pytest.mark.parametrize("nodes, n", [
    ([("Cast", ["q"], ["f"], {"to": 1}), ("Mul", ["f", "s"], ["w"], {}), ("MatMul", ["x", "w"], ["y"], {})], 1),
    ([("Cast", ["q"], ["f"], {"to": 1}), ("Sub", ["f", "z"], ["g"], {}), ("Mul", ["s", "g"], ["w"], {}), ("MatMul", ["x", "w"], ["y"], {})], 2),
    ([("Cast", ["q"], ["f"], {"to": 1}), ("Transpose", ["f"], ["g"], {}), ("Div", ["g", "s"], ["w"], {}), ("Gemm", ["x", "w"], ["y"], {"transB": 1})], 1),
])
def test_scales_of_codes_behind_a_cast_are_frozen_and_told(run, tmp_path, nodes, n):
    """The codes do not train, so the scales alone must not; positions are no codes."""
    shape = (4, 1) if nodes[1][0] == "Transpose" else (1, 4)
    tensors = {"q": CODES, "s": RANDOM.random(shape).astype(np.float32)} | ({"z": np.full(shape, 1.5, np.float32)} if n == 2 else {})
    kinds, _, notes = one_node(run, tmp_path, nodes, tensors, [2, 8])
    assert kinds == dict.fromkeys(["s", "z"][:n], "frozen") and [note.split(" scales")[0] for note in notes] == [str(n)] and '"q"' in notes[0]
    kinds, _, notes = one_node(run, tmp_path, nodes, tensors | {"q": CODES.astype(np.int64)}, [2, 8])
    assert kinds["s"] == "trainable" and notes == []


@pytest.mark.parametrize("op, weight, x", [("Conv", (3, 3, 1, 1), [1, 3, 5, 5]), ("ConvTranspose", (3, 3, 1, 1), [1, 3, 5, 5]), ("MatMul", (3, 3), [2, 3])])
@pytest.mark.parametrize("behind, want", [("h", "trainable"), ("x", "frozen")])
def test_a_bias_in_a_constant_node_behind_a_product_trains(run, tmp_path, op, weight, x, behind, want):
    """Paddle writes it so. A row of numbers that is added elsewhere is one of the code."""
    tensors = {"w": RANDOM.standard_normal(weight).astype(np.float32), "b": RANDOM.standard_normal(3).astype(np.float32),
               "s": np.array((1, 3, 1, 1) if len(weight) > 2 else (1, 3), np.int64)}
    nodes = [(op, ["x", "w"], ["h"], {}), ("Reshape", ["b", "s"], ["r"], {}), ("Add", [behind, "r"], ["y"], {})]
    kinds, _, _ = one_node(run, tmp_path, nodes, tensors, x, constants=["w", "b", "s"])
    assert kinds["b"] == want


GROUPED = {"window": ("Mul", np.hanning(25), WINDOW), "a.gate": ("Mul", np.full((1,), 0.5), ""), "bank": ("MatMul", triangles("htk", 33, 8), BANK),
           "fc.weight": ("MatMul", RANDOM.standard_normal((8, 8)), "")}


def kinds_of(run, *options):
    said = json.loads(run("check", "--json", "model.onnx", *options).stdout)
    return {p["name"]: p["kind"] for p in said["parameters"]}, said


def test_groups_of_the_table_are_trained_and_frozen_together(run, tmp_path):
    """The table ends with the groups; constants of one become parameters, too."""
    verdicts(run, tmp_path, GROUPED, np.float32)
    rows, said = kinds_of(run)
    assert rows == {"window": "frozen", "bank": "frozen", "fc.weight": "trainable"}
    assert said["groups"] == {"filters": 2, "doubtful": 3, "numbers": 1}
    assert "  groups, for --train and --freeze: @filters 2, @doubtful 3, @numbers 1\n" in run("check", "model.onnx").stdout
    trained = {"window": "trainable", "bank": "trainable", "fc.weight": "trainable"}
    assert kinds_of(run, "--train=@filters")[0] == trained
    assert kinds_of(run, "--train=@doubtful")[0] == trained | {"a.gate": "trainable"}
    assert kinds_of(run, "--train=@numbers")[0] == rows | {"a.gate": "trainable"}
    assert kinds_of(run, "--train=@filters", "--freeze=window")[0] == trained | {"window": "frozen"}
    assert kinds_of(run, "--freeze=@numbers")[0] == rows and kinds_of(run, "--freeze=@doubtful")[1]["doubtful"] == [
        d for d in said["doubtful"] if d["name"] == "a.gate"]
    for option in "--freeze=@nothing", "--train=@nothing", "--decay=@nothing":
        assert f"{option}: the model has no group of that name" in run("check", "model.onnx", option, exit=2).stderr
    dumped = run("dump", "model.onnx", "--stage=import").stdout
    assert 'groups "filters doubtful"' in dumped


def test_numbers_do_not_push_tensors_out_of_the_list_of_doubts(run, tmp_path):
    numbers = {f"n{i}.gate": ("Mul", np.full((1,), 0.3 + i), "") for i in range(30)}
    verdicts(run, tmp_path, numbers | {"window": GROUPED["window"]}, np.float32)
    said = run("check", "model.onnx").stdout.split("doubtful: ")[1].splitlines()
    assert said[1].startswith("    window ") and said[6] == "    ... and 26 more numbers (--table=full)" and "@numbers 30" in said[7]
    assert len(run("check", "model.onnx", "--table=full").stdout.split("doubtful: ")[1].splitlines()) == 34
