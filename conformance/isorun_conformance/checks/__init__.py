"""The checks, one file per subject. A new file has to be listed in :class:`isorun_conformance.suite.Conformance`."""

import pkgutil

import pytest

pytest.register_assert_rewrite(*(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")))
