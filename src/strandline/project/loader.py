"""Finding pipelines: imports ``pipelines/*.py`` and collects what they declare."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import subprocess
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from strandline.model.definition import Pipeline
from strandline.model.errors import DefinitionError, NotFound, PipelineImportError, StrandlineError
from strandline.model.fork import Fork
from strandline.project.config import Project
from strandline.project.forks import forks_of

_PACKAGE = "strandline_project"
"""Pipelines are imported under this name, so that they never shadow or clash with an installed package."""


def load_pipelines(project: Project) -> dict[str, Pipeline]:
    """Every pipeline and fork of the project, by name."""
    declared, forks = declared_in(project), forks_of(project)
    _check_names(declared, forks)
    return {**{fork.name: fork.of(parent_of(project, fork, declared)) for fork in forks.values()}, **declared}


def declared_in(project: Project) -> dict[str, Pipeline]:
    """Pipelines that the project's files declare; forks are not among them."""
    found: dict[str, Pipeline] = {}
    for file in sorted(project.pipelines_folder.glob("*.py")):
        for pipeline in _declared(_import(file)):
            if pipeline.name in found:
                raise DefinitionError(f"two pipelines are named '{pipeline.name}': {found[pipeline.name].file} and {file}")
            found[pipeline.name] = pipeline
    return found


def parent_of(project: Project, fork: Fork, pipelines: Mapping[str, Pipeline]) -> Pipeline:
    """The declaration that a fork runs: the project's own, or the one in the fork's file of code."""
    if fork.code is None:
        if fork.parent in pipelines:
            return pipelines[fork.parent]
        raise NotFound(
            f"fork '{fork.name}' is one of pipeline '{fork.parent}', which the project no longer has",
            next_command=f"restore the pipeline, or remove forks/{fork.name}.yaml",
        )
    file = project.root / fork.code
    if not file.is_file():
        raise NotFound(f"the code of fork '{fork.name}', {file}, does not exist", next_command=f"restore {fork.code}")
    found = {pipeline.name: pipeline for pipeline in _declared(_import(file, f"fork_{fork.name}"))}
    if fork.parent not in found:
        raise NotFound(
            f"{file} declares {', '.join(sorted(found)) or 'no pipeline'}, not '{fork.parent}'", next_command=f"edit {fork.code}"
        )
    return found[fork.parent]


def _check_names(pipelines: Iterable[str], forks: Mapping[str, Fork]) -> None:
    """A pipeline that takes a fork's name would take its checkpoint, too."""
    if both := sorted(set(pipelines) & forks.keys()):
        raise DefinitionError(f"'{both[0]}' is a pipeline and a fork (forks/{both[0]}.yaml); give the pipeline another name")


def load_pipeline(project: Project, name: str) -> Pipeline:
    pipelines, forks = declared_in(project), forks_of(project)
    _check_names({name} & pipelines.keys(), forks)
    if name in pipelines:
        return pipelines[name]
    if name in forks:  # a broken fork is the trouble of those who ask for it
        return forks[name].of(parent_of(project, forks[name], pipelines))
    names = sorted({*pipelines, *forks})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise NotFound(
        f"there is no pipeline '{name}' in {project.pipelines_folder} (pipelines: {', '.join(names) or 'none'}){hint}",
        next_command=f"strandline run {near[0] if near else next(iter(names), 'NAME')}",
    )


def _import(file: Path, called: str = "") -> ModuleType:
    name = f"{_PACKAGE}.{called or file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except StrandlineError as error:
        raise DefinitionError(f"{file}: {error.message}", next_command=f"edit {file}") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "importlib" not in frame.filename and __file__ != frame.filename]
        lines = traceback.format_list(own) + traceback.format_exception_only(error)
        raise PipelineImportError(
            f"{file} could not be imported: {type(error).__name__}: {error}", next_command=f"python {file}", detail="".join(lines)
        ) from error
    return module


def _declared(module: ModuleType) -> list[Pipeline]:
    declared = [value for value in vars(module).values() if isinstance(value, Pipeline) and value.transform.__module__ == module.__name__]
    return list({id(pipeline): pipeline for pipeline in declared}.values())  # a second name for the same pipeline is not a second one


def code_fingerprint(pipeline: Pipeline) -> str:
    """``git:<commit>+src:<sha256>``: which code produced a snapshot. A changed work tree shows in the source hash."""
    source = hashlib.sha256(pipeline.file.read_bytes()).hexdigest()[:12]
    commit = ""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=pipeline.file.parent, capture_output=True, text=True, timeout=10
        )
        commit = answer.stdout.strip() if answer.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        pass
    return f"git:{commit}+src:{source}" if commit else f"src:{source}"
