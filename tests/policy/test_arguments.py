"""Arguments that are judged are those that are sent: one reading, or none."""

import itertools
import json
import random
from decimal import Decimal
from hashlib import sha256

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from mcp_junction.errors import ArgumentsError
from mcp_junction.policy.arguments import (
    map_arguments,
    pick,
    read_arguments,
)


def hash_arguments(raw: Raw | bytes) -> str:
    return read_arguments(raw).hash


# -- 200 texts that parsers read differently

SHELLS = [
    "{}",
    '{{"x":{}}}',
    "[{}]",
    '{{"x":[1,{{"y":{}}}],"z":0}}',
    '{{"x":"\\"}}:{{,","y":{}}}',
    '{{"a":1,"b":[[[{}]]],"c":"é"}}',
]
REPEATED = [
    '{"a":1,"a":2}',
    '{"a":1,"a":1}',
    '{"a":1,"b":2,"a":3}',
    '{"a":{"a":1},"a":{"a":1}}',
    '{"a":1,"\\u0061":2}',
    '{"\\u0061":1,"\\u0061":2}',
    '{"":1,"":2}',
    '{"a\\/b":1,"a/b":2}',
    '{"\\"":1,"\\u0022":2}',
    '{"\\\\":1,"\\u005c":2}',
    '{"é":1,"\\u00e9":2}',
    '{"😀":1,"\\ud83d\\ude00":2}',
    '{"\\n":1,"\\u000a":2}',
    '{"a":[{"b":1,"b":2}]}',
    '{"a" : 1 , "a" : 2}',
    '{"a":1,"a":null}',
    '{"__proto__":1,"__proto__":2}',
]
HALVED = [
    '"\\ud800"',
    '"\\udc00"',
    '"\\ud800x"',
    '"\\ude00\\ud83d"',
    '{"\\ud800":1}',
    '"\\uD8fF\\n"',
]
BROKEN = [
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "+1",
    ".5",
    "1.",
    "0x10",
    "1e",
    "'a'",
    "[1,]",
    '{"a":1,}',
    "{a:1}",
    "/*c*/1",
    '"\t"',
    '"\\x41"',
    '"\\u12"',
    "nul",
    "True",
    "",
]
NUMBERS = [
    "9007199254740993",
    "-9007199254740993",
    "18446744073709551617",
    "123456789012345678901234567890",
    "1e400",
    "-1e400",
    "1e-400",
    "0.1",
    "0.10",
    "1.0",
    "1E5",
    "100000.0",
    "3.141592653589793238462643383279",
    "-0.0",
    "2e308",
]
REFUSED = [shell.format(text) for shell in SHELLS for text in (*REPEATED, *HALVED)]
REFUSED += [SHELLS[1].format(text) for text in BROKEN]
KEPT = [shell.format(text) for shell in SHELLS[1:5] for text in NUMBERS]


def test_there_are_enough_of_them():
    assert len({*REFUSED, *KEPT}) >= 200


@pytest.mark.parametrize("text", REFUSED)
def test_a_text_that_can_be_read_in_two_ways_is_refused(text):
    with pytest.raises(ArgumentsError, match="arguments"):
        read_arguments(text.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("text", KEPT)
def test_a_number_is_judged_as_it_is_sent(text):
    found = read_arguments(text.encode())
    assert json.loads(found.canonical, parse_float=str) == json.loads(text, parse_float=str)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"\xff"}',
        b'{"\xff":1}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xc0\xaf"}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_utf_8_is_refused(data):
    with pytest.raises(ArgumentsError, match="arguments"):
        read_arguments(data)


def test_a_repeated_name_is_told():
    with pytest.raises(ArgumentsError, match=r'"user id" twice.*give each name once'):
        read_arguments(b'{"x":[{"user id":1,"user id":2}]}')


def test_half_a_character_is_told():
    with pytest.raises(ArgumentsError, match="surrogate"):
        read_arguments(rb'{"x":"\ud800"}')


@pytest.mark.parametrize("depth", [65, 1_000, 100_000])
@pytest.mark.parametrize(("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_what_is_too_deep_is_refused(depth, opened, closed):
    with pytest.raises(ArgumentsError, match="deeper"):
        read_arguments(opened * depth + b"1" + closed * depth)
    with pytest.raises(ArgumentsError, match="deeper"):
        read_arguments(opened * depth)


def test_a_number_without_end_is_refused():
    with pytest.raises(ArgumentsError, match="digits"):
        read_arguments(b'{"a":%s}' % (b"1" * 5_000))


def test_no_arguments_are_an_empty_object():
    assert read_arguments(b"").value == {}
    assert hash_arguments(b"") == hash_arguments(b"{}") == hash_arguments(Raw(b" { } "))


# -- what is accepted has one reading

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def dump(value, **more) -> bytes:
    return json.dumps(value, allow_nan=False, **more).encode("utf-8", "surrogatepass")


def has_surrogates(value) -> bool:
    return any(0xD800 <= ord(c) < 0xE000 for c in json.dumps(value, ensure_ascii=False))


@given(json_values.filter(lambda v: "inf" not in repr(v)))
@example({"a": 'x":{', "b": "\\", ':"': "\\\\"})
def test_what_everybody_reads_alike_is_accepted_however_it_is_spelled(value):
    if has_surrogates(value):
        return
    spellings = [
        dump(value),
        dump(value, ensure_ascii=False),
        dump(value, indent=2),
        dump(value, separators=(",", ":"), ensure_ascii=False),
    ]
    assert len({hash_arguments(text) for text in spellings}) == 1
    assert json.loads(read_arguments(spellings[0]).canonical) == value


class FirstWins(dict):
    def __init__(self, pairs):
        super().__init__(reversed(pairs))


@pytest.mark.bulk
def test_what_is_accepted_reads_the_same_for_first_and_last_wins():
    dice = random.Random(99)
    pieces = ['"a"', '"b"', '"\\u0061"', '"a:"', '"\\""', '"\\\\"', "1", "1.0", "{", "}", "[", "]"]
    pieces += [":", ",", ":", ",", " ", "{}", "[]", '{"a":', '{"b":', '"\\ud83d\\ude00"', "null"]
    accepted = refused = 0
    while accepted < 3_000:
        text = "{" + "".join(dice.choices(pieces, k=dice.randrange(1, 14))) + "}"
        if dice.random() < 0.5:
            text = '{{"a":{},{}:{}}}'.format(
                dice.choice(['{"b":1,"b":2}', '{"b":[1]}', '"}"', "1"]),
                dice.choice(pieces[:6]),
                dice.choice(['{"a":1,"\\u0061":2}', '{"x":{}}', '"a:"', "2.50"]),
            )
        try:
            found = read_arguments(text.encode())
        except ArgumentsError:
            refused += 1
            continue
        accepted += 1
        first = json.loads(text, object_pairs_hook=FirstWins, parse_float=Decimal)
        last = json.loads(text, parse_float=Decimal)
        assert first == last == json.loads(found.canonical, parse_float=Decimal)
        assert orjson.loads(text) == orjson.loads(found.canonical)
    assert refused > 1_000


# -- the hash


@given(st.dictionaries(st.text('abcé"\\', max_size=3), st.integers(), max_size=6), st.randoms())
def test_the_order_of_names_makes_no_difference(value, dice):
    items = list(value.items())
    dice.shuffle(items)
    assert hash_arguments(dump(value)) == hash_arguments(dump(dict(items)))


@given(json_values, json_values)
def test_what_differs_has_another_hash(one, other):
    texts = []
    for value in (one, other):
        if "inf" in repr(value) or has_surrogates(value):
            return
        texts.append(dump(value))
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    is_zero = {b"-0", b"0"} >= {*texts}
    assert (hash_arguments(texts[0]) == hash_arguments(texts[1])) is (is_same or is_zero)


SPELLINGS = '1 1.0 1e0 1.00 "1" true [1] null 9007199254740992 9007199254740993 9007199254740993.0'


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SPELLINGS.split(), 2)))
def test_numbers_stay_as_they_were_written(one, other):
    first, second = (f'{{"a":{number}}}'.encode() for number in (one, other))
    assert hash_arguments(first) != hash_arguments(second)


def test_the_hash_is_that_of_the_canonical_text():
    text = b'{"b": 1.50, "a": "\\u00e9\\/", "c": [9007199254740993, {"z": null, "y": 1E400}]}'
    canonical = '{"a":"é/","b":1.50,"c":[9007199254740993,{"y":1E400,"z":null}]}'.encode()
    assert read_arguments(text).canonical == canonical
    assert read_arguments(canonical).canonical == canonical
    assert hash_arguments(text) == sha256(canonical).hexdigest()


def test_lists_keep_their_order():
    assert hash_arguments(b"[1,2]") != hash_arguments(b"[2,1]")


# -- size


@pytest.mark.bulk
@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"%s"}' % (b"x" * 2**20),
        b'{"a":"%s"}' % (b"\\\\" * 2**19),
        b'{"a":"%s"}' % (b'\\"' * 2**19),
        b"[%s]" % b",".join([b"{}"] * 300_000),
        b"[%s]" % b",".join([b'{"a":1}'] * 130_000),
        b"{%s}" % b",".join(b'"%d":1' % n for n in range(100_000)),
    ],
    ids=["plain", "backslashes", "quotes", "objects", "members", "names"],
)
def test_a_mebibyte_is_read_whole(text):
    assert hash_arguments(text) == hash_arguments(b" " + text)


@pytest.mark.bulk
def test_a_mebibyte_of_one_name_is_refused_in_time():
    with pytest.raises(ArgumentsError, match="twice"):
        read_arguments(b"{%s}" % b",".join([b'"a":1'] * 170_000))  # quadratic, it took 17 s


# -- for validators


def test_validators_get_exact_numbers():
    found = read_arguments(b'{"a":1.5,"b":1e400,"c":12345678901234567890123,"d":[0.1]}').numbers
    huge = 12345678901234567890123
    assert found == {"a": Decimal("1.5"), "b": Decimal("1e400"), "c": huge, "d": [Decimal("0.1")]}


def test_a_number_without_any_bound_is_refused():
    with pytest.raises(ArgumentsError, match="exponent"):
        _ = read_arguments(b'{"a":1e99999999999999999999}').numbers


def test_arguments_without_fractions_are_decoded_once():
    found = read_arguments(b'{"a":1,"b":"1.5"}')
    assert found.numbers is found.value
    assert found.value == {"a": 1, "b": "1.5"}


# -- for fallbacks

TEXT = b'{"a":{"b":[1,2.50,{"c":1e400}]},"x/y":1,"m~n":2,"":3,"n":null,"0":4}'


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/a/b/0", b"1"),
        ("/a/b/1", b"2.50"),
        ("/a/b/2/c", b"1e400"),
        ("/x~1y", b"1"),
        ("/m~0n", b"2"),
        ("/", b"3"),
        ("/n", b"null"),
        ("/0", b"4"),
    ],
)
def test_a_pointer_leads_to_a_value_as_it_was_written(pointer, value):
    assert msgspec.json.encode(pick(read_arguments(TEXT).value, pointer)) == value


def test_the_empty_pointer_is_everything():
    value = read_arguments(TEXT).value
    assert pick(value, "") is value


NOWHERE = ["a", "/b", "/a/b/3", "/a/b/-", "/a/b/00", "/a/b/-1", "/a/b/²", "/x/y", "/n/x"]


@pytest.mark.parametrize("pointer", [*NOWHERE, f"/a/b/{'9' * 5_000}"], ids=range(10))
def test_a_pointer_to_nothing_says_so(pointer):
    with pytest.raises(ArgumentsError, match=r"nothing at|begin it with /"):
        pick(read_arguments(TEXT).value, pointer)


def test_a_fallback_gets_what_its_mapping_takes():
    mapping = {"q": "/a/b/1", "all": "/a", "fixed": {"value": [True]}, "absent": "/nope"}
    built = map_arguments(read_arguments(TEXT), mapping)
    assert built == b'{"q":2.50,"all":{"b":[1,2.50,{"c":1e400}]},"fixed":[true]}'
    assert read_arguments(built).canonical
