"""The first tier of the test matrix: what finds nearly all mistakes in a tenth of the time.

A kernel is the same in each host, so that one host tests it with every case: PyTorch on each
device. A host sees of an op only its declaration, so that a few ops test a host: those with
something in their declaration that no op of the module with fewer inputs has.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from .._gradients import has_second_derivative
from .._modules import module_named
from .._table import OpInfo
from .cases import DTYPES, Case, make_case, plans

ANY_OP = "odd"  # the case in which each host runs each op in each dtype

# Where the dtypes of an op are kernels of one source: one that they compute in, and one that they
# convert.
_ONE_OF_EACH_KIND = ("float32", "bfloat16", "int32")


def traits(op: OpInfo) -> set[object]:
    """What a host can treat differently from other ops."""
    found: set[object] = {("input", p.dtype) for p in op.inputs}
    found |= {("output", p.dtype) for p in op.outputs}
    for p in op.inputs:
        found |= {("optional", p.optional), ("dtypes", p.has_dtypes), ("broadcasts", p.broadcasts)}
        found |= {("offsets", bool(p.offsets_into)), ("star", min(p.star, 1), bool(p.axis))}
    for a in op.attributes:
        found |= {("attribute", a.type), ("labels", bool(a.labels)), ("required", a.required)}
    found |= {("more than one output", len(op.outputs) > 1), ("in place", bool(op.in_place))}
    found |= {("gradient", bool(op.gradient)), ("second", has_second_derivative(op))}
    return found | {("product", bool(op.product))}


def is_representative(op: OpInfo) -> bool:
    """Whether the op has a trait that no op of its module with a shorter definition has."""
    return op.name in _representatives(op.namespace)


@functools.cache
def _representatives(namespace: str) -> frozenset[str]:
    seen: set[object] = set()
    names = []
    for op in sorted(module_named(namespace).ops(), key=lambda op: len(op.definition)):
        if not traits(op) <= seen:
            names.append(op.name)
            seen |= traits(op)
    return frozenset(names)


def is_representative_dtype(op: OpInfo, dtype: str) -> bool:
    """Whether the dtype is one of those that stand for the op's dtypes in checks that take long."""
    return dtype in _ONE_OF_EACH_KIND or dtype == op.dtypes[0]


def is_first(op: OpInfo, runtime: str, dtype: str, plan: str) -> bool:
    """Whether a case of an op and a dtype is of the first tier in a host."""
    if plan == ANY_OP:
        return True
    if runtime == "torch":
        return plan != "wide" or is_representative_dtype(op, dtype)
    return is_representative(op) and dtype == op.dtypes[0]


def batch(op: OpInfo, runtime: str, dtypes: Iterable[str], first: bool) -> Iterator[Case]:
    """The cases of one of the two tiers, for a host that runs many at once since it takes long to
    start."""
    for dtype in dtypes:
        for plan in plans(op, DTYPES[dtype]):
            if is_first(op, runtime, dtype, plan.id) == first:
                yield make_case(op, DTYPES[dtype], plan)
