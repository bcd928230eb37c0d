"""isorun as the first module of a ``SentenceTransformer``, in place of PyTorch::

model = SentenceTransformer("all-MiniLM-L6-v2")
model[0] = IsorunTransformer("all-MiniLM-L6-v2")
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers.base.modules import InputModule

from isorun.errors import InvalidArgument, InvalidModel
from isorun.integrations.records import stored_options, stored_path
from isorun.models.sentences import transformer_folder
from isorun.system.cleanup import closed_on_error
from isorun.text.inputs import checked, texts_of
from isorun.text.model import TextModel
from isorun.text.prompted import reject_chat_template

_ELSEWHERE = {
    "batch_tokens": "sentence-transformers forms the batches: pass batch_size to encode()",
    "max_length": "Pass max_seq_length",
}


class IsorunTransformer(InputModule):
    """Computes token embeddings with isorun. Pooling and what follows stay with sentence-transformers.

    Args:
        model: as for :class:`isorun.Embedder`.
        max_seq_length: the maximum number of tokens of a text; ``None`` for the model's.
        session_options: arguments of :class:`isorun.Session`.
    """

    config_keys: tuple[str, ...] = ("model", "max_seq_length", "session_options")

    def __init__(
        self,
        model: str | os.PathLike[str],
        max_seq_length: int | None = None,
        session_options: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        super().__init__()
        self.model: str = stored_path(model)
        self.session_options: dict[str, Any] = {**(session_options or {}), **more}
        for name, instead in _ELSEWHERE.items():
            if name in self.session_options:
                raise InvalidArgument(f"IsorunTransformer does not have {name}. {instead}")
        self._text = TextModel(model, max_length=max_seq_length, batch_tokens=1, **self.session_options)
        output = self._text.output
        with closed_on_error(self._text):
            reject_chat_template(self._text)
            routes = self._text.modules.routes
            if len({transformer_folder(self._text.folder, route) for route in routes if route is not None}) > 1:
                raise InvalidArgument(
                    f"{self.model} has several models: one for each of the routes {', '.join(map(repr, routes))}. Put "
                    "an IsorunTransformer in place of each, with its folder, not in place of the router"
                )
            if len(output.shape or ()) != 3:
                raise InvalidModel(
                    f"The output {output.name!r} must have a vector for each token (batch, sequence, width), got the "
                    f"shape {output.shape}"
                )

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer, of the library ``tokenizers``.

        Raises:
            InvalidArgument: another one is set.
        """
        return self._text.tokenizer.library

    @tokenizer.setter
    def tokenizer(self, _: Any) -> None:
        raise InvalidArgument(
            "The tokenizer of an IsorunTransformer cannot be replaced: texts are split by the model's own. Save the "
            "model with another one, and open that"
        )

    @property
    def max_seq_length(self) -> int | None:
        """The maximum number of tokens of a text."""
        return self._text.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        self._text.limit_length(value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as what opens the model again: ``start_multi_process_pool`` sends this module to other processes."""
        return _opened, (type(self), self.model, self.max_seq_length, self.session_options)

    def get_embedding_dimension(self) -> int:
        """The width of the token embeddings."""
        width = (self._text.output.shape or (None,))[-1]
        if not isinstance(width, int):
            raise InvalidModel(f"The output {self._text.output.name!r} must have a fixed width, got {width}")
        return width

    def preprocess(self, inputs: Iterable[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Token ids and masks of a batch of texts, as tensors."""
        prefix = checked(prompt or "", "prompt")
        texts = [prefix + text for text in texts_of(inputs)]
        encoded = self._text.tokens(texts)
        features: dict[str, Any] = {name: torch.from_numpy(array) for name, array in encoded.items()}
        if prompt:
            features["prompt_length"] = self._text.prompt_tokens(prompt)
        return features

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add ``token_embeddings``, (batch, sequence, width), to the features."""
        encoded = {name: features[name].numpy(force=True) for name in ("input_ids", "attention_mask", "token_type_ids")}
        (hidden,) = self._text.session.run(None, self._text.feeds(encoded))
        device = features["attention_mask"].device
        features["token_embeddings"] = torch.from_numpy(hidden).to(device)
        return features

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Save the configuration; the model stays where it is.

        Raises:
            InvalidArgument: a session option has a type that JSON does not have.
        """
        self.session_options = stored_options(self.session_options)
        self.save_config(output_path)


def _opened(
    kind: type[IsorunTransformer], model: str, max_seq_length: int | None, options: dict[str, Any]
) -> IsorunTransformer:
    opened = kind(model, session_options=options)
    opened.max_seq_length = max_seq_length  # may be above what the checkpoint says
    return opened
