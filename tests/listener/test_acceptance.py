"""What a request carries for Junction is taken out of it, checked, and never repeated."""

import json
import re
from typing import Any

import pytest
from msgspec import Raw

from mcp_junction.calls.call import NOTHING_CARRIED, Carried
from mcp_junction.errors import FrameError
from mcp_junction.listener.acceptance import accept, find_carrying
from mcp_junction.policy.tokens import read_token
from mcp_junction.protocol.correlation import new_correlation_id
from mcp_junction.protocol.versions import INVALID_PARAMS

TOKEN = "jtk_t1_c4n4ryc4n4ry"
CARRIED = {
    "junction/agent-id": "ann",
    "junction/correlation-id": "c-1",
    "junction/ticket-id": "T 7",
    "junction/task-id": "task",
    "junction/idempotency-key": "k 1",
    "junction/token": TOKEN,
    "junction/timeout-ms": 1500,
}


def params_of(meta: bytes | dict[str, Any]) -> dict[str, Raw]:
    text = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    return {"name": Raw(b'"echo"'), "_meta": Raw(text)}


def refused(meta: bytes | dict[str, Any], headers: dict[bytes, bytes] | None = None) -> str:
    with pytest.raises(FrameError) as raised:
        accept(params_of(meta), headers)
    assert raised.value.code == INVALID_PARAMS
    return raised.value.message


def test_every_member_of_ours_becomes_a_field():
    params = params_of(CARRIED)
    assert accept(params, None) == Carried(
        "ann", "c-1", "T 7", "task", "k 1", read_token(TOKEN), timeout=1.5
    )
    assert params.keys() == {"name"}, "a _meta that is empty then is removed"


def test_other_members_keep_their_values_and_their_order():
    params = params_of(b'{"z":1.50, "junction/agent-id":"a" , "\xc3\xa9":[ 1 ],"traceparent":"00"}')
    accept(params, None)
    assert bytes(params["_meta"]) == '{"z":1.50,"é":[ 1 ],"traceparent":"00"}'.encode()


@pytest.mark.parametrize(
    "meta",
    [b'{"progressToken":1}', b"{}", b"[]", b'"junction/token"', b'{"x":{"junction/token":"a"}}',
     b'{"a\\nb":"junction/token"}', b'{"junction/id":"another Junction\'s"}'],
)  # fmt: skip
def test_a_request_that_carries_nothing_stays_as_it_is(meta):
    params = params_of(meta)
    assert accept(params, None) is NOTHING_CARRIED
    assert bytes(params["_meta"]) == meta
    assert accept({}, None) is NOTHING_CARRIED


@pytest.mark.parametrize(
    "name",
    [r"junction\/token", r"\u006aunction/token", r"junction\u002Ftoken", r"junction/tok\u0065n"],
)
def test_a_name_that_is_written_with_escapes_is_found(name):
    params = params_of(f'{{"a":1,"{name}":"{TOKEN}"}}'.encode())
    assert accept(params, None).token == read_token(TOKEN)
    assert bytes(params["_meta"]) == b'{"a":1}'


@pytest.mark.parametrize(
    "meta",
    [f'{{"junction/token":"{TOKEN}","junction/token":"{TOKEN}"}}',
     f'{{"junction/token":"{TOKEN}","junction\\/token":"jtk_a_b"}}',
     f'{{"a":1,"junction/token":"{TOKEN}","a":2}}'],
)  # fmt: skip
def test_a_member_that_is_there_twice_is_refused(meta):
    words = refused(meta.encode())
    assert words == "params._meta has a member twice; send each once"


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("agent-id", "", "1 to 255 printable"),
        ("agent-id", "x" * 256, "1 to 255 printable"),
        ("agent-id", "a\nb", "1 to 255 printable"),
        ("agent-id", 7, "must be a string"),
        ("correlation-id", "a b", "without spaces"),
        ("correlation-id", "é", "printable ASCII"),
        ("correlation-id", "x" * 129, "1 to 128"),
        ("correlation-id", "a\r\nx-evil: 1", "printable ASCII"),
        ("ticket-id", "x" * 256, "1 to 255"),
        ("task-id", "", "1 to 255"),
        ("idempotency-key", "x" * 256, "1 to 255 printable"),
        ("idempotency-key", "a\x00", "1 to 255 printable"),
        ("timeout-ms", 0, "whole number of milliseconds from 1 to 86400000"),
        ("timeout-ms", 86_400_001, "from 1 to 86400000"),
        ("timeout-ms", 1.5, "whole number"),
        ("timeout-ms", "1500", "whole number"),
        ("timeout-ms", -1, "whole number"),
        ("timeout-ms", True, "whole number"),
        ("token", "c4n4ry", "is not a token of Junction"),
        ("token", "jtk_c4n4ry_" + "x" * 600, "is not a token of Junction"),
        ("token", {"c4n4ry": "c4n4ry"}, "must be a string"),
        ("tokn", "jtk_c4n4ry_1", "an unknown member of Junction's; it takes junction/agent-id, "),
    ],
)
def test_a_wrong_value_is_refused_with_what_it_must_be(member, value, words):
    said = refused({f"junction/{member}": value, "progressToken": 1})
    assert words in said
    assert "c4n4ry" not in said


@pytest.mark.parametrize("last", ["junction/agent-id", "junction/timeout-ms", "junction/tokn"])
def test_nothing_of_ours_is_left_in_a_request_that_is_refused(last):
    params = params_of({"a": 1, **CARRIED, last: []})
    with pytest.raises(FrameError):
        accept(params, None)
    assert bytes(params["_meta"]) == b'{"a":1}'


def test_null_is_as_if_it_were_absent():
    params = params_of({"junction/token": None, "junction/timeout-ms": None})
    assert accept(params, None) is NOTHING_CARRIED
    assert "_meta" not in params


def test_headers_carry_the_same_as_members():
    headers = {
        b"x-agent-id": "änn".encode(),
        b"x-correlation-id": b"c-1",
        b"idempotency-key": b"k",
        b"x-timeout-ms": b"1500",
    }
    expected = Carried("änn", "c-1", idempotency_key="k", timeout=1.5)
    assert accept({}, headers) == expected
    both = {
        "junction/agent-id": "änn",
        "junction/timeout-ms": 1500,
        "junction/correlation-id": "c-1",
    }
    assert accept(params_of(both), headers) == expected


@pytest.mark.parametrize(
    ("member", "value", "header"),
    [("agent-id", "ann", "X-Agent-Id"), ("correlation-id", "c", "X-Correlation-Id"),
     ("idempotency-key", "k", "Idempotency-Key"), ("timeout-ms", 5, "X-Timeout-Ms")],
)  # fmt: skip
def test_a_header_that_differs_from_its_member_is_refused(member, value, header):
    words = refused({f"junction/{member}": value}, {header.lower().encode(): b"6"})
    assert words == f"the {header} header is not what params._meta has as junction/{member}"


def test_a_wrong_header_is_refused_by_its_name():
    assert refused({}, {b"x-agent-id": b"\xff"}) == "the X-Agent-Id header is not UTF-8"
    assert refused({}, {b"x-timeout-ms": b"soon"}).startswith("the X-Timeout-Ms header must be")
    assert refused({}, {b"x-timeout-ms": "٣".encode()}).startswith("the X-Timeout-Ms header must")


def test_headers_count_only_where_one_carries_something():
    headers = {b"host": b"a", b"accept": b"b"}
    assert find_carrying(list(headers.items()), headers) is None
    headers[b"x-agent-id"] = b"ann"
    assert find_carrying(list(headers.items()), headers) is headers


def test_a_header_that_is_there_twice_is_refused():
    given = [(b"x-agent-id", b"ann"), (b"x-agent-id", b"bob")]
    with pytest.raises(FrameError, match="x-agent-id header appears more than once"):
        find_carrying(given, dict(given))


def test_correlation_ids_of_ours_differ_and_begin_with_the_time():
    first, *others = ids = [new_correlation_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch("j[0-9a-f]{11}-[0-9a-f]{16}", one) for one in ids)
    when = lambda one: int(one[1:].partition("-")[0], 16)  # noqa: E731
    assert when(first) <= when(others[-1]) <= when(first) + 60_000
    endings = [one[-16:] for one in ids]
    assert sorted(endings) != endings, "nobody can count the calls of others by them"
