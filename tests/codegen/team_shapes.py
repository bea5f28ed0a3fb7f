"""Functions over shapes that no team of threads divides."""
import itertools
import re


def shapes():
    """Functions over shapes that no team divides: sums over rows, columns and several axes, softmax, transposes."""
    odd = [1, 5, 13, 16, 33, 50, 100]
    for n in odd:
        for c in (7, 16, 60):
            for w in (1, 4, 16, 36, 49, 200):
                yield f"reduce %x {{kind = sum, axes = [0,2]}} : f32[{c}]", (n, c, w), (c,)
    for rows, width in itertools.product([1, 9, 53, 64], [3, 20, 64, 200, 1028, 2049]):
        yield f"reduce %x {{kind = max, axes = [2]}} : f32[12,{rows}]", (12, rows, width), (12, rows)
        yield f"reduce %x {{kind = sum, axes = [1]}} : f32[12,{width}]", (12, rows, width), (12, width)
    for batch, rows, width in ((8, 257, 16), (2, 1025, 13), (3, 1025, 5)):  # rows in blocks of blocks, each with an edge
        yield f"reduce %x {{kind = max, axes = [2]}} : f32[{batch},{rows}]", (batch, rows, width), (batch, rows)
    for rows, width in itertools.product([2, 5, 9], [197, 1000, 1028]):
        yield f"reduce %x {{kind = sum, axes = [1]}} : f32[12,{width}]", (12, rows, width), (12, width)
        yield f"reduce %x {{kind = sum, axes = [0]}} : f32[{width}]", (rows, width), (width,)
    for rows, width in itertools.product([7, 33, 50], [9, 64, 197, 1030]):  # rows or batches that share what is added to them
        whole, x = dims((20, rows, width)), (20, rows, width)
        for shared in ([width], [rows, width]):
            stop = [1] * (3 - len(shared)) + shared
            sums = (f"slice %x {{start = [0,0,0], stop = {stop}, step = [1,1,1]}} : {dims(stop)}\n"
                    f"    %1 = reshape %0 {{shape = {shared}}} : {dims(shared)}\n"
                    f"    %2 = broadcast %1 {{shape = {list(x)}, axes = {[2] if len(shared) == 1 else [1, 2]}}} : {whole}\n"
                    f"    %3 = add %x, %2 : {whole}")
            yield sums, x, x
            yield (f"{sums}\n    %4 = reduce %3 {{kind = max, axes = [2]}} : f32[20,{rows}]\n"
                   f"    %5 = broadcast %4 {{shape = {list(x)}, axes = [0,1]}} : {whole}\n    %6 = sub %3, %5 : {whole}"), x, x
    for width in (9001, 20000):  # rows that have a whole processor
        whole = dims((9, width))
        yield (f"reduce %x {{kind = max, axes = [1]}} : f32[9]\n    %1 = broadcast %0 {{shape = [9,{width}], axes = [0]}} : {whole}\n"
               f"    %2 = sub %x, %1 : {whole}\n    %3 = exp %2 : {whole}\n    %4 = reduce %3 {{kind = sum, axes = [1]}} : f32[9]\n"
               f"    %5 = broadcast %4 {{shape = [9,{width}], axes = [0]}} : {whole}\n    %6 = div %3, %5 : {whole}"), (9, width), (9, width)
    for a, b in itertools.product([8, 28, 33], [16, 50, 96, 130]):
        yield f"transpose %x {{order = [0,2,1]}} : f32[60,{b},{a}]", (60, a, b), (60, b, a)
    for n in (7, 16, 33, 50, 130):
        turned = f"transpose %x {{order = [0,2,1]}} : f32[20,{n},{n}]\n"
        yield f"{turned}    %2 = add %x, %0 : f32[20,{n},{n}]", (20, n, n), (20, n, n)
        yield f"{turned}    %2 = concat %x, %0, %x {{axis = 2}} : f32[20,{n},{3 * n}]", (20, n, n), (20, n, 3 * n)


def dims(shape):
    return f"f32[{','.join(map(str, shape))}]"


def text_of(ops, x, y):
    return (f"(%x: {dims(x)}) -> {dims(y)} {{\n    %0 = {ops}\n"
            f"    %9 = exp {re.findall('%[0-9] = ', '%0 = ' + ops)[-1][:2]} : {dims(y)}\n    return %9\n  }}\n")


def module_of(functions):
    """Of (what is computed, from what shape, to what shape): the exponential of its last value."""
    return "module @shapes {\n" + "".join(f"  func @f{i}{text_of(*f)}" for i, f in enumerate(functions)) + "}\n"
