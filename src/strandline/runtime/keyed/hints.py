"""Code that would answer differently when a batch runs again, found by looking at it."""

from __future__ import annotations

import ast
import inspect
import textwrap

from strandline.state.declarations import KeyedProcess

_CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter"}
_OWNERS = {"datetime", "date", "time", "dt"}
_CHANCE = {"random", "secrets", "uuid"}


def nondeterminism(process: KeyedProcess) -> str | None:
    """One sentence about the first call to a clock or to chance in a processor's class; None when there is none to be seen."""
    try:
        lines, first = inspect.getsourcelines(type(process))
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, method = called.rpartition(".")
        root, last = owner.partition(".")[0], owner.rpartition(".")[2]
        where = f"{type(process).__name__} calls {called}() in line {first + node.lineno - 1}"
        if method in _CLOCKS and last in _OWNERS:
            return f"{where}: after a crash the batch runs again with another time; ctx.processing_time is the same both times"
        if root in _CHANCE or called in ("uuid4", "uuid1"):
            return f"{where}: after a crash the batch runs again with another result; derive it from key and event instead"
    return None
