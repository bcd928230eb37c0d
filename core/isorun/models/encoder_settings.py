"""Reading the sizes and settings of an encoder from ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidModel, did_you_mean

if TYPE_CHECKING:
    from isorun.graph.builders.architecture import Architecture
    from isorun.graph.builders.encoder_config import EncoderConfig

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MISTRAL_WINDOW = 4096  # the default in transformers


def kind_of(settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> str:
    """The kind of an encoder, by which :data:`isorun.models.config_keys.TABLES` has its keys.

    Raises:
        InvalidModel: isorun has no such kind.
    """
    from isorun.graph.builders.architectures import ARCHITECTURES

    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise invalid(f"model_type must be one of {', '.join(ARCHITECTURES)}, got {kind!r}")
    return "jina-bert" if kind == "bert" and settings.get("position_embedding_type") == "alibi" else kind


def read(kind: str, settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> EncoderConfig:
    """The configuration of an encoder without a head and a pooler.

    Args:
        kind: one of :func:`kind_of`.
        settings: the content of ``config.json``.
        invalid: makes an error about it.

    Raises:
        InvalidModel: a setting is missing, invalid or not supported.
    """
    from isorun.graph.builders import activations, architectures, encoder_config

    architecture = architectures.JINA if kind == "jina-bert" else architectures.ARCHITECTURES[kind]
    sizes = {}
    for size, key in architecture.sizes.items():
        sizes[size] = settings.get(key, architecture.defaults.get(size))
        if sizes[size] is None and size not in architecture.defaults:
            raise invalid(f"{key} must be an integer above 0, got None")
    key, default = architecture.activation
    activation = settings.get(key, default)
    if architecture.relative == "rotary":
        specific = _rotary(kind, settings, architecture, sizes, invalid)
        if settings.get("is_causal") is False:
            architecture = replace(architecture, causal=False)
    else:
        specific = {"pad_token_id": _padding_id(settings, architecture, sizes["vocab_size"], invalid)}
        _check_absolute(settings, architecture, sizes, invalid)
    if kind == "jina-bert" and (settings.get("feed_forward_type") != "geglu" or activation != "gelu"):
        feed_forward = settings.get("feed_forward_type")
        raise invalid(f"feed_forward_type must be 'geglu', with hidden_act 'gelu', got {feed_forward!r}")
    if kind in ("t5", "mt5"):
        activation, is_gated = _t5_activation(settings, invalid)
        architecture = architectures.T5_GATED if is_gated else architecture
    if not isinstance(activation, str) or activation not in activations.NAMES:
        raise invalid(f"unsupported {key} {activation!r}{did_you_mean(str(activation), activations.NAMES)}")
    key, epsilon = architecture.epsilon
    return encoder_config.EncoderConfig(
        **sizes,
        **specific,
        layer_norm_eps=float(settings.get(key, epsilon)),
        hidden_act=activation,
        pooler=False,
        architecture=architecture,
        words=architecture.words[0],
        settings=settings,
    )


def _check_absolute(
    settings: Mapping[str, Any],
    architecture: Architecture,
    sizes: Mapping[str, int],
    invalid: Callable[[str], InvalidModel],
) -> None:
    """Reject what encoders without rotary positions do not support."""
    if not architecture.sizes.get("head_size") and sizes["hidden_size"] % sizes["num_attention_heads"]:
        width, count = architecture.sizes["hidden_size"], architecture.sizes["num_attention_heads"]
        raise invalid(
            f"{width} must be a multiple of {count}, got {sizes['hidden_size']} and {sizes['num_attention_heads']}"
        )
    if architecture.relative != "alibi" and settings.get("position_embedding_type", "absolute") != "absolute":
        raise invalid(f"position_embedding_type must be 'absolute', got {settings['position_embedding_type']!r}")
    if settings.get("is_decoder") or settings.get("add_cross_attention"):
        raise invalid("decoders are not supported, only encoders")


def _padding_id(
    settings: Mapping[str, Any], architecture: Architecture, words: int, invalid: Callable[[str], InvalidModel]
) -> int:
    """The id that position counts skip; 0 if the architecture does not count."""
    if architecture.padding_id is None or architecture.fixed_padding_id:
        return architecture.padding_id or 0
    padding_id = settings.get("pad_token_id", architecture.padding_id)
    if type(padding_id) is not int or not 0 <= padding_id < words:
        raise invalid(f"pad_token_id must be an integer from 0 to {words - 1}, got {padding_id!r}")
    return padding_id


def _t5_activation(settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> tuple[str, bool]:
    """The activation of a T5, and whether it is that of a gate."""
    from isorun.graph.builders import activations

    kind = settings.get("feed_forward_proj", "relu")
    activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")  # as transformers does
    if activation not in activations.NAMES:
        names = ", ".join(activations.NAMES)
        raise invalid(f"feed_forward_proj must be one of {names}, or gated-NAME, got {kind!r}")
    is_gated = kind.startswith("gated-")
    for key, derived in {"dense_act_fn": activation, "is_gated_act": is_gated}.items():
        if settings.get(key, derived) != derived:  # transformers reads them in preference
            raise invalid(f"{key} must be {derived!r} for {kind!r}, got {settings[key]!r}")
    return activation, is_gated


def _rotary(
    kind: str,
    settings: Mapping[str, Any],
    architecture: Architecture,
    sizes: Mapping[str, int],
    invalid: Callable[[str], InvalidModel],
) -> dict[str, Any]:
    """What :class:`EncoderConfig` has of rotary positions, and what they need of heads."""
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    size = sizes["head_size"] or width // heads
    groups = sizes["num_key_value_heads"] or heads
    if (size * heads != width and sizes["head_size"] is None) or size % 2 or heads % groups:
        raise invalid(f"hidden_size {width} does not divide into {heads} heads of an even size, in {groups} groups")
    if kind == "gemma3_text" and not settings.get("use_bidirectional_attention"):
        raise invalid("use_bidirectional_attention must be true: decoders are not supported, only encoders")
    if settings.get("attn_logit_softcapping"):
        raise invalid("attn_logit_softcapping is not supported")
    scalar = settings.get("query_pre_attn_scalar", 256 if kind == "gemma3_text" else None)
    return {
        "rotations": _rotations(kind, settings, architecture, sizes["num_hidden_layers"], invalid),
        "stretch": _stretch(settings, invalid) if kind == "new" else 1.0,
        "scale": None if scalar is None else float(scalar) ** -0.5,
        "pad_token_id": settings.get("pad_token_id"),
    }


def _rotations(
    kind: str,
    settings: Mapping[str, Any],
    architecture: Architecture,
    layers: int,
    invalid: Callable[[str], InvalidModel],
) -> list[tuple[float, int | None]]:
    """The base of the rotation of each layer, and its window."""
    types = settings.get("layer_types")
    if types is None and architecture.windows is not None:
        key, default, shift = architecture.windows
        every = settings.get(key, default)
        types = [_SLIDING if (index + shift) % every else _FULL for index in range(layers)]
    types = [_FULL] * layers if types is None else types
    if not isinstance(types, list) or len(types) != layers or not all(name in (_FULL, _SLIDING) for name in types):
        raise invalid(f"layer_types must name {_FULL!r} or {_SLIDING!r} for each of {layers} layers, got {types!r}")
    window = None
    if kind in ("qwen3", "qwen2") and (_SLIDING in types or settings.get("use_sliding_window")):
        raise invalid("use_sliding_window must be false: windows of a causal attention are not supported")
    if kind == "mistral" and settings.get("sliding_window", _MISTRAL_WINDOW) is not None:
        raise invalid("sliding_window must be null: windows of a causal attention are not supported")
    if kind == "modernbert":
        window = int(settings.get("local_attention", 128)) // 2
    elif kind == "gemma3_text":
        window = int(settings.get("sliding_window", 4096)) // 2
    bases = {
        name: _theta(kind, settings, name, *base, invalid)
        for name, base in zip((_FULL, _SLIDING), architecture.bases, strict=True)
    }
    return [(bases[name], window if name == _SLIDING else None) for name in types]


def _theta(
    kind: str, settings: Mapping[str, Any], layer: str, key: str, default: float, invalid: Callable[[str], InvalidModel]
) -> float:
    parameters = _rotation(settings, "rope_parameters", invalid)
    if layer in parameters:
        parameters = _rotation(parameters, layer, invalid)
    elif kind == "gemma3_text" and parameters:  # transformers uses its default bases
        raise invalid(f"rope_parameters must have {_FULL!r} and {_SLIDING!r}, got {parameters!r}")
    is_local = kind == "gemma3_text" and layer == _SLIDING  # whose rotation is never scaled
    scaling = parameters if is_local else _rotation(settings, "rope_scaling", invalid) or parameters
    if kind == "new" and scaling.get("type") == "ntk":
        scaling = {}  # _stretch() reads it
    for fields in (parameters, scaling):
        if strange := fields.keys() - {"rope_theta", "rope_type", "type", _FULL, _SLIDING}:
            raise invalid(f"the key {min(strange)!r} of the rotation's parameters is not supported")
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type != "default":
        raise invalid(f"rope_type must be 'default', got {rope_type!r}")
    theta = scaling.get("rope_theta", parameters.get("rope_theta", settings.get(key)))
    theta = default if theta is None else theta
    if type(theta) not in (int, float) or not 0 < theta < 1e30:
        raise invalid(f"{key} must be a number above 0, got {theta!r}")
    return float(theta)


def _stretch(settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> float:
    """The factor of GTE's fixed NTK scaling: of the base, and, by its root, of all angles; 1 without scaling."""
    scaling = _rotation(settings, "rope_scaling", invalid)
    if scaling.get("type") != "ntk":
        return 1.0
    factor: Any = scaling.get("factor")
    if type(factor) not in (int, float) or not 1 <= factor < 1e6 or scaling.get("mixed_b") is not None:
        raise invalid(f"rope_scaling must have a factor from 1 to 1e6 and no mixed_b, got {scaling!r}")
    if strange := scaling.keys() - {"type", "factor", "mixed_b"}:
        raise invalid(f"the key {min(strange)!r} of rope_scaling is not supported")
    return float(factor)


def _rotation(settings: Mapping[str, Any], key: str, invalid: Callable[[str], InvalidModel]) -> Mapping[str, Any]:
    """An object of the rotation's parameters; empty if there is none."""
    parameters = settings.get(key) or {}
    if not isinstance(parameters, dict):
        raise invalid(f"{key} must be an object, got {parameters!r}")
    return parameters
