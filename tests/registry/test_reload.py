"""A new config file: what differs is touched, the rest is left alone; a bad one changes nothing."""

import asyncio
import json

import pytest
from tests.plugin_registry import ADMIN
from tests.registry.test_faults import Away
from tests.registry.toolbox import tool, until

from mcp_junction.config.load import load
from mcp_junction.errors import AlreadyExists, ConfigError
from mcp_junction.registry.reload import FileWatch
from mcp_junction.upstream.outcome import OutcomeKind


async def test_only_what_differs_is_touched(platform, toolbox):
    same, old, new, gone = [await toolbox() for _ in range(4)]
    run = await platform(
        {"same": {"url": same.url}, "moved": {"url": old.url}, "gone": {"url": gone.url}}
    )
    for name in ("same", "moved", "gone"):
        await run.until(name, "CONNECTED")
    known = run.registry.find("moved").id
    same.gate.clear()
    call = asyncio.ensure_future(run.call("same.echo"))
    config = platform.config(
        {"added": {"url": gone.url}, "same": {"url": same.url}, "moved": {"url": new.url}}
    )
    done = await run.registry.reload(config)
    assert (done.added, done.changed, done.removed) == (("added",), ("moved",), ("gone",))
    for name in ("same", "moved", "added"):
        await run.until(name, "CONNECTED")
    assert same.openings == 1
    assert new.openings == 1
    assert run.registry.find("moved").id == known
    assert sorted(run.listed()) == ["added.echo", "moved.echo", "same.echo"]
    same.gate.set()
    assert (await call).kind is OutcomeKind.RESULT
    assert not await run.registry.reload(config), "nothing differs any more"
    assert same.openings == 1


async def test_what_is_said_of_a_server_changes_under_its_link(single, toolbox):
    server = await toolbox([tool("echo"), tool("other")])
    run = await single({"box": {"url": server.url}})
    await run.until("box", "CONNECTED")
    entry = {"url": server.url, "junction": {"tools": {"allow": ["echo"]}, "timeout": 7000}}
    await run.registry.reload(single.config({"box": entry}))
    await until(lambda: run.listed() == ["box.echo"])
    assert server.openings == 1
    view = run.junction.snapshot.catalog.view(run.session.spelling)
    assert view.find("box.echo").timeout == 7.0


async def test_a_registered_servers_name_is_not_the_files_to_take(single, toolbox):
    server = await toolbox()
    run = await single({"file": {"url": server.url}})
    await run.add("box", server)
    with pytest.raises(ConfigError, match="registered"):
        await run.registry.reload(single.config({"box": {"url": server.url}}))
    assert {record.name for record in run.registry.all()} == {"file", "box"}
    again = await single({"box": {"url": server.url}})
    assert again.registry.find("box").origin == "api", "at a start the registered one stands"


class Followed:
    """A file and the watch that follows it."""

    def __init__(self, run, path, **how) -> None:
        self.path = path
        self.watch = FileWatch(
            run.registry, run.bus, str(path), lambda: load(str(path), {}, {}), **how
        )
        self.task = asyncio.ensure_future(self.watch.run())

    def write(self, text: str) -> None:
        self.path.write_text(text, "utf-8")


async def test_the_file_is_watched_and_a_bad_one_is_told_and_changes_nothing(
    single, toolbox, tmp_path
):
    server = await toolbox()
    run = await single({"box": {"url": server.url}})
    await run.until("box", "CONNECTED")
    file = Followed(run, tmp_path / "mcp.json", every=0.02)
    await asyncio.sleep(0)
    try:
        for text, where in (
            ('{"mcpServers": {"box": {"command": 7}}}', "$.mcpServers.box"),
            ("{", "$"),
            ('{"mcpServers": {}, "junction": {"endpoints": {"e": ["nobody"]}}}', "endpoints"),
        ):
            before = len(await run.events("config.rejected"))
            file.write(text)
            async with asyncio.timeout(30):
                while len(found := await run.events("config.rejected")) == before:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert where in found[-1].data["problems"][0]["path"]
            assert run.listed() == ["box.echo"]
            assert server.openings == 1
        two = {"mcpServers": {"box": {"url": server.url}, "two": {"url": server.url}}}
        file.write(json.dumps(two))
        await until(lambda: len(run.registry.all()) >= 2)
        await run.until("two", "CONNECTED")
    finally:
        file.task.cancel()


@pytest.mark.req("J-RELOAD-SETTINGS")
async def test_settings_that_need_a_restart_are_named(single, toolbox, tmp_path, caplog):
    server = await toolbox()
    entry = {"box": {"url": server.url}}
    run = await single(entry, exposure="all", page_size=50)
    await run.until("box", "CONNECTED")
    file = Followed(run, tmp_path / "mcp.json", polls=False)
    junction = {"exposure": "search", "page_size": 50, "health_timeout_ms": 1}
    file.write(json.dumps({"mcpServers": entry, "junction": junction}))
    try:
        file.watch.reload_soon()
        async with asyncio.timeout(30):
            while not (found := await run.events("config.reloaded")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await until(lambda: "restart" in caplog.text)
    finally:
        file.task.cancel()
    assert found[-1].data["needs_restart"] == ["exposure", "health_timeout_ms"]
    assert "exposure, health_timeout_ms; restart Junction to apply them" in caplog.text
    assert run.listed() == ["box.echo"]


async def test_a_file_that_is_not_watched_is_read_when_we_are_told_to(single, toolbox, tmp_path):
    server = await toolbox()
    run = await single({"box": {"url": server.url}})
    file = Followed(run, tmp_path / "mcp.json", every=0.01, polls=False)
    try:
        file.write(json.dumps({"mcpServers": {}}))
        await asyncio.sleep(0.1)
        assert len(run.registry.all()) == 1
        file.watch.reload_soon()
        async with asyncio.timeout(30):
            await until(lambda: not run.registry.all())
        (row,) = await run.rows(action="config.reload", kind="outcome")
        assert row.outcome == "ok"
        assert "box" in (row.detail or "")
    finally:
        file.task.cancel()


async def test_operators_may_disconnect_and_connect_what_is_the_files(single, toolbox):
    server = await toolbox()
    run = await single({"box": {"url": server.url}})
    await run.until("box", "CONNECTED")
    assert (await run.registry.disconnect("box", ADMIN))[0] == "DISCONNECTED"
    assert (await run.registry.connect("box", ADMIN))[0] == "CONNECTED"


async def test_a_good_file_is_tried_again_while_the_store_is_away(
    platform, toolbox, tmp_path, monkeypatch
):
    server = await toolbox()
    run = await platform({"box": {"url": server.url}})
    await run.until("box", "CONNECTED")
    away = Away(monkeypatch, run.store)
    file = Followed(run, tmp_path / "mcp.json", every=0.02)
    try:
        away.is_away = True
        two = {"mcpServers": {"box": {"url": server.url}, "two": {"url": server.url}}}
        file.write(json.dumps(two))
        file.watch.reload_soon()
        await asyncio.sleep(0.3)
        assert [record.name for record in run.registry.all()] == ["box"]
        away.is_away = False
        await run.until("box", "CONNECTED")
        async with asyncio.timeout(30):
            await until(lambda: len(run.registry.all()) == 2)
        await run.until("two", "CONNECTED")
        assert len(await run.events("config.rejected")) == 1, "said once, however often tried"
        assert server.openings == 2
    finally:
        file.task.cancel()


async def test_no_error_ends_the_watching(single, toolbox, tmp_path, monkeypatch):
    server = await toolbox()
    run = await single({"box": {"url": server.url}})
    file = Followed(run, tmp_path / "mcp.json", every=0.02)
    real, failures = run.registry.reload, [AlreadyExists("taken"), RuntimeError("a fault")]

    async def failing(config):
        if failures:
            raise failures.pop(0)
        return await real(config)

    monkeypatch.setattr(run.registry, "reload", failing)
    try:
        for left in (1, 0):
            file.watch.reload_soon()
            await until(lambda left=left: len(failures) == left)
        assert len(await run.events("config.rejected")) == 2
        file.write(json.dumps({"mcpServers": {"new": {"url": server.url}}}))
        await until(lambda: [record.name for record in run.registry.all()] == ["new"])
    finally:
        file.task.cancel()
