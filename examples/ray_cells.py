"""The cells of an experiment over a Ray cluster whose machines share a folder: pip install "ray>=2.40".

python ray_cells.py EXPERIMENT.toml PARTS OUT
"""

import sys
from pathlib import Path

import ray

import fedpbc


@ray.remote(num_cpus=1)
def compute(experiment: str, part: str, out: str) -> str:
    """One part of the grid; a worker that died goes on where it was."""
    fedpbc.run(experiment, out, cells=part, devices=1, resume=True)
    return out


if __name__ == "__main__":
    experiment, count, out = Path(sys.argv[1]).resolve(), int(sys.argv[2]), Path(sys.argv[3]).resolve()
    ray.init(include_dashboard=False)  # address="auto" in a cluster that is up
    parts = [f"{i}/{count}" for i in range(1, count + 1)]
    tasks = [compute.remote(str(experiment), part, f"{out}.parts/{part.replace('/', '-of-')}") for part in parts]
    print(fedpbc.merge(ray.get(tasks), out=out).to_markdown())
