"""Exchange: who waits for which answer, whatever the server writes."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.upstream.dialogue import Dialogue, Listening, failure

from mcp_junction.policy.principal import LOCAL_OWNER
from mcp_junction.protocol.lines import LineReader, Overlong
from mcp_junction.protocol.versions import INTERNAL_ERROR, LINK_LOST
from mcp_junction.upstream import outcome as outcomes
from mcp_junction.upstream.flight import FlightState, new_flight
from mcp_junction.upstream.outcome import Delivery, OutcomeKind


@pytest.fixture
async def talk() -> Dialogue:
    return Dialogue()


# -- answers


async def test_a_flight_is_written_as_one_request(talk):
    flight = talk.fly()
    assert talk.written() == [
        {"jsonrpc": "2.0", "id": int(flight.wire_id), "method": "tools/call", "params": {}}
    ]
    assert flight.state is FlightState.WRITTEN


@pytest.mark.req("F-12")
@given(order=st.permutations(range(8)))
async def test_answers_in_any_order_reach_the_flights_they_belong_to(order):
    talk = Dialogue()
    flights = [talk.fly() for _ in range(8)]
    for number in order:
        talk.answer(flights[number], b'{"n":%d}' % number)
    assert [json.loads(bytes(flight.future.result().payload))["n"] for flight in flights] == list(
        range(8)
    )
    assert len(talk.multiplexer) == 0


@pytest.mark.req("F-12")
async def test_no_two_flights_of_the_process_have_one_id():
    ids = [Dialogue().fly().wire_id for _ in range(100)]
    assert len(set(ids)) == 100


async def test_an_answer_that_cannot_be_adapted_fails_its_call_and_not_the_link(talk):
    """The lines behind it are read, too."""

    def refuse(caller, outcome):
        raise ValueError("not this one")

    one, two = talk.fly(), talk.fly()
    one.adapt = two.adapt = refuse
    talk.hear(b'{"jsonrpc":"2.0","id":%b,"error":{"code":-32002,"message":"?"}}' % one.wire_id)
    talk.answer(two, b'{"n":2}')
    with pytest.raises(ValueError, match="not this one"):
        await one.future
    # What a handshake server answers is given its envelope by the listener.
    assert bytes((await two.future).payload) == b'{"n":2}'


async def test_a_batch_is_taken_message_by_message(talk):
    """Servers of 2025-03-26 may write one."""
    one, two = talk.fly(), talk.fly()
    said = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    good = b'{"jsonrpc":"2.0","id":%b,"result":{"x" : 1.0}}' % one.wire_id
    bad = b'{"jsonrpc":"2.0","id":%b,"result":{"x":"\xff"}}' % two.wire_id
    talk.hear(b"[ %b, 5, [%b], %b ]" % (said, good, good))
    assert [frame.method for frame in talk.ear.heard_frames] == ["notifications/tools/list_changed"]
    assert bytes(one.future.result().payload) == b'{"x" : 1.0}'
    assert talk.multiplexer.noise == 2
    talk.hear(b"[%b]" % bad)
    assert two.future.result().delivery is Delivery.EXECUTED


async def test_the_first_noise_is_kept_unless_it_is_very_long(talk):
    for line in (b"x" * 5000, b"Usage: server KEY", b"[12:00] ready", b'{"level":"info"}'):
        talk.hear(line)
    assert (talk.multiplexer.noise, talk.multiplexer.stray) == (4, b"Usage: server KEY")


async def test_an_answer_behind_other_text_is_not_taken_and_that_is_said_once(talk, caplog):
    flight = talk.fly()
    for _ in range(2):
        talk.hear(b'loading... {"jsonrpc":"2.0","id":%b,"result":{}}' % flight.wire_id)
    assert not flight.future.done()
    assert caplog.text.count("server 's' writes other text to stdout in a line with a frame") == 1


async def test_a_program_that_sends_back_what_it_is_sent_is_told_from_a_server(talk):
    flight = talk.fly("initialize")
    talk.hear(talk.wire[-1])
    assert failure(flight)["message"] == "it sends back what it is sent: it is no MCP server"


@pytest.mark.parametrize(
    "line", [b"[12:00] ready", b"[]", b"[{", b"[{}", b'[{"a":1}] x', b"[[{}]]"]
)
async def test_what_only_begins_like_a_batch_is_noise(talk, line):
    flight = talk.fly()
    talk.hear(line)
    assert talk.multiplexer.noise == 1
    assert not flight.future.done()


async def test_a_large_batch_is_taken_and_one_of_too_many_is_told_of(talk, caplog):
    flights = [talk.fly() for _ in range(1000)]
    answers = [b'{"jsonrpc":"2.0","id":%b,"result":{}}' % flight.wire_id for flight in flights]
    talk.hear(b"[%b]" % b",".join([*answers, b"1"]))
    assert talk.multiplexer.noise == 1
    assert "a batch was not read: a batch may hold 1000 messages" in caplog.text
    talk.hear(b"[%b]" % b",".join(answers))
    assert all(flight.future.done() for flight in flights)


@pytest.mark.req("R-ISOLATE")
async def test_lines_that_are_not_read_do_not_flood_the_log(talk, caplog):
    for _ in range(500):
        talk.hear(b"[%b]" % b",".join([b"{}"] * 1001))
        talk.hear(Overlong(b"x", b"y", 2000, 1000))
    assert talk.multiplexer.warnings == 1000
    assert len(caplog.records) == 21
    assert "more lines like this are not told of" in caplog.text


@pytest.mark.req("FR-008", "US3-2")
async def test_results_and_errors_pass_as_they_were_written(talk):
    one, two = talk.fly(), talk.fly()
    talk.hear(b'{"result": {"x" : 1.0} ,"jsonrpc":"2.0","id":%b}' % one.wire_id)
    talk.hear(b'{"jsonrpc":"2.0","id":%b,"error":{"code":1e2,"x":-0}}' % two.wire_id)
    assert bytes(one.future.result().payload) == b'{"x" : 1.0}'
    assert one.future.result().kind is OutcomeKind.RESULT
    assert bytes(two.future.result().payload) == b'{"code":1e2,"x":-0}'
    assert (two.future.result().kind, two.future.result().delivery) == (OutcomeKind.ERROR, None)


async def test_a_notice_of_ours_is_written_as_one_frame(talk):
    talk.multiplexer.notify("notifications/initialized")
    assert talk.written() == [{"jsonrpc": "2.0", "method": "notifications/initialized"}]


async def test_an_answer_to_nothing_is_dropped(talk):
    flight = talk.fly()
    for frame_id in (b"0", b'"%b"' % flight.wire_id, b"999999999", b'"x"'):
        talk.hear(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % frame_id)
    talk.hear(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}')
    assert not flight.future.done()
    assert len(talk.multiplexer) == 1


async def test_the_second_answer_to_a_flight_is_dropped(talk):
    flight = talk.fly()
    talk.answer(flight, b'{"n":1}')
    talk.answer(flight, b'{"n":2}')
    assert bytes(flight.future.result().payload) == b'{"n":1}'


# -- cancelling


@pytest.mark.req("F-10")
async def test_a_cancelled_flight_is_told_to_the_server_once_and_its_answer_dropped(talk):
    flight = talk.fly()
    talk.written()
    cancelled = outcomes.cancelled("enough", flight.delivery)
    flight.link = talk.multiplexer
    flight.abandon(cancelled, 'enough "\n')
    flight.abandon(cancelled, "again")
    (notice,) = talk.written()
    assert notice["method"] == "notifications/cancelled"
    assert notice["params"] == {"requestId": int(flight.wire_id), "reason": 'enough "\n'}
    talk.answer(flight)
    assert flight.future.result() is cancelled
    assert cancelled.delivery is Delivery.UNKNOWN


@pytest.mark.req("F-10")
async def test_a_flight_that_has_landed_is_not_cancelled(talk):
    flight = talk.fly()
    talk.answer(flight)
    talk.written()
    flight.link = talk.multiplexer
    flight.abandon(outcomes.cancelled("late", flight.delivery), "late")
    talk.multiplexer.cancel(flight, "late")
    assert talk.written() == []
    assert flight.future.result().kind is OutcomeKind.RESULT


async def test_a_flight_that_was_never_sent_says_so():
    flight = new_flight("tools/call")
    assert flight.delivery is Delivery.NOT_SENT
    flight.abandon(outcomes.cancelled("early", flight.delivery), "early")
    assert flight.future.result().delivery is Delivery.NOT_SENT


# -- answers that cannot be used


@pytest.mark.req("R-ANSWER")
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":%b,"result":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":%b,"result":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","id":%b,"result":{"a":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":%b,"result":{"a":"cut',
        b'{"jsonrpc":"2.0","id":%b,"result":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"result":{"items":[{"id":1},{"id":2}],"bad":NaN},"jsonrpc":"2.0","id":%b}',
        b'{"jsonrpc":"2.0","id":%b,"error":"boom"}',
        b'{"jsonrpc":"2.0","id":%b,"error":null}',
        b'{"jsonrpc":"2.0","id":%b}',
    ],
)
async def test_an_answer_that_cannot_be_used_fails_its_call_as_executed(talk, line):
    bystander, flight = talk.fly(), talk.fly()
    talk.hear(line % flight.wire_id)
    error = failure(flight)
    assert error["code"] == INTERNAL_ERROR
    assert error["data"] == {"delivery": "executed", "server": "s"}
    assert not bystander.future.done()
    talk.answer(bystander)
    assert bystander.future.result().kind is OutcomeKind.RESULT


@pytest.mark.req("R-ANSWER", "F-07")
@pytest.mark.parametrize(
    "shape",
    [
        b'{"jsonrpc":"2.0","id":%b,"result":{"t":"%b"}}\n',
        b'{"result":{"items":[{"id":1}],"t":"%b"},"jsonrpc":"2.0","id":%b}\n',
    ],
)
async def test_an_overlong_answer_fails_its_call_as_executed(talk, shape):
    flight, filler = talk.fly(), b"x" * 20_000
    first = (flight.wire_id, filler) if shape.startswith(b'{"jsonrpc') else (filler, flight.wire_id)
    (line,) = LineReader(10_000).feed(shape % first)
    talk.multiplexer.receive(line)
    error = failure(flight)
    assert error["data"]["delivery"] == "executed"
    assert "over the limit of 10000 on a line (max_line_bytes)" in error["message"]


async def test_an_overlong_line_of_nobodys_is_reported(talk, caplog):
    (line,) = LineReader(100).feed(b"x" * 200 + b"\n")
    talk.multiplexer.receive(line)
    assert "a line of 200 bytes is over the limit of 100" in caplog.text


# -- what is no frame


@pytest.mark.req("F-06")
@pytest.mark.parametrize(
    "line",
    [
        b"starting up...",
        b'{"level":"info","msg":"hello"}',
        b"{not json}",
        b"[1,2,3]",
        b"\xff\xfe",
        b"null",
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":[1]}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}',
        b"\xef\xbb\xbf" * 5000 + b"x",
    ],
)
async def test_noise_is_counted_and_harms_nobody(talk, line, caplog):
    caplog.set_level(logging.INFO)
    flight = talk.fly()
    talk.hear(line)
    assert talk.multiplexer.noise == 1
    assert caplog.text == ""
    talk.answer(flight)
    assert flight.future.result().kind is OutcomeKind.RESULT


@pytest.mark.req("F-06")
async def test_a_log_record_that_has_an_id_is_not_taken_for_an_answer(talk):
    flight = talk.fly()
    talk.hear(b'{"id":%b,"level":"error","error":{"stack":"x"}}' % flight.wire_id)
    talk.hear(b'{"id":%b,"level":"error","error":{"stack":NaN}}' % flight.wire_id)
    assert talk.multiplexer.noise == 2
    assert not flight.future.done()


@pytest.mark.req("F-06")
async def test_a_byte_order_mark_before_a_frame_does_not_matter(talk):
    flight = talk.fly()
    talk.hear(b'\xef\xbb\xbf{"jsonrpc":"2.0","id":%b,"result":{}}' % flight.wire_id)
    assert flight.future.result().kind is OutcomeKind.RESULT


@given(line=st.binary(max_size=80))
async def test_any_bytes_are_survived(line):
    talk = Dialogue()
    flight = talk.fly()
    talk.hear(line)
    talk.hear(b'{"id":1,' + line)
    talk.hear(b'{"jsonrpc":"2.0","method":"' + line)
    talk.answer(flight)
    assert flight.future.done()
    await talk.multiplexer.close("done")


# -- what a server says before it answers


async def test_progress_goes_to_the_call_whose_token_it_carries(talk):
    one, two = Listening(), Listening()
    first, _ = talk.fly(caller=one), talk.fly(caller=two)
    talk.hear(
        b'{"jsonrpc":"2.0","method":"notifications/progress",'
        b'"params":{"progressToken":%b,"progress":0.5,"message":"half"}}' % first.wire_id
    )
    (report,) = one.reports
    assert (report["progress"], report["message"]) == (0.5, "half")
    assert two.reports == []
    assert talk.ear.heard_frames == [], "it is nobody else's"


@pytest.mark.parametrize("token", [b"999999999", b'"x"', b"null", b"{}"])
async def test_progress_of_nobody_is_dropped(talk, token):
    caller = Listening()
    talk.fly(caller=caller)
    talk.hear(
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b}}' % token
    )
    talk.hear(b'{"jsonrpc":"2.0","method":"notifications/progress"}')
    assert caller.reports == []


async def test_progress_after_the_answer_is_dropped(talk):
    caller = Listening()
    flight = talk.fly(caller=caller)
    talk.answer(flight)
    talk.hear(
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%b}}'
        % flight.wire_id
    )
    assert caller.reports == []


async def test_every_other_notification_goes_to_the_ear(talk):
    talk.multiplexer.users.note(LOCAL_OWNER)
    talk.hear(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    talk.hear(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}')
    assert [frame.method for frame in talk.ear.heard_frames] == [
        "notifications/tools/list_changed",
        "notifications/message",
    ]


# -- the end


@pytest.mark.req("R-ANSWER", "EDGE-CRASH")
async def test_when_the_link_is_gone_every_flight_ends_unknown(talk):
    flights = [talk.fly() for _ in range(5)]
    talk.answer(flights[0])
    await talk.multiplexer.close("it exited with code 1")
    assert flights[0].future.result().kind is OutcomeKind.RESULT
    for flight in flights[1:]:
        error = failure(flight)
        assert error["code"] == LINK_LOST
        assert error["data"] == {"delivery": "unknown", "server": "s"}
        assert "exited with code 1" in error["message"]
    assert len(talk.multiplexer) == 0
