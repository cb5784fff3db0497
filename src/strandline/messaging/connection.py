"""One cluster's address and credentials, in the words of both clients: librdkafka here, Java inside Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from strandline.model.errors import ConfigError
from strandline.model.kafka import KafkaAccess
from strandline.model.secrets import Secret
from strandline.project.config import Project

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True)
class KafkaConnection:
    """Resolved settings; secrets stay out of `repr`."""

    bootstrap: str
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    give_up_after: timedelta = timedelta(minutes=2)

    def client(self, **settings: Any) -> dict[str, Any]:
        """Configuration of a librdkafka client; keyword names use ``_`` for ``.``."""
        return {
            "bootstrap.servers": self.bootstrap,
            # Short back-offs: a broker that comes back is noticed within a second.
            "reconnect.backoff.max.ms": 1000,
            "socket.connection.setup.timeout.ms": 5000,
            "log_level": 0,
            "log.connection.close": False,
            **self.security,
            **{key if key.endswith("_cb") else key.replace("_", "."): value for key, value in settings.items()},
        }

    def spark_options(self) -> dict[str, str]:
        """The same as options of Spark's Kafka source and sink."""
        s = self.security
        java: dict[str, str] = {"bootstrap.servers": self.bootstrap}
        for key in ("security.protocol", "sasl.mechanism", "ssl.key.password", "ssl.endpoint.identification.algorithm"):
            if key in s:
                java[key] = s[key]
        if "sasl.username" in s:
            module = _LOGIN.get(s.get("sasl.mechanism", "PLAIN"), "")
            if not module:
                raise ConfigError(
                    f"sasl.mechanism '{s['sasl.mechanism']}' is not supported; allowed: {', '.join(_LOGIN)}",
                    next_command="edit strandline.yaml",
                )
            login = {"username": s["sasl.username"], "password": s.get("sasl.password", "")}
            quoted = " ".join(f'{name}="{_escape(value)}"' for name, value in login.items())
            java["sasl.jaas.config"] = f"{module} required {quoted};"
        if "ssl.ca.location" in s:
            java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _pem(s["ssl.ca.location"])}
        if "ssl.certificate.location" in s:
            java |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": _pem(s["ssl.certificate.location"])}
        if "ssl.key.location" in s:
            java["ssl.keystore.key"] = _pem(s["ssl.key.location"])
        return {f"kafka.{key}": value for key, value in java.items()}


def connect_to(project: Project, access: KafkaAccess) -> KafkaConnection:
    """The declaration, completed from the profile, completed from the project's own development broker."""
    profile = project.profile.kafka
    bootstrap = access.bootstrap or (profile.bootstrap if profile else None) or project.development_broker()
    if bootstrap is None:
        raise ConfigError(
            f"no Kafka broker is named: neither kafka(bootstrap=…), nor kafka.bootstrap in profile '{project.profile_name}', and the "
            "project's development broker is not running",
            next_command="strandline kafka up",
        )
    # A source that names its own cluster must not send another cluster's credentials there.
    configured = profile.security if profile and access.bootstrap is None else {}
    settings: dict[str, Any] = {**configured, **access.security}
    resolved = {key: value if isinstance(value, str) else _resolve(value) for key, value in settings.items()}
    return KafkaConnection(bootstrap, resolved, access.give_up_after)


def _resolve(value: Any) -> str:
    secret: Secret = value if isinstance(value, Secret) else value.secret
    return secret.resolve()


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _pem(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the certificate file {path} cannot be read: {error.strerror}", next_command=f"ls -l {path}") from error
