"""The cost of ort_infer's measurement: its loop against a bare C++ loop, on a model of one node.

    python benchmarks/ort_infer_overhead.py BUILD_FOLDER

Prints one JSON object: nanoseconds per run of both loops, with plain and bound buffers, their
ratios, the peak memory of both in MB, and the time from start to the first result. A process
reports the median of its runs. Of these, the result has the median and the least over interleaved
processes; other work on the machine disturbs the least less.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
import onnx.parser
import onnxruntime
import report

RUNS = 20_000
REPEATS = 41
MODEL = """<ir_version: 8, opset_import: ["" : 18]>
           one_node (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"""


def run(command: list) -> tuple[str, float]:
    """Returns the output and the peak memory in MB (of GNU time: wait4 counts Python's too)."""
    measured = ["/usr/bin/time", "-f", "%M", *map(str, command)]
    done = subprocess.run(measured, capture_output=True, text=True, check=True)
    return done.stdout, int(done.stderr) / 1024


def main() -> None:
    build = Path(sys.argv[1])
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    result = {"onnxruntime": onnxruntime.__version__, "runs": RUNS, "repeats": REPEATS}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        onnx.save(onnx.parser.parse_model(MODEL), model)
        infer = [build / "ort_infer", model, "--provider", "cpu", "--ort", library]
        for kind in ("plain", "bound"):
            binding = "--io-binding" if kind == "bound" else "--no-io-binding"
            measure = [*infer, binding, "--warmup", 1000, "--iterations", RUNS, "--json"]
            bare = [build / "bare_run_loop", library, model, RUNS, kind]
            times, memory = {"bare": [], "ort_infer": []}, {}
            for _ in range(REPEATS):
                text, memory["bare"] = run(bare)
                times["bare"].append(float(text))
                text, memory["ort_infer"] = run(measure)
                (measured,) = json.loads(text)["measurements"]
                times["ort_infer"].append(measured["latency_ms"]["total"]["p50"] * 1e6)
            result[kind] = {"peak_mb": memory}
            for name, value in {"median": statistics.median, "least": min}.items():
                ns = {program: value(each) for program, each in times.items()}
                result[kind][name] = {"ns": ns, "ratio": ns["ort_infer"] / ns["bare"]}
        starts = []
        for _ in range(20):
            begin = time.perf_counter()
            run(infer)
            starts.append(time.perf_counter() - begin)
        result["start_to_result_s"] = {"median": statistics.median(starts), "max": max(starts)}
    report.write(result)


if __name__ == "__main__":
    main()
