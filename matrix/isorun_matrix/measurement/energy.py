"""Energy by the counters of the machine: those of processor packages (RAPL, by the kernel's ``powercap``) and of
NVIDIA's GPUs (NVML). They count the whole package or GPU, whoever uses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isorun_matrix.measurement import gpu

_POWERCAP = Path("/sys/class/powercap")
_PLATFORM = "psys"
_UNITS = 1e6  # microjoules in a joule


@dataclass(frozen=True)
class _Zone:
    """A package in powercap: its folder, its name, and where its counter starts again, in microjoules."""

    folder: Path
    name: str
    wraps_at: int


class Counters:
    """The counters that this process can read, by names such as ``package-0`` and ``gpu-0``; there may be none. Those
    of RAPL often need root."""

    def __init__(self, powercap: Path = _POWERCAP) -> None:
        self._zones = [zone for folder in sorted(powercap.glob("intel-rapl:*")) if (zone := _zone(folder))]
        self._gpus = [f"gpu-{index}" for index in range(len(gpu.millijoules()))]
        self.names = [*(zone.name for zone in self._zones), *self._gpus]

    def read(self) -> Mapping[str, float]:
        """The counters now, in joules."""
        counted = {
            zone.name: int((zone.folder / "energy_uj").read_text(encoding="utf-8")) / _UNITS for zone in self._zones
        }
        spent = gpu.millijoules() if self._gpus else []
        return counted | {name: count / 1e3 for name, count in zip(self._gpus, spent, strict=True)}

    def since(self, before: Mapping[str, float]) -> float:
        """The joules since a reading."""
        now = self.read()
        spent = {name: now[name] - before[name] for name in self.names}
        wraps = {zone.name: zone.wraps_at / _UNITS for zone in self._zones}
        return sum(joules if joules >= 0 else joules + wraps[name] for name, joules in spent.items())


def _zone(folder: Path) -> _Zone | None:
    """A package, which this process can read; ``None`` for its parts (cores, memory), which it includes, and for the
    platform, which includes it."""
    if folder.name.count(":") != 1:
        return None
    try:
        name = (folder / "name").read_text(encoding="utf-8").strip()
        int((folder / "energy_uj").read_text(encoding="utf-8"))
        wraps_at = int((folder / "max_energy_range_uj").read_text(encoding="utf-8"))
        return None if name == _PLATFORM else _Zone(folder, name, wraps_at)
    except OSError:
        return None
