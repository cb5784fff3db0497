"""What the development broker is told, and what its log tells back: pure text, no process."""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping

from strandline.runtime.ports import LOOPBACK

_LISTENERS = "listeners"
_PROTOCOLS = {"CONTROLLER": "PLAINTEXT", **{name: name for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")}}


def server_properties(port: int, controller_port: int, extra: Mapping[str, str]) -> str:
    """server.properties of one node that is broker and controller.

    Paths are relative: the broker runs inside its folder, so a project can move, and `log.dirs` could not hold a comma.
    `extra` overrides any setting, except that its ``listeners`` are added to ours, whose port is known only now.
    """
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        _LISTENERS: f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        # Kafka guesses the controller's protocol only while no listener has another than PLAINTEXT.
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items()),
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "log.dirs": "data",
        # One node holds the only copy of everything.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        # A mistyped topic must be an error, not a new topic.
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # The default buffer alone is half of the heap.
        "log.cleaner.dedupe.buffer.size": "4194304",
        # After a kill the controller must not believe for long that the old broker lives: the new one waits for that.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
    }
    added = {key: f"{settings[key]},{value}" if key == _LISTENERS else value for key, value in extra.items()}
    return "".join(f"{key}={_escape(value)}\n" for key, value in {**settings, **added}.items())


def _escape(value: str) -> str:
    """Java reads properties as Latin-1 with backslash escapes."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    units = escaped.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)


LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = broker.log
appender.file.filePattern = broker.%i.log
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p %c{1}: %m%n%ex
# Start and stop in a few lines; everything else only when it warns.
logger.node.name = kafka.server.KafkaRaftServer
logger.node.level = info
logger.broker.name = kafka.server.BrokerServer
logger.broker.level = info
"""


def new_cluster_id() -> str:
    """Kafka's own form of a UUID; one that begins with a dash would read as an option on the command line."""
    while (found := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return found


def cluster_id_in(meta_properties: str) -> str | None:
    found = re.search(r"^cluster\.id=(\S+)$", meta_properties, re.MULTILINE)
    return found[1] if found else None


def telling_line(log: str) -> str | None:
    """The last line that says what went wrong: of nested exceptions the innermost, unless the one around it says more."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. \d+ more", line)]
    complaints = [line for line in lines if re.search(r"\b(ERROR|FATAL)\b|Exception\b|^Error\b", line)] or lines
    if not complaints:
        return None
    said = complaints.pop()
    while complaints and said.partition(": ")[0] == "Caused by" and said.rpartition("Exception: ")[2] in complaints[-1]:
        said = complaints.pop()
    return re.sub(r'^(Caused by: |Exception in thread "\S+" )', "", said).rstrip(".")


def address_taken(log: str) -> bool:
    return "Address already in use" in log
