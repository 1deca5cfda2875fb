"""Our constants are the protocol's: held against the SDK, which the program never loads."""

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from mcp_junction.protocol import versions


def test_the_handshake_versions_are_those_of_the_sdk():
    assert set(versions.HANDSHAKE_VERSIONS) == set(HANDSHAKE_PROTOCOL_VERSIONS)
    assert max(HANDSHAKE_PROTOCOL_VERSIONS) == versions.LATEST_HANDSHAKE


@pytest.mark.parametrize(
    "name",
    ["PARSE_ERROR", "INVALID_REQUEST", "METHOD_NOT_FOUND", "INVALID_PARAMS", "INTERNAL_ERROR"],
)
def test_the_error_codes_are_those_of_the_sdk(name):
    assert getattr(versions, name) == getattr(mcp_types, name)


def test_our_own_error_codes_are_where_implementations_have_theirs():
    ours = (versions.SERVER_UNAVAILABLE, versions.CALL_TIMEOUT, versions.LINK_LOST)
    assert ours == (-32000, -32001, -32005)


def test_the_log_levels_are_those_of_the_sdk_in_order_of_severity():
    assert set(versions.LOG_LEVELS) == set(mcp_types.LoggingLevel.__args__)
    assert (versions.LOG_LEVELS[0], versions.LOG_LEVELS[-1]) == ("debug", "emergency")


@pytest.mark.parametrize("version", versions.HANDSHAKE_VERSIONS)
def test_a_version_we_speak_is_agreed_to(version):
    assert versions.choose_version(version) == version


@given(st.text().filter(lambda text: text not in versions.HANDSHAKE_VERSIONS))
def test_for_any_other_version_our_newest_is_offered(wanted):
    assert versions.choose_version(wanted) == versions.LATEST_HANDSHAKE
