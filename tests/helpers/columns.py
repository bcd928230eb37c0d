"""Collections of pandas, Polars and PyArrow, represented by objects with their methods."""

from typing import Any


class Column:
    """A column with a shape, a method that lists it, and items that are not str when iterated over."""

    def __init__(self, items: list[Any], method: str) -> None:
        self.shape = (len(items),)
        self._items = items
        setattr(self, method, lambda: self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, label: object) -> Any:
        raise KeyError(label)

    def __iter__(self) -> Any:
        return iter(range(len(self._items)))


class Frame:
    """A table of pandas or Polars: iterating over it yields the names of its columns."""

    columns = property(lambda self: ["text"])
    shape = (3, 1)

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter(["text"])
