"""A server's health: from what was seen to a verdict."""

import pytest

from mcp_junction.health.verdict import (
    CallKind,
    HealthRecord,
    HealthVerdict,
    ProbeKind,
    ProbeResult,
)

GOOD, FAILED, NEUTRAL = CallKind
HEALTHY, DEGRADED, DEAD = HealthVerdict
FAILURES = [ProbeKind.SERVER_ERROR, ProbeKind.TIMEOUT, ProbeKind.UNREACHABLE]
WARNINGS = [ProbeKind.CLIENT_ERROR, ProbeKind.UNAUTHENTICATED]


def connected() -> HealthRecord:
    record = HealthRecord()
    record.note_connected()
    return record


def probes(record: HealthRecord, *kinds: ProbeKind) -> list[HealthVerdict]:
    return [record.add_probe(0.0, ProbeResult(kind, 0.1, f"said {kind}")) for kind in kinds]


def calls(record: HealthRecord, *kinds: CallKind) -> HealthVerdict:
    for kind in kinds:
        record.add_call(kind)
    return record.verdict


OK = ProbeKind.GOOD


@pytest.mark.parametrize("kind", FAILURES)
def test_one_failure_is_none_two_degrade_three_end(kind):
    record = connected()
    assert probes(record, kind, kind, kind) == [HEALTHY, DEGRADED, DEAD]
    assert record.failed_checks == 3
    assert record.facts().detail == f"said {kind}"


def test_failures_count_only_in_a_row():
    record, bad = connected(), ProbeKind.TIMEOUT
    assert probes(record, bad, OK, bad, OK, bad) == [HEALTHY] * 5
    assert probes(record, bad, OK, bad, bad, bad) == [DEGRADED] * 4 + [DEAD]


def test_two_good_checks_make_it_healthy_again():
    record, bad = connected(), ProbeKind.TIMEOUT
    probes(record, bad, bad)
    assert probes(record, OK, OK, bad) == [DEGRADED, HEALTHY, HEALTHY]


@pytest.mark.parametrize("kind", WARNINGS)
def test_a_warning_counts_for_nothing(kind):
    record, bad = connected(), ProbeKind.TIMEOUT
    assert set(probes(record, *[kind] * 9)) == {HEALTHY}
    assert record.facts().detail == f"said {kind}"
    assert probes(record, bad, kind, bad) == [HEALTHY, HEALTHY, DEGRADED], "nor for the better"
    assert probes(record, OK, kind, OK) == [DEGRADED, DEGRADED, HEALTHY]


def test_what_has_failed_is_healthy_only_after_a_new_connection():
    record, bad = connected(), ProbeKind.TIMEOUT
    probes(record, bad, bad, bad)
    assert probes(record, OK, OK, OK)[-1] is DEAD
    assert calls(record, *[GOOD] * 30) is DEAD
    record.note_connected()
    assert record.verdict is HEALTHY
    assert record.failed_checks == 0
    assert record.facts().detail == ""


def test_fewer_than_ten_calls_say_nothing():
    record = connected()
    assert calls(record, *[FAILED] * 9) is HEALTHY
    assert calls(record, FAILED) is DEGRADED
    assert record.facts().detail == "10 of its last 10 calls failed"


@pytest.mark.parametrize(("failed", "verdict"), [(10, HEALTHY), (11, DEGRADED)])
def test_more_than_a_fifth_of_the_last_fifty_degrades(failed, verdict):
    record = connected()
    calls(record, *[GOOD] * (50 - failed))
    assert calls(record, *[FAILED] * failed) is verdict
    assert record.error_rate == failed / 50


def test_only_the_last_fifty_count():
    record = connected()
    calls(record, *[GOOD] * 500, *[FAILED] * 10, *[GOOD] * 45)
    assert record.error_rate == 5 / 50
    assert calls(record, *[FAILED] * 5) is HEALTHY
    assert record.error_rate == 5 / 50


def test_twenty_good_calls_in_a_row_make_it_healthy_again():
    record = connected()
    assert calls(record, *[FAILED] * 10, *[GOOD] * 19, FAILED, *[GOOD] * 19) is DEGRADED
    assert calls(record, GOOD) is HEALTHY
    assert record.error_rate == 0, "the slate is clean: one failure does not bring it back"
    assert calls(record, FAILED) is HEALTHY


def test_good_calls_heal_what_checks_degraded_and_the_other_way_round():
    record, bad = connected(), ProbeKind.TIMEOUT
    probes(record, bad, bad)
    assert calls(record, *[GOOD] * 20) is HEALTHY
    assert record.failed_checks == 0
    calls(record, *[FAILED] * 50)
    assert probes(record, OK, OK) == [DEGRADED, HEALTHY]


def test_what_is_nobodys_fault_counts_for_nothing():
    record = connected()
    assert calls(record, *[NEUTRAL] * 100) is HEALTHY
    assert record.error_rate == 0
    calls(record, *[FAILED] * 10, *[GOOD] * 19, NEUTRAL)
    assert calls(record, GOOD) is HEALTHY


def test_the_four_facts_are_apart():
    record = HealthRecord()
    facts = record.facts()
    assert facts.enabled is True
    assert (facts.reachable, facts.authenticated, facts.healthy) == (None, None, None)
    record.note_disconnected(reachable=True, authenticated=False)
    facts = record.facts()
    assert (facts.reachable, facts.authenticated, facts.healthy) == (True, False, None)
    record.note_connected()
    facts = record.facts()
    assert (facts.reachable, facts.authenticated, facts.healthy) == (True, True, True)
    probes(record, ProbeKind.SERVER_ERROR, ProbeKind.SERVER_ERROR)
    facts = record.facts()
    assert (facts.reachable, facts.authenticated, facts.healthy) == (True, True, False)
    probes(record, ProbeKind.TIMEOUT)
    assert record.facts().reachable is False
    probes(record, ProbeKind.UNAUTHENTICATED)
    facts = record.facts()
    assert (facts.reachable, facts.authenticated) == (True, False)
    record.enabled = False
    assert record.facts().enabled is False


def test_the_time_of_an_answer_is_kept_and_that_of_none_is_not():
    record = connected()
    assert record.facts().response_time_ms is None
    record.add_probe(12.0, ProbeResult(OK, 0.25))
    record.add_probe(42.0, ProbeResult(ProbeKind.TIMEOUT, 5.0))
    facts = record.facts()
    assert (facts.response_time_ms, facts.last_check) == (250.0, 42.0)
