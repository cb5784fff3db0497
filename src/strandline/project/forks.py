"""Forks of a project: ``forks/NAME.yaml``, written by `strandline fork` and read like a pipeline's declaration."""

from __future__ import annotations

from pathlib import Path

import yaml

from strandline.model.errors import ConfigError
from strandline.model.fork import Fork
from strandline.project.config import Project
from strandline.project.located_yaml import LocatedYaml


def forks_of(project: Project) -> dict[str, Fork]:
    """Those that were made under the profile at hand, by name."""
    found = {}
    for file in sorted(_folder(project).glob("*.yaml")):
        told = LocatedYaml(file).data
        try:
            fork = Fork.from_json(told)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{file} does not declare a fork: {error}", next_command=f"restore {file.name}, or remove it") from error
        if fork.profile == project.profile_name:
            found[fork.name] = fork
    return found


def declare_fork(project: Project, fork: Fork) -> Path:
    file = _file(project, fork.name)
    if file.exists() and LocatedYaml(file).data.get("profile") != fork.profile:
        raise ConfigError(
            f"{file} declares a fork of profile '{LocatedYaml(file).data.get('profile')}'; forks of all profiles have different names",
            next_command="the same command with another name",
        )
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(yaml.safe_dump(fork.to_json(), sort_keys=False), encoding="utf-8")
    unfinished.replace(file)
    return file


def forget_fork(project: Project, name: str) -> None:
    _file(project, name).unlink(missing_ok=True)


def _file(project: Project, name: str) -> Path:
    return _folder(project) / f"{name}.yaml"


def _folder(project: Project) -> Path:
    return project.root / "forks"
