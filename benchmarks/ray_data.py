"""Texts a second of two ``isorun.ray.Embed`` actors in ``map_batches``, and of two plain ``isorun.Embedder`` processes.

    python benchmarks/ray_data.py [--texts 100000] [--rounds 3] [--model all-MiniLM-L6-v2] [--batch 4096] [--nodes 1]
        [--plain-texts N] [--kill]

Both have one thread a process and the same short texts (3 to 12 words), and are interleaved over the rounds. The time
is from the start of the first batch to the end of the last, so that it excludes starting and loading, and includes the
time in which an actor waits for its next block. Each plain process embeds its half of the texts in one call; with
``--plain-texts``, before and after the actors in each round, for long runs.

``--nodes`` starts a cluster of so many nodes on this machine, with an actor each where there are two.

``CPU`` is the CPU time of the two processes for each text, in an actor with what Ray does between its batches: it tells
what costs apart from waiting and other load.
``memory`` is the resident size of the larger actor after a quarter of its batches, and after the last one. The driver
and Ray's own processes need some of the processor as well: use a machine with at least three cores.

``--kill`` kills an actor (SIGKILL) in the middle of one more run, and checks that every text has its vector once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from isorun.system.process_usage import resident_mib

HERE = Path(__file__).parent
ACTORS, WARM = 2, 256


def corpus(count: int) -> list[str]:
    """Short texts."""
    listed = json.loads((HERE.parent / "core" / "isorun" / "compilation" / "calibration_texts.json").read_text())
    words = " ".join(text for texts in listed.values() for text in texts).split()
    random = np.random.default_rng(0)
    starts, lengths = random.integers(0, len(words) - 12, count), random.integers(3, 13, count)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def plain(model: str, count: int, part: int) -> None:
    """A process with a part of the texts; begins when it reads a line, and prints when it ran and its CPU time."""
    import isorun

    texts = corpus(count)[part::ACTORS]
    with isorun.Embedder(model, threads=1) as embedder:
        embedder.embed(texts[:WARM], progress=False)
        print("ready", flush=True)
        sys.stdin.readline()
        began, cpu = time.time(), time.process_time()
        embedder.embed(texts, progress=False)
        print(json.dumps([began, time.time(), time.process_time() - cpu]), flush=True)


def start_cluster(nodes: int) -> None:
    """One node with both actors, or a node for each. Two more processors are for the tasks that make the blocks."""
    import ray

    if nodes == 1:
        ray.init("local", num_cpus=ACTORS + 2, include_dashboard=False, log_to_driver=False)
        return
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, resources={"embedding": 1})
    ray.init(address=cluster.address, log_to_driver=False)


def run_plain(model: str, count: int) -> dict[str, float]:
    """One round of the plain processes."""
    command = [sys.executable, __file__, "--model", model, "--texts", str(count), "--part"]
    processes = [
        subprocess.Popen([*command, str(part)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for part in range(ACTORS)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    times = [json.loads(process.communicate()[0]) for process in processes]
    seconds = max(end for _, end, _ in times) - min(began for began, *_ in times)
    return {"rate": count / seconds, "cpu": sum(cpu for *_, cpu in times) / count * 1e6}


def run_ray(model: str, count: int, batch_size: int, folder: Path, *, kill: bool = False) -> dict[str, float]:
    """One round of the actors, each of which writes the times of its batches into a file."""
    import ray

    from isorun.ray import Embed

    class Timed(Embed):
        def __init__(self, model: str) -> None:
            super().__init__(model)
            self.embedder.embed(corpus(WARM), progress=False)

        def __call__(self, batch: Any) -> Any:
            began, cpu = time.time(), time.process_time()
            vectors = super().__call__(batch)
            line = json.dumps([began, time.time(), cpu, time.process_time(), resident_mib()])
            with (folder / str(os.getpid())).open("a") as file:
                file.write(line + "\n")
            return vectors

    for path in folder.iterdir():
        path.unlink()
    rows = [{"id": number, "text": text} for number, text in enumerate(corpus(count))]
    dataset = ray.data.from_items(rows, override_num_blocks=max(2 * ACTORS, count // batch_size))
    embedded = dataset.map_batches(
        Timed,
        fn_constructor_args=[model],
        batch_size=batch_size,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=ACTORS),
        **({"resources": {"embedding": 1}} if ray.cluster_resources().get("embedding") else {}),
    )
    if kill:
        threading.Thread(target=_kill_one, args=[folder]).start()
    seen = np.zeros(count, int)
    for batch in embedded.iter_batches(batch_size=batch_size):
        assert np.isfinite(batch["embedding"]).all()
        np.add.at(seen, batch["id"], 1)
    assert (seen == 1).all(), f"{(seen == 0).sum()} texts are lost, {(seen > 1).sum()} are repeated"
    actors = [[json.loads(line) for line in path.read_text().splitlines()] for path in folder.iterdir()]
    batches = [batch for actor in actors for batch in actor]
    seconds = max(end for _, end, *_ in batches) - min(began for began, *_ in batches)
    first, last = max((actor[len(actor) // 4][-1], actor[-1][-1]) for actor in actors)
    cpu = sum(actor[-1][3] - actor[0][2] for actor in actors) / count * 1e6
    return {"rate": count / seconds, "cpu": cpu, "first": first, "last": last, "actors": len(actors)}


def _kill_one(folder: Path) -> None:
    while not (actors := [path for path in folder.iterdir() if len(path.read_text().splitlines()) >= 2]):
        time.sleep(0.1)
    os.kill(int(actors[0].name), signal.SIGKILL)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, ACTORS))
    parser.add_argument("--plain-texts", type=int, help="of the plain processes (default: as many as --texts)")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        plain(arguments.model, arguments.texts, arguments.part)
        return
    start_cluster(arguments.nodes)
    ratios = []
    with tempfile.TemporaryDirectory() as work:
        for number in range(arguments.rounds):
            alone = [run_plain(arguments.model, arguments.plain_texts or arguments.texts)]
            actors = run_ray(arguments.model, arguments.texts, arguments.batch, Path(work))
            if arguments.plain_texts:
                alone.append(run_plain(arguments.model, arguments.plain_texts))
            rates = " and ".join(f"{run['rate']:,.0f}" for run in alone)
            rate, cpu = (statistics.mean(run[figure] for run in alone) for figure in ("rate", "cpu"))
            ratios.append(actors["rate"] / rate)
            print(
                f"round {number + 1}: plain {rates} texts/s, CPU {cpu:.0f} us; "
                f"actors {actors['rate']:,.0f} texts/s, CPU {actors['cpu']:.0f} us; ratio {ratios[-1]:.3f}; "
                f"memory {actors['first']:.0f} to {actors['last']:.0f} MiB",
                flush=True,
            )
        print(f"ratio of throughput, median: {statistics.median(ratios):.3f}")
        if arguments.kill:
            killed = run_ray(arguments.model, arguments.texts, arguments.batch, Path(work), kill=True)
            print(f"one of {killed['actors']:.0f} actors killed: {arguments.texts} texts, each once")


if __name__ == "__main__":
    main()
