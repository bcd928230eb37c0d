"""Which exceptions interrupt this program, rather than what it calls: those come from a handler of a signal."""

from __future__ import annotations

import signal
import traceback
from types import CodeType
from typing import Any


def interrupts(error: BaseException) -> bool:
    """Whether an exception is that of Ctrl-C, or one that a handler of a signal raised, such as ``SystemExit`` to end
    a server. A function that was running then has not failed."""
    if isinstance(error, KeyboardInterrupt):
        return True
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return any(codes & _codes(signal.getsignal(number)) for number in signal.valid_signals())


def _codes(handler: Any) -> set[CodeType]:
    """The code of a handler: of a function, a method, a partial function, or an object that can be called."""
    functions = (handler, getattr(handler, "func", None), vars(type(handler)).get("__call__"))
    return {code for code in (getattr(function, "__code__", None) for function in functions) if code is not None}
