"""The reference of ops in Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from ._documentation import attribute_text, conditions, example, kind, notes, tensor_text
from ._table import OWN_NAMESPACE, OpInfo

_INTRODUCTION = """\
`T` is one of the dtypes of the op, the same for all tensors of a call; `f32` is float32. Equal
names of dimensions are equal sizes, and `*` stands for zero or more dimensions. The
function of an op takes its inputs in this order, and its attributes by name. The page
is made from the declarations of the ops:

    python -m cudarelu ops --markdown"""


_MEASURED = """\
With `--records FILE.jsonl`, it has the errors and speeds of a file of `bench`: the largest error,
relative to the largest element of the exact result, and the least and the largest ratio over all
sizes and dtypes, or the time of a call of an op that nothing is compared with."""

Notes = Sequence[tuple[str, str]]


def reference(
    ops: Iterable[OpInfo],
    measured: Mapping[str, Notes] | None = None,
    libraries: Mapping[str, str] | None = None,
) -> str:
    """The reference of ops: for each module a table of its ops, and a section for each op.

    Each section has an example. All examples run in order, in one process.

    Args:
        measured: further names and texts for ops by the names that records of the benchmark have.
        libraries: the file names of the libraries of modules by their names, other than this one's.
    """
    by_module: dict[str, list[OpInfo]] = {}
    for op in ops:
        by_module.setdefault(op.namespace, []).append(op)
    parts = []
    for namespace, members in by_module.items():
        rows = []
        for op in members:
            anchor = op.qualified_name.replace(":", "").lower()
            rows.append((f"[{op.name}](#{anchor})", op.summary, ", ".join(op.dtypes)))
        imports = f"import torch\n\nimport {OWN_NAMESPACE}"
        introduction = _INTRODUCTION
        if namespace != OWN_NAMESPACE:
            library = (libraries or {})[namespace]
            introduction += f" --library {shlex.quote(library)} --module {namespace}"
            imports += f'\n\n{namespace} = {OWN_NAMESPACE}.load_library("{library}")'
        head = [f"# The ops of {namespace}", introduction, *[_MEASURED] * bool(measured)]
        head.append(_code(imports))
        parts += [*head, _table(("op", "result", "T"), rows)]
        parts += [_section(op, (measured or {}).get(op.short_name, [])) for op in members]
    return "\n\n".join(parts)


def _section(op: OpInfo, measured: Notes) -> str:
    entries = [
        *((each.name, tensor_text(each), conditions(each)) for each in op.inputs),
        *((each.name, kind(each), attribute_text(each)) for each in op.attributes),
        *((each.name, tensor_text(each), "result") for each in op.outputs),
    ]
    rows = [(f"`{name}`", f"`{what}`", more) for name, what, more in entries]
    more = [(name, f"`{text}`" if "(" in text else text) for name, text in notes(op)]
    more += measured
    definition = "\n".join(line.strip() for line in op.definition.strip().splitlines())
    return "\n\n".join(
        (
            f"## {op.qualified_name}",
            op.summary,
            f"```\n{op.signature}\n```",
            _table(("", "", ""), rows),
            _table(("", ""), more),
            _code("\n".join(example(op))),
            f"Definition, in the operators of ONNX opset {op.definition_opset}:",
            f"```\n{definition}\n```",
        )
    )


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
