"""Fits the numbers of cost/machines.c that no datasheet has to the launches in bench/results, and prints how far predictions are off.

    .venv/bin/python bench/gpu/fit.py [--rounds 12]     needs bench_predict: cmake --build build --target bench_predict

Prints, for the numbers that cost/ has today and for the fitted ones: launches above 0.5 % of a step whose prediction is within 25 %,
by class; how far the prediction of each step is off; then the same of each model, fitted without it. Only tf32 and bf16 results of
transformers are fitted: a convolution's engine will change. `numbers` below says what is fitted.

The fit: Gauss and Newton's, on logarithms of predicted / measured; a launch that is far off counts less (soft L1), a step counts as
much as STEP_WEIGHT launches. Fitted by hand to all models, and so the same in each fit: the weights of instructions
(ir/loop/work.c), cached_bytes, the slowdowns of small tiles, EVENT_US.
"""
import argparse

import numpy as np

import machine
import predictions

FITTED = ("gpu-bench", "gpu-bench-bf16", "gpu-bench-h100", "gpu-bench-h100-bf16")
MODELS = ("gpt2_124m", "llama_100m", "bert_base", "vit_small")
SOFT = 0.1         # logarithm from which on an error counts less
STEP_WEIGHT = 5
SMALL = 0.002      # relative change for a slope
LONGEST = 0.2      # relative change of a number in one round
# name: (value, lower bound, upper bound). memory_reached.NAME is of that machine alone.
NUMBERS = {
    "memory_reached.h100": (0.918, 0.5, 1), "memory_reached.h200": (0.882, 0.5, 1), "start_seconds": (1.01e-6, 1e-7, 5e-6),
    "overlap": (2.0, 1, 4), "step_seconds": (0.183e-6, 0, 1e-6), "cached_step": (0.81, 0.05, 1), "alone_slowdown": (1.57, 1, 3),
    "tile_reached": (0.059, 0.01, 1), "call_seconds": (4.4e-6, 1e-6, 6e-6), "call_overlap": (3.1, 1, 4),
    "split_seconds": (4.9e-6, 0, 2e-5), "unaligned_memory": (0.6, 0.1, 1), "products.tf32.reached": (0.733, 0.3, 1),
    "products.tf32.begin_k": (130, 0, 500), "products.tf32.transposed": (0.605, 0.3, 1), "products.16.reached": (0.881, 0.3, 0.96),
    "products.16.begin_k": (84, 0, 500), "products.16.unaligned": (0.137, 0.05, 1),
}


def of_machine(numbers, gpu):
    """The numbers as bench_predict takes them for that GPU."""
    name = "h200" if "H200" in gpu else "h100"
    own = {k.rsplit(".", 1)[0]: v for k, v in numbers.items() if k.endswith("." + name)}
    return own | {k: v for k, v in numbers.items() if not k.startswith("memory_reached.")}


def residuals(results, numbers):
    """Errors of launches and of steps, as logarithms."""
    found = []
    for gpu, steps in results:
        predictions.predict(PROGRAM, gpu, steps, of_machine(numbers, gpu))
        found += [np.log(x.ratio) for s in steps for x in s.launches if x.judged]
        found += [STEP_WEIGHT * np.log1p(s.error) for s in steps]
    return np.array(found)


def fit(results, rounds):
    names = list(NUMBERS)
    values = np.array([NUMBERS[n][0] for n in names])
    low, high = (np.array([NUMBERS[n][i] for n in names]) for i in (1, 2))
    for _ in range(rounds):
        now = residuals(results, dict(zip(names, values)))
        slopes = []
        for i, x in enumerate(values):
            moved = values.copy()
            moved[i] = x * (1 + SMALL)
            slopes.append((residuals(results, dict(zip(names, moved))) - now) / SMALL)
        weight = (1 + (now / SOFT) ** 2) ** -0.25
        a = np.array(slopes).T * weight[:, None]
        damped = np.vstack([a, 0.3 * np.eye(len(values))])
        change = np.linalg.lstsq(damped, np.r_[-now * weight, np.zeros(len(values))], rcond=None)[0]
        values = np.clip(values * (1 + np.clip(change, -LONGEST, LONGEST)), low, high)
    return dict(zip(names, values))


def only(results, keep):
    return [(name, [s for s in steps if keep(s.model)]) for name, steps in results]


def report(results, numbers):
    """Prints how far predictions with these numbers are off; None: those of cost/."""
    counted, errors = {}, []
    for gpu, steps in results:
        predictions.predict(PROGRAM, gpu, steps, of_machine(numbers, gpu) if numbers else None)
        for s in steps:
            errors.append(f"{s.result} {s.model} {100 * s.error:+.1f} %")
            for x in (x for x in s.launches if x.judged):
                near, of = counted.get(x.row["class"], (0, 0))
                counted[x.row["class"]] = (near + (abs(x.ratio - 1) <= predictions.NEAR), of + 1)
    near, of = map(sum, zip(*counted.values()))
    print(f"  within 25 %: {near} of {of} launches, {100 * near / of:.1f} %: "
          + ", ".join(f"{a} of {b} {kind}" for kind, (a, b) in sorted(counted.items())))
    print("  steps: " + ", ".join(errors))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=12, help="of the fit; 0: says only how cost/ does today")
    o = p.parse_args()
    results = [(name, [s for s in steps if s.result in FITTED and s.model in MODELS]) for name, steps in predictions.stored()]
    results = [(name, steps) for name, steps in results if steps]
    print("numbers of cost/:")
    report(results, None)
    if not o.rounds:
        return
    numbers = fit(results, o.rounds)
    print("fitted: " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items()))
    report(results, numbers)
    for model in MODELS:
        print(f"{model}, fitted without it:")
        report(only(results, lambda m: m == model), fit(only(results, lambda m: m != model), o.rounds))


PROGRAM = machine.build() / "bench_predict"

if __name__ == "__main__":
    main()
