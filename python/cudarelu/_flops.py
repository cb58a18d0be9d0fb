"""Formulas for `torch.utils.flop_counter`: the matrix products of each op, as its definition has
them. Softmax, sums and elementwise operators are not counted, as of PyTorch's own ops."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from cudarelu._table import FLOATING, OpInfo, Parameter

# The sizes by which the dimensions of a product are recognized.
_PRIMES = [n for n in range(5, 200) if all(n % i for i in range(2, n))]

_Attributes = tuple[tuple[str, Any], ...]


def register(ops: Sequence[OpInfo]) -> None:
    """Registers the formulas of the ops whose definitions have matrix products, and whose sizes are
    names at one place."""
    for op in ops:
        tensors = (*op.inputs, *op.outputs)
        has_names = not any(each.has_expressions or each.axis for each in tensors)
        if has_names and re.search(r"= (MatMul|Gemm)[<(]", op.definition):
            packet = getattr(getattr(torch.ops, op.namespace), op.name)
            register_flop_formula(packet, get_raw=True)(functools.partial(_flops, op))


def _flops(op: OpInfo, *args: Any, out_val: Any = None, **kwargs: Any) -> int:
    """The multiplications and additions of a call, whose arguments are those of the op."""
    bound = op.call_signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = bound.arguments
    attributes = tuple((each.name, values[each.name]) for each in op.attributes)
    total = 0
    for sizes in _batches(op, values):
        for divisor, multiple in op.divisibilities:
            sizes[multiple] = sizes[divisor] and sizes[multiple] // sizes[divisor]
        for factor, dims in _products(op, attributes):
            total += factor * math.prod(sizes[dim] for dim in dims)
    return total


def _batches(op: OpInfo, values: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """The sizes of the dimensions by name; one after the other for batches that offsets describe,
    or, if offsets have no values, as if all were one batch, which is more."""
    sizes: dict[str, int] = {}
    for each in op.inputs:
        if values[each.name] is not None and not each.broadcasts:
            own, rows = each.without_star(values[each.name].shape)
            sizes |= {str(dim): size for dim, size in zip(each.own_dims, own, strict=True)}
            if each.star >= 0:
                sizes["*"] = math.prod(rows)
    offsets = [each for each in op.inputs if each.offsets_into]
    ends = [_given(each, values) for each in offsets]
    if not ends or any(each.is_meta or _is_fake(each) for each in ends):
        yield sizes
        return
    bounds = [itertools.pairwise([0, *each.tolist()]) for each in ends]
    for batch in zip(*bounds, strict=True):
        lengths = {
            str(each.offsets_into): end - begin
            for each, (begin, end) in zip(offsets, batch, strict=True)
        }
        yield sizes | lengths


def _is_fake(x: torch.Tensor) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor  # takes long to import

    return isinstance(x, FakeTensor)


def _given(parameter: Parameter, values: Mapping[str, Any]) -> torch.Tensor:
    given = values[parameter.name]
    return values[str(parameter.default_input)] if given is None else given


@functools.lru_cache(maxsize=256)
def _products(op: OpInfo, attributes: _Attributes) -> list[tuple[int, list[str]]]:
    """The matrix products in the definition: a factor, and the dimensions that it is multiplied by.
    Of a dimension that is a multiple of another one, the quotient is meant.

    The definition is evaluated, with a prime number as each size."""
    import numpy as np

    from cudarelu._onnx.absent_inputs import with_default_inputs
    from cudarelu._onnx.definitions import function
    from cudarelu._onnx.evaluator import evaluator

    batches = {str(dim) for each in op.inputs if each.offsets_into for dim in each.dims}
    dims = dict.fromkeys(dim for each in op.inputs for dim in each.dims if isinstance(dim, str))
    primes = dict(zip([dim for dim in dims if dim not in batches], _PRIMES, strict=False))
    sizes = primes | dict.fromkeys(batches, 1)
    for divisor, multiple in op.divisibilities:
        sizes[multiple] *= sizes[divisor]
    inputs: dict[str, Any] = {}
    for each in op.inputs:
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in each.dims]
        dtype = np.float64 if each.dtype in ("T", *FLOATING) else np.int64
        inputs[each.name] = None if each.optional else np.ones(shape, dtype)
        if each.offsets_into:
            inputs[each.name] = np.full(shape, sizes[each.offsets_into])
    with np.errstate(all="ignore"):
        found = evaluator(op, dict(attributes)).run(
            None, with_default_inputs(op, inputs), attributes={}, intermediate=True
        )
    products = []
    for node in function(op).node:
        if node.op_type in ("MatMul", "Gemm"):
            is_transposed = any(each.name == "transA" and each.i for each in node.attribute)
            terms = found[node.input[0]].shape[0 if is_transposed else -1]
            factor = 2 * found[node.output[0]].size * terms
            factors = []
            for dim, prime in primes.items():
                while factor % prime == 0:
                    factor //= prime
                    factors.append(dim)
            products.append((factor, factors))
    return products
