"""How a model of texts is used, and how an ONNX file keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel
from isorun.models import dense, keys
from isorun.models.dense import Layer
from isorun.models.keys import FLAG, OBJECT, SIZE, TEXT, TEXTS, Key, Table, check, items, optional
from isorun.models.late_interaction import LateInteraction
from isorun.system.cache import sha256

_STEPS = ("token_steps", "steps")  # the fields with layers, in this order in the file beside an ONNX file
METADATA = "isorun.sentences"
"""The metadata property of an ONNX file that keeps the settings of its checkpoint, as JSON."""

POOLINGS = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
"""How token vectors become one vector, by sentence-transformers' names."""

PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
"""What classifiers are trained for, by transformers' names."""

NORMALIZE = "normalize"
_LAYER = "dense"
_KEPT: Table = {  # in the metadata of an ONNX file
    "pooling": items(str),
    "include_prompt": FLAG,
    "steps": items(str),
    "token_steps": items(str),
    "static": FLAG,
    "splade": optional(items(str)),
    "max_active_dims": optional(SIZE),
    "max_tokens": optional(SIZE),
    "lower_case": FLAG,
    "prompts": TEXTS,
    "default_prompt": optional(TEXT),
    "truncate_dim": optional(SIZE),
    "activation": optional(TEXT),
    "labels": TEXTS,
    "problem_type": optional(TEXT),
    "saved_as": optional(TEXT),
    "late_interaction": optional(OBJECT),
    "logit_score": optional(
        Key(lambda value: isinstance(value, list) and [type(word) for word in value[:1]] == [int], "a list of numbers")
    ),
    "chat_template": OBJECT,
    "dense_activations": items(str),
    "dense_sha256": TEXT,
}


@dataclass(frozen=True)
class SentenceSettings:
    """How a sentence model or a cross-encoder is used.

    Attributes:
        pooling: one or more of :data:`POOLINGS`, whose results are concatenated; empty if unknown.
        include_prompt: whether the tokens of a prompt count in pooling.
        steps: what follows pooling, in order: layers and ``"normalize"``.
        token_steps: likewise, what precedes pooling.
        static: whether a table of words is read in place of a transformer.
        splade: how the logits of words become a sparse vector: ``max`` or ``sum``, and ``relu`` or ``log1p_relu``.
        max_active_dims: the maximum number of values other than 0 of a sparse vector.
        max_tokens: the maximum number of tokens of a text, special tokens included; ``None`` for the model's.
        lower_case: whether text is converted to lower case before the tokenizer does what it does.
        prompts: texts to put before a text, by name.
        default_prompt: the name of the prompt to use where none is named.
        truncate_dim: how many leading dimensions of a vector are kept; ``None`` for all.
        activation: what a cross-encoder applies to logits, by its import path; ``None`` for the default.
        labels: the names of a classifier's classes by their number.
        problem_type: what a classifier was trained for, by transformers' name, if known.
        saved_as: the class of sentence-transformers that saved the model, if known.
        late_interaction: how queries and documents are read by a model with a vector for each token; ``None`` if it
            was not trained for that.
        logit_score: the words, by their number, whose logits at the end of a text are a causal model's score: the first
            one's less the second one's, if there is one; ``None`` for a model of another kind.
        chat_template: the arguments of its template.
    """

    pooling: tuple[str, ...] = ()
    include_prompt: bool = True
    steps: tuple[Layer | str, ...] = ()
    token_steps: tuple[Layer | str, ...] = ()
    static: bool = False
    splade: tuple[str, str] | None = None
    max_active_dims: int | None = None
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    truncate_dim: int | None = None
    activation: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    problem_type: str | None = None
    saved_as: str | None = None
    late_interaction: LateInteraction | None = None
    logit_score: tuple[int, int | None] | None = None
    chat_template: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """The text to put before each text where nothing else is requested.

        Raises:
            InvalidModel: the default prompt is not one of the prompts.
        """
        if self.default_prompt is None:
            return ""
        if self.default_prompt not in self.prompts:
            raise InvalidModel(
                f"The model's default prompt {self.default_prompt!r} is not one of its prompts: "
                f"{', '.join(self.prompts)}"
            )
        return self.prompts[self.default_prompt]

    @property
    def layers(self) -> list[Layer]:
        """The layers of :attr:`token_steps` and :attr:`steps`."""
        return [step for step in (*self.token_steps, *self.steps) if not isinstance(step, str)]

    def to_json(self) -> str:
        """For an ONNX file's metadata, without the weights of layers (:meth:`dense_file`)."""
        fields = asdict(replace(self, steps=(), token_steps=()))
        for key in _STEPS:
            fields[key] = [step if isinstance(step, str) else _LAYER for step in getattr(self, key)]
        if layers := self.layers:
            fields |= {"dense_activations": [layer.kind for layer in layers]}
            fields |= {"dense_sha256": sha256(dense.pack(layers))}
        return json.dumps(fields)

    def save_dense(self, model: Path) -> None:
        """Write the layers, if any, beside an ONNX file."""
        if layers := self.layers:
            _dense_file(model).write_bytes(dense.pack(layers))

    @classmethod
    def from_json(cls, text: str, model: Path | None = None) -> SentenceSettings:
        """The inverse of :meth:`to_json`.

        Args:
            text: the metadata.
            model: the ONNX file, whose layers are read from the file beside it; ``None`` to leave the word
                ``"dense"`` in place of each.

        Raises:
            InvalidModel: the metadata or the file beside it is damaged.
        """
        name = f"The metadata {METADATA} of {model or 'the model'}"
        fields = dict(check(keys.parse(text, name), _KEPT, name))
        digest, kinds = fields.pop("dense_sha256", None), fields.pop("dense_activations", [])
        steps: dict[str, list[Layer | str]] = {key: list(fields.pop(key, ())) for key in _STEPS}
        listed = [step for named in steps.values() for step in named]
        wrong = [step for step in listed if step not in (NORMALIZE, _LAYER)]
        wrong += [mode for mode in fields.get("pooling", ()) if mode not in POOLINGS]
        wrong += [kind for kind in kinds if not dense.is_kind(kind)]
        splade = fields.get("splade")
        invalid = splade is not None and (len(splade) != 2 or not {*splade} <= {"max", "sum", "relu", "log1p_relu"})
        if wrong or invalid or (digest is not None and listed.count(_LAYER) != len(kinds)):
            raise InvalidModel(f"{name} is damaged. Build the file again: isorun build")
        if model is not None and digest is not None:
            layers = iter(dense.unpack(_dense_file(model), digest, kinds))
            steps = {key: [next(layers) if step == _LAYER else step for step in named] for key, named in steps.items()}
        fields |= {
            key: tuple(fields[key]) for key in ("pooling", "splade", "logit_score") if fields.get(key) is not None
        }
        fields |= {key: tuple(named) for key, named in steps.items()}
        late = fields.pop("late_interaction", None)
        return cls(**fields, late_interaction=LateInteraction.from_dict(late, name) if late else None)


def _dense_file(model: Path) -> Path:
    return model.with_name(f"{model.stem}.{dense.FILE}")
