"""Reading the sizes of encoders with rotary positions from ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isorun.errors import InvalidModel, did_you_mean

if TYPE_CHECKING:
    from isorun.graph.builders.rotary import RotaryConfig
    from isorun.graph.builders.rotary_families import RotaryFamily

KINDS = (
    *("modernbert", "eurobert", "nomic_bert", "gte", "new", "jina_embeddings_v3"),
    *("gemma3_text", "qwen3", "qwen2", "llama", "mistral"),
)
"""The values of ``model_type``."""

_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {  # the defaults in transformers: of all layers, or of global and of windowed ones
    "modernbert": (160_000.0, 10_000.0),
    "eurobert": (10_000.0, 10_000.0),
    "nomic_bert": (1_000.0, 1_000.0),
    "gte": (160_000.0, 160_000.0),
    "new": (10_000.0, 10_000.0),
    "jina_embeddings_v3": (20_000.0, 20_000.0),
    "gemma3_text": (1_000_000.0, 10_000.0),
    **dict.fromkeys(("qwen3", "qwen2", "llama", "mistral"), (10_000.0, 10_000.0)),
}
_THETA_KEYS = {
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "gemma3_text": ("rope_theta", "rope_local_base_freq"),
}
_ACTIVATIONS = {"modernbert": "hidden_activation", "gemma3_text": "hidden_activation"}
_EPSILONS = {
    "modernbert": ("norm_eps", 1e-5),
    "eurobert": ("rms_norm_eps", 1e-5),
    "gemma3_text": ("rms_norm_eps", 1e-6),
    **dict.fromkeys(("qwen3", "qwen2", "llama", "mistral"), ("rms_norm_eps", 1e-6)),
    "jina_embeddings_v3": ("layer_norm_eps", 1e-5),
}
_EPSILON = ("layer_norm_eps", 1e-12)
_MISTRAL_WINDOW = 4096  # the default in transformers
_EVERY = {"modernbert": ("global_attn_every_n_layers", 3), "gemma3_text": ("sliding_window_pattern", 6)}
_DEFAULT_ACTIVATIONS = {
    **dict.fromkeys(("eurobert", "nomic_bert", "qwen3", "qwen2", "llama", "mistral"), "silu"),
    "gemma3_text": "gelu_pytorch_tanh",
}


def read(settings: Mapping[str, Any], invalid: Callable[[str], InvalidModel]) -> RotaryConfig:
    """The configuration of an encoder.

    Args:
        settings: the content of ``config.json``, with one of :data:`KINDS`.
        invalid: makes an error about it.

    Raises:
        InvalidModel: a setting is missing, invalid or not supported.
    """
    from isorun.graph.builders import activations, rotary

    kind = settings["model_type"]

    def count(key: str, default: int | None = None) -> int:
        number = settings.get(key)
        number = default if number is None else number
        if type(number) is not int or number < 1:
            raise invalid(f"{key} must be an integer above 0, got {number!r}")
        return number

    width, heads = count("hidden_size"), count("num_attention_heads")
    size = count("head_dim", width // heads)
    groups = count("num_key_value_heads", heads)
    if (size * heads != width and settings.get("head_dim") is None) or size % 2 or heads % groups:
        raise invalid(f"hidden_size {width} does not divide into {heads} heads of an even size, in {groups} groups")
    if kind == "gemma3_text" and not settings.get("use_bidirectional_attention"):
        raise invalid("use_bidirectional_attention must be true: decoders are not supported, only encoders")
    if settings.get("attn_logit_softcapping"):
        raise invalid("attn_logit_softcapping is not supported")
    family = family_of(kind)
    if settings.get("is_causal") is False:
        family = replace(family, causal=False)
    activation = settings.get(_ACTIVATIONS.get(kind, "hidden_act"), _DEFAULT_ACTIVATIONS.get(kind, "gelu"))
    if activation not in activations.NAMES:
        raise invalid(f"unsupported activation {activation!r}{did_you_mean(str(activation), activations.NAMES)}")
    epsilon_key, epsilon = _EPSILONS.get(kind, _EPSILON)
    scalar = settings.get("query_pre_attn_scalar", 256 if kind == "gemma3_text" else None)
    types = settings.get("type_vocab_size", {"nomic_bert": 2}.get(kind, 1)) if family.types else 0
    return rotary.RotaryConfig(
        family=family,
        vocab_size=count("vocab_size"),
        hidden_size=width,
        intermediate_size=count("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_size=size,
        layer_kinds=_layer_kinds(kind, settings, count("num_hidden_layers"), invalid),
        epsilon=float(settings.get(epsilon_key, epsilon)),
        activation=activation,
        type_vocab_size=types,
        biases=frozenset(
            part
            for part, source in family.biases.items()
            if (settings.get(source, False) if isinstance(source, str) else source)
        ),
        scale=None if scalar is None else float(scalar) ** -0.5,
        stretch=_stretch(settings, invalid) if kind == "new" else 1.0,
    )


def family_of(kind: str) -> RotaryFamily:
    """The family of a ``model_type``."""
    from isorun.graph.builders import rotary_families as known

    families = (
        known.MODERNBERT,
        known.EUROBERT,
        known.NOMIC,
        known.GTE,
        known.NEW,
        known.JINA,
        known.GEMMA,
        known.QWEN3,
        known.QWEN2,
        known.LLAMA,
        known.MISTRAL,
    )
    return dict(zip(KINDS, families, strict=True))[kind]


def _layer_kinds(
    kind: str, settings: Mapping[str, Any], layers: int, invalid: Callable[[str], InvalidModel]
) -> list[tuple[float, int | None]]:
    """The base of the rotation of each layer, and its window."""
    types = settings.get("layer_types")
    if types is None and kind in _EVERY:
        key, default = _EVERY[kind]
        every, shift = settings.get(key, default), int(kind == "gemma3_text")
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
    bases = {name: _theta(kind, settings, name, index, invalid) for index, name in enumerate((_FULL, _SLIDING))}
    return [(bases[name], window if name == _SLIDING else None) for name in types]


def _theta(
    kind: str, settings: Mapping[str, Any], layer: str, index: int, invalid: Callable[[str], InvalidModel]
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
    key = _THETA_KEYS.get(kind, ("rope_theta", "rope_theta"))[index]
    theta = scaling.get("rope_theta", parameters.get("rope_theta", settings.get(key)))
    theta = _THETAS[kind][index] if theta is None else theta
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
