"""The cost of a node in ONNX Runtime: a chain of 1,000 of our ops against its own, as ratios.

    python benchmarks/ort_node_cost.py [--provider cpu|cuda] [--out FILE.json]

With tensors of 16 float32, one thread and no graph optimization, the time is ONNX Runtime's work
for a node, the plugin's work for a call, and a nearly empty kernel. The two sessions take turns in
one process, and a time is the least of many. It depends on the addresses of the session and the
library: two copies of one file differ by a tenth. So several pairs of sessions are created, in
either order, each with a copy of the library, and the result is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time

import numpy as np
import onnxruntime as ort
import report
from onnx import TensorProto, helper

import cudarelu
import cudarelu.ort

NODES, SIZE = 1000, 16
PAIRS, ROUNDS = 12, 100
# Ops that ONNX Runtime has too: the number of inputs, and the attributes of its op and of ours.
OPS = {
    "Relu": (1, {}, {}),
    "LeakyRelu": (1, {"alpha": 0.01}, {"negative_slope": 0.01}),
    "Tanh": (1, {}, {}),
    "Add": (2, {}, {}),
}


def chain(op_type: str, domain: str, symbolic: bool) -> bytes:
    inputs, *attributes = OPS[op_type]
    nodes = [
        helper.make_node(
            op_type,
            [f"x{i}", "other"][:inputs],
            [f"x{i + 1}"],
            domain=domain,
            **attributes[domain != ""],
        )
        for i in range(NODES)
    ]
    shape = ["N" if symbolic else SIZE]
    names = ["x0", "other"][:inputs]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in [*names, f"x{NODES}"]
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("cudarelu", 1)]
    graph = helper.make_graph(nodes, "chain", tensors[:-1], tensors[-1:])
    return helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString()


class Chain:
    """A session of a chain, with inputs and output bound to the device's memory."""

    def __init__(self, model: bytes, provider: str, library: str):
        options = ort.SessionOptions()
        options.register_custom_ops_library(library)
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if provider == "cuda":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        name = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[provider]
        self.session = ort.InferenceSession(model, options, providers=[name])
        self.binding = self.session.io_binding()
        x = np.linspace(-1, 1, SIZE, dtype=np.float32)
        for each in self.session.get_inputs():
            self.binding.bind_ortvalue_input(
                each.name, ort.OrtValue.ortvalue_from_numpy(x, provider)
            )
        y = ort.OrtValue.ortvalue_from_numpy(x, provider)
        self.binding.bind_ortvalue_output(self.session.get_outputs()[0].name, y)

    def nanoseconds_per_node(self) -> float:
        """Runs once, until the device has finished too."""
        start = time.perf_counter_ns()
        self.session.run_with_iobinding(self.binding)
        return (time.perf_counter_ns() - start) / NODES


def compare(op_type: str, provider: str, symbolic: bool, libraries: list[str]) -> dict:
    models = [chain(op_type, domain, symbolic) for domain in ("", "cudarelu")]
    pairs = []  # the times of ONNX Runtime's chain and of ours
    for number, library in enumerate(libraries):
        order = (0, 1) if number % 2 else (1, 0)
        made = {i: Chain(models[i], provider, library) for i in order}
        rounds = [[made[i].nanoseconds_per_node() for i in range(2)] for _ in range(ROUNDS)]
        pairs.append([min(times) for times in zip(*rounds, strict=True)])
    ratios = sorted(ours / theirs for theirs, ours in pairs)
    return {
        "built-in ns": round(statistics.median(theirs for theirs, _ in pairs)),
        "cudarelu ns": round(statistics.median(ours for _, ours in pairs)),
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(ratios[0], 3), round(ratios[-1], 3)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--provider", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", help="also write the results to this file")
    arguments = parser.parse_args()
    results = {
        "onnxruntime": ort.__version__,
        "cudarelu": cudarelu.__version__,
        "provider": arguments.provider,
    }
    if arguments.provider == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        results["device"] = subprocess.check_output(query, text=True).splitlines()[0]
    with tempfile.TemporaryDirectory() as folder:
        libraries = [
            shutil.copy(cudarelu.ort.library_path(), f"{folder}/{i}.so") for i in range(PAIRS)
        ]
        for name, symbolic in (("fixed", False), ("symbolic", True)):
            results[name] = {op: compare(op, arguments.provider, symbolic, libraries) for op in OPS}
    report.write(results, arguments.out)


if __name__ == "__main__":
    main()
