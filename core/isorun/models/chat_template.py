"""Chat templates: the text that a causal model reads for a query and a document.

Templates are Jinja, as transformers renders them, in a sandbox. ``jinja2`` is imported when one is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from isorun.errors import InvalidModel, UnsupportedModel
from isorun.models.tokenizer import FILE as TOKENIZER_FILE
from isorun.models.tokenizer import Text, Tokenizer
from isorun.system.packages import require

FILE = "chat_template.jinja"
QUERY, DOCUMENT = "query", "document"
_PROBES = (("0", "0"), ("1", "0"), ("0", "1"))

QWEN3_RERANKER = """\
<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer \
can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first \
| default("Given a web search query, retrieve relevant passages that answer the query") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ "" }}"""
"""The format of Qwen3-Reranker (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B), published without a template."""


class ChatTemplate:
    """Renders pairs of texts.

    Args:
        source: the template.
        name: where it is from, for messages.
        variables: what it may read beside the messages: special tokens and ``add_generation_prompt``.

    Raises:
        InvalidModel: it is not a template.
        UnsupportedModel: it leaves out the query or the document.
        IsorunError: the package ``jinja2`` is not installed.
    """

    def __init__(self, source: str, name: str, variables: Mapping[str, Any]) -> None:
        require("The model's chat template", "jinja2")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
        self._name, self._variables = name, dict(variables)
        self._errors: tuple[type[Exception], ...] = (TemplateError, TypeError, ValueError, KeyError, AttributeError)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InvalidModel(f"{name} is not a template: {error}") from error
        probe, *varied = (self.render(pair, "") for pair in _PROBES)
        if dropped := [role for role, text in zip((QUERY, DOCUMENT), varied, strict=True) if text == probe]:
            raise UnsupportedModel(
                f"{name} leaves out the {' and the '.join(dropped)} of a pair. A reranker needs a template for the "
                "roles 'query' and 'document'"
            )

    @classmethod
    def beside(cls, tokenizer: Tokenizer, options: Mapping[str, Any]) -> ChatTemplate:
        """The template of a tokenizer: ``chat_template.jinja`` beside it, or the one in its configuration.

        Args:
            tokenizer: the model's.
            options: arguments of the template.

        Raises:
            InvalidModel, UnsupportedModel, IsorunError: as the class; there is no template.
        """
        path, source = found_beside(tokenizer)
        if isinstance(source, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if not isinstance(source, str):
            raise InvalidModel(f"{path} has no chat_template, which this reranker needs")
        return cls(source, str(path), {**tokenizer.special_tokens, **options})

    def render(self, text: Text, prompt: str) -> str:
        """The text that the model reads.

        Args:
            text: a query and a document, or one text.
            prompt: the instruction; empty for none.

        Raises:
            InvalidModel: the template fails.
        """
        messages = [{"role": "system", "content": prompt}] if prompt else []
        if isinstance(text, str):
            messages.append({"role": "user", "content": text})
        else:
            messages += [{"role": role, "content": part} for role, part in zip((QUERY, DOCUMENT), text, strict=True)]
        try:
            return self._template.render(messages=messages, tools=None, documents=None, **self._variables)
        except self._errors as error:
            raise InvalidModel(f"{self._name} fails: {error}") from error

    def ending(self, tokenizer: Tokenizer, prompt: str) -> list[int]:
        """The tokens after a document: those that two texts have in common at their ends."""
        texts = [self.render((filler, filler), prompt) for filler in ("0", "1 2 3 4")]
        first, second = (list(encoding.ids) for encoding in tokenizer.encodings(texts, None))
        count = 0
        while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
            count += 1
        return first[len(first) - count :]


def found_beside(tokenizer: Tokenizer) -> tuple[Path, Any]:
    """The file that may have the template of a tokenizer, and the template, or several; ``None`` without one."""
    path = tokenizer.path.with_name(tokenizer.path.name.removesuffix(TOKENIZER_FILE) + FILE)
    if path.is_file():
        return path, _text(path)
    return tokenizer.settings.path, tokenizer.settings.fields.get("chat_template")


def reject_beside(tokenizer: Tokenizer, kind: str) -> None:
    """Reject a template beside a model without ``modules.json``, whose texts isorun reads as they are.

    Args:
        tokenizer: the model's.
        kind: what the model is, for the message.

    Raises:
        UnsupportedModel: there is a template.
    """
    path, source = found_beside(tokenizer)
    if source is not None:
        raise UnsupportedModel(
            f"{path} has a chat template, which sentence-transformers 6 applies to {kind} without modules.json, and "
            "isorun does not. Remove the template if the model reads texts as they are"
        )


def yes_or_no(tokenizer: Tokenizer) -> tuple[ChatTemplate, tuple[int, int]]:
    """What a causal model without further settings is asked: the template, and the words for a match and for none.

    Args:
        tokenizer: the model's. Its template is used if it is one for queries and documents, or else that of
            Qwen3-Reranker.

    Raises:
        InvalidModel: the tokenizer does not have the words.
    """
    yes, no = (tokenizer.library.token_to_id(word) for word in ("yes", "no"))
    if yes is None or no is None:
        raise InvalidModel(f"{tokenizer.path} has no token 'yes' or 'no', whose logits a causal reranker compares")
    _, own = found_beside(tokenizer)
    if isinstance(own, str) and f'"{DOCUMENT}"' in own.replace("'", '"'):
        return ChatTemplate.beside(tokenizer, {"add_generation_prompt": True}), (yes, no)
    return ChatTemplate(QWEN3_RERANKER, "The template of Qwen3-Reranker", {}), (yes, no)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModel(f"{path} cannot be read: {error}") from error


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _raise(message: str) -> None:
    raise ValueError(message)
