"""Enforces the include rule: modules and the core know no framework, adapters know only the core.

src/module, src/kernels and src/core include no header of PyTorch, ONNX Runtime or Python.
src/module/include, which authors of ops use, includes nothing else of this project, and src/core
includes only that. The readers, which are all other parts, include only their own headers and those
of src/core/include and src/module/include. None of them, nor src/core, names an op. Examples and
what `cudarelu new` copies include the public headers, which docs/your-op.md lists, and none of
cudarelu/detail.
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
FRAMEWORKS = re.compile(r"ATen|c10|torch|onnxruntime|tensorflow/|Python\.h|nanobind|pybind")
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
            found = f"{path.relative_to(SOURCE.parent)}:{number}: includes {header}"
            if part in ("module", "kernels", "core") and FRAMEWORKS.match(header):
                yield f"{found}: it must not know a framework"
            own = (path.parent / header).exists() or (SOURCE / part / header).exists()
            public = any((SOURCE / each / "include" / header).exists() for each in VISIBLE[part])
            inside = any((SOURCE / each / header).exists() for each in PARTS) or any(
                (SOURCE / each / "include" / header).exists() for each in PARTS
            )
            if inside and not own and not public:
                yield f"{found}: {part} may include only its own headers and cudarelu/*.h of " + (
                    " and ".join(VISIBLE[part])
                )
            if re.search(r"kernels/|torch_binding/|ort_plugin/|cli_app/|\.\./", header):
                yield f"{found}: a path into another part"


PARTS = [p.name for p in SOURCE.iterdir() if p.is_dir()]
READERS = [part for part in PARTS if part not in ("module", "kernels")]


def names_of_ops():
    """Yield the lines where a reader names an op or a module: readers serve every module."""
    ops = [path.stem for path in (SOURCE / "kernels/ops").glob("*.h")]
    types = ["".join(word.capitalize() for word in op.split("_")) for op in ops]
    named = re.compile(rf'"(?:cudarelu::)?(?:{"|".join(ops + types)})\b|"cudarelu::')
    for part in READERS:
        for path in sorted(p for p in (SOURCE / part).rglob("*") if p.suffix in KINDS):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                code = re.sub(r"(^|\s)//.*", "", line)
                if not code.lstrip().startswith("#") and named.search(code):
                    found = f"{path.relative_to(SOURCE.parent)}:{number}"
                    yield f"{found}: a reader names an op: {line}"


def private_headers():
    """Yield the private headers that examples include: authors of ops have public ones."""
    root = SOURCE.parent
    for folder in (root / "examples", root / "python/cudarelu/scaffold"):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in KINDS):
            for number, header in includes(path):
                if header.startswith("cudarelu/detail/"):
                    yield f"{path.relative_to(root)}:{number}: includes {header}, which is private"


def undocumented_headers():
    """Yield the public headers that docs/your-op.md does not list, and those that do not exist."""
    listed = re.findall(r"^\| \[(\w+\.h)\]", (SOURCE.parent / "docs/your-op.md").read_text(), re.M)
    public = [path.name for path in (SOURCE / "module/include/cudarelu").glob("*.*")]
    for header in {*listed} ^ {*public}:
        yield f"cudarelu/{header}: docs/your-op.md lists exactly the public headers"


VISIBLE = dict.fromkeys(PARTS, ("core", "module")) | {
    "module": ("module",),
    "kernels": ("module",),
}

if __name__ == "__main__":
    found = [*violations(), *names_of_ops(), *private_headers(), *undocumented_headers()]
    print("\n".join(found) or "the include rule holds")
    sys.exit(bool(found))
