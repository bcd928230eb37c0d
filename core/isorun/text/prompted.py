"""Models that put a prompt before a text, and treat queries and documents apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from isorun.errors import InvalidArgument, did_you_mean
from isorun.models.chat_template import reject_beside
from isorun.models.sentence_settings import SentenceSettings
from isorun.system.arguments import check_text
from isorun.text.encoded import Encoded
from isorun.text.inputs import checked, texts_of
from isorun.text.model import TextModel


class PromptedModel(TextModel):
    """A model with prompts.

    Attributes:
        prompts: by name.
        default_prompt: the name of the prompt to use where none is named; ``None`` for none.
    """

    prompts: dict[str, str]
    default_prompt: str | None

    def _completed(self, settings: SentenceSettings) -> SentenceSettings:
        reject_chat_template(self)
        return super()._completed(settings)

    def _set_prompts(self, prompts: Mapping[str, str] | None, default: str | None) -> None:
        if not isinstance(prompts, Mapping | None) or not all(
            isinstance(text, str) for pair in (prompts or {}).items() for text in pair
        ):
            raise InvalidArgument(f"prompts must be a mapping of names to texts, got {prompts!r}")
        self.prompts = {**self.settings.prompts, **(prompts or {})}
        self.default_prompt = self.settings.default_prompt if default is None else default
        self._prompt(None, self.default_prompt)

    def prompt_named(self, *names: str) -> str | None:
        """The first of some names that has a prompt; ``None`` if there is none, for the default."""
        return next((name for name in names if name in self.prompts), None)

    def encode(  # type: ignore[override]  # texts are not pairs
        self, texts: Iterable[str], *, prompt_name: str | None = None, prompt: str | None = None
    ) -> Encoded:
        """The tokens of texts with their prompt, cut to ``max_length``: :meth:`embed` and :meth:`aembed` accept them in
        place of the texts, which are then tokenized once.

        Args:
            texts, prompt_name, prompt: as in :meth:`embed`.

        Raises:
            InvalidFeeds, InvalidArgument: as :meth:`embed`.
        """
        prefix = self._prompt(prompt, prompt_name)
        return self._encoded([prefix + text for text in texts_of(texts)], prefix)

    def _prompted(
        self, texts: Iterable[str] | Encoded, prompt: str | None, name: str | None, task: str | None = None
    ) -> tuple[list[str] | Encoded, str]:
        """Texts with their prompt, and the prompt."""
        if isinstance(texts, Encoded):
            if not (prompt is None and name is None and task is None):
                raise InvalidArgument("A prompt has no effect on encoded texts. Pass it to encode()")
            return texts, texts.prompt
        prefix = self._prompt(prompt, name, task)
        return [prefix + text for text in texts_of(texts)], prefix

    def _prompt(self, prompt: str | None, name: str | None, task: str | None = None) -> str:
        """The text to put before each text: the prompt itself, or that of a name, a task, or the default."""
        if prompt is not None:
            if name is not None:
                raise InvalidArgument(f"prompt_name={name!r} has no effect beside prompt. Pass one of the two")
            return checked(prompt, "prompt")
        task = task or self.task
        if name is None and task in ("query", "document"):
            return self.prompts.get(task, "")
        name = self.default_prompt if name is None else name
        check_text(name, "prompt_name", optional=True)
        if name is not None and name not in self.prompts:
            raise InvalidArgument(f"Unknown prompt {name!r}{did_you_mean(name, self.prompts)}")
        return "" if name is None else self.prompts[name]


def reject_chat_template(model: TextModel) -> None:
    """Reject a checkpoint to whose texts sentence-transformers would apply a chat template."""
    if model.from_checkpoint and not any(model.modules.routes.values()):
        reject_beside(model.tokenizer, "an embedder")
