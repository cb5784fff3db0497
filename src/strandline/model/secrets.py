"""Secrets are references: where one is kept, resolved only where it is used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from strandline.model.errors import ConfigError, DefinitionError


@dataclass(frozen=True)
class Secret:
    """Where a secret is, never the secret itself; see `strandline.secret`."""

    env: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if (self.env is None) == (self.file is None):
            raise DefinitionError("a secret is either secret(env='NAME') or secret(file='path')")

    def resolve(self) -> str:
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise ConfigError(
                    f"the secret in environment variable {self.env} is not set", next_command=f"export {self.env}=… and run again"
                )
            return value
        assert self.file is not None
        try:
            return Path(self.file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"the secret file {self.file} cannot be read: {error.strerror}", next_command=f"ls -l {self.file}") from error
