from pathlib import Path

import pytest

from isorun_matrix.measurement import gpu
from isorun_matrix.measurement.energy import Counters


def zone(powercap: Path, name: str, label: str, microjoules: int) -> Path:
    folder = powercap / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{label}\n")
    (folder / "max_energy_range_uj").write_text("1000000000\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def test_adds_packages_without_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "millijoules", lambda: [5000])
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 999_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 7)
    platform = zone(tmp_path, "intel-rapl:2", "psys", 1_000_000)  # includes both packages
    counters = Counters(tmp_path)
    assert counters.names == ["package-0", "package-1", "gpu-0"]
    before = counters.read()
    (first / "energy_uj").write_text("3000000\n")
    (second / "energy_uj").write_text("1000000\n")  # it started again
    (platform / "energy_uj").write_text("9000000\n")
    monkeypatch.setattr(gpu, "millijoules", lambda: [5500])
    assert counters.since(before) == pytest.approx(2 + 2 + 0.5)


def test_a_machine_without_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "millijoules", list)
    counters = Counters(tmp_path)
    assert counters.names == []
    assert counters.since(counters.read()) == 0
