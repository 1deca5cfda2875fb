"""The demo server ``clock``."""

import zoneinfo
from datetime import datetime, timedelta

import pytest

needs_zones = pytest.mark.skipif(
    not zoneinfo.available_timezones(), reason="this machine has no time-zone database"
)


def countdown(peer, seconds, token=None):
    params = {"name": "countdown", "arguments": {"seconds": seconds}}
    if token is not None:
        params["_meta"] = {"progressToken": token}
    return peer.ask("tools/call", params)


def token_of(message):
    return message.get("params", {}).get("progressToken")


@pytest.mark.parametrize(
    ("zone", "offset"),
    [("UTC", 0), ("utc", 0), ("Z", 0), ("+05:30", 330), ("-0330", -210), ("UTC+9", 540)],
)
def test_now_is_told_in_the_zone_asked_for(clock, zone, offset):
    told = clock.call("now", timezone=zone)["structuredContent"]
    moment = datetime.fromisoformat(told["time"])
    assert moment.utcoffset() == timedelta(minutes=offset)
    assert told["weekday"] == moment.strftime("%A")
    assert told["timezone"] == zone


def test_now_is_utc_unless_a_zone_is_given(clock):
    told = clock.call("now")["structuredContent"]
    assert told["timezone"] == "UTC"
    assert told["time"].endswith("+00:00")


def test_a_time_is_converted_between_offsets(clock):
    arguments = {"time": "2026-01-15T23:00", "from": "UTC", "to": "+05:30"}
    told = clock.call("convert", **arguments)["structuredContent"]
    assert told["from"]["time"] == "2026-01-15T23:00:00+00:00"
    assert told["to"] == {
        "time": "2026-01-16T04:30:00+05:30",
        "weekday": "Friday",
        "timezone": "+05:30",
    }


@needs_zones
def test_a_time_is_converted_between_named_zones(clock):
    arguments = {"time": "2026-07-01T09:00", "from": "Europe/Paris", "to": "Asia/Tokyo"}
    told = clock.call("convert", **arguments)["structuredContent"]
    assert told["to"]["time"] == "2026-07-01T16:00:00+09:00"


@pytest.mark.parametrize("time", ["9:05", "09:05", "09:05:00"])
def test_a_time_without_a_date_is_of_today(clock, time):
    arguments = {"time": time, "from": "UTC", "to": "+01:00"}
    told = clock.call("convert", **arguments)["structuredContent"]
    assert told["to"]["time"].endswith("T10:05:00+01:00")


@pytest.mark.parametrize(
    ("time", "words"),
    [
        ("noonish", "write '14:30'"),
        ("25:00", "write '14:30'"),
        ("14:30+02:00", "leave it out"),
        ("0001-01-01T00:00", "calendar"),
    ],
)
def test_a_time_that_cannot_be_meant_is_explained(clock, time, words):
    arguments = {"time": time, "from": "+14:00", "to": "-12:00"}
    assert words in clock.complaint("convert", **arguments)


@needs_zones
def test_an_hour_that_the_clocks_skip_is_not_invented(clock):
    arguments = {"time": "2026-03-29T02:30", "from": "Europe/Berlin", "to": "UTC"}
    assert "clocks go forward" in clock.complaint("convert", **arguments)


@needs_zones
@pytest.mark.parametrize(
    ("zone", "near"),
    [
        ("Tokyo", "Asia/Tokyo"),
        ("europe/berlin ", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("Europe/Berln", "Europe/Berlin"),
    ],
)
def test_an_unknown_zone_is_answered_with_the_nearest(clock, zone, near):
    assert near in clock.complaint("now", timezone=zone)


@pytest.mark.parametrize("zone", ["", "../../etc/passwd", "/etc/passwd", "Europe", "+99", "a\0b"])
def test_what_is_not_a_zone_is_refused(clock, zone):
    assert "Unknown time zone" in clock.complaint("now", timezone=zone)


@pytest.mark.parametrize("token", ["token", 7, 0])
def test_a_countdown_reports_every_second_and_then_answers(start, token):
    peer = start("clock")
    *reports, answer = peer.receive_until(countdown(peer, 2, token))
    assert [report["method"] for report in reports] == ["notifications/progress"] * 2
    assert [report["params"] for report in reports] == [
        {"progressToken": token, "progress": 1, "total": 2, "message": "1 s to go"},
        {"progressToken": token, "progress": 2, "total": 2, "message": "0 s to go"},
    ]
    assert answer["result"]["content"][0]["text"] == "Counted down 2 s."


def test_a_countdown_nobody_follows_is_silent(start):
    peer = start("clock")
    assert len(peer.receive_until(countdown(peer, 1))) == 1


@pytest.mark.parametrize("seconds", [0, 31, 1.5, "3", True, None])
def test_a_countdown_takes_one_to_thirty_whole_seconds(clock, seconds):
    assert "'seconds' must be" in clock.complaint("countdown", seconds=seconds)


def test_other_requests_are_answered_during_a_countdown(start):
    peer = start("clock")
    countdown(peer, 30)
    assert peer.result("ping") == {}
    assert "isError" not in peer.call("now")


def test_countdowns_run_side_by_side(start):
    peer = start("clock")
    countdown(peer, 30)
    short = countdown(peer, 1)
    assert peer.receive()["id"] == short


def test_nothing_is_heard_of_a_cancelled_countdown(start):
    peer = start("clock")
    cancelled = countdown(peer, 30, "cancelled")
    assert token_of(peer.receive()) == "cancelled"
    peer.notify("notifications/cancelled", {"requestId": cancelled, "reason": "enough"})
    peer.receive_until(peer.ask("ping"))
    later = peer.receive_until(countdown(peer, 2, "next"))
    assert {token_of(message) for message in later[:-1]} == {"next"}
    assert all(message.get("id") != cancelled for message in later)


def test_an_id_under_way_cannot_be_used_again(start):
    peer = start("clock")
    id = countdown(peer, 30)
    params = {"name": "countdown", "arguments": {"seconds": 1}}
    peer.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    assert peer.receive()["error"]["code"] == -32600


def test_there_is_an_end_to_how_many_countdowns_it_runs(start):
    peer = start("clock")
    for _ in range(64):
        countdown(peer, 30)
    assert "try again" in peer.complaint("countdown", seconds=30)


def test_the_end_of_input_ends_a_countdown_without_an_answer(start):
    peer = start("clock")
    countdown(peer, 30)
    assert peer.result("ping") == {}
    assert peer.end() == (0, "")
