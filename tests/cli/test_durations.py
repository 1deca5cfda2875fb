"""Times and limits as people write them on the command line."""

from datetime import UTC, datetime, timedelta

import pytest

from mcp_junction.cli.values import format_seconds, parse_duration, parse_limit, parse_moment
from mcp_junction.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_a_length_of_time_has_a_unit_or_is_in_seconds(text, seconds):
    assert parse_duration(text, "--ttl") == seconds


@pytest.mark.parametrize("text", ["", "m", "-5m", "1.5h", "5 m", "5y", "1e3", "9" * 10])
def test_anything_else_is_refused_by_the_name_of_its_option(text):
    with pytest.raises(UsageError, match="--ttl must be a time like 90s, 15m"):
        parse_duration(text, "--ttl")


def test_a_moment_is_a_time_from_now_or_a_date():
    at = datetime.fromisoformat(parse_moment("7d", "--expires"))
    assert abs(at - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=1)
    assert parse_moment("2027-01-31T12:00:00+02:00", "--expires") == "2027-01-31T10:00:00Z"
    assert parse_moment("2027-01-31T12:00:00Z", "--expires") == "2027-01-31T12:00:00Z"
    assert parse_moment("2027-01-31", "--expires").startswith("2027-01-3")
    with pytest.raises(UsageError, match="--expires must be like 7d, or a date"):
        parse_moment("tomorrow", "--expires")


@pytest.mark.parametrize("text", ["999999999w", "0001-01-01T00:00+14:00"])
def test_a_moment_off_the_calendar_is_refused(text):
    with pytest.raises(UsageError, match="--expires must be like 7d, or a date"):
        parse_moment(text, "--expires")


def test_a_limit_is_calls_in_a_time():
    assert parse_limit("100/3600", "--limit") == {"calls": 100, "per": 3600}
    assert parse_limit("100/1h", "--limit") == {"calls": 100, "per": 3600}
    for text in ("100", "/60", "100/", "a/b", "1.5/60", "-1/60"):
        with pytest.raises(UsageError, match="--limit must be CALLS/TIME"):
            parse_limit(text, "--limit")


@pytest.mark.parametrize(
    ("seconds", "text"), [(900, "15m"), (3600.0, "1h"), (86_400, "1d"), (90, "90s"), (0.5, "0.5s")]
)
def test_a_length_is_written_in_its_largest_whole_unit(seconds, text):
    assert format_seconds(seconds) == text
