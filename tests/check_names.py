"""Refuses identifiers of C++ and CUDA that are this project's own words where the field has a term.

The field: CUTLASS, CUB, PyTorch and ONNX. Comments and the texts of ONNX functions are free.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TERMS = {
    r"most_[a-z]\w*|least_[a-z]\w*": "max_..., min_...",
    r"Plan|Tiling|Slice": "a config with a name of its own, such as Sm90Config",
    r"Way|Choice|Problem|Key": "strategy, algorithm, params, problem key",
    r"Turns|Pieces|\w*Room|Work": "reduced angle, piecewise polynomial, storage, intensity",
    r"[pP]laces?_?|place_[a-z]\w*": "offset, index, position, slot",
    r"\w*stand_in\w*|always_there|spread_inputs": "default input, required, broadcast inputs",
    r"LentExecution|Checked|infer_usual|plain_gemm|skinny\w*": "borrowed, validated, few rows",
    r"written_out|said": "equivalent forms, output",
}
# Of PyTorch's dispatcher, and what ONNX Runtime's threads do.
ALLOWED = {("src/torch_binding/register_ops.cpp", "Key"), ("src/ort_plugin/execution.cpp", "Work")}
NO_CODE = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code_of(path: Path) -> str:
    """The text of a source with strings and comments blank, in the same lines."""
    return NO_CODE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text())


def violations():
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(code_of(path).splitlines(), 1):
            for words, terms in TERMS.items():
                for word in re.findall(rf"\b(?:{words})\b", line):
                    if (name, word) not in ALLOWED:
                        yield f"{name}:{number}: {word}; rather: {terms}"


if __name__ == "__main__":
    found = list(violations())
    print("\n".join(found) or "the names are the field's")
    sys.exit(bool(found))
