"""Names: a pair of server and tool has one name under each spelling, and a name has one pair."""

import os
import random
import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_junction.protocol import names
from mcp_junction.protocol.names import (
    PLATFORM,
    STDIO,
    STRICT,
    Meanings,
    Pair,
    Spelling,
    assign,
)

BARE = Spelling(":", prefixed=False)
STRICT_BARE = Spelling("__", strict=True, max_length=64, prefixed=False)
SPELLINGS = (
    STDIO,
    PLATFORM,
    STRICT,
    BARE,
    STRICT_BARE,
    Spelling("/"),
    Spelling(""),
    Spelling("__"),
    Spelling("__", strict=True, max_length=45),
)
HOSTILE = [
    Pair("a", "b.c"),
    Pair("a.b", "c"),
    Pair("a", "b:c"),
    Pair("a:b", "c"),
    Pair("a", "b__c"),
    Pair("a__b", "c"),
    Pair("a_", "_b"),
    Pair("a", "_b"),
    Pair("a__", "b"),
    Pair("A", "b"),
    Pair("a", "b"),
    Pair("a", "B"),
    Pair("\u0430", "b"),  # Cyrillic
    Pair("\uff41", "b"),  # full width
    Pair("a", "\u202eb"),  # right-to-left override
    Pair("a", "b\u200b"),  # zero width
    Pair("a", "e\u0301"),
    Pair("a", "\u00e9"),
    Pair("../a", "b"),
    Pair("..", "a/b"),
    Pair("a", "../b"),
    Pair("", "a:b"),
    Pair("a", ""),
    Pair(" a", "b"),
    Pair("a", "b\n"),
    Pair("a" * 40, "b" * 40),
    Pair("a" * 40, "b" * 41),
    Pair("a" * 200, "b"),
]
PIECES = ["a", "b", "A", ".", ":", "__", "_", "-", "/", "../", "\u0430", "\u202e", "\u200b", "é"]


def check_one_to_one(pairs: list[Pair], spelling: Spelling) -> dict[str, Pair]:
    table = assign(pairs, spelling)
    assert list(table.values()) == pairs, "each pair has a name, in order"
    if spelling.strict:
        assert all(re.fullmatch("[A-Za-z0-9_-]*", name) for name in table)
    if spelling.max_length:
        assert max(map(len, table)) <= spelling.max_length
    return table


class Aliases:
    """The one pair that a name means, by its hash or else in some spelling."""

    def __init__(self, pairs: list[Pair], *spellings: Spelling) -> None:
        self.pairs = pairs
        self.meanings = Meanings(pairs, *spellings)

    def get(self, name: str) -> Pair | None:
        for found in (self.meanings.hashed(name), self.meanings.spelled(name)):
            if len(found) == 1:
                return self.pairs[found[0]]
        return None


def check_aliases(pairs: list[Pair], tables: list[dict[str, Pair]]) -> None:
    """A name that any client could have been shown leads to that tool, or nowhere."""
    others = Aliases(pairs, *SPELLINGS)
    for table in tables:
        for name, pair in table.items():
            assert others.get(name) in (None, pair)


@pytest.mark.req("S-06", "J-NAMES-TABLE", "EDGE-CONFLICT")
@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
@pytest.mark.parametrize("reverse", [False, True])
def test_hostile_pairs_have_a_name_each(spelling, reverse):
    check_one_to_one(HOSTILE[::-1] if reverse else HOSTILE, spelling)


@pytest.mark.req("S-06", "J-NAMES-ANY")
def test_hostile_pairs_are_never_reached_by_the_name_of_another():
    check_aliases(HOSTILE, [assign(HOSTILE, spelling) for spelling in SPELLINGS])


_words = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
_pairs = st.lists(st.builds(Pair, _words, _words), unique=True, min_size=1, max_size=8)


@pytest.mark.req("S-06")
@given(_pairs)
@example([Pair("a", "b.c"), Pair("a.b", "c")])
@example([Pair("a.b", "c"), Pair("a_b", "c"), Pair("a", "b__c")])
def test_random_pairs_and_names_are_one_to_one(pairs):
    tables = [check_one_to_one(pairs, spelling) for spelling in SPELLINGS]
    check_aliases(pairs, tables)


@pytest.mark.req("S-06", "J-NAMES-ANY")
@given(_pairs)
@example(HOSTILE)
def test_a_name_is_taken_apart_to_the_pairs_that_are_spelled_so(pairs):
    whole = [spelling for spelling in SPELLINGS if not spelling.max_length]
    whole += [Spelling("__", strict=True), Spelling("", strict=True, prefixed=False)]
    meant: dict[str, set[Pair]] = {}
    for spelling in whole:
        for pair in pairs:
            meant.setdefault(spelling.spell(pair), set()).add(pair)
    found = Meanings(pairs, *whole)
    for name, could_be in meant.items():
        assert {pairs[number] for number in found.spelled(name)} == could_be
    assert not found.spelled("nothing of that kind")


@pytest.mark.bulk
@pytest.mark.req("S-06")
def test_a_hundred_thousand_pairs_and_names_are_one_to_one():
    source = random.Random(6)
    word = [
        "".join(source.choices(PIECES, k=source.randint(1, 6)))
        + source.choice(["", "", str(source.randrange(500))])
        for _ in range(4000)
    ]
    pairs = list({Pair(source.choice(word), source.choice(word)): None for _ in range(106_000)})
    assert len(pairs) >= 100_000
    spellings = (STDIO, PLATFORM, STRICT, BARE)
    tables = [check_one_to_one(pairs, spelling) for spelling in spellings]
    others = Aliases(pairs)
    for table in tables[:3]:
        assert all(others.get(name) in (None, pair) for name, pair in table.items())


@pytest.mark.req("S-06", "J-NAMES-ANY")
def test_a_spelling_that_could_mean_two_tools_means_none_of_them():
    pairs = [Pair("a", "b.c"), Pair("a.b", "c")]
    table = Aliases(pairs)
    assert table.get("a.b.c") is None
    assert table.get("a:b.c") == pairs[0]
    assert table.get("a.b:c") == pairs[1]


@pytest.mark.req("J-NAMES-ANY")
def test_a_tool_is_found_under_every_spelling():
    table = Meanings([Pair("my server", "read.file")])
    spelled = {"my server:read.file", "my server.read.file", "my server__read.file"}
    assert all(table.spelled(name) for name in spelled | {"my_server__read_file"})
    assert not any(map(table.spelled, ["my server", "read.file", "my_server:read_file"]))


def test_case_makes_a_different_tool():
    table = Meanings([Pair("a", "b")])
    assert table.spelled("a:b")
    assert not table.spelled("A:b")


@pytest.mark.req("EDGE-CONFLICT")
def test_the_earlier_pair_keeps_the_plain_spelling():
    table = assign([Pair("a.b", "c"), Pair("a_b", "c")], STRICT)
    plain, hashed = table
    assert plain == "a_b__c"
    assert re.fullmatch("a_b__c_[0-9a-f]{8}", hashed)


@pytest.mark.req("S-06", "EDGE-CONFLICT")
def test_a_server_that_takes_the_hashed_names_first_only_moves_the_other_on():
    victim = Pair("victim", "search")
    taken = ["search", *(BARE.hashed("search", victim, attempt) for attempt in range(50))]
    pairs = [Pair("thief", name) for name in taken] + [victim]
    table = check_one_to_one(pairs, BARE)
    assert next(name for name, pair in table.items() if pair == victim) not in taken
    check_one_to_one(pairs, STRICT_BARE)


@pytest.mark.req("J-NAMES-PREFIX")
def test_without_a_prefix_equal_names_stay_apart():
    table = assign([Pair("a", "search"), Pair("b", "search"), Pair("b", "list")], BARE)
    assert table["search"] == Pair("a", "search")
    assert table["list"] == Pair("b", "list")
    (third,) = set(table) - {"search", "list"}
    assert re.fullmatch("search_[0-9a-f]{8}", third)
    assert table[third] == Pair("b", "search")


@pytest.mark.req("J-NAMES-LONG", "EDGE-CONFLICT")
def test_a_hash_is_the_same_in_every_run():
    """These are in people's allow-lists: a change of the hash is a change for users."""
    assert names.digest(Pair("files", "read")) == "f8abff59"
    assert STRICT.spell(Pair("s" * 50, "t" * 50)) == "s" * 50 + "__ttt_d7ee3071"


@pytest.mark.req("J-NAMES-LONG")
@given(st.text(max_size=80), st.text(max_size=80), st.integers(12, 64))
def test_a_long_name_is_cut_to_fit(server, tool, length):
    spelling = Spelling("__", strict=True, max_length=length)
    name = spelling.spell(Pair(server, tool))
    assert len(name) <= length
    assert re.fullmatch("[A-Za-z0-9_-]*", name)
    assert name == spelling.spell(Pair(server, tool))


@pytest.mark.req("J-NAMES-LONG")
def test_long_names_that_begin_alike_stay_apart():
    pairs = [Pair("server", "t" * 70 + str(n)) for n in range(100)]
    check_one_to_one(pairs, STRICT)


def test_the_tables_do_not_depend_on_the_order_of_a_set():
    program = (
        "from mcp_junction.protocol.names import *\n"
        "pairs = [Pair('a', 'b.c'), Pair('a.b', 'c'), Pair('a_b', 'c'), Pair('a', 'b__c')]\n"
        "print([list(Meanings(pairs).spelled(name)) for name in ('a.b.c', 'a_b__c', 'a__b__c')])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


# -- which spelling for whom

STRICT_CLIENTS = [
    "claude-ai",
    "claude-desktop",
    "claude-code",
    "anthropic",
    "codex",
    "openai",
    "cursor",
    "vscode",
    "visual studio code",
    "github-copilot",
    "copilot",
    "windsurf",
    "gemini",
]


@pytest.mark.req("J-NAMES-CLIENT")
@pytest.mark.parametrize("client", STRICT_CLIENTS)
@pytest.mark.parametrize("form", ["{}", "{}-vscode 1.2", "{}/mcp"])
def test_a_client_known_to_be_strict_is_given_strict_names(client, form):
    for said in (form.format(client), form.format(client).upper(), form.format(client).title()):
        spelling = names.spelling_for(said, STDIO)
        assert spelling.strict
        assert 0 < spelling.max_length <= 64
        assert spelling.spell(Pair("my files", "read")) == "my_files__read"


SEEN_IN_THE_WILD = [
    "Zed",
    "Cline",
    "Roo Code",
    "Kilo-Code",
    "goose",
    "goose-desktop",
    "opencode",
    "crush",
    "@librechat/api-client",
    "continue-client",
    "continue-cli-client",
    "@langchain/mcp-adapters",
    "@n8n/n8n-nodes-langchain.mcpClientTool",
    "ChatGPT",
    "Mistral",
    "Cherry Studio",
    "lobehub-mcp-client",
    "Jan-Streamable-Client",
    "lm-studio",
    "antigravity-client",
    "amp-mcp-client",
    "factory-cli",
    "q-cli",
    "Q-DEV-CLI",
    "warp",
    "JetBrains-IU/copilot-intellij",
    "Xcode-copilot-xcode",
    "Code - OSS",
    "local-agent-mode-files",
    "codex-mcp-client (via mcp-remote 0.1.37)",
    "spring-ai-mcp-client",
    "ai-sdk-mcp-client",
]
"""What clients that pass names on to a model's API call themselves in ``initialize``."""


@pytest.mark.req("J-NAMES-CLIENT")
@pytest.mark.parametrize("client", SEEN_IN_THE_WILD)
def test_a_client_that_passes_names_to_a_model_is_given_strict_names(client):
    assert names.spelling_for(client, STDIO).strict


@pytest.mark.req("J-NAMES-CLIENT")
@pytest.mark.parametrize(
    "client", ["", "inspector", "my-claude-ai", "x codex", "mcp", "roots-test", "January"]
)
def test_any_other_client_is_given_the_preferred_spelling(client):
    assert names.spelling_for(client, STDIO) is STDIO


@pytest.mark.req("J-NAMES-PREFIX")
def test_a_strict_client_without_prefixes_gets_strict_names_without_prefixes():
    spelling = names.spelling_for("claude-ai", BARE)
    assert spelling.spell(Pair("files", "read.it")) == "read_it"


@pytest.mark.req("US2-3", "EDGE-KEYS", "FR-004")
@pytest.mark.parametrize("key", ["my files", "ключ", "a:b", "../x", "日本", "😀", 'q"uote', "-"])
def test_a_key_stands_in_the_name_exactly_as_written(key):
    assert STDIO.spell(Pair(key, "read")) == f"{key}:read"
    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", STRICT.spell(Pair(key, "read")))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_name_that_is_taken_is_given_to_nobody(spelling):
    plain = assign(HOSTILE, spelling)
    taken = set(list(plain)[::3])
    table = assign(HOSTILE, spelling, taken)
    assert not taken & set(table)
    assert list(table.values()) == HOSTILE
    assert {name for name in plain if name not in taken} & set(table)


@pytest.mark.parametrize("key", ["files", "my.files", "a b", "ä"])
def test_a_name_begins_as_those_of_its_server_do(key):
    begins = names.name_prefixes(key)
    for spelling in (names.STDIO, names.PLATFORM, names.STRICT):
        assert spelling.spell(Pair(key, "read")).startswith(begins)
    assert not "other:read".startswith(begins)
