"""Runs a model over a data set with Ray Data, on several workers that each open a session.

    pip install 'ray[data]'
    python examples/ray_batch.py MODEL INPUT.npy OUTPUT.npy [WORKERS]

The model has one input and one output. If a worker dies, Ray starts another one, which runs the
batches that were lost again.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import ray
import ray.data

import cudarelu.ort


class Predictor:
    """A worker. Ray sends it the session in pickled form, so that it opens one of its own."""

    def __init__(self, session: cudarelu.ort.Session) -> None:
        self.session = session

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"row": batch["row"], "y": self.session(batch["x"])}


def predict(
    model: Path, x: np.ndarray, workers: int, batch: int = 64, worker: type = Predictor
) -> np.ndarray:
    """The model's output for each row of x, in the order of the rows."""
    session = cudarelu.ort.Session(model)
    rows = ray.data.from_items([{"row": i, "x": row} for i, row in enumerate(x)])
    results = rows.repartition(max(1, len(x) // batch)).map_batches(
        worker,
        fn_constructor_args=(session,),
        batch_size=batch,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=0.5,  # leaves processors for Ray's own tasks, without which the workers wait
        num_gpus=1 if session.provider == "cuda" else 0,
    )
    found = sorted(results.take_all(), key=lambda each: each["row"])
    if [each["row"] for each in found] != list(range(len(x))):
        raise RuntimeError(f"{len(found)} results for {len(x)} rows")
    return np.stack([each["y"] for each in found])


def main() -> None:
    model, source, target, *workers = sys.argv[1:]
    results = predict(Path(model), np.load(source), int(workers[0]) if workers else 2)
    np.save(target, results)
    print(f"{len(results)} rows")


if __name__ == "__main__":
    main()
