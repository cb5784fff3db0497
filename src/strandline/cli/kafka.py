"""Commands about Kafka in development: a broker of one's own, and topics made, filled and read by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.options import JsonOption, ProfileOption
from strandline.cli.output import print_json, print_table, reporter

if TYPE_CHECKING:
    from strandline.messaging.connection import KafkaConnection
    from strandline.runtime.broker import Broker, BrokerStatus


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="kafka",
        help="A Kafka broker for development (one node, on this machine only, data in .strandline/kafka), and its topics.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command()(up)
    group.command()(down)
    group.command()(status)
    group.command()(create)
    group.command()(send)
    group.command()(read)
    app.add_typer(group)


def up(
    port: Annotated[
        int | None,
        typer.Option(
            "--port", help="Port to listen on; without it the one used before, else 9092, else a free one.", min=1, max=65535, metavar="N"
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start the broker, unless it runs, and wait until it answers."""
    broker = _broker()
    started = broker.up(port)
    found = broker.status()
    if as_json:
        print_json({"version": 1, "started": started, "broker": _row(found)})
        return
    print(f"{'started' if started else 'already running'}: {found.bootstrap} (process {found.pid}), data in {found.folder}")
    print("next: strandline kafka status")


def down(as_json: JsonOption = False) -> None:
    """Stop the broker; its topics stay for the next start."""
    broker = _broker()
    stopped = broker.down()
    if as_json:
        print_json({"version": 1, "stopped": stopped, "broker": _row(broker.status())})
        return
    print(f"stopped; its data stay in {broker.folder}" if stopped else "the broker was not running")


def status(as_json: JsonOption = False) -> None:
    """Show whether the broker runs, where it listens, and what it holds."""
    found = _broker().status()
    if as_json:
        print_json({"version": 1, "broker": _row(found)})
        return
    # A process may be there and not answer: frozen, or still starting.
    state = "stopped" if not found.running else "running" if found.topics is not None else "running, does not answer"
    print_table(
        ["broker", "address", "process", "topics", "data", "log"],
        [
            [
                state,
                found.bootstrap or "-",
                str(found.pid or "-"),
                "-" if found.topics is None else str(found.topics),
                f"{found.data_bytes / 1_000_000:.1f} MB",
                str(found.log) if found.log.exists() else "-",
            ]
        ],
    )
    if not found.running:
        print("next: strandline kafka up")


def create(
    topic: Annotated[str, typer.Argument(help="Name of the new topic.")],
    partitions: Annotated[int, typer.Option("--partitions", help="Number of partitions.", min=1)] = 1,
    profile: ProfileOption = None,
) -> None:
    """Make a topic on the profile's cluster, or on the development broker."""
    from strandline.messaging.console import create_topic

    create_topic(_connection(profile), topic, partitions)
    print(f"topic {topic} with {partitions} partition{'s' if partitions > 1 else ''}")


def send(
    topic: Annotated[str, typer.Argument(help="Topic to write to.")],
    file: Annotated[typer.FileText, typer.Argument(help="One message per line; - for standard input.")],
    key: Annotated[str | None, typer.Option("--key", help="Field of each JSON line that becomes the key.", metavar="FIELD")] = None,
    profile: ProfileOption = None,
) -> None:
    """Send the lines of a file as messages."""
    from strandline.messaging.console import send

    count = send(_connection(profile), topic, (line.rstrip("\n") for line in file), key)
    print(f"{count} messages sent to {topic}")


def read(
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    profile: ProfileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every committed message of a topic."""
    from strandline.messaging.console import read

    lines = list(read(_connection(profile), topic))
    if as_json:
        print_json({"version": 1, "topic": topic, "messages": [vars(line) for line in lines]})
        return
    print_table(["partition", "offset", "key", "value"], [[str(m.partition), str(m.offset), m.key or "", m.value or ""] for m in lines])


def _connection(profile: str | None) -> KafkaConnection:
    from strandline.messaging.connection import connect_to
    from strandline.model.kafka import KafkaAccess
    from strandline.project.config import load_project

    return connect_to(load_project(profile=profile), KafkaAccess())


def _broker() -> Broker:
    from strandline.project.config import load_project
    from strandline.runtime.broker import Broker

    return Broker(load_project().broker_folder, say=reporter().say)


def _row(found: BrokerStatus) -> dict[str, Any]:
    return {
        "running": found.running,
        "pid": found.pid,
        "bootstrap": found.bootstrap,
        "topics": found.topics,
        "data_bytes": found.data_bytes,
        "folder": str(found.folder),
        "log": str(found.log),
    }
