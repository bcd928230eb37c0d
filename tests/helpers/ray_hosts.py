"""A Ray cluster of hosts in network namespaces; root starts it with ``unshare --net``, in whose namespace is the head.

Prints the address, then obeys lines on standard input: ``cut NAME`` and ``join NAME`` (its network), ``add NAME``
(start Ray there again); ends with it. The arguments are a folder and the names of the hosts, which their nodes have as
the label ``machine``.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_HEAD, _PORT = "10.77.0.1", 6379
_WAITING = 'trap : TERM; echo; while read _; do "$@"; done'  # with each line, start Ray


def _ip(command: str, host: subprocess.Popen[str] | None = None) -> None:
    entered = [] if host is None else ["nsenter", f"--target={host.pid}", "--net"]
    subprocess.run([*entered, "ip", *command.split()], check=True)


def _ray(address: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={address}"]
    return [*command, "--disable-usage-stats", f"--object-store-memory={80 * 2**20}", *arguments]


def _wait_for(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    while text not in (line := process.stdout.readline()):
        assert line, "Ray did not start"


def _start_ray(host: subprocess.Popen[str]) -> None:
    assert host.stdin is not None
    host.stdin.write("\n")
    host.stdin.flush()
    _wait_for(host, "Ray runtime started")


def _host(folder: Path, number: int, name: str) -> subprocess.Popen[str]:
    """A host at the end of a cable, whose end here has its name."""
    address, place = f"10.77.0.{number}", folder / name
    node = _ray(address, f"--address={_HEAD}:{_PORT}", "--num-cpus=1", '--resources={"isorun": 1}')
    (place / "cache").mkdir(parents=True)
    variables = {"ISORUN_LOCK_DIR": place, "ISORUN_CACHE_DIR": place / "cache", "XDG_STATE_HOME": place / "state"}
    host = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", _WAITING, "sh", *node, f"--labels=machine={name}"],
        env={**os.environ, **{key: str(value) for key, value in variables.items()}},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _wait_for(host, "\n")  # it is in its namespace
    _ip(f"link add {name} type veth peer name eth0 netns {host.pid}")
    _ip(f"link set {name} master bridge up")
    for command in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
        _ip(command, host)
    _start_ray(host)
    return host


def main(folder: Path, names: list[str]) -> None:
    for command in ("link set lo up", "link add bridge type bridge", f"addr add {_HEAD}/24 dev bridge"):
        _ip(command)
    _ip("link set bridge up")
    head = subprocess.Popen(
        _ray(_HEAD, "--head", f"--port={_PORT}", "--num-cpus=0", "--include-dashboard=false"),
        stdout=subprocess.PIPE,
        text=True,
    )
    _wait_for(head, "Ray runtime started")
    hosts = {name: _host(folder, number, name) for number, name in enumerate(names, 2)}
    print(f"{_HEAD}:{_PORT}", flush=True)
    for line in sys.stdin:
        command, name = line.split()
        if command == "add":
            _start_ray(hosts[name])
        else:
            _ip(f"link set {name} {'down' if command == 'cut' else 'up'}")
        print("done", flush=True)
    for host in hosts.values():
        assert host.stdin is not None
        host.stdin.close()
        os.killpg(host.pid, signal.SIGTERM)
        host.wait()
    head.terminate()
    head.wait()


if __name__ == "__main__":
    # Ray would leave the address there for every other program on this machine. A short path, for the sake of sockets.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        os.environ["RAY_TMPDIR"] = own
        main(Path(sys.argv[1]), sys.argv[2:])
