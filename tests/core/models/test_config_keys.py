"""Every key of ``config.json`` is used, has no effect, or is rejected by name."""

import contextlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import exports
import tiny
from isorun.errors import InvalidModel, IsorunError, UnsupportedModel
from isorun.models import checkpoint
from isorun.models.config_keys import NOMIC_NAMES, TABLES, check_config
from tiny import changed

FAMILIES = (
    *("albert", "bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-r", "deberta-v2", "deberta-v3"),
    *("deberta-v3-sequence", "jina-v2", "t5", "mt5", *exports.MODERN_CHECKPOINTS),
)


def run(folder: Path, output: str, path: Path) -> np.ndarray:
    checkpoint.build(folder, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = exports.feeds(["input_ids", "attention_mask", "token_type_ids"])
    (result,) = session.run([output], {item.name: feeds[item.name] for item in session.get_inputs()})
    return np.asarray(result)


@pytest.mark.parametrize("name", FAMILIES)
def test_rejects_unknown_keys_by_name_and_value(name: str, tmp_path: Path) -> None:
    folder = changed(exports.checkpoint(name, tmp_path), layer_norm_epz=0.5)
    with pytest.raises(UnsupportedModel, match=r"config\.json: unknown key 'layer_norm_epz' with value 0\.5"):
        checkpoint.build(folder, tmp_path / "model.onnx")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["deberta-v3-sequence", "t5", "embeddinggemma"])
@pytest.mark.parametrize("value", [[[]], {"a": 1}, 10**400], ids=lambda value: type(value).__name__)
def test_a_wrong_type_anywhere_is_no_other_error(name: str, value: object, tmp_path: Path) -> None:
    folder = exports.checkpoint(name, tmp_path)
    original = (folder / "config.json").read_text(encoding="utf-8")
    for key in json.loads(original):
        changed(folder, **{key: value})
        with contextlib.suppress(IsorunError):
            checkpoint.build(folder, tmp_path / "model.onnx")
        (folder / "config.json").write_text(original)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_huge_size_takes_no_memory(name: str, tmp_path: Path) -> None:
    """A size of which a table is computed has a limit; others must be those of the tensors."""
    folder = exports.checkpoint(name, tmp_path)
    original = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    keys = {key for key, value in original.items() if type(value) in (int, float)}
    keys |= {"head_dim", "num_key_value_heads", "embedding_size", "d_kv", "sliding_window", "local_attention"}
    for key in keys:
        tracemalloc.start()
        with contextlib.suppress(IsorunError):
            checkpoint.build(changed(folder, **{**original, key: 2**30}), tmp_path / "model.onnx")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 50 << 20, key
        changed(folder, **{key: ...})


OF_NOMIC = {
    **{"rotary_scaling_factor": 2, "rotary_emb_fraction": 0.5, "prenorm": True, "causal": True},
    **{"activation_function": "gelu", "num_experts": 8, "rotary_emb_interleaved": True, "n_embd": 64},
}


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        # Layers that share weights cost time and memory, but no tensors.
        *(("albert", "num_hidden_layers", count, "must be an integer above 0, at most 128") for count in (129, 1000)),
        *(
            ("deberta-v3", "pos_att_type", kinds, "must be a list of names")
            for kinds in (["c2p", True], [1], [["c2p"]], {"c2p": 1}, 3)
        ),
        ("deberta-v3-sequence", "pooler_hidden_act", "mish", "'mish'"),
        *(("nomicbert", key, value, "") for key, value in OF_NOMIC.items()),
    ],
)
def test_rejects_what_a_family_does_not_have(name: str, key: str, value: object, message: str, tmp_path: Path) -> None:
    folder = changed(exports.checkpoint(name, tmp_path), **{key: value})
    with pytest.raises(UnsupportedModel if name == "nomicbert" else InvalidModel, match=f"{key}.*{message}"):
        checkpoint.build(folder, tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", sorted(TABLES))
def test_remote_code_is_rejected_unless_isorun_implements_it(kind: str) -> None:
    own = {"jina-bert": "JinaBertModel", "nomic_bert": "NomicBertModel", "eurobert": "EuroBertModel", "gte": "NewModel"}
    own["new"] = "NewModel"
    with pytest.raises(UnsupportedModel, match=r"auto_map names remote code, 'modeling\.CustomModel'"):
        check_config({"auto_map": {"AutoModel": "modeling.CustomModel"}}, kind, "config.json")
    for code in ("x", {"AutoModel": ["a"]}, {"AutoModel": None}):
        with pytest.raises(UnsupportedModel, match="auto_map"):
            check_config({"auto_map": code}, kind, "config.json")
    if kind in own:
        check_config({"auto_map": {"AutoModel": f"someone/code--modeling.{own[kind]}"}}, kind, "config.json")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["tanh", "relu", "sigmoid", "linear", "gelu", "gelu_new"])
def test_the_activation_of_deberta_s_pooler(name: str, tmp_path: Path) -> None:
    """Against the formula, from the hidden states of the same graph."""
    from safetensors.numpy import load_file

    folder = changed(exports.checkpoint("deberta-v3-sequence", tmp_path), pooler_hidden_act=name)
    hidden = run(folder, "last_hidden_state", tmp_path / "model.onnx")[:, 0]
    tensors = {key: value.astype(np.float32) for key, value in load_file(folder / "model.safetensors").items()}
    before = hidden @ tensors["pooler.dense.weight"].T + tensors["pooler.dense.bias"]
    gelu = before * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (before + 0.044715 * before**3)))
    pooled = {
        "tanh": np.tanh(before),
        "relu": np.maximum(before, 0),
        "sigmoid": 1 / (1 + np.exp(-before)),
        "linear": before,
    }.get(name, gelu)
    expected = pooled @ tensors["classifier.weight"].T + tensors["classifier.bias"]
    tolerance = 2e-3 if name == "gelu" else 1e-5  # the formula above is that of gelu_new
    np.testing.assert_allclose(run(folder, "logits", tmp_path / "model.onnx"), expected, rtol=0, atol=tolerance)


def test_qwen3_attends_to_all_tokens_if_it_is_not_causal(tmp_path: Path) -> None:
    folder = exports.checkpoint("qwen3", tmp_path)
    causal = run(folder, "last_hidden_state", tmp_path / "model.onnx")
    both = run(changed(folder, is_causal=False), "last_hidden_state", tmp_path / "model.onnx")
    assert abs(both[0, 0] - causal[0, 0]).max() > 0.01, "the first token sees those after it"


def test_gemma_scales_queries_by_its_default(tmp_path: Path) -> None:
    folder = exports.checkpoint("embeddinggemma", tmp_path)
    explicit = run(changed(folder, query_pre_attn_scalar=256), "last_hidden_state", tmp_path / "model.onnx")
    default = run(changed(folder, query_pre_attn_scalar=...), "last_hidden_state", tmp_path / "model.onnx")
    np.testing.assert_array_equal(default, explicit)


PUBLISHED = {
    **{"activation_function": "swiglu", "attn_pdrop": 0.0, "causal": False, "dense_seq_output": True},
    **{"fused_bias_fc": True, "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": False},
    **{"mlp_fc2_bias": False, "pad_vocab_size_multiple": 64, "parallel_block": False, "prenorm": False},
    **{"qkv_proj_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False},
    **{"rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_weights": True, "use_rms_norm": False},
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}


def test_reads_nomic_s_configuration_as_published(tmp_path: Path) -> None:
    folder = exports.checkpoint("nomicbert", tmp_path)
    expected = run(folder, "last_hidden_state", tmp_path / "model.onnx")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    names = {published: settings[standard] for published, standard in NOMIC_NAMES.items() if standard in settings}
    removed = dict.fromkeys([*NOMIC_NAMES.values(), "rope_parameters", "head_dim"], ...)
    changed(folder, **removed, **{**names, **PUBLISHED})
    np.testing.assert_array_equal(run(folder, "last_hidden_state", tmp_path / "model.onnx"), expected)


GTE = {
    **{"model_type": "new", "architectures": ["NewModel"], "layer_norm_type": "layer_norm", "pack_qkv": True},
    **{"logn_attention_clip1": False, "logn_attention_scale": False, "position_embedding_type": "rope"},
    **{"rope_scaling": None, "rope_theta": 160000, "rope_parameters": ..., "type_vocab_size": 2, "pad_token_id": 0},
    **{"unpad_inputs": False, "use_memory_efficient_attention": False, "classifier_dropout": None},
    "auto_map": {"AutoConfig": "org/new-impl--configuration.NewConfig", "AutoModel": "org/new-impl--modeling.NewModel"},
}


def test_reads_gte_s_configuration_as_published(tmp_path: Path) -> None:
    folder = exports.checkpoint("gte", tmp_path)
    expected = run(folder, "last_hidden_state", tmp_path / "model.onnx")
    np.testing.assert_array_equal(run(changed(folder, **GTE), "last_hidden_state", tmp_path / "model.onnx"), expected)
    scaled = changed(folder, rope_scaling={"type": "ntk", "factor": 2.0})
    assert abs(run(scaled, "last_hidden_state", tmp_path / "model.onnx") - expected).max() > 1e-3


@pytest.mark.parametrize("factor", [1, 2.0, 8])
def test_gte_s_scaling_of_the_rotation(factor: float, tmp_path: Path) -> None:
    folder = changed(exports.checkpoint("gte", tmp_path), **GTE)
    checkpoint.build(changed(folder, rope_scaling={"type": "ntk", "factor": factor}), tmp_path / "model.onnx")
    size = 8  # of a head
    expected = 1 / ((160000 * factor) ** (np.arange(0, size, 2) / size) * factor ** (2 / size))
    constants = {
        item.name: numpy_helper.to_array(item) for item in onnx.load(tmp_path / "model.onnx").graph.initializer
    }
    (rates,) = (value for name, value in constants.items() if name.endswith(".rates"))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("layer_norm_type", "rms_norm"), ("position_embedding_type", "absolute"), ("pack_qkv", False)),
        *(("logn_attention_scale", True), ("rope_scaling", {"type": "ntk", "factor": 2, "mixed_b": 0.6})),
        *(("rope_scaling", {"type": "ntk", "factor": value}) for value in (0.5, "2", None, float("inf"), [])),
        *(("rope_type", value) for value in ({"type": "linear"}, {"rope_type": "yarn"})),
    ],
)
def test_rejects_settings_of_gte_that_it_does_not_build(key: str, value: object, tmp_path: Path) -> None:
    setting = {"rope_scaling" if key == "rope_type" else key: value}
    folder = changed(exports.checkpoint("gte", tmp_path), **{**GTE, **setting})
    with pytest.raises((InvalidModel, UnsupportedModel), match=key):
        checkpoint.build(folder, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "settings",
    [
        *({"pruned_heads": {"0": [1]}}, {"quantization_config": {"bits": 4}}, {"layer_norm_epsilon": 0.1}),
        *({"relative_attention": True}, {"is_causal": False}, {"hidden_sise": 3}),
    ],
)
def test_rejects_settings_with_an_effect(settings: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.write_checkpoint(tmp_path / "tiny", **settings)
    with pytest.raises(UnsupportedModel, match=next(iter(settings))):
        checkpoint.build(folder, tmp_path / "model.onnx")


@pytest.mark.parametrize("fields", [{"rope_type": "yarn"}, {"partial_rotary_factor": 0.5}, 3, {"rope_theta": "x"}])
def test_rejects_other_rotations(fields: object, tmp_path: Path) -> None:
    folder = changed(exports.checkpoint("eurobert", tmp_path), rope_parameters=fields)
    with pytest.raises(InvalidModel, match=r"rope|rotation"):
        checkpoint.build(folder, tmp_path / "model.onnx")


def test_the_base_of_a_rotation_may_be_in_rope_scaling(tmp_path: Path) -> None:
    folder = exports.checkpoint("eurobert", tmp_path)
    without: dict[str, Any] = dict.fromkeys(("rope_parameters", "rope_scaling", "rope_theta"), ...)
    theta = {"rope_type": "default", "rope_theta": 55.0}
    of_parameters, of_scaling, usual = (
        run(changed(folder, **{**without, **rotation}), "last_hidden_state", tmp_path / "model.onnx")
        for rotation in ({"rope_parameters": theta}, {"rope_scaling": theta}, {})
    )
    np.testing.assert_array_equal(of_scaling, of_parameters)
    assert np.abs(of_scaling - usual).max() > 0.01


def test_rejects_one_rotation_for_the_two_of_gemma(tmp_path: Path) -> None:
    theta = {"rope_type": "default", "rope_theta": 77.0}
    folder = changed(exports.checkpoint("embeddinggemma", tmp_path), rope_parameters=theta)
    with pytest.raises(InvalidModel, match="sliding_attention"):
        checkpoint.build(folder, tmp_path / "model.onnx")


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_rejects_weights_that_transformers_would_round(key: str, name: str, tmp_path: Path) -> None:
    folder = changed(exports.checkpoint(name, tmp_path), **{"dtype": ..., "torch_dtype": ..., key: "bfloat16"})
    with pytest.raises(UnsupportedModel, match="dtype is 'bfloat16', but no weight is stored in it"):
        checkpoint.build(folder, tmp_path / "model.onnx")
    checkpoint.build(changed(folder, **{key: "float32"}), tmp_path / "model.onnx")


def test_an_absent_key_has_the_default_of_its_kind(tmp_path: Path) -> None:
    """Those of transformers 5.24 that other kinds with the same keys do not have; null is a value."""
    known = {
        "gemma3_text": {"head_dim": 256, "num_key_value_heads": 4, "pad_token_id": 0},
        "qwen3": {"head_dim": 128, "num_key_value_heads": 32},
        "qwen2": {"num_key_value_heads": 32},
        "mistral": {"num_key_value_heads": 8},
        "llama": {},
        "t5": {},
    }
    for kind, defaults in known.items():
        assert check_config({}, kind, "config.json") == defaults
        nulls = dict.fromkeys(defaults)
        assert check_config(nulls, kind, "config.json") == nulls
    folder = exports.checkpoint("mt5", tmp_path)
    stated = run(folder, "last_hidden_state", tmp_path / "stated.onnx")
    changed(folder, feed_forward_proj=..., dense_act_fn=..., is_gated_act=...)
    np.testing.assert_array_equal(run(folder, "last_hidden_state", tmp_path / "absent.onnx"), stated)
