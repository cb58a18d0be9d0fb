"""Measure the errors of the ops of one number over all numbers, for docs/semantics.md.

usage: python tools/semantics.py [--device cpu|cuda] [--dtype NAME ...] [--op NAME ...] [--all]

Each op is called with every number of float16 and bfloat16, and every 61st of float32, or all. The
results are compared with the op's definition in PyTorch's operators, in float64, or for GELU with
an equal formula without cancellation. Writes docs/semantics/DEVICE.json, and the table of all these
files into docs/semantics.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cudarelu._build_info import VERSION

import cudarelu
from cudarelu import inductor
from cudarelu._pytorch.functions import FUNCTIONS
from cudarelu._table import OpInfo

DOCS = Path(__file__).parents[1] / "docs"
PART = 1 << 22  # numbers at a time
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
# The function of PyTorch that a user would call instead.
IN_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "asinh": torch.asinh,
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
}


def _exact_gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    if approximate == "none":
        return x * (torch.special.erfc(-x * math.sqrt(0.5)) / 2)
    return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))


EXACT: dict[str, Callable[..., torch.Tensor]] = {"gelu": _exact_gelu}


def calls() -> Iterator[tuple[OpInfo, dict[str, Any]]]:
    """The ops of one number, with each label of an attribute and 0.75 for its numbers. Errors of
    derivatives are left out: near their zeros, they are large in units of the result."""
    for op in cudarelu.ops():
        if not op.elementwise or len(op.inputs) != 1 or op.name.endswith("_derivative"):
            continue
        choices = [[(each.name, x) for x in each.labels or (0.75,)] for each in op.attributes]
        for attributes in itertools.product(*choices):
            yield op, dict(attributes)


def row_of(op: OpInfo, attributes: dict[str, Any], dtype: str) -> str:
    """The name of a row of the table."""
    given = "".join(f", {name}={value!r}" for name, value in attributes.items())
    return f"{op.name}(x{given}) {dtype}"


def numbers(dtype: torch.dtype, step: int, device: str) -> Iterator[torch.Tensor]:
    """Every number of a dtype, or one of each `step`, in parts, without NaN."""
    half = 1 << (torch.finfo(dtype).bits - 1)
    integer = torch.int16 if dtype.itemsize == 2 else torch.int32
    for first in range(-half, half, PART * step):
        part = torch.arange(first, min(half, first + PART * step), step, device=device)
        part = part.to(integer).view(dtype)
        part = part[~part.isnan()]
        if part.numel():
            yield part


def largest_error(actual: torch.Tensor, exact: torch.Tensor) -> tuple[float, int]:
    """The largest error in units in the last place of the exact result, and where; infinity if one
    is NaN and the other is not. An infinite result is one unit beyond the largest number. Results
    below 2^4 times the least normal number are left out: parts of them may be flushed to 0."""
    dtype = actual.dtype
    limits = torch.finfo(dtype)
    exponent = torch.frexp(exact.abs().clamp(min=limits.tiny, max=limits.max))[1]
    unit = torch.ldexp(torch.full_like(exact, limits.eps / 2), exponent)
    beyond = limits.max * (1 + limits.eps / 2)
    error = (actual.double().clamp(-beyond, beyond) - exact.clamp(-beyond, beyond)).abs() / unit
    error = torch.where(exact.abs() < 16 * limits.tiny, 0, error)
    error = torch.where(exact.isnan() == actual.isnan(), error.nan_to_num(0), math.inf)
    largest, index = error.max(0)
    return float(largest), int(index)


def measure(
    op: OpInfo, attributes: dict[str, Any], dtype: torch.dtype, step: int, device: str
) -> dict[str, Any]:
    """The largest errors of the op and of PyTorch's function, "nan" if only one result is NaN, each
    with its number."""
    defined = inductor.in_torch(op)
    assert defined is not None
    exactly = EXACT.get(op.name, defined)
    functions = {"cudarelu": FUNCTIONS[op.qualified_name]}
    if op.name in IN_TORCH:
        functions["torch"] = IN_TORCH[op.name]
    found: dict[str, tuple[float, float | None]] = dict.fromkeys(functions, (0.0, None))
    for x in numbers(dtype, step, device):
        exact = exactly(x.double(), **attributes)
        for name, call in functions.items():
            error, index = largest_error(call(x, **attributes), exact)
            if error > found[name][0]:
                found[name] = (error, float(x[index]))
    return {
        name: {"ulp": error if math.isfinite(error) else "nan", "at": str(at)}
        for name, (error, at) in found.items()
    }


def _cell(ulp: float | str, at: str) -> str:
    if ulp == "nan":
        return f"NaN at {float(at):.6g}"
    return f"{ulp:.3g}" + (f" at {float(at):.6g}" if float(ulp) > 0.501 else "")


def table(files: dict[str, dict[str, Any]]) -> str:
    """The table of the page."""
    heads = [f"{device.upper()}, {name}" for device in files for name in ("ours", "PyTorch")]
    lines = [f"| op | dtype | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    rows = dict.fromkeys(key for file in files.values() for key in file["errors"])
    for row in rows:
        cells = []
        for file in files.values():
            errors = file["errors"].get(row, {})
            for name in ("cudarelu", "torch"):
                cell = errors.get(name)
                cells.append(_cell(**cell) if cell else "")
        call, _, dtype = row.rpartition(" ")
        lines.append(f"| `{call}` | {dtype} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(text: str, files: dict[str, dict[str, Any]]) -> str:
    """The page with the table of the files."""
    marks = r"(<!-- errors -->\n).*?(<!-- end -->)"
    return re.sub(marks, lambda m: f"{m[1]}{table(files)}\n{m[2]}", text, flags=re.DOTALL)


def records() -> dict[str, dict[str, Any]]:
    """The files, by device."""
    paths = sorted((DOCS / "semantics").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="by default all")
    parser.add_argument("--op", action="append", help="by default all of one number")
    parser.add_argument("--all", action="store_true", help="all numbers of float32: an hour")
    options = parser.parse_args()
    path = DOCS / f"semantics/{options.device}.json"
    path.parent.mkdir(exist_ok=True)
    errors = json.loads(path.read_text())["errors"] if path.exists() else {}
    for (op, attributes), dtype in itertools.product(calls(), options.dtype or DTYPES):
        if options.op and op.name not in options.op:
            continue
        row = row_of(op, attributes, dtype)
        step = 61 if dtype == "float32" and not options.all else 1
        errors[row] = measure(op, attributes, DTYPES[dtype], step, options.device)
        print(row, errors[row], flush=True)
    machine = {"cudarelu": VERSION, "torch": torch.__version__}
    if options.device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    path.write_text(json.dumps({"machine": machine, "errors": errors}, indent=1) + "\n")
    document = DOCS / "semantics.md"
    document.write_text(page(document.read_text(), records()))


if __name__ == "__main__":
    main()
