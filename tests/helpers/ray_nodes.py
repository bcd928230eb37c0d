"""A Ray cluster of several nodes on this machine, each with a lock, a cache and a state folder of its own.

Prints the address, then obeys lines on standard input: ``kill NAME``, ``add NAME``; ends with it. The arguments are a
folder and JSON: for each node its ``labels``, ``resources`` and ``env`` (more environment variables).
"""

import json
import sys
from pathlib import Path
from typing import Any

_MEMORY = 80 * 2**20


def main(folder: Path, described: dict[str, dict[str, Any]]) -> None:
    from ray.cluster_utils import Cluster  # the tests that read this file's path are skipped where there is no Ray

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": _MEMORY},
    )

    def add(name: str) -> Any:
        node, place = described[name], folder / name
        (place / "cache").mkdir(parents=True, exist_ok=True)
        variables = {"ISORUN_LOCK_DIR": place, "ISORUN_CACHE_DIR": place / "cache", "XDG_STATE_HOME": place / "state"}
        return cluster.add_node(
            num_cpus=1,
            resources=node.get("resources", {"isorun": 1}),
            labels=node.get("labels", {"machine": name}),
            env_vars={**{key: str(value) for key, value in variables.items()}, **node.get("env", {})},
            object_store_memory=_MEMORY,
        )

    nodes = {name: add(name) for name in described}
    print(cluster.address, flush=True)
    for line in sys.stdin:
        command, name = line.split()
        if command == "kill":
            cluster.remove_node(nodes[name], allow_graceful=False)
        else:
            nodes[name] = add(name)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
