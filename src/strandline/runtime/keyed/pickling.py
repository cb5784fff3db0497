"""Processors travel to the workers: one that cannot is refused before the run, by the name of what stops it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from strandline.model.errors import DefinitionError
from strandline.state.declarations import KeyedProcess


def travel_with_their_code(module: str) -> None:
    """Functions and classes of a pipeline file are sent whole: workers cannot import it, it is on no path of theirs.

    What is installed is there for the workers too, and stays a reference.
    """
    from pyspark import cloudpickle

    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if found is None or file is None or "site-packages" in Path(file).parts or module.partition(".")[0] == "strandline":
        return
    cloudpickle.register_pickle_by_value(found)  # type: ignore[no-untyped-call]


def check_picklable(process: KeyedProcess) -> None:
    from pyspark import cloudpickle

    if _problem(cloudpickle, process) is None:
        return
    owner = type(process).__name__
    for name, value in vars(process).items():
        if (problem := _problem(cloudpickle, value)) is not None:
            raise DefinitionError(
                f"{owner} cannot travel to Spark's workers: its attribute '{name}' ({type(value).__name__}) cannot be pickled: {problem}; "
                "make it where it is used, inside process()"
            )
    raise DefinitionError(
        f"{owner} cannot travel to Spark's workers: {_problem(cloudpickle, process)}; its methods must not refer to sessions, connections or locks"
    )


def _problem(cloudpickle: Any, value: Any) -> str | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever pickling raises is the answer
        return f"{type(error).__name__}: {error}"
    return None
