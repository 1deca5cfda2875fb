"""Who a call is made for."""

import pytest

from mcp_junction.policy.principal import LOCAL_OWNER, Principal, Role


def test_the_person_who_started_the_process_is_its_owner():
    assert LOCAL_OWNER.role is Role.OWNER
    assert Principal("local-owner", Role.OWNER) == LOCAL_OWNER


def test_a_principal_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        LOCAL_OWNER.id = "someone else"
