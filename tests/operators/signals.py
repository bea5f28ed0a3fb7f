"""Transforms of signals, and the windows."""
import numpy as np
from case import Case, numbers


def real(x):
    return x[..., 0]


def pairs(x):
    import torch
    return torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0].to(torch.complex128)


def parts(y):
    import torch
    return torch.view_as_real(y.resolve_conj())


def fft(kind, size, axis):
    def run(x, *_):
        import torch
        at = axis if axis >= 0 else axis + 1  # the parts' axis is gone
        if kind == "rfft":
            return parts(torch.fft.rfft(real(x), size, at))
        if kind == "irfft":
            return torch.fft.irfft(pairs(x), size, at)[..., None]
        return parts(getattr(torch.fft, kind)(pairs(x), size, at))
    return run


def dft(kind, shape, axis, size=None, opset=20):
    """axis: of the signal, from its front"""
    attrs = {"inverse": int(kind in ("ifft", "irfft")), "onesided": int(kind in ("rfft", "irfft"))}
    inputs = {"x": numbers(*shape), "size": None if size is None else np.array(size, np.int64)}
    if opset < 20:
        attrs["axis"] = axis
    else:
        inputs["axis"] = np.array(axis, np.int64)
    slopes = 37 not in shape  # some are so small that differences do not show them
    name = f"DFT_{kind}_{'x'.join(map(str, shape))}_{axis}_{size or 'all'}_{opset}"
    return Case(name, "DFT", inputs, fft(kind, size, axis), attrs, opset=opset, differences=slopes)


def stft(name, x, step, window=None, size=None, onesided=1):
    def run(x, step, window=None, size=None):
        import torch
        x, length = pairs(x) if x.shape[-1] == 2 else x[..., 0], int(size) if size is not None else window.shape[0]
        frames = x.unfold(1, length, int(step))
        frames = frames if window is None else frames * window
        return parts(torch.fft.rfft(frames) if onesided else torch.fft.fft(frames))
    inputs = {"x": x, "step": np.array(step), "window": window, "size": None if size is None else np.array(size)}
    return Case(f"STFT_{name}", "STFT", inputs, run, {"onesided": onesided})


def window(op, torch_name, size, periodic):
    def run(_):
        import torch
        if torch_name == "hamming_window":
            return torch.hamming_window(size, bool(periodic), 25 / 46, 21 / 46, dtype=torch.float64)
        return getattr(torch, torch_name)(size, bool(periodic), dtype=torch.float64)
    return Case(f"{op}_{size}_{periodic}", op, {"size": np.array(size, np.int64)}, run, {"periodic": periodic, "output_datatype": 11})


CASES = [
    *(dft(kind, (2, n, parts_of), 1) for n in (1, 2, 5, 8, 37) for kind, parts_of in (("fft", 1), ("fft", 2), ("rfft", 1), ("ifft", 2))),
    *(dft("irfft", (2, n, 2), 1, size) for n, size in ((2, None), (5, None), (5, 9), (4, 8), (3, 9))),
    *(dft("fft", (n, 2), 0) for n in (33, 34, 60, 131, 263)),
    dft("rfft", (3, 4, 2, 1), 0), dft("fft", (2, 6, 3, 2), -3, 4), dft("ifft", (2, 3, 2), 1, 7), dft("fft", (2, 0 + 1, 1), -2, 3),
    dft("fft", (2, 6, 3, 2), 1, opset=17), dft("rfft", (2, 6, 3, 1), 2, 5, 17), dft("irfft", (2, 4, 3, 2), -3, 6, 17),
    stft("window", numbers(2, 20, 1), 3, np.hanning(8)), stft("size", numbers(1, 11, 1), 2, None, 5), stft("both", numbers(1, 12, 1), 4, numbers(4), 4, 0),
    stft("complex", numbers(1, 9, 2), 2, numbers(6), None, 0),
    *(window(op, name, size, periodic) for op, name in (("HannWindow", "hann_window"), ("HammingWindow", "hamming_window"),
                                                        ("BlackmanWindow", "blackman_window")) for size in (1, 2, 7) for periodic in (0, 1)
      if (size, periodic) != (1, 1)),
    Case("MelWeightMatrix", "MelWeightMatrix", {"bands": np.array(4), "size": np.array(32), "rate": np.array(8192), "low": np.array(0.0),
                                                "high": np.array(4096.0)}, None, {"output_datatype": 11}, constants=("low", "high")),
]
