"""OPTIONS: the one table of a server's options, and what is derived from it."""

import msgspec
import pytest

from mcp_junction.api.models import Server
from mcp_junction.api.requests import ServerChange, ServerRegistration
from mcp_junction.config.registration import CHANGEABLE, Registration, ServerOptions
from mcp_junction.config.servers import OPTIONS, ServerDefinition
from mcp_junction.store.records import DEFINITION_FIELDS, ServerRecord
from mcp_junction.store.servers import SERVERS_TABLE


def test_the_typed_fields_are_those_of_the_table_with_its_defaults():
    fields = {field.name: field for field in msgspec.structs.fields(ServerOptions)}
    assert list(fields) == list(OPTIONS)
    for name, option in OPTIONS.items():
        assert fields[name].default == option.default
        assert fields[name].type is type(option.default)


@pytest.mark.parametrize("kind", [Registration, ServerRecord, Server, ServerRegistration])
def test_every_form_of_a_server_has_them_in_one_order(kind):
    names = [name for name in kind.__struct_fields__ if name in OPTIONS]
    assert names == list(OPTIONS)


def test_all_of_them_can_be_changed_and_are_stored():
    assert set(OPTIONS) <= set(CHANGEABLE)
    assert set(OPTIONS) <= set(ServerChange.__struct_fields__)
    assert set(OPTIONS) <= DEFINITION_FIELDS
    assert set(OPTIONS) <= set(SERVERS_TABLE.columns)


def test_a_connection_is_made_by_all_that_the_file_can_say():
    assert set(OPTIONS) == set(ServerDefinition("s", "stdio").options)
