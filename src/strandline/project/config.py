"""`strandline.yaml`: what it may hold, how it is checked, how secrets stay references.

Strings may use ``${NAME}`` or ``${NAME:-default}``. Secrets are written as ``{env: NAME}`` or ``{file: path}``, are
resolved only where they are used, and a literal in a secret's place is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_origin
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from strandline.model.choices import SECRET_NAME
from strandline.model.errors import ConfigError, DefinitionError
from strandline.model.kafka import check_security
from strandline.model.secrets import Secret
from strandline.model.times import parse_duration
from strandline.project.located_yaml import Loc, LocatedYaml

CONFIG_NAME = "strandline.yaml"
STATE_FOLDER = ".strandline"
"""Catalog, ledger and logs of a local project live here unless the configuration says otherwise."""


def _duration(value: str) -> str:
    try:
        parse_duration(value)
    except DefinitionError as error:  # a ValueError is what gets its line in the listing
        raise ValueError(error.message) from error
    return value


def _holds_secret(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.password) or any(SECRET_NAME.search(key) for key, _ in parse_qsl(parts.query, keep_blank_values=True))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretRef(_Strict):
    """Where a secret is, never the secret itself."""

    env: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one(self) -> SecretRef:
        if (self.env is None) == (self.file is None):
            raise ValueError("a secret is either {env: NAME} or {file: path}")
        return self

    @property
    def secret(self) -> Secret:
        return Secret(self.env, self.file)

    def resolve(self) -> str:
        return self.secret.resolve()


class CatalogConfig(_Strict):
    """The embedded catalog: one SQLite file, used by Spark and by readers without a JVM at once."""

    type: Literal["embedded"] = "embedded"
    name: str = Field("local", pattern=r"^[A-Za-z_]\w*$")
    file: str = f"{STATE_FOLDER}/catalog.db"
    busy_timeout: str = "30 s"

    @field_validator("busy_timeout")
    @classmethod
    def _busy_timeout(cls, value: str) -> str:
        return _duration(value)


class LedgerConfig(_Strict):
    url: str = f"sqlite:///{STATE_FOLDER}/ledger.db"
    password: SecretRef | None = None
    busy_timeout: str = "30 s"

    @field_validator("busy_timeout")
    @classmethod
    def _busy_timeout(cls, value: str) -> str:
        return _duration(value)

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if urlsplit(value).scheme.partition("+")[0] not in ("sqlite", "postgresql"):
            raise ValueError("allowed: sqlite:///file.db, postgresql+psycopg://user@host/database")
        if _holds_secret(value):
            raise ValueError("a password must not stand in the URL; write password: {env: NAME} beside it")
        return value


class SparkConfig(_Strict):
    master: str = "local[2]"
    driver_memory: str = Field("2g", pattern=r"^\d+[kmgKMG]$")
    conf: dict[str, str | int | float | bool | SecretRef] = Field(default_factory=dict)

    @field_validator("conf")
    @classmethod
    def _no_literal_secrets(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, entry in value.items():
            if SECRET_NAME.search(key) and not isinstance(entry, SecretRef):
                raise ValueError(f"'{key}' is a secret; write it as {{env: NAME}} or {{file: path}}")
        return value


class RegistryConfig(_Strict):
    url: str
    user: str | None = None
    password: SecretRef | None = None

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if _holds_secret(value):
            raise ValueError("a password must not stand in the URL; write user and password: {env: NAME} beside it")
        return value


class KafkaConfig(_Strict):
    """The cluster that sources and topics of this profile use unless they name their own."""

    bootstrap: str | None = None
    security: dict[str, str | SecretRef] = Field(default_factory=dict)
    registry: RegistryConfig | None = None

    @field_validator("security")
    @classmethod
    def _security(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            check_security("kafka.security", value)
        except DefinitionError as error:
            raise ValueError(error.message) from error
        return value


class Profile(_Strict):
    """One place to run: folders and stores of a profile belong together."""

    catalog: CatalogConfig = Field(default_factory=lambda: CatalogConfig.model_validate({}))
    warehouse: str = "warehouse"
    ledger: LedgerConfig = LedgerConfig()
    checkpoints: str = "checkpoints"
    savepoints: str = "savepoints"
    spark: SparkConfig = Field(default_factory=lambda: SparkConfig.model_validate({}))
    kafka: KafkaConfig | None = None

    @field_validator("warehouse", "checkpoints", "savepoints")
    @classmethod
    def _no_secret(cls, value: str) -> str:
        if "://" in value and _holds_secret(value):
            raise ValueError("a secret must not stand in a location; give it to spark.conf as {env: NAME} or {file: path}")
        return value


class ProjectConfig(_Strict):
    version: Literal[1]
    project: str = Field(pattern=r"^[A-Za-z][\w-]*$")
    pipelines: str = "pipelines"
    profile: str = "local"
    profiles: dict[str, Profile]


class Project:
    """A checked project folder seen through one profile. Locations are absolute."""

    def __init__(self, root: Path, config: ProjectConfig, profile_name: str) -> None:
        self.root = root
        self.config = config
        self.profile_name = profile_name
        self.profile = config.profiles[profile_name]

    def _local(self, path: str) -> str:
        return path if "://" in path else str((self.root / path).resolve())

    @property
    def warehouse(self) -> str:
        return self._local(self.profile.warehouse)

    @property
    def checkpoints(self) -> str:
        return self._local(self.profile.checkpoints)

    @property
    def savepoints(self) -> str:
        return self._local(self.profile.savepoints)

    @property
    def catalog_file(self) -> Path:
        return Path(self._local(self.profile.catalog.file))

    @property
    def ledger_url(self) -> str:
        """A relative SQLite path is relative to the project, not to where the command was typed."""
        prefix = "sqlite:///"
        url = self.profile.ledger.url
        return prefix + self._local(url.removeprefix(prefix)) if url.startswith(prefix) else url

    @property
    def logs(self) -> Path:
        return self.root / STATE_FOLDER / "logs"

    @property
    def broker_folder(self) -> Path:
        """Data, settings and log of the development broker (`strandline kafka up`)."""
        return self.root / STATE_FOLDER / "kafka"

    def development_broker(self) -> str | None:
        """host:port of the project's own broker; None when it was never started, or was taken down."""
        try:
            return (self.broker_folder / "bootstrap").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    @property
    def pipelines_folder(self) -> Path:
        return self.root / self.config.pipelines

    def checkpoint_of(self, pipeline: str) -> str:
        return f"{self.checkpoints}/{pipeline}"

    def savepoints_of(self, pipeline: str) -> str:
        return f"{self.savepoints}/{pipeline}"

    def source_path(self, path: str) -> str:
        return self._local(path)


def find_root(start: Path | None = None) -> Path:
    """The nearest folder with a strandline.yaml, from here upwards."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / CONFIG_NAME).is_file():
            return folder
    raise ConfigError(f"no {CONFIG_NAME} in {here} or above it", next_command="strandline init my-project")


def load_project(start: Path | None = None, profile: str | None = None) -> Project:
    """Read and check the configuration; every problem is listed with its line."""
    root = find_root(start)
    document = LocatedYaml(root / CONFIG_NAME)
    if not isinstance(document.data, dict):
        raise ConfigError(f"{document.file} is empty or not a mapping", next_command="strandline init other-folder")
    problems: list[str] = []
    expanded = _expand(document.data, (), lambda loc, text: problems.append(f"line {document.line(loc)}: {text}"))
    config: ProjectConfig | None = None
    try:
        config = ProjectConfig.model_validate(expanded)
    except ValidationError as error:
        problems += [_explain(document, item) for item in error.errors() if not _is_noise(item)]
    if problems or config is None:
        listing = "; ".join(problems)
        raise ConfigError(f"{document.file} is not valid: {listing}", next_command=f"edit {CONFIG_NAME}, then strandline doctor")
    name = profile or os.environ.get("STRANDLINE_PROFILE") or config.profile
    if name not in config.profiles:
        raise ConfigError(
            f"{document.file} line {document.line(('profiles',))}: there is no profile '{name}'; allowed: {', '.join(sorted(config.profiles))}",
            next_command="strandline doctor --profile " + sorted(config.profiles)[0] if config.profiles else "strandline init",
        )
    project = Project(root, config, name)
    if not project.pipelines_folder.is_dir():
        raise ConfigError(
            f"{document.file} line {document.line(('pipelines',))}: the pipelines folder {project.pipelines_folder} does not exist",
            next_command=f"mkdir {project.pipelines_folder}",
        )
    return project


def _expand(value: Any, at: Loc, report: Callable[[Loc, str], None]) -> Any:
    """Replace ${NAME} everywhere; a missing variable is a problem of the line that uses it."""
    if isinstance(value, dict):
        return {key: _expand(item, (*at, key), report) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, (*at, index), report) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name: str = match.group(1)
        default: str | None = match.group(2)
        found = os.environ.get(name, default)
        if found is None:
            report(at, f"environment variable {name} is not set (write ${{{name}:-default}} to give a default)")
            return ""
        return found

    return re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", replace, value)


_SCALARS = ("str", "int", "float", "bool")


def _is_noise(error: Any) -> bool:
    """A mapping in spark.conf can only be meant as a secret: that it is also no number and no text helps nobody."""
    return isinstance(error["input"], dict) and error["loc"][-1:] != () and error["loc"][-1] in _SCALARS


def _explain(document: LocatedYaml, error: Any) -> str:
    loc = tuple(part for part in error["loc"] if part not in _SCALARS and not str(part).endswith(("SecretRef", "SecretRef]")))
    path = ".".join(str(part) for part in loc)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = f"unknown key; allowed: {', '.join(_allowed_keys(loc[:-1]))}"
    elif error["type"] == "model_type":
        message = f"must be a mapping; allowed keys: {', '.join(_allowed_keys(loc))}"
    return f"line {document.line(loc)}: {path or 'document'}: {message}"


def _allowed_keys(parent: Iterable[str | int]) -> list[str]:
    model: type[BaseModel] | None = ProjectConfig
    for part in parent:
        if model is ProjectConfig and part == "profiles":
            model = None
        elif model is None:
            model = Profile
        else:
            annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
            found: Any = annotation if get_origin(annotation) is None else None
            model = found if isinstance(found, type) and issubclass(found, BaseModel) else SecretRef
    return sorted(model.model_fields) if model else []
