"""A Snapshot is of one moment: what changes afterwards is in the next one."""

from mcp_junction.app import Junction
from mcp_junction.config.load import Config
from mcp_junction.config.servers import ServerDefinition
from mcp_junction.config.settings import Settings


def definition(key: str, command: str = "true") -> ServerDefinition:
    return ServerDefinition(key, "stdio", command=command)


async def test_a_snapshot_keeps_the_servers_of_its_moment():
    async with Junction(Config("test", (), Settings(), "test", {})) as junction:
        none = junction.snapshot
        junction.servers.add(definition("one"), start=False)
        one = junction.snapshot
        junction.servers.redefine("one", definition("two"))
        renamed = junction.snapshot
        before = renamed.servers["two"]
        junction.servers.replace(definition("two", "false"), 0.0)
        replaced = junction.snapshot
        junction.servers.remove("two")
        assert [list(each.servers) for each in (none, one, renamed, replaced)] == [
            [],
            ["one"],
            ["two"],
            ["two"],
        ]
        assert replaced.servers["two"] is not before
        assert not junction.snapshot.servers
