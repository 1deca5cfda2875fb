"""Calls that are no longer wanted: the server that runs them is told, and nothing remains."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.plugin_faults import Figures, Rig

from mcp_junction.testing.client import LineClient, key
from mcp_junction.testing.history import Ledger
from mcp_junction.testing.processes import until

pytestmark = pytest.mark.preloaded

PROMISED = 0.2
BESIDE_OTHERS = 5.0  # a short run shares its machine with other tests


@dataclass(frozen=True)
class Amount:
    points: int
    times: int
    bound: float


SHORT = Amount(points=12, times=20, bound=BESIDE_OTHERS)
LONG = Amount(points=50, times=200, bound=PROMISED)
SPAN = 0.03  # seconds between a call and the latest moment of its cancellation


def run_ids(ledger: Ledger) -> dict[str, object]:
    """The id under which the server ran each nonce."""
    return {entry["nonce"]: entry["id"] for entry in ledger.entries("run")}


def cancels(ledger: Ledger) -> dict[str, float]:
    """When the server saw the cancellation of each id."""
    return {key(entry["id"]): entry["at"] for entry in ledger.entries("cancel")}


@pytest.mark.req("F-10", "R-ANSWER")
@pytest.mark.parametrize("obeys", [True, False], ids=["obeyed", "ignored"])
@pytest.mark.parametrize(
    "amount",
    [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)],
)
def test_a_cancelled_call_is_cancelled_at_its_server_and_not_answered(
    rig: Rig, figures: Figures, amount: Amount, obeys: bool
) -> None:
    rig.add("led", *([] if obeys else ["--ignore-cancel"]))
    client = rig.start()
    cancelled: dict[str, tuple[str, float]] = {}  # id -> nonce, when
    wanted: dict[str, str] = {}
    late = round(1000 * SPAN * 2 / 3)
    for point in range(amount.points):
        for turn in range(amount.times):
            nonce = f"{point}.{turn}"
            frame_id = client.call("led:record", nonce=nonce, delay_ms=late)
            if turn % 10 == 9:
                wanted[key(frame_id)] = nonce
                continue
            due = client.asked[key(frame_id)] + SPAN * point / amount.points
            while time.monotonic() < due:  # the point of this cancellation
                time.sleep(0.0002)
            cancelled[key(frame_id)] = (nonce, time.monotonic())
            client.cancel(frame_id)
    client.wait(lambda: all(client.answers[i] for i in wanted), 30, "the calls that are wanted")
    # What the server answers late comes before its answer to this, if it comes at all.
    client.result("led:record", nonce="last", delay_ms=2 * late)
    runs, seen = run_ids(rig.ledger()), cancels(rig.ledger())
    slowest, answered, never_ran = 0.0, 0, 0
    for frame_id, (nonce, when) in cancelled.items():
        told = seen.pop(key(runs[nonce]), None) if nonce in runs else None
        if nonce not in runs:
            never_ran += 1
            assert client.answers[frame_id] == []
        elif told is None:
            answered += 1  # the answer was there first
            assert len(client.answers[frame_id]) == 1
        else:
            slowest = max(slowest, told - when)
            assert client.answers[frame_id] == []
    assert seen == {}, "something was cancelled that nobody cancelled"
    for frame_id, nonce in wanted.items():
        (answer,) = client.answers[frame_id]
        assert answer.frame["result"]["structuredContent"] == {"nonce": nonce}
    figures(cancels=len(cancelled), slowest=slowest, answered_first=answered, never_ran=never_ran)
    assert answered < len(cancelled)
    assert slowest < amount.bound
    assert client.end() == 0


@pytest.mark.req("F-10")
def test_a_call_cancelled_in_one_breath_with_it_never_reaches_its_server(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    params = {"name": "led:record", "arguments": {"nonce": "n"}}
    call = {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": params}
    cancel = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": "x"},
    }
    client.send(json.dumps(call).encode() + b"\n" + json.dumps(cancel).encode() + b"\n")
    client.result("led:record", nonce="next")
    assert rig.ledger().runs() == {"next": 1}
    assert client.answers[key("x")] == []


@pytest.mark.req("F-10")
def test_a_cancellation_of_another_kind_of_id_cancels_nothing(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    as_number = client.call("led:record", frame_id=77, nonce="number", delay_ms=500)
    as_text = client.call("led:record", frame_id="77", nonce="text", delay_ms=500)
    until(lambda: rig.ledger().runs().total() == 2, 30, "both to run")
    for other in ("78", 78, 77.5, None, [77], "seventy-seven"):
        client.cancel(other)
    client.cancel("77")
    assert client.answer(as_number)["result"]["structuredContent"] == {"nonce": "number"}
    client.result("led:record", nonce="after", delay_ms=600)
    assert client.answers[key(as_text)] == []
    assert list(cancels(rig.ledger())) == [key(run_ids(rig.ledger())["text"])]


Moment = Callable[[LineClient, Rig], None]
Way = Callable[[LineClient], None]


def in_the_air(client: LineClient, rig: Rig) -> None:
    client.call("led:record", nonce="hangs", fault="hang")
    until(lambda: rig.ledger().runs()["hangs"] == 1, 30, "the call to run")


def just_called(client: LineClient, rig: Rig) -> None:
    for number in range(100):
        client.call("led:record", nonce=f"n{number}", delay_ms=60_000)


def between_answers(client: LineClient, rig: Rig) -> None:
    for number in range(300):
        client.call("led:record", nonce=f"n{number}", delay_ms=number, size=20_000)
    client.wait(lambda: len(client.answers) > 50, 30, "some answers")


def being_asked(client: LineClient, rig: Rig) -> None:
    question = '{"jsonrpc":"2.0","id":"q","method":"roots/list"}\n'
    client.call("led:say", nonce="asks", text=question)
    client.wait(
        lambda: any(o.get("method") == "roots/list" for o in client.others), 30, "a question"
    )


def listing(client: LineClient, rig: Rig) -> None:
    for _ in range(50):
        client.request("tools/list")


def not_yet_opened(client: LineClient, rig: Rig) -> None:
    client.request("ping")


MOMENTS = [in_the_air, just_called, between_answers, being_asked, listing, not_yet_opened]


def hangs_up(client: LineClient) -> None:
    client.hang_up()


def dies_with_half_a_line(client: LineClient) -> None:
    client.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"led:rec')
    client.hang_up()


@pytest.mark.req("F-10", "R-ORPHANS")
@pytest.mark.parametrize("way", [hangs_up, dies_with_half_a_line])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("times", "bound"),
    [
        pytest.param(1, BESIDE_OTHERS, id="short"),
        pytest.param(50, PROMISED, id="long", marks=pytest.mark.soak),
    ],
)
def test_a_client_that_goes_takes_its_calls_and_the_gateway_with_it(
    rig: Rig, figures: Figures, moment: Moment, way: Way, times: int, bound: float
) -> None:
    rig.settings["drain_ms"] = 60_000  # what is for nobody is not waited for
    rig.add("led")
    slowest, longest = 0.0, 0.0
    for _ in range(times):
        rig.file("led").unlink(missing_ok=True)
        client = rig.start(opened=False)
        if moment is not not_yet_opened:
            client.open(capabilities={"roots": {}})
            client.tools()
        moment(client, rig)
        began = time.monotonic()
        way(client)
        assert client.wait_ended(20) == 0
        longest = max(longest, time.monotonic() - began)
        until(lambda: not rig.processes(), 10, "the servers to be gone")
        if moment in (in_the_air, just_called):
            told = cancels(rig.ledger())
            assert told.keys() == {key(i) for i in run_ids(rig.ledger()).values()}
            slowest = max([slowest, *(at - began for at in told.values())])
    figures(slowest_cancel=slowest, longest_end=longest)
    assert slowest < bound


@pytest.mark.req("F-10", "R-ANSWER")
def test_at_the_end_of_its_input_what_runs_is_finished_and_answered(rig: Rig) -> None:
    rig.add("led")
    client = rig.start()
    asked = {
        client.call("led:record", nonce=f"n{number}", delay_ms=500 + number): f"n{number}"
        for number in range(50)
    }
    client.close_input()
    for frame_id, nonce in asked.items():
        assert client.answer(frame_id)["result"]["structuredContent"] == {"nonce": nonce}
    assert client.wait_ended() == 0
    assert cancels(rig.ledger()) == {}
