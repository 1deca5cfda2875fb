"""CallRow: the short way of recording a call leaves the same row as the long one."""

import random

import msgspec
import pytest
from msgspec import Raw
from tests.calls.world import World

from mcp_junction.audit.chain import Chain
from mcp_junction.audit.checkpoints import Seals
from mcp_junction.calls import audit_rows
from mcp_junction.calls.audit_rows import CallRow, make_row
from mcp_junction.calls.call import NOTHING_CARRIED, Carried
from mcp_junction.calls.events import CallEnded
from mcp_junction.calls.stages.audit import CallAudit
from mcp_junction.policy.arguments import read_arguments
from mcp_junction.policy.decision import PolicyDecision
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.protocol import names
from mcp_junction.protocol.correlation import new_correlation_id
from mcp_junction.redaction.payloads import digest_params, summarize
from mcp_junction.redaction.texts import KNOWN
from mcp_junction.store.audit_records import AuditRow, is_whole_row
from mcp_junction.testing.link import FakeUpstream
from mcp_junction.upstream import outcome as outcomes

CHAINED = b"k" * 32
RESULTS = [
    b'{"content":[{"type":"text","text":"plain"}]}',
    '{"content":[{"type":"text","text":"é\u20ac"}]}'.encode() * 20,
    b'{"text":"password: hunter2"}',
    b'{"text":"it is X9-strong-value-Q7, strictly"}',
    b'{"text":"weakling"}',
    b'{"text":"a\0b"}',
    b"\xff\xfe",
    b"",
]
ADMIN = Principal("root", Role.ADMIN)
ALLOWED = PolicyDecision(True, "grant:7", "it is granted", "root", cached=True)
CALLS = {
    "plain": {},
    "undecided": {"decision": None},
    "without arguments": {"arguments": None},
    "a secret": {"arguments": Raw(b'{"password":"hunter2"}')},
    "a tool error": {"payload": b'{"content":[],"isError":true}'},
    "a resource": {"method": "resources/read", "payload": b'{"contents":[],"isError":true}'},
    "an outcome": {"intent": "0123:4"},
    "its own id": {"carried": {"correlation_id": "mine"}, "correlation_id": "mine"},
    "a ticket": {"carried": {"ticket_id": "T-1", "task_id": "t\0"}},
    "read arguments": {
        "read": read_arguments(Raw(b'{"b": 1, "a": [2], "token": "x"}')),
        "arguments": Raw(b'{"b": 1, "a": [2], "token": "x"}'),
    },
    "read fractions": {"read": read_arguments(Raw(b'{"b": 1, "a": [2.50]}'))},
    "an old id": {"correlation_id": "j00000000001-x-1"},
}


class Kept:
    """Takes what an AuditLog would."""

    def __init__(self) -> None:
        self.entries = []
        self.record = self.record_untrimmed = self.entries.append


@pytest.fixture
async def route():
    return World(FakeUpstream("s", ["t"])).snapshot.catalog.view(names.STDIO).find("s:t")


def ended(
    route, *, payload=b'{"content":[{"type":"text","text":"\xc3\xa9"}]}', attempts=2, **more
) -> CallEnded:
    said = more.pop("carried", None)
    carried = Carried(**said) if said else NOTHING_CARRIED
    given = {
        "method": "tools/call",
        "arguments": Raw(b'{"b": 1, "a": [2.50]}'),
        "decision": ALLOWED,
        "correlation_id": new_correlation_id(),
        "seconds": 0.25,
        **more,
    }
    return CallEnded(
        principal=ADMIN,
        name="s:t",
        route=route,
        is_own=False,
        outcome=outcomes.result(payload).counted(attempts, route.canonical),
        carried=carried,
        **given,
    )


@pytest.mark.parametrize("more", CALLS.values(), ids=CALLS)
def test_a_call_leaves_the_same_row_in_either_way(route, more):
    kept = Kept()
    audit, call = CallAudit(kept), ended(route, **more)
    audit.record(call)
    # Naming oneself changes nothing, but that it is not the usual way to call.
    named = msgspec.structs.replace(call.carried, agent_id=ADMIN.id)
    audit.record(msgspec.structs.replace(call, carried=named))
    short, long = kept.entries
    assert isinstance(short, CallRow)
    assert not isinstance(long, CallRow)
    (line, *found), (other, *also) = short.encode("w", 9), long.encode("w", 9)
    row, same = (msgspec.json.decode(each, type=AuditRow) for each in (line, other))
    assert row == msgspec.structs.replace(same, at=row.at)
    assert found == also
    assert (short.kind, short.actor, short.closes) == (long.kind, long.actor, long.closes)


def test_what_rows_share_is_kept_for_a_bounded_number_of_callers(route, monkeypatch):
    monkeypatch.setattr(audit_rows, "_subjects", {})
    for number in range(audit_rows._MAX_SUBJECTS + 1):
        call = msgspec.structs.replace(ended(route), principal=Principal(f"a{number}", Role.AGENT))
        line, key, *_ = make_row(call, 1.0).encode("w", number)
        assert msgspec.json.decode(line, type=AuditRow).actor == key[0] == f"a{number}"
    assert len(audit_rows._subjects) == 1


async def test_rows_that_are_looked_at_together_are_redacted_like_single_ones():
    upstream = FakeUpstream("s", ["t"], server_id="id-of-s")
    route = World(upstream).snapshot.catalog.view(names.STDIO).find("s:t")
    KNOWN.forget()
    KNOWN.learn_value("X9-strong-value-Q7")
    KNOWN.learn(upstream.definition._replace(env={"A_TOKEN": "weakling"}))
    chance, chain = random.Random(15), Chain(CHAINED, "w")
    try:
        for size in range(1, 80):
            payloads = chance.choices(RESULTS[: chance.randint(1, len(RESULTS))], k=size)
            calls = [
                ended(
                    route, payload=payload, attempts=1, read_tool_error=chance.choice([None, False])
                )
                for payload in payloads
            ]
            page = chain.extend([make_row(one, 1.0) for one in calls]).page
            assert [row.summary for row in page.rows()] == [
                summarize(payload, "id-of-s") for payload in payloads
            ]
            for secret in (b"hunter2", b"strong-value", b"weakling"):
                assert secret not in page.body
    finally:
        KNOWN.forget()


@pytest.mark.req("R-MEMORY")
def test_a_row_that_waits_for_its_page_holds_nothing_of_the_call(route):
    kept, arguments = Kept(), Raw(b'{"text":"%b"}' % (b"x" * 100_000))
    CallAudit(kept).record(ended(route, arguments=arguments))
    (row,) = kept.entries
    held = [value for value in msgspec.structs.astuple(row) if isinstance(value, bytes | Raw | str)]
    assert sum(map(len, held)) < 1_000
    assert row.digest == digest_params(bytes(arguments))


@pytest.fixture
def mixed(route):
    """Calls of three callers in turn, some of which have a label or fail."""
    chance = random.Random(4)
    callers = [Principal(f"caller-{number}", Role.AGENT) for number in range(3)]
    calls = []
    for number in range(60):
        made = ended(route, attempts=chance.choice([1, 1, 1, 2]), seconds=number / 8)
        own = {"principal": chance.choice(callers), "arguments": Raw(b'{"n": %d}' % number)}
        calls.append(msgspec.structs.replace(made, **own, read_tool_error=False))
    return calls


def rows_of(calls) -> list[CallRow]:
    return [make_row(call, 1.0 + number) for number, call in enumerate(calls)]


def test_rows_of_one_caller_are_short_and_read_as_they_would_be_alone(mixed):
    rows = rows_of(mixed)
    page = Chain(CHAINED, "w").extend(rows).page
    whole = [row.encode("w", seq)[0] for seq, row in enumerate(rows, 1)]
    assert list(page.rows()) == [msgspec.json.decode(line, type=AuditRow) for line in whole]
    short = [line for line in page.lines if not is_whole_row(line)]
    assert len(short) == sum(row.labels is None for row in rows) - 3
    assert max(map(len, short)) < 0.7 * min(map(len, whole))
    assert Seals(CHAINED).first_bad_row(page) is None


@pytest.mark.parametrize("wanted", ['"caller-1"', '"t"', '"grant:7"', '"s:t"', '"caller-9"', "id"])
def test_a_text_finds_the_rows_that_it_would_find_if_all_were_whole(mixed, wanted):
    rows = rows_of(mixed)
    if wanted == "id":
        wanted = f'"{rows[40].correlation_id}"'
    whole = [row.encode("w", seq)[0] for seq, row in enumerate(rows, 1)]
    page = Chain(CHAINED, "w").extend(rows).page
    texts = [wanted.encode(), b'"tools/call"']
    found = [row.seq for row in page.rows(texts)]
    assert found == [seq for seq, line in enumerate(whole, 1) if texts[0] in line]


def test_a_change_of_a_row_that_others_are_like_shows_in_that_row(mixed):
    page = Chain(CHAINED, "w").extend(rows_of(mixed)).page
    place = next(place for place, line in enumerate(page.lines) if b"caller-1" in line)
    body = page.body.replace(b'"caller-1"', b'"caller-2"')
    assert Seals(CHAINED).first_bad_row(msgspec.structs.replace(page, body=body)) == place + 1


@pytest.mark.parametrize("like", [b"-1", b"-2", b"1", b"60", b"x", b"9" * 30, b"9" * 5_000])
def test_a_row_that_is_like_none_is_left_out(mixed, like):
    page = Chain(CHAINED, "w").extend(rows_of(mixed[:2])).page
    line = b'[%s,1.0,null,null,2.5,"it says"]' % like
    changed = msgspec.structs.replace(page, body=page.body.split(b"\n")[0] + b"\n" + line)
    for texts in ([], [b"it says"]):
        assert [row.seq for row in changed.rows(texts)] == [1][len(texts) :]
