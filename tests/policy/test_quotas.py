"""What is counted for a principal, and who has to make room."""

import pytest

from mcp_junction.config.settings import UNLIMITED, Quota, Settings, quota_of
from mcp_junction.policy.principal import Principal, Role
from mcp_junction.policy.quotas import BoundedSet, Closable, Quotas, QuotaUsage


class Cuttable(Closable):
    def __init__(self) -> None:
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True


@pytest.mark.req("R-QUOTA")
def test_the_defaults_are_what_was_ruled():
    assert quota_of(Settings()) == Quota(10_000, 2_000, 1_000, 1_000, 256 * 1024 * 1024)


def test_zero_is_no_limit():
    none = dict.fromkeys((f for f in Settings._fields if f.endswith("_per_principal")), 0)
    assert len(none) == 5
    assert quota_of(Settings(**none)) == UNLIMITED


def test_a_full_set_gives_up_its_oldest():
    some = BoundedSet[str](2)
    assert [some.add(item) for item in ("a", "b", "c", "b", "d")] == [None, None, "a", None, "c"]
    assert len(some) == 2
    assert "b" in some


def test_a_full_set_spares_what_is_in_use():
    some = BoundedSet[str](3)
    for item in ("a", "b", "c"):
        some.add(item)
    assert some.add("d", lambda item: item == "a") == "b"
    assert some.add("e", lambda item: item != "c") == "c"
    assert some.add("f", lambda _: True) == "a", "when all are, it is the oldest"


@pytest.mark.req("R-QUOTA")
def test_the_oldest_stream_of_the_same_holding_is_cut():
    usage, other = QuotaUsage(Quota(streams=2)), QuotaUsage(Quota(streams=2))
    streams = [Cuttable() for _ in range(3)]
    for stream in streams:
        usage.open_stream(stream)
    other.open_stream(spared := Cuttable())
    assert [stream.is_cut for stream in (*streams, spared)] == [True, False, False, False]


def test_a_principal_is_one_by_whichever_key_and_forgotten_when_it_holds_nothing():
    quotas = Quotas(Quota(calls=3))
    one = quotas.of(Principal("bot", Role.AGENT, "k1"))
    assert quotas.of(Principal("bot", Role.AGENT, "k2")) is one
    assert quotas.of(Principal("bot", Role.ADMIN)) is not one
    assert one.quota.calls == 3
    del one
    assert len(quotas) == 0
