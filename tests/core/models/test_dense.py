"""The layers of a checkpoint in the file beside its ONNX file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isorun.models import dense
from isorun.system.cache import sha256


def test_layers_are_those_of_the_content_that_was_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may replace the file while it is read."""
    path, read = tmp_path / dense.FILE, Path.read_bytes
    layers = [
        dense.Dense(np.full((2, 3), number, np.float32), np.zeros(2, np.float32), "Identity") for number in (1, 2)
    ]
    content, replacement = (dense.pack([layer]) for layer in layers)
    path.write_bytes(content)

    def replaced(self: Path, *arguments: Any) -> bytes:
        verified = read(self, *arguments)
        self.write_bytes(replacement)
        return verified

    monkeypatch.setattr(Path, "read_bytes", replaced)
    (layer,) = dense.unpack(path, sha256(content), ["Identity"])
    np.testing.assert_array_equal(layer.tensors["weight"], layers[0].weight)
