"""The store of a bucket inside Spark: one map state of bytes, asked in bulk where Spark allows it.

Spark's client sends one request, waits for the answer, and so on. The server answers in order, so many requests may be on their way at once. That
needs parts of the client that are private: they are all here, used only with the versions they were tested with, and
otherwise the public client serves, with the same results and more waiting.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from strandline.model.errors import DefinitionError

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import MapState, StatefulProcessorHandle

Access = Literal["auto", "pipelined", "plain"]

_PREFIX = "strandline."


def variable_of(operator: str) -> str:
    """The name of an operator's map state: Spark numbers operators, and this tells whose state it is."""
    return _PREFIX + operator


def operator_of(variable: str) -> str | None:
    """The other way round; None for a state that is not ours."""
    return variable.removeprefix(_PREFIX) if variable.startswith(_PREFIX) else None


TESTED = ("4.1.",)
"""Versions of pyspark whose private parts are known."""

WINDOW = 1024
"""Requests on their way at once: enough to hide the waiting, few enough for the answers to fit into memory."""

SILENCE = 120.0
"""Seconds without any answer after which the state server is taken for dead."""

_LENGTH = struct.Struct("!i")
_HEADER = struct.Struct("!ii")
_READ = 1 << 18


class PlainStore:
    """Through Spark's public API: one exchange per entry."""

    def __init__(self, state: MapState) -> None:
        self._state = state

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found = (self._state.getValue((key,)) for key in keys)
        return [None if value is None else bytes(value[0]) for value in found]

    def put_many(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        for key, value in entries:
            self._state.updateValue((key,), (value,))

    def remove_many(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._state.removeKey((key,))


class PipelinedStore:
    """Through the same socket, many requests at a time. Nothing is on its way before or after a call."""

    def __init__(self, handle: StatefulProcessorHandle, variable: str) -> None:
        import pyspark.sql.streaming.proto.StateMessage_pb2 as messages

        self._messages: Any = messages
        self._requests = Requests(messages, variable)
        self._answers = Answers()
        client: Any = handle._statefulProcessorApiClient
        self._socket: socket.socket = client._client_socket

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        answers = self._exchange([self._requests.get(key) for key in keys])
        return [self._answers.content(value) if value else None for value in answers]

    def put_many(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        self._exchange([self._requests.put(key, value) for key, value in entries])

    def remove_many(self, keys: Sequence[bytes]) -> None:
        self._exchange([self._requests.remove(key) for key in keys])

    def _exchange(self, requests: Sequence[bytes]) -> list[bytes]:
        answers: list[bytes] = []
        for first in range(0, len(requests), WINDOW):
            window = requests[first : first + WINDOW]
            for content in _converse(self._socket, b"".join(window), len(window)):
                answer = self._messages.StateResponse.FromString(content)
                if answer.statusCode not in (0, 1, 2):  # 1 and 2: no such entry
                    raise RuntimeError(f"Spark's state server refused a request: {answer.errorMessage}")
                answers.append(answer.value if answer.statusCode == 0 else b"")
        return answers


class Requests:
    """Requests as bytes. Building protobuf's objects for each would take longer than all else a request costs this side.

    The numbers of the fields come from Spark's own description of its messages, never from here.
    """

    def __init__(self, messages: Any, variable: str) -> None:
        def tag(message: str, name: str) -> bytes:
            return _varint(messages.DESCRIPTOR.message_types_by_name[message].fields_by_name[name].number << 3 | _LENGTH_DELIMITED)

        self._outer = tag("StateRequest", "stateVariableRequest"), tag("StateVariableRequest", "mapStateCall")
        self._named = _field(tag("MapStateCall", "stateName"), variable.encode())
        self._get = tag("MapStateCall", "getValue"), tag("GetValue", "userKey")
        self._remove = tag("MapStateCall", "removeKey"), tag("RemoveKey", "userKey")
        self._put = tag("MapStateCall", "updateValue"), tag("UpdateValue", "userKey")
        self._value = tag("UpdateValue", "value")

    def get(self, key: bytes) -> bytes:
        return self._request(self._get[0], _field(self._get[1], _row(key)))

    def remove(self, key: bytes) -> bytes:
        return self._request(self._remove[0], _field(self._remove[1], _row(key)))

    def put(self, key: bytes, value: bytes) -> bytes:
        return self._request(self._put[0], _field(self._put[1], _row(key)) + _field(self._value, _row(value)))

    def _request(self, call: bytes, content: bytes) -> bytes:
        request, variable = self._outer
        framed = _field(request, _field(variable, self._named + _field(call, content)))
        return _HEADER.pack(0, len(framed)) + framed


class Answers:
    """Values as the server pickles them: a row, with its schema as JSON, around bytes written as text.

    Unpickling would read the schema anew for every value. What stands before and after the bytes is learned from the first value; whatever
    looks otherwise is unpickled.
    """

    def __init__(self) -> None:
        self._before = self._after = b""

    def content(self, value: bytes) -> bytes:
        start, end = len(self._before) + _COUNT.size, len(value) - len(self._after)
        as_known = self._before and start <= end and value.startswith(self._before) and value.endswith(self._after)
        if as_known and _COUNT.unpack_from(value, start - _COUNT.size) == (end - start,):
            return value[start:end].decode("utf-8").encode("latin-1")
        content = bytes(pickle.loads(value)[0])
        self._learn(value, content)
        return content

    def _learn(self, value: bytes, content: bytes) -> None:
        text = content.decode("latin-1").encode("utf-8")
        before, found, after = value.partition(_TEXT + _COUNT.pack(len(text)) + text)
        if found and text:
            self._before, self._after = before + _TEXT, after


_TEXT = pickle.BINUNICODE
_COUNT = struct.Struct("<I")


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


_SMALL = [bytes([number]) for number in range(128)]

_LENGTH_DELIMITED = 2
"""Protobuf's wire type of bytes, text and messages."""


def _row(value: bytes) -> bytes:
    return pickle.dumps((value,), 5)


def _converse(connection: socket.socket, outgoing: bytes, answers: int) -> list[bytes]:
    """Send and receive at once: neither side can wait for the other with full buffers."""
    left = memoryview(outgoing)
    incoming = bytearray()
    start = 0
    found: list[bytes] = []
    while len(found) < answers:
        readable, writable, _ = select.select([connection], [connection] if left else [], [], SILENCE)
        if not readable and not writable:
            raise TimeoutError(f"Spark's state server has not answered for {SILENCE:.0f} s")
        if writable:
            try:
                left = left[connection.send(left[:_READ], socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                pass
        if readable:
            received = connection.recv(_READ)
            if not received:
                raise EOFError("Spark's state server closed the connection")
            incoming += received
            while len(incoming) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(incoming, start)
                end = start + _LENGTH.size + length
                if len(incoming) < end:
                    break
                found.append(bytes(incoming[start + _LENGTH.size : end]))
                start = end
            if start > _READ:
                del incoming[:start]
                start = 0
    return found


def can_pipeline() -> bool:
    """Is this a pyspark whose private parts are known?"""
    import pyspark

    return pyspark.__version__.startswith(TESTED)


def choose(access: Access) -> Literal["pipelined", "plain"]:
    """What `auto` means here; `pipelined` by name is refused where it was never tested."""
    if access == "pipelined" and not can_pipeline():
        import pyspark

        raise DefinitionError(
            f"access='pipelined' was tested with pyspark {', '.join(version + 'x' for version in TESTED)}, this is {pyspark.__version__}; "
            "use access='auto'"
        )
    return "pipelined" if access != "plain" and can_pipeline() else "plain"
