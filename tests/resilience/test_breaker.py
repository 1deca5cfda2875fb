"""Breakers: when they open, whom they let through, and how they close again."""

import random
from collections import Counter

import msgspec
import pytest

from mcp_junction.resilience.breaker import (
    GAUGE,
    BreakerRow,
    BreakerSettings,
    BreakerState,
)
from mcp_junction.resilience.breakers import Breakers, CircuitOpen, Permit
from mcp_junction.resilience.failures import Failure, FailureKind

TIMEOUT, LINK = Failure(FailureKind.TIMEOUT), Failure(FailureKind.LINK)
FAULT = Failure(FailureKind.SERVER_FAULT)
CANCELLED, REFUSED = Failure(FailureKind.CANCELLED), Failure(FailureKind.REFUSED)
NOW = 1_000.0


class Driver:
    """Breakers, a clock, and a short way to make calls."""

    def __init__(self, **settings) -> None:
        self.breakers = Breakers(BreakerSettings(**settings))
        self.now = NOW

    def begin(self, tool: str = "t", agent: str = "a") -> Permit:
        permit = self.breakers.admit(self.breakers.pair("s", tool), agent, self.now)
        assert isinstance(permit, Permit)
        return permit

    def end(self, permit: Permit, failure: Failure | None = None) -> None:
        self.breakers.end(permit, failure, self.now)

    def call(self, failure: Failure | None = None, tool: str = "t", agent: str = "a") -> None:
        self.end(self.begin(tool, agent), failure)

    def fail(self, times: int, failure: Failure = TIMEOUT, tool: str = "t", agent="a") -> None:
        for _ in range(times):
            self.call(failure, tool, agent)

    def state(self, tool: str = "t") -> str:
        return self.breakers.state("s", tool).value

    def wait(self, tool: str = "t") -> float:
        refused = self.breakers.admit(self.breakers.pair("s", tool), "a", self.now)
        assert isinstance(refused, CircuitOpen)
        return refused.wait


def opened(**settings) -> Driver:
    driver = Driver(**settings)
    driver.fail(5)
    assert driver.state() == "OPEN"
    return driver


def half_open() -> Driver:
    driver = opened()
    driver.now += 60
    driver.end(driver.begin(), CANCELLED)
    assert driver.state() == "HALF_OPEN"
    return driver


def test_the_defaults_are_the_seeds():
    assert BreakerSettings() == BreakerSettings(5, 60.0, 3)
    assert [GAUGE[state] for state in BreakerState] == [0, 1, 2]


# -- opening


def test_five_failures_in_a_row_open_it():
    driver = Driver()
    driver.fail(4)
    assert driver.state() == "CLOSED"
    driver.fail(1)
    assert driver.state() == "OPEN"
    assert driver.state("other") == driver.state("*") == "CLOSED"
    driver.call(tool="other")


def test_a_success_begins_again():
    driver = Driver()
    driver.fail(4)
    driver.call()
    driver.fail(4)
    assert driver.state() == "CLOSED"


@pytest.mark.parametrize("failure", [TIMEOUT, FAULT, Failure(FailureKind.BUSY)])
def test_timeouts_and_server_faults_open_the_tool(failure):
    driver = Driver()
    driver.fail(5, failure)
    assert (driver.state(), driver.state("*")) == ("OPEN", "CLOSED")


def test_lost_links_open_the_whole_server():
    driver = Driver()
    for n in range(5):
        driver.fail(1, LINK, tool=f"t{n}")
    assert driver.state("*") == "OPEN"
    assert driver.wait("t9") == 60.0
    other = driver.breakers.pair("other", "t")
    assert isinstance(driver.breakers.admit(other, "a", NOW), Permit)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in FailureKind if kind not in ("link", "timeout", "server_fault", "busy")],
)
def test_nothing_else_counts(kind):
    driver = Driver()
    driver.fail(100, Failure(kind))
    assert (driver.state(), driver.state("*")) == ("CLOSED", "CLOSED")


def test_an_error_that_is_an_answer_is_a_success_and_a_cancellation_is_nothing():
    driver = Driver()
    driver.fail(4)
    driver.call(CANCELLED)
    driver.fail(1)
    assert driver.state() == "OPEN"
    driver = Driver()
    driver.fail(4)
    driver.call(REFUSED)
    driver.fail(1)
    assert driver.state() == "CLOSED"


def test_a_timeout_of_a_tool_says_nothing_about_the_link_but_an_answer_does():
    driver = Driver()
    driver.fail(4, LINK)
    driver.fail(1, TIMEOUT, tool="t2")
    driver.fail(1, LINK)
    assert driver.state("*") == "OPEN"
    driver = Driver()
    driver.fail(4, LINK)
    driver.fail(1, FAULT, tool="t2")
    driver.fail(1, LINK)
    assert driver.state("*") == "CLOSED"


# -- one agent alone


def test_one_agent_alone_cannot_open_it_for_others():
    driver = Driver()
    driver.call(agent="b")
    driver.fail(50, agent="a")
    assert driver.state() == "CLOSED"


def test_one_agent_opens_what_only_it_uses():
    driver = Driver()
    driver.call(agent="b")
    driver.now += 60  # the window is the cooldown
    driver.fail(5, agent="a")
    assert driver.state() == "OPEN"


def test_three_agents_open_it_together():
    driver = Driver()
    for agent in "abc":
        driver.begin(agent=agent)
    driver.fail(2, agent="a")
    driver.fail(2, agent="b")
    assert driver.state() == "CLOSED"
    driver.fail(1, agent="c")
    assert driver.state() == "OPEN"


def test_two_agents_open_it_when_both_have_used_up_their_half():
    driver = Driver()
    driver.begin(agent="b")
    driver.fail(9, agent="a")
    driver.fail(1, agent="b")
    assert driver.state() == "CLOSED"
    driver.fail(1, agent="b")
    assert driver.state() == "OPEN"
    driver = Driver()
    for agent in "abab":
        driver.fail(1, agent=agent)
    assert driver.state() == "CLOSED"  # five failures are five, whoever's they are
    driver.fail(1)
    assert driver.state() == "OPEN"


def test_a_threshold_of_one_opens_at_the_first_failure():
    driver = Driver(threshold=1)
    driver.call(agent="b")
    driver.fail(1)
    assert driver.state() == "OPEN"


# -- open


def test_it_lets_nothing_through_and_says_how_long():
    driver = opened()
    assert driver.wait() == 60.0
    driver.now += 59
    assert driver.wait() == 1.0


def test_what_was_under_way_when_it_opened_is_not_counted():
    driver = Driver()
    late = [driver.begin() for _ in range(3)]
    driver.fail(5)
    driver.now += 10
    driver.end(late[0])
    driver.end(late[1], TIMEOUT)
    assert driver.state() == "OPEN"
    assert driver.wait() == 50.0
    driver.now += 50
    driver.begin()
    driver.end(late[2], TIMEOUT)
    assert driver.state() == "HALF_OPEN"


def test_a_clock_that_was_put_back_never_makes_it_longer():
    driver = opened()
    driver.now -= 3_600
    assert driver.wait() == 60.0
    driver.now += 60
    driver.begin()


# -- half-open


def test_three_calls_at_once_test_it():
    driver = opened()
    driver.now += 60
    tests = [driver.begin() for _ in range(3)]
    assert driver.state() == "HALF_OPEN"
    assert driver.wait() == 0.0
    driver.end(tests[0], CANCELLED)  # says nothing: another may try
    driver.begin()
    assert driver.wait() == 0.0


def test_three_successes_close_it():
    driver = half_open()
    driver.call()
    driver.call(REFUSED)
    assert driver.state() == "HALF_OPEN"
    driver.call()
    assert driver.state() == "CLOSED"
    driver.fail(4)
    assert driver.state() == "CLOSED"  # it begins at 0


def test_one_failure_opens_it_again_for_the_whole_cooldown():
    driver = half_open()
    driver.call()
    driver.now += 5
    driver.call(TIMEOUT)
    assert driver.state() == "OPEN"
    assert driver.wait() == 60.0


def test_the_server_is_tested_by_calls_of_any_tool():
    driver = Driver()
    driver.fail(5, LINK)
    driver.now += 60
    for tool in "xyz":
        driver.call(tool=tool)
    assert driver.state("*") == "CLOSED"


def test_a_tool_that_is_open_takes_no_place_at_its_server():
    driver = Driver()
    rows = [
        BreakerRow("s", "*", BreakerState.OPEN, opened_at=NOW - 60),
        BreakerRow("s", "z", BreakerState.OPEN, opened_at=NOW),
    ]
    driver.breakers.restore(rows, NOW)
    assert [driver.wait("z") for _ in range(10)] == [60.0] * 10
    for tool in "uvw":
        driver.begin(tool=tool)
    assert driver.wait("x") == 0.0


# -- reset, stored, told


def test_a_reset_closes_and_forgets():
    driver = opened()
    driver.breakers.reset("s", "t")
    assert driver.state() == "CLOSED"
    driver.fail(4)
    assert driver.state() == "CLOSED"


def test_another_connection_resets_the_whole_server():
    driver = opened()
    driver.fail(5, LINK, tool="t2")
    driver.breakers.reset("s")
    assert {row.state for row in driver.breakers.rows("s")} == {BreakerState.CLOSED}


def test_what_was_under_way_before_a_reset_is_not_counted():
    driver = Driver(threshold=1)
    late = driver.begin()
    driver.breakers.reset("s")
    driver.end(late, TIMEOUT)
    assert driver.state() == "CLOSED"


def test_every_change_of_state_is_told_once():
    driver = Driver()
    driver.fail(5)
    driver.now += 60
    for _ in range(3):
        driver.call()
    told = [(row.circuit_key, row.state.value) for row in driver.breakers.take_changes()]
    assert told == [("s:t", "OPEN"), ("s:t", "HALF_OPEN"), ("s:t", "CLOSED")]
    assert driver.breakers.take_changes() == []
    driver.breakers.reset("s")
    assert driver.breakers.take_changes() == []


def test_a_row_says_everything():
    driver = opened()
    (row,) = driver.breakers.rows("s", "t")
    assert row == BreakerRow("s", "t", BreakerState.OPEN, 5, 0, NOW, NOW, NOW + 60)
    assert msgspec.json.decode(msgspec.json.encode(row), type=BreakerRow) == row
    assert [row.tool_name for row in driver.breakers.rows()] == ["*", "t"]


@pytest.mark.parametrize(
    ("stored", "later", "wait"),
    [(opened, 0, 60.0), (opened, 20, 40.0), (half_open, 0, None), (opened, -500, 60.0)],
)
def test_a_restart_keeps_what_was_open(stored, later, wait):
    rows = stored().breakers.rows()
    driver = Driver()
    driver.now = (NOW + 60 if stored is half_open else NOW) + later
    driver.breakers.restore(rows, driver.now)
    assert driver.state() == "OPEN"
    assert driver.state("*") == "CLOSED"
    if wait is not None:
        assert driver.wait() == wait
    else:
        driver.begin()  # its cooldown was over: it is tested again


def test_a_damaged_row_opens_for_the_cooldown_at_most():
    driver = Driver()
    rows = [BreakerRow("s", "t", BreakerState.OPEN), BreakerRow("s", "u", BreakerState.OPEN)]
    rows[1] = msgspec.structs.replace(rows[1], opened_at=NOW + 1e9)
    driver.breakers.restore(rows, NOW)
    assert (driver.wait("t"), driver.wait("u")) == (60.0, 60.0)


def test_a_server_that_is_no_more_leaves_nothing():
    driver = opened()
    driver.breakers.forget("s")
    assert driver.breakers.rows() == []
    assert driver.state() == "CLOSED"


# -- the model


class Model:
    """One circuit as R-BREAKER says it: every call and failure kept, everything counted anew."""

    def __init__(self, threshold: int, cooldown: float, half: int) -> None:
        self.threshold, self.cooldown, self.half = threshold, cooldown, half
        self.state, self.row, self.calls = "CLOSED", [], []
        self.opened, self.good, self.tests = 0.0, 0, set()

    def admits(self, now: float) -> bool:
        if self.state == "OPEN":
            return now >= self.opened + self.cooldown
        return self.state == "CLOSED" or len(self.tests) < self.half

    def begin(self, number: int, agent: str, now: float) -> None:
        self.calls = [c for c in self.calls if now - c[1] < self.cooldown] + [(agent, now)]
        if self.state == "OPEN":
            self.state, self.good, self.tests = "HALF_OPEN", 0, set()
        self.tests.add(number)

    def end(self, number: int, agent: str, effect: str, now: float) -> None:
        if number not in self.tests:
            return
        self.tests.discard(number)
        if effect == "good":
            self.row, self.good = [], self.good + 1
            if self.state == "HALF_OPEN" and self.good >= self.half:
                self.state, self.tests = "CLOSED", set()
        elif effect == "bad":
            self.row.append(agent)
            if self.state == "HALF_OPEN" or self.is_over(now):
                self.state, self.opened, self.tests = "OPEN", now, set()

    def is_over(self, now: float) -> bool:
        agents = {agent for agent, at in self.calls if now - at < self.cooldown}
        if len(self.row) < self.threshold or len(agents) < 2:
            return len(self.row) >= self.threshold
        most = max(1, self.threshold // 2)
        counted = sum(min(most, n) for n in Counter(self.row).values())
        return counted >= min(self.threshold, most * len(agents))


KINDS = {
    None: ("good", "good"),
    FailureKind.LINK: ("bad", "none"),
    FailureKind.TIMEOUT: ("none", "bad"),
    FailureKind.SERVER_FAULT: ("good", "bad"),
    FailureKind.TOOL_ERROR: ("good", "good"),
    FailureKind.CANCELLED: ("none", "none"),
}


@pytest.mark.bulk
@pytest.mark.parametrize("seed", range(5))
def test_a_hundred_thousand_steps_agree_with_the_model(seed):
    dice = random.Random(seed)
    shape = (dice.choice([1, 2, 3, 5, 6]), 10.0, dice.choice([1, 2, 3]))
    breakers = Breakers(BreakerSettings(*shape))
    models = {tool: Model(*shape) for tool in ("*", "x", "y")}
    now, under_way, states = NOW, [], Counter()
    weights = [dice.choice([1, 4]), 3, 4, 2, 1, 1]
    for number in range(20_000):
        now += dice.choice([0.0, 0.01, 0.1, 0.1, 3.0])
        if under_way and dice.random() < 0.5:
            started, permit, tool, agent = under_way.pop(dice.randrange(len(under_way)))
            (kind,) = dice.choices(list(KINDS), weights)
            breakers.end(permit, Failure(kind) if kind else None, now)
            for circuit, effect in zip(("*", tool), KINDS[kind], strict=True):
                models[circuit].end(started, agent, effect, now)
        else:
            tool, agent = dice.choice("xy"), dice.choice("aaaab" if seed % 2 else "abcd")
            found = breakers.admit(breakers.pair("s", tool), agent, now)
            admitted = all(models[one].admits(now) for one in ("*", tool))
            assert isinstance(found, Permit) is admitted, (number, models[tool].state)
            if isinstance(found, Permit):
                for one in ("*", tool):
                    models[one].begin(number, agent, now)
                under_way.append((number, found, tool, agent))
        for name, model in models.items():
            states[model.state] += 1
            assert breakers.state("s", name).value == model.state, (number, name)
    assert all(states[state] > 500 for state in ("CLOSED", "OPEN", "HALF_OPEN"))
