"""How many batches the checkpoint of a pipeline keeps, as the pipeline is declared now."""

from __future__ import annotations

import ast

from strandline.model.definition import CheckpointPolicy
from strandline.model.errors import StrandlineError
from strandline.project.config import Project


def batches_retained(project: Project, pipeline: str) -> int | None:
    """Read off the source where it is written as a number: importing a pipeline loads whatever it imports, Spark's Python mostly.

    None when the code is not there or does not import: then nobody knows.
    """
    for file in sorted(project.pipelines_folder.glob("*.py")):
        try:
            module = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and node.name == pipeline:
                written = [_written(call) for call in node.decorator_list if _is_call(call, "pipeline")]
                if written and written[0] is not None:
                    return written[0]
    from strandline.project.loader import load_pipeline

    try:
        return load_pipeline(project, pipeline).checkpoint.retain
    except StrandlineError:
        return None


def _is_call(node: ast.expr, name: str) -> bool:
    """``name(…)`` or ``anything.name(…)``."""
    called = node.func if isinstance(node, ast.Call) else None
    return (isinstance(called, ast.Attribute) and called.attr == name) or (isinstance(called, ast.Name) and called.id == name)


def _written(call: ast.expr) -> int | None:
    """The number, or the default where none is given; None when it takes running the code to know."""
    assert isinstance(call, ast.Call)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "name" in given or None in given:
        return None
    policy = given.get("checkpoint")
    if policy is None:
        return CheckpointPolicy.retain
    if not isinstance(policy, ast.Call) or not _is_call(policy, "checkpoint"):
        return None
    inner = {keyword.arg: keyword.value for keyword in policy.keywords}
    if "retain" not in inner:
        return None if None in inner else CheckpointPolicy.retain
    number = inner["retain"]
    return number.value if isinstance(number, ast.Constant) and type(number.value) is int else None
