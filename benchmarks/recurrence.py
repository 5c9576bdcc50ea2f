"""How fast the native recurrence is: tokens a second of one layer and direction on one thread.

    python benchmarks/recurrence.py [--shapes 128/1024 ...] [--rows 1 8 32 128] [--seconds 0.3] [--write]

Random weights at the published sizes (P/D), both clips, rows of equal length, input products made beforehand. Beside it
stand the same steps in torch, and the share that each reaches of the rate of torch's own large float32 product.
All ways take turns and the processor time of the fastest turn of each counts, since other programs may run on the
machine.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import results  # beside this file
import torch

from elmokit import kernel

HEADING = "## Recurrence"
STEPS = 20
CELL_CLIP, PROJ_CLIP = 3.0, 3.0
PRODUCT = 1024  # rows and columns of the large product


def ways(width: int, cells: int, rows: int) -> dict[str, Callable[[], object]]:
    """What is timed: a large product, the loop in torch and each format of the kernel, each over STEPS steps."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    weight_hh, weight_hr = normal(4 * cells, width, scale=width**-0.5), normal(width, cells, scale=cells**-0.5)
    gates = normal(STEPS * rows, 4 * cells)
    out = np.zeros((STEPS * rows, width), np.float32)
    native = kernel.available()
    large = normal(PRODUCT, PRODUCT)

    def loop() -> None:
        hidden, cell = torch.zeros(rows, width), torch.zeros(rows, cells)
        for step in gates.split(rows):
            i, f, g, o = torch.addmm(step, hidden, weight_hh.t()).chunk(4, dim=1)
            cell = (torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)).clamp(-CELL_CLIP, CELL_CLIP)
            hidden = ((torch.sigmoid(o) * torch.tanh(cell)) @ weight_hr.t()).clamp(-PROJ_CLIP, PROJ_CLIP)

    found: dict[str, Callable[[], object]] = {"product": lambda: large @ large, "torch": loop}
    for dtype in kernel.FORMATS if native else ():
        packed = native.pack(weight_hh.numpy(), weight_hr.numpy(), dtype=dtype)
        found[dtype] = lambda packed=packed: native.run(
            packed,
            gates.numpy(),
            batch_sizes=[rows] * STEPS,
            cell_clip=CELL_CLIP,
            proj_clip=PROJ_CLIP,
            hidden=np.zeros((rows, width), np.float32),
            cell=np.zeros((rows, cells), np.float32),
            out=out,
        )
    return found


def measure(width: int, cells: int, rows: int, seconds: float) -> dict[str, Any]:
    """Tokens a second of each way, and GFLOP/s of the large product."""
    todo = ways(width, cells, rows)
    best = dict.fromkeys(todo, float("inf"))
    with torch.inference_mode():
        for way in todo.values():
            way()
        end = time.perf_counter() + seconds * len(todo)
        turns = 0
        while turns < 3 or time.perf_counter() < end:
            turns += 1
            for name, way in todo.items():
                start = time.thread_time()
                way()
                best[name] = min(best[name], time.thread_time() - start)
    product = 2e-9 * PRODUCT**3 / best.pop("product")
    return {
        "shape": f"{width}/{cells}",
        "rows": rows,
        "product": product,
        "operations": 10e-9 * width * cells,  # GFLOP a token: 4 gates and the projection, 2 each
        "tokens": {name: STEPS * rows / time for name, time in best.items()},
    }


def markdown(found: dict[str, Any]) -> str:
    """The table and what it stands on."""
    names = list(found["rows"][0]["tokens"])
    lines = [
        f"{found['date']}, commit {found['commit']}, {found['machine']}, one thread; {found['kernel']}. Tokens/s of "
        "one layer and direction; in brackets the share of the large float32 product's rate.",
        "",
        "| P/D | rows | product, GFLOP/s | " + " | ".join(names) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(names),
    ]
    for row in found["rows"]:
        cells = [
            f"{tokens:,.0f} ({tokens * row['operations'] / row['product']:.0%})" for tokens in row["tokens"].values()
        ]
        lines.append(f"| {row['shape']} | {row['rows']} | {row['product']:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Tokens a second of the recurrence on one thread.")
    parser.add_argument("--shapes", nargs="+", default=["128/1024", "256/2048", "512/4096"], help="P/D")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 128], help="of a batch")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {results.RESULTS.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shapes = [tuple(map(int, shape.split("/"))) for shape in arguments.shapes]
    rows = [measure(*shape, count, arguments.seconds) for shape in shapes for count in arguments.rows]
    found = {**results.origin(), "kernel": kernel.describe(), "rows": rows}
    text = markdown(found)
    print(json.dumps(found, indent=2) if arguments.json else text)  # noqa: T201
    if arguments.write:
        results.write(HEADING, text)


if __name__ == "__main__":
    main()
