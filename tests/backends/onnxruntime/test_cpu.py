"""What sets ort-cpu apart; the rest is proved by the conformance suite."""

import json
import shutil
import subprocess

import onnxruntime
import pytest

import isorun
import tiny
from isorun.errors import InvalidOption
from isorun.plugin import registry
from isorun_backends.onnxruntime.session import session_options
from onnx_text import graph


@pytest.fixture(scope="module")
def session(bert):
    with isorun.Session(bert, backend="ort-cpu", padding="keep") as opened:
        yield opened


def test_provenance_is_onnx_runtimes_own_assignment(session):
    provenance = session.provenance
    assert session.get_providers() == ["CPUExecutionProvider"]
    counts = provenance.operators["CPUExecutionProvider"]
    assert counts["com.microsoft.Attention"] == 2
    assert counts["com.microsoft.BiasGelu"] == 2
    assert counts["com.microsoft.EmbedLayerNormalization"] == 1
    assert provenance.versions["onnxruntime"] == onnxruntime.__version__


def test_options_reach_the_runtime():
    settings = {
        "graph_optimization_level": "disable",
        "inter_op_threads": 2,
        "session_config": {"session.disable_prepacking": 1, "session.use_env_allocators": True, "a": False, "b": 0.5},
    }
    options = session_options("ort-cpu", registry.get("ort-cpu").read_options(settings), threads=1)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 2)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    entries = ("session.disable_prepacking", "session.use_env_allocators", "a", "b")
    assert [options.get_session_config_entry(entry) for entry in entries] == ["1", "1", "0", "0.5"]


def test_bf16_products_are_a_precision_rather_than_an_entry(bert):
    entry = {"mlas.enable_gemm_fastmath_arm64_bfloat16": 1}
    with pytest.raises(isorun.InvalidOption, match="precision='bf16'"):
        isorun.Session(bert, "ort-cpu", options={"session_config": entry})


def test_rejects_a_profile_in_a_folder_that_does_not_exist(bert, tmp_path):
    with pytest.raises(InvalidOption) as caught:
        isorun.Session(bert, "ort-cpu", options={"profile_prefix": tmp_path / "missing" / "profile"})
    assert (caught.value.backend, caught.value.key) == ("ort-cpu", "profile_prefix")


def test_a_profile_is_written(bert, tmp_path):
    with isorun.Session(bert, "ort-cpu", options={"profile_prefix": tmp_path / "profile"}, padding="keep") as session:
        session.run(None, tiny.feeds())
    (profile,) = tmp_path.glob("profile*.json")
    assert json.loads(profile.read_text(encoding="utf-8"))


def test_a_bad_request_raises_and_prints_nothing(session, capfd):
    with pytest.raises(isorun.InvalidFeeds, match="input_ids"):
        session.run(None, {**tiny.feeds(), "input_ids": tiny.feeds()["input_ids"] + 10**6})
    with pytest.raises(isorun.InvalidModel):
        isorun.Session(graph("agraph (float[n] x) => (float[n] y) { y = Reshape(x, x) }"), "ort-cpu")
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_libraries_of_custom_operators_are_registered(bert, tmp_path):
    source, library, seen = tmp_path / "ops.c", tmp_path / "libops.so", tmp_path / "registered"
    source.write_text(
        "#include <stdio.h>\n"
        f'void *RegisterCustomOps(void *o, const void *api) {{ fclose(fopen("{seen}", "a")); return 0; }}\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with isorun.Session(bert, "ort-cpu", options={"custom_ops": [library]}) as session:
        session.run(None, tiny.feeds())
    assert seen.exists()
    source.rename(tmp_path / "text.so")
    with pytest.raises(isorun.BackendFailed, match=r"custom operators of .*text.so"):
        isorun.Session(bert, "ort-cpu", options={"custom_ops": [tmp_path / "text.so"]})


@pytest.mark.parametrize("library", ["absent.so", "", 5, None])
def test_rejects_a_library_that_is_no_file(bert, library):
    with pytest.raises(InvalidOption, match=f"'custom_ops': there is no file {library}") as caught:
        isorun.Session(bert, "ort-cpu", options={"custom_ops": [library]})
    assert caught.value.key == "custom_ops"


@pytest.mark.parametrize(
    "entries", [{"a": None}, {"a": object()}, {5: "1"}, {"a": float("nan")}, {"a": ["1"]}, {"a": b"1"}]
)
def test_rejects_entries_that_are_no_text(bert, entries):
    with pytest.raises(InvalidOption, match="'session_config' must have texts, numbers, true or false, by names"):
        isorun.Session(bert, "ort-cpu", options={"session_config": entries})


@pytest.mark.parametrize("entries", [{"": "1"}, {"a" * 2000: "1"}, {"a": "b" * 9000}])
def test_rejects_entries_that_onnx_runtime_rejects(bert, entries):
    with pytest.raises(InvalidOption, match="'session_config' has an invalid entry") as caught:
        isorun.Session(bert, "ort-cpu", options={"session_config": entries})
    assert caught.value.key == "session_config"
