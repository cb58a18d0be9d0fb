"""Checks the symbols and dependencies of the artifacts in a build folder.

usage: check_symbols.py BUILD_FOLDER
"""

import re
import subprocess
import sys
from pathlib import Path

OPS = Path(__file__).resolve().parent.parent / "src/kernels/ops"


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(path):
    """Return the shared libraries that `path` needs."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", path))


def problems(build):
    kernels = build / "src/kernels/libcudarelu_kernels.a"
    symbols = output_of("nm", "-C", kernels)
    foreign = re.findall(r".*(?:\bat::|\bc10::|\bOrt).*", symbols)
    if foreign:
        yield f"{kernels.name} has symbols of a framework: {foreign[:3]}"

    ops = build / "python/cudarelu/libcudarelu_ops.so"
    lines = output_of("nm", "-D", "--defined-only", ops).split("\n")
    exported = {line.split()[-1] for line in lines if line}
    handlers = {f"cudarelu_xla_{each}" for each in ("cpu", "cuda", "cuda_capturable")}
    always = {"cudarelu_get_module", *handlers}
    of_ops = {f"__tvm_ffi_{header.stem}" for header in OPS.glob("*.h")}
    if not always | of_ops <= exported <= always | of_ops | {"RegisterCustomOps"}:
        yield f"{ops.name} exports {exported}"
    if "Ort" in output_of("nm", "-D", "--undefined-only", ops):
        yield f"{ops.name} has undefined symbols of ONNX Runtime"

    tensorflow = build / "python/cudarelu/libcudarelu_tensorflow.so"
    if exported := output_of("nm", "-D", "--defined-only", tensorflow).split():
        yield f"{tensorflow.name} exports {exported}"

    # Device code exists once; readers are small, so that there can be one for each PyTorch.
    of_pytorch = [*build.glob("python/cudarelu/pytorch_*/*.so")]
    readers = [*of_pytorch, tensorflow, *build.glob("ort_infer")]
    for reader in readers:
        if ".nv_fatbin" in output_of("readelf", "-S", "-W", reader):
            yield f"{reader.name} has device code"
    for reader in of_pytorch:
        if "libstdc++.so.6" not in needed(reader):  # Then it contains that: 1.5 MB.
            continue
        loaded = int(output_of("size", reader).split("\n")[1].split()[3])  # without symbols
        if loaded > 7e5:
            yield f"{reader.name} has {loaded} bytes, over 700 kB"

    for path in [ops, *readers]:
        # libc10 and libtorch_cpu always exist; libraries with "cuda" in the name may be missing.
        cuda = [
            name
            for name in needed(path)
            if re.search(r"cuda|cublas|nvrtc|onnxruntime|tensorflow", name)
        ]
        cuda = [name for name in cuda if name != "libcudarelu_torch.so"]
        if cuda:
            yield f"{path.name} does not load without {cuda}"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "symbols and dependencies are correct")
    sys.exit(bool(found))
