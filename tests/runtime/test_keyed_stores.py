"""Requests to Spark's state server, byte for byte as protobuf would write them, and its answers without unpickling them."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pyspark.sql.streaming.proto.StateMessage_pb2 as messages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.runtime.keyed.stores import Answers, Requests, choose, operator_of, variable_of

STATE = variable_of("totals")
REQUESTS = Requests(messages, STATE)

sizes = st.one_of(st.integers(0, 300), st.sampled_from([127, 128, 2047, 16_383, 16_384, 100_000]))


def framed(**call: Any) -> bytes:
    m = messages
    request = m.StateRequest(stateVariableRequest=m.StateVariableRequest(mapStateCall=m.MapStateCall(stateName=STATE, **call)))
    content: bytes = request.SerializeToString()
    return struct.pack("!ii", 0, len(content)) + content


def row(value: bytes) -> bytes:
    return pickle.dumps((value,), 5)


@given(sizes, sizes)
def test_requests_are_what_protobuf_makes_of_them(key_size: int, value_size: int) -> None:
    key, value = b"k" * key_size, b"v" * value_size

    assert REQUESTS.get(key) == framed(getValue=messages.GetValue(userKey=row(key)))
    assert REQUESTS.remove(key) == framed(removeKey=messages.RemoveKey(userKey=row(key)))
    assert REQUESTS.put(key, value) == framed(updateValue=messages.UpdateValue(userKey=row(key), value=row(value)))


def answer(
    content: bytes, schema: str = '{"type":"struct","fields":[{"name":"v","type":"binary","nullable":true,"metadata":{}}]}'
) -> bytes:
    """As Spark 4.1's server pickles a row."""

    def text(given: str) -> bytes:
        return b"X" + struct.pack("<I", len(given.encode())) + given.encode()

    made = b"\x80\x02cpyspark.sql.types\n_create_row_inbound_converter\nq\x00cpyspark.sql.types\n_parse_datatype_json_string\n"
    made += text(schema) + b"q\x01\x85Rq\x02\x85R(cbuiltins\nbytes\nc__builtin__\nbytearray\n"
    return made + text(content.decode("latin-1")) + b"q\x03" + text("latin-1") + b"q\x04\x86Rq\x05\x85Rq\x06tRq\x07."


@given(st.lists(st.one_of(st.binary(), st.sampled_from([b"latin-1", b"X\x01\x00\x00\x00v"])), max_size=8))
def test_answers_are_what_pickle_makes_of_them(contents: list[bytes]) -> None:
    answers = Answers()

    for content in contents:
        value = answer(content)
        assert answers.content(value) == pickle.loads(value)[0] == content
        assert answers.content(pickle.dumps((content,))) == content, "another form is unpickled"


def test_a_state_tells_its_operator() -> None:
    assert operator_of(variable_of("a.b")) == "a.b"
    assert operator_of("count") is None


def test_an_unknown_pyspark_gets_the_public_api(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("auto") == "pipelined"
    assert choose("plain") == "plain"

    monkeypatch.setattr("pyspark.__version__", "9.9.9")

    assert choose("auto") == "plain"
    with pytest.raises(Exception, match=r"access='pipelined' was tested with pyspark 4\.1\.x, this is 9\.9\.9; use access='auto'"):
        choose("pipelined")
