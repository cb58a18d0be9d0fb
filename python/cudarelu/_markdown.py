"""The reference of ops in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from ._table import OpInfo


def reference(ops: Iterable[OpInfo]) -> str:
    """The reference of ops: for each module a table of its ops, and a section for each op."""
    by_module: dict[str, list[OpInfo]] = {}
    for op in ops:
        by_module.setdefault(op.namespace, []).append(op)
    parts = []
    for namespace, members in by_module.items():
        rows = [(f"[{op.name}](#{_anchor(op)})", op.summary, _dtypes(op)) for op in members]
        parts.append(f"# {namespace}\n\n" + _table(("op", "result", "T"), rows))
        parts += [_section(op) for op in members]
    return "\n\n".join(parts)


def _section(op: OpInfo) -> str:
    name, gradient = op.onnx, " ".join(op.gradient.split())
    alias = f", also `{'::'.join(name.alias)}`" if name.alias else ""
    output, _, target = op.in_place.partition(" = ")
    in_place = f"`torch.ops.{op.namespace}.{op.name}_` writes {output} over {target}"
    rows = [
        ("T", _dtypes(op)),
        ("gradient", f"`{gradient}`" if gradient else "none"),
        ("in place", in_place if op.in_place else "no"),
        ("ONNX", f"`{name.domain}::{name.op_type}`{alias}, version {name.version}"),
    ]
    definition = "\n".join(line.strip() for line in op.definition.strip().splitlines())
    return "\n\n".join(
        (
            f"## {op.qualified_name}",
            op.summary,
            f"```\n{op.signature}\n```",
            _table(("", ""), rows),
            f"Definition, in the operators of ONNX opset {op.definition_opset}:",
            f"```\n{definition}\n```",
        )
    )


def _dtypes(op: OpInfo) -> str:
    return ", ".join(op.dtypes)


def _anchor(op: OpInfo) -> str:
    return op.qualified_name.replace(":", "").lower()


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )
