"""Servers that do not start, do not speak, or die: named, and of no harm to the others."""

import json
import os
import signal
import sys

import pytest
from tests.plugin_journeys import python_server, scripted

pytestmark = pytest.mark.preloaded

CHANGED = "notifications/tools/list_changed"


@pytest.mark.req("FR-009", "US1-6", "SC-007")
async def test_a_server_that_exits_at_once_is_named_with_its_code_and_its_last_words(junction):
    words = "reading settings\nfatal: no DATABASE_URL\n"
    client = await junction({"db": scripted(last_words=words, code=7), "fine": scripted("echo")})
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("fatal: no DATABASE_URL")
    assert "server 'db' failed during " in complaint
    assert "exited with code 7" in complaint
    assert "fine" not in complaint
    await client.told("fine:echo")


@pytest.mark.req("FR-009", "US1-6", "SC-007")
async def test_a_command_that_does_not_exist_is_named_with_what_to_do(junction):
    servers = {
        "absent": {"command": "no-such-program-anywhere"},
        "elsewhere": {"command": "/nowhere/at/all"},
        "fine": scripted("echo"),
    }
    client = await junction(servers)
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("/nowhere/at/all")
    assert "server 'absent' failed during startup" in complaint
    assert "'no-such-program-anywhere' was not found on PATH; install it" in complaint
    assert "server 'elsewhere' failed during startup" in complaint


@pytest.mark.req("US1-6", "SC-007")
async def test_a_command_that_may_not_be_run_or_has_no_folder_is_named(junction, tmp_path):
    text = tmp_path / "a text"
    text.write_text("not a program")
    servers = {
        "text": {"command": str(text)},
        "lost": {**scripted("echo"), "cwd": str(tmp_path / "gone")},
        "fine": scripted("echo"),
    }
    client = await junction(servers)
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("server 'lost' failed during startup")
    assert "server 'text' failed during startup" in complaint


@pytest.mark.req("FR-009", "US1-6", "SC-007")
async def test_a_server_that_never_answers_initialize_is_named_and_the_others_serve(junction):
    servers = {"mute": python_server("silent"), "fine": scripted("echo")}
    client = await junction(servers, start_timeout_ms=1500, list_wait_ms=30_000)
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("server 'mute' failed during initialization")
    assert "did not answer within 1.5 s" in complaint


@pytest.mark.req("US1-6", "SC-007")
async def test_a_server_whose_answer_to_initialize_makes_no_sense_is_named(junction):
    program = (
        "import json, sys; frame = json.loads(sys.stdin.readline());"
        ' print(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": {}}), flush=True);'
        " sys.stdin.read()"
    )
    odd = {"command": sys.executable, "args": ["-S", "-c", program]}
    client = await junction({"odd": odd, "fine": scripted("echo")})
    assert list(await client.tools()) == ["fine:echo"]
    await client.complaint("server 'odd' failed during initialization")


@pytest.mark.req("FR-009")
@pytest.mark.parametrize(
    ("client", "name"), [("a", "my.db:read"), ("a", "my_db__read"), ("claude-ai", "my_db__read")]
)
async def test_who_calls_a_tool_of_a_server_that_never_came_up_is_told_why(junction, client, name):
    servers = {
        "my.db": scripted(dies_on="initialize", last_words="no disk", code=3),
        "my": scripted(dies_on="initialize", code=4),
        "fine": scripted("read"),
    }
    talk = await junction(servers, client=client)
    await talk.tools()
    await talk.complaint("no disk")
    error = await talk.refused(name)
    assert (error["code"], error["data"]["delivery"]) == (-32000, "not_sent")
    assert "server 'my.db' is not available" in error["message"]
    assert "exited with code 3" in error["message"]
    assert (await talk.refused("fine:write"))["code"] == -32602


@pytest.mark.req("US1-6", "SC-007")
@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_a_server_that_refuses_to_begin_is_named_with_its_own_words(junction, method):
    servers = {"shy": scripted(refuses={method: "not today"}), "fine": scripted("echo")}
    client = await junction(servers)
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("not today")
    assert "server 'shy' failed during initialization: " in complaint
    assert "{" not in complaint


@pytest.mark.req("US1-6", "SC-007")
@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "tools/list"])
async def test_a_server_that_dies_while_it_begins_is_named_with_its_last_words(junction, method):
    weak = scripted(dies_on=method, last_words="out of memory", code=5)
    client = await junction({"weak": weak, "fine": scripted("echo")})
    assert list(await client.tools()) == ["fine:echo"]
    complaint = await client.complaint("out of memory")
    assert "server 'weak' failed during initialization: exited with code 5 before" in complaint


@pytest.mark.req("SC-007", "FR-012")
async def test_noise_on_a_servers_stdout_reaches_nobody_and_breaks_nothing(junction):
    noise = ["Server ready!", "", "{", '{"level":"info"}', "[1,2]", "null", '{"jsonrpc":"2.0"}']
    client = await junction({"noisy": scripted(noise=noise)})
    assert "noisy:count" in await client.tools()
    assert [await client.told("noisy:count") for _ in range(3)] == ["1", "2", "3"]
    assert not any(b"ready" in line or b"level" in line for line in client.lines)


@pytest.mark.req("EDGE-CRASH", "FR-009", "US2-5", "SC-007")
async def test_a_server_that_crashes_leaves_the_list_and_the_others_serve(junction, tmp_path):
    starts = tmp_path / "starts"
    servers = {"weak": scripted(starts=str(starts)), "strong": scripted("count", "about")}
    client = await junction(servers)
    before = list(await client.tools())
    assert before[-2:] == ["strong:count", "strong:about"]
    died = await client.refused("weak:die", code=9, words="out of luck\n")
    assert died["code"] == -32005
    assert died["data"] == {"delivery": "unknown", "server": "weak"}
    assert "'weak'" in died["message"]
    await client.heard(CHANGED)
    assert list(await client.tools()) == ["strong:count", "strong:about"]
    assert await client.told("strong:count") == "1"
    complaint = await client.complaint("out of luck")
    assert "server 'weak' failed during runtime: exited with code 9" in complaint
    await client.end()
    assert len(starts.read_text().splitlines()) == 1, "it was started again"


@pytest.mark.req("EDGE-CRASH", "FR-009")
async def test_a_call_to_a_server_that_has_crashed_is_refused_with_the_reason(junction):
    client = await junction({"weak": scripted(), "strong": scripted()})
    await client.tools()
    await client.refused("weak:die", code=9)
    await client.heard(CHANGED)
    for name in ("weak:count", "weak__count"):
        error = await client.refused(name)
        assert error["code"] == -32000
        assert error["data"] == {"delivery": "not_sent", "server": "weak"}
        assert "exited with code 9" in error["message"]
    assert (await client.refused("weak:never_was"))["code"] == -32602


@pytest.mark.req("EDGE-CRASH", "R-ANSWER")
async def test_every_call_in_flight_is_answered_when_its_server_is_killed(junction):
    client = await junction({"weak": scripted(), "strong": scripted()})
    pid = (await client.read("weak:about"))["pid"]
    waiting = [await client.under_way("weak:hold") for _ in range(5)]
    other = await client.under_way("strong:hold")
    os.kill(pid, signal.SIGKILL)
    for frame_id in waiting:
        error = (await client.answer(frame_id))["error"]
        assert error["code"] == -32005
        assert error["data"]["delivery"] == "unknown"
        assert "signal 9" in error["message"]
    await client.told("strong:release")
    assert "result" in await client.answer(other)


@pytest.mark.req("EDGE-CRASH")
async def test_a_server_that_closes_its_output_counts_as_gone(junction):
    client = await junction({"one": scripted(), "two": scripted("echo")})
    await client.tools()
    error = await client.refused("one:hang_up")
    assert error["code"] == -32005
    await client.heard(CHANGED)
    assert list(await client.tools()) == ["two:echo"]
    await client.complaint("server 'one' failed during runtime: closed its output")


@pytest.mark.req("J-RESTART")
async def test_with_restart_a_crashed_server_comes_back(junction):
    client = await junction({"weak": scripted(), "strong": scripted("count")}, "--restart")
    before = await client.tools()
    first = (await client.read("weak:about"))["pid"]
    assert (await client.refused("weak:die"))["code"] == -32005
    await client.up("weak:count")
    assert (await client.read("weak:about"))["pid"] != first
    await client.heard(CHANGED)
    assert await client.tools() == before
    assert await client.told("strong:count") == "1"


@pytest.mark.req("J-RESTART")
async def test_one_server_alone_can_be_restarted_by_the_file(junction):
    entry = {**scripted(), "junction": {"restart": True}}
    client = await junction({"supervised": entry, "left": scripted()})
    await client.tools()
    for key in ("supervised", "left"):
        await client.refused(f"{key}:die")
    await client.up("supervised:count")
    assert (await client.refused("left:count"))["code"] == -32000


@pytest.mark.req("J-RESTART")
async def test_a_restarted_server_is_told_the_same_of_the_client(junction):
    capabilities = {"sampling": {}}
    servers = {"weak": scripted(capabilities={"logging": {}})}
    client = await junction(servers, "--restart", capabilities=capabilities)
    await client.result("logging/setLevel", {"level": "alert"})
    first = (await client.read("weak:about"))["initialize"]["params"]
    await client.refused("weak:die")
    await client.up("weak:count")
    assert (await client.read("weak:about"))["initialize"]["params"] == first
    assert first["capabilities"] == capabilities
    methods = [json.loads(line)["method"] for line in await client.read("weak:seen")]
    assert "logging/setLevel" in methods
