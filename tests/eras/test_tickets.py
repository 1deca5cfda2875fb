"""Seal: a ticket is good for whom it was made, as it was made, and for a while."""

import pytest

from mcp_junction.eras.tickets import Seal, SealedTask, Ticket, TicketOwner
from mcp_junction.errors import RequestStateError
from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role

OWNER = TicketOwner("ann", "agent", "", "files", "read", "tools/call")
ANN, BOB = Principal("ann", Role.AGENT), Principal("bob", Role.AGENT)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_ticket_comes_back_as_it_was():
    seal = Seal()
    ticket = Ticket(OWNER, id="r", round=3)
    assert seal.open(seal.close(ticket), OWNER) == ticket


def test_no_two_are_alike_and_nothing_can_be_read_in_them():
    seal = Seal()
    ticket = Ticket(OWNER, inner="a secret")
    one, two = seal.close(ticket), seal.close(ticket)
    assert one != two
    assert "secret" not in one
    assert one.isascii()


@pytest.mark.parametrize(
    ("member", "other"),
    [
        ("principal", "bob"), ("role", "admin"), ("endpoint", "coding"),
        ("server", "git"), ("name", "write"), ("method", "prompts/get"),
    ],
)  # fmt: skip
def test_it_is_good_for_its_owner_alone(member, other):
    seal = Seal()
    state = seal.close(Ticket(OWNER, inner="x"))
    said = {name: getattr(OWNER, name) for name in OWNER.__struct_fields__}
    with pytest.raises(RequestStateError, match="something else"):
        seal.open(state, TicketOwner(**{**said, member: other}))


def test_an_altered_one_is_refused_wherever_it_was_altered():
    seal = Seal()
    state = seal.close(Ticket(OWNER, inner="x"))
    for place, char in enumerate(state):
        altered = state[:place] + ("A" if char != "A" else "B") + state[place + 1 :]
        with pytest.raises(RequestStateError):
            seal.open(altered, OWNER)


@pytest.mark.parametrize("state", ["", ".", "x", "a.b", "a.====", "é.é", "a." + "A" * 8, "\0"])
def test_what_never_was_one_is_refused(state):
    with pytest.raises(RequestStateError, match="not one of ours"):
        Seal().open(state, OWNER)


def test_another_key_opens_nothing_and_the_same_key_does():
    keys = [b"k" * 32]
    state = Seal(lambda: keys, "one").close(Ticket(OWNER, inner="x"))
    assert Seal(lambda: keys, "two").open(state, OWNER).inner == "x"
    with pytest.raises(RequestStateError):
        Seal(lambda: [b"j" * 32], "one").open(state, OWNER)


def test_a_new_key_seals_and_opens_what_the_one_before_sealed():
    keys = [[b"k" * 32]]
    seal = Seal(lambda: keys[-1])
    old = seal.close(Ticket(OWNER, inner="x"))
    keys.append([b"n" * 32, b"k" * 32])
    new = seal.close(Ticket(OWNER, inner="y"))
    assert (seal.open(old, OWNER).inner, seal.open(new, OWNER).inner) == ("x", "y")
    with pytest.raises(RequestStateError):
        Seal(lambda: keys[0]).open(new, OWNER)


def test_it_expires():
    time = Time()
    seal = Seal(now=time)
    state = seal.close(Ticket(OWNER, seal.until(60), inner="x"))
    time.now += 59
    assert seal.open(state, OWNER).inner == "x"
    time.now += 2
    with pytest.raises(RequestStateError, match="expired"):
        seal.open(state, OWNER)


def test_the_state_of_a_server_may_be_large():
    seal = Seal()
    inner = "x" * 1_000_000
    assert seal.open(seal.close(Ticket(OWNER, inner=inner)), OWNER).inner == inner


# -- tasks


def test_the_id_of_a_task_leads_to_its_server():
    seal = Seal()
    one, two = (seal.seal_task(SealedTask("1", server), ANN, "") for server in ("files", "git"))
    assert seal.open_task(one, ANN, "") == SealedTask("1", "files")
    assert seal.open_task(two, ANN, "") == SealedTask("1", "git")


@pytest.mark.parametrize(("who", "endpoint"), [(BOB, ""), (LOCAL_OWNER, ""), (ANN, "coding")])
def test_a_task_is_nobody_elses(who, endpoint):
    seal = Seal()
    with pytest.raises(RequestStateError):
        seal.open_task(seal.seal_task(SealedTask("1", "files"), ANN, ""), who, endpoint)


def test_a_ticket_is_no_task_and_a_task_no_ticket():
    seal = Seal()
    with pytest.raises(RequestStateError):
        seal.open_task(seal.close(Ticket(OWNER, inner="1")), ANN, "")
    with pytest.raises(RequestStateError):
        seal.open(seal.seal_task(SealedTask("1", "files"), ANN, ""), OWNER)
