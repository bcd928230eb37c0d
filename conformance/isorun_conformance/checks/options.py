"""Checks of options: each is read, and the results are right with any value."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from isorun.errors import InvalidFeeds, IsorunError
from isorun.types.options import Option
from isorun_conformance.checks.base import Checks, proves
from isorun_conformance.sample_models import dense


class Options(Checks):
    """``Session(options=...)``."""

    @proves("options")
    def test_every_option_is_read(self) -> None:
        """An option that no code reads has no effect."""
        self._require_options()
        if self.under_test.environment is not None:
            pytest.skip("what code in an environment reads cannot be seen. Run the check without --environment")
        backend = self.under_test.backend
        read: set[str] = set()
        read_options = backend.read_options
        values = self._values()
        together = {key: tested[-1] for key, tested in values.items()}
        refusal, compiled = "", 0
        with mock.patch.object(backend, "read_options", lambda options: _Watched(read_options(dict(options)), read)):
            alone = ({key: value} for key, tested in values.items() for value in tested)
            # Some are read where an operator needs them, that only encoders have.
            for model, options in itertools.product((dense(), self.under_test.encoder()), ({}, *alone, together)):
                if self.under_test.capabilities.options.keys() <= read:
                    break
                lowered = self.under_test.lowered(model)
                watched = _Watched({**self.under_test.options, **options}, read)
                try:
                    executable = backend.compile(lowered, replace(self.under_test.config, options=watched))
                except IsorunError as error:  # this machine, or the model, does not support the value
                    refusal = str(error)
                    continue
                compiled += 1
                executable.run(lowered.info.output_names, model.feeds())
                executable.report()
                executable.close()
        unread = sorted(self.under_test.capabilities.options.keys() - read)
        if not compiled:
            pytest.skip(f"no option could be tested: {refusal}")
        assert not unread, f"no code reads the option{'s' * (len(unread) > 1)} {', '.join(map(repr, unread))}"

    @proves("options")
    def test_options_are_not_changed(self) -> None:
        """The same mapping configures the next model, and the same one again."""
        self._require_options()
        lowered, values = self.under_test.lowered(dense()), self._values()
        declared = copy.deepcopy(dict(self.under_test.capabilities.options))
        for options in ({}, *({key: candidates[0]} for key, candidates in values.items())):
            requested = {**self.under_test.options, **options}
            config = replace(self.under_test.config, options=copy.deepcopy(requested))
            with suppress(IsorunError):
                self.under_test.backend.compile(lowered, config).close()
            assert config.options == requested, f"compile() changed the options {requested} to {dict(config.options)}"
            now = self.under_test.capabilities.options
            assert now == declared, f"compile() changed the declared options {declared} to {dict(now)}"

    @proves("options")
    def test_accuracy_with_every_option(self) -> None:
        self._require_options()
        model, tested = self.under_test.encoder(), 0
        for key, values in self._values().items():
            for value in values:
                try:
                    session = self.under_test.open(model, options={**self.under_test.options, key: value})
                except IsorunError:  # this machine, or the model, does not support the value
                    continue
                what = f"with {key}={value!r},"
                with session:
                    try:
                        self.under_test.assert_accurate(model, session, model.feeds(), what=what)
                    except InvalidFeeds:  # the value is for batches without padding
                        self.under_test.assert_accurate(model, session, model.unmasked(), what=what)
                tested += 1
        if not tested:
            pytest.skip("no option has choices or a range to try")

    def _require_options(self) -> None:
        self.under_test.require(self.under_test.capabilities.options, "options")

    def _values(self) -> dict[str, list[Any]]:
        """Some values other than the default, for each option whose valid values are known."""
        values = {}
        for key, declared in self.under_test.capabilities.options.items():
            option = Option.of(declared)
            others = [value for value in _candidates(option) if value != option.default and not option.problem(value)]
            if others:
                values[key] = others
        return values


def _candidates(option: Option) -> list[Any]:
    if option.choices:
        return list(option.choices)
    if option.type == "bool":
        return [False, True]
    if option.type == "int":
        first = option.default if option.default is not None else option.minimum or 0
        next_ = first + 1 if option.maximum is None or first < option.maximum else first - 1
        return [next_] if option.minimum is None else list(dict.fromkeys((next_, option.minimum)))
    return []


class _Watched(Mapping[str, Any]):
    """A mapping that notes the keys that are read."""

    def __init__(self, values: Mapping[str, Any], read: set[str]) -> None:
        self.plain, self._read = dict(values), read

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self.plain[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain)

    def __len__(self) -> int:
        return len(self.plain)

    def __contains__(self, key: object) -> bool:
        if key not in self.plain:
            self._read.add(str(key))
        return key in self.plain
