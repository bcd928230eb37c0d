"""What a process needs in memory under 64 concurrent callers: isorun next to the bare runtimes.

    python benchmarks/memory.py [--model minilm|PRESET|FOLDER] [--seconds 10] [--engines ...]

Every engine runs in a process of its own, one after the other, in the arrangement of ``load.py``. Printed is the
proportional set size (mapped files included, shared pages divided by their users), in MiB: after the imports, after the
warm-up, under the load of ``load.py``, and after 250 and 500 requests of different lengths. ``times raw`` compares the
figure under load with the bare runtime in the same row. isorun's engines open twice: what a first session measures and
calibrates is in the cache of the second, which is printed; ``first`` is the first one's figure under load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import load
import numpy as np

RAW = {
    "isorun ort-cpu fp32": "onnxruntime workers fp32",
    "isorun openvino fp32": "openvino fp32",
    "isorun openvino auto": "openvino fp32",
}
LENGTHS = range(8, 508)
Figures = dict[str, float]


def set_size_mib() -> tuple[float, float]:
    """The proportional set size of this process, and its anonymous part."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    sizes = {name.rstrip(":"): int(size) / 1024 for name, size, *_ in (line.split() for line in lines)}
    return sizes["Pss"], sizes["Anonymous"]


def of_length(length: int) -> load.Feeds:
    ids = np.random.default_rng(length).integers(0, 30522, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


async def serve_lengths(call: load.Call, lengths: list[int]) -> None:
    await asyncio.gather(*(call(of_length(length)) for length in lengths))


def measure(engine: str, model: str, seconds: float) -> Figures:
    path = load.path_of(model)
    output = "last_hidden_state" if model == "minilm" or Path(model).is_dir() else "pooler_output"
    stream = load.requests(1024, seed=0)
    figures = {"imported": set_size_mib()[0]}
    call = load.own(engine, path, output) if engine in load.OWN else load.peer(engine, path, output)
    figures["warm"] = set_size_mib()[0]
    served = asyncio.run(load.slot(call, stream, seconds))
    figures["loaded"], figures["anonymous"] = set_size_mib()
    figures["requests_per_second"] = served["requests_per_second"]
    lengths = np.random.default_rng(0).permutation(LENGTHS).tolist()
    for half, name in ((lengths[:250], "250 lengths"), (lengths[250:], "500 lengths")):
        asyncio.run(serve_lengths(call, half))
        figures[name] = set_size_mib()[0]
    return figures


def in_process(engine: str, arguments: argparse.Namespace) -> Figures:
    command = [sys.executable, __file__, "--measure", engine, "--model", arguments.model]
    command += ["--seconds", str(arguments.seconds)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: Figures = json.loads(output.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm", help="minilm, a preset such as bert-3l, or a checkpoint's folder")
    parser.add_argument("--seconds", type=float, default=10)
    engines = [*load.PEERS[1:], *load.OWN]
    parser.add_argument("--engines", nargs="+", default=engines, choices=engines, metavar="ENGINE")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.model, arguments.seconds)))
        return
    load.plain(load.path_of(arguments.model))  # fills the cache: building and lowering need memory
    results: dict[str, Any] = {}
    for engine in arguments.engines:
        first = in_process(engine, arguments) if engine in RAW else {}
        results[engine] = {**in_process(engine, arguments), "first": first.get("loaded", float("nan"))}
        line = "".join(f"  {name} {value:6.0f}" for name, value in results[engine].items())
        raw = results.get(RAW.get(engine, ""))
        print(f"{engine:<26}{line}" + (f"  {results[engine]['loaded'] / raw['loaded']:.2f} times raw" if raw else ""))


if __name__ == "__main__":
    main()
