"""Products: MatMul, Gemm, Einsum."""
from case import Case, numbers


def matmul(name, x, y):
    return Case(f"MatMul_{name}", "MatMul", {"x": numbers(*x), "y": numbers(*y, seed=1)}, lambda x, y: x @ y)


def gemm(name, a, b, c=None, alpha=1.0, beta=1.0, transA=0, transB=0, opset=13):
    def run(a, b, c=None):
        y = alpha * (a.T if transA else a) @ (b.T if transB else b)
        return y if c is None else y + beta * c
    return Case(f"Gemm_{name}", "Gemm", {"a": numbers(*a), "b": numbers(*b, seed=1), "c": None if c is None else numbers(*c, seed=2)}, run,
                {"alpha": alpha, "beta": beta, "transA": transA, "transB": transB}, opset=opset)


def einsum(name, equation, *shapes):
    def run(*x):
        import torch
        return torch.einsum(equation, *x)
    return Case(f"Einsum_{name}", "Einsum", {f"x{i}": numbers(*s, seed=i) for i, s in enumerate(shapes)}, run, {"equation": equation})


CASES = [
    matmul("matrices", (3, 5), (5, 2)), matmul("vectors", (5,), (5,)), matmul("row", (5,), (5, 2)), matmul("column", (2, 3, 5), (5,)),
    matmul("batches", (2, 3, 5), (2, 5, 4)), matmul("broadcast", (2, 1, 3, 5), (4, 5, 2)), matmul("one", (1, 1), (1, 1)), matmul("empty", (3, 0), (0, 2)),
    gemm("plain", (3, 5), (5, 2)), gemm("row", (3, 5), (5, 2), (2,), 0.5, 1.5), gemm("column", (5, 3), (2, 5), (3, 1), 2.0, 0.25, 1, 1),
    gemm("full", (3, 5), (2, 5), (3, 2), transB=1), gemm("number", (1, 5), (5, 2), (), transA=0), gemm("9", (5, 3), (5, 2), (3, 2), transA=1, opset=9),
    einsum("product", "ij,jk->ik", (3, 5), (5, 2)), einsum("batch", "bij,bkj->bik", (2, 3, 4), (2, 5, 4)), einsum("implicit", "ij,jk", (3, 5), (5, 2)),
    einsum("implicit_order", "ba", (3, 5)), einsum("transpose", "ij->ji", (3, 5)), einsum("sum", "ij->", (3, 5)), einsum("rows", "ij->i", (3, 5)),
    einsum("trace", "ii", (4, 4)), einsum("diagonal", "ii->i", (4, 4)), einsum("diagonal_batch", "bii->bi", (2, 3, 3)),
    einsum("diagonal_product", "ii,ij->j", (3, 3), (3, 4)), einsum("triple", "iii->i", (2, 2, 2)), einsum("outer", "i,j->ij", (3,), (5,)),
    einsum("inner", "i,i", (5,), (5,)), einsum("three", "ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), einsum("bilinear", "bn,anm,bm->ba", (2, 3), (5, 3, 4), (2, 4)),
    einsum("ellipsis", "...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), einsum("ellipsis_broadcast", "...ij,jk->...ik", (2, 6, 3, 4), (4, 5)),
    einsum("ellipsis_implicit", "...ii", (2, 3, 3)), einsum("ellipsis_sum", "...i->...", (2, 3, 4)), einsum("ellipsis_front", "i...->...i", (2, 3, 4)),
    einsum("ellipsis_ranks", "...i,...i->...", (3, 4), (2, 3, 4)), einsum("hadamard", "ij,ij->ij", (3, 5), (3, 5)), einsum("spaces", " i j , j k -> i k ", (3, 5), (5, 2)),
]
