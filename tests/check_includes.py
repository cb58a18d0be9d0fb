"""Enforces the include rule: the core knows no framework, and adapters know only the core.

src/kernels includes no header of PyTorch, ONNX Runtime or Python. src/torch_binding, src/ort_plugin
and src/cli_app include only their own headers and those of src/kernels/include.
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
FRAMEWORKS = re.compile(r"ATen|c10|torch|onnxruntime|Python\.h|nanobind|pybind")
KINDS = {".h", ".cpp", ".cu", ".cuh", ".in"}


def includes(path):
    """Yield (line number, header) for each include of a file."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line):
            yield number, match[1]


def violations():
    for path in sorted(p for p in SOURCE.rglob("*") if p.suffix in KINDS):
        part = path.relative_to(SOURCE).parts[0]
        for number, header in includes(path):
            place = f"{path.relative_to(SOURCE.parent)}:{number}: includes {header}"
            if part == "kernels":
                if FRAMEWORKS.match(header):
                    yield f"{place}: the core knows no framework"
                continue
            own = (path.parent / header).exists() or (SOURCE / part / header).exists()
            public = (SOURCE / "kernels/include" / header).exists()
            inside = any((SOURCE / other / header).exists() for other in PARTS)
            if inside and not own and not public:
                yield f"{place}: of the core, an adapter may include only cudarelu/*.h"
            if re.search(r"kernels/|torch_binding/|ort_plugin/|cli_app/|\.\./", header):
                yield f"{place}: a path into another part"


PARTS = [p.name for p in SOURCE.iterdir() if p.is_dir()]

if __name__ == "__main__":
    found = list(violations())
    print("\n".join(found) or "the include rule holds")
    sys.exit(bool(found))
