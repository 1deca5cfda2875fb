"""What it says on stderr and in the log file, and that stdout is for frames alone."""

import pytest
from tests.plugin_journeys import scripted


@pytest.mark.req("FR-015", "FR-013")
async def test_a_run_without_trouble_says_nothing(junction):
    servers = {"one": scripted(capabilities={"logging": {}}), "two": scripted("echo")}
    client = await junction(servers)
    await client.tools()
    await client.told("one:progress", steps=['"progress":1'])
    await client.told("one:log", messages=['{"level":"error","data":"not ours"}'])
    await client.refused("no:such")
    client.send("notifications/cancelled", {"requestId": 99})
    assert await client.end() == 0
    assert client.errors == ""


@pytest.mark.req("FR-012")
async def test_a_stray_print_inside_the_program_lands_on_stderr(junction, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def hook(event, _):\n"
        "    if event == 'subprocess.Popen':\n"
        "        print('a stray print', flush=True)\n"
        "        os.write(1, b'a stray write\\n')\n"
        "sys.addaudithook(hook)\n"
    )
    client = await junction({"one": scripted("count")}, env={"PYTHONPATH": str(tmp_path)})
    assert await client.told("one:count") == "1"
    assert "a stray print" in await client.complaint("a stray write")
    assert client.strays == []


@pytest.mark.req("FR-015", "J-CLI")
async def test_debug_says_more_on_stderr_and_nothing_on_stdout(junction):
    client = await junction({"one": scripted(noise=["not a frame"])}, "--debug")
    await client.told("one:count")
    await client.complaint("not a frame")
    await client.complaint("tools/call of 'one:count' at server 'one': ok after")
    assert await client.end() == 0
    assert client.strays == []


@pytest.mark.req("FR-015")
async def test_a_log_file_gets_what_stderr_gets(junction, tmp_path):
    log = tmp_path / "junction.log"
    client = await junction({"bad": scripted(last_words="oh no")}, "--log-file", log)
    await client.tools()
    await client.end()
    assert "server 'bad' failed" in client.errors
    assert log.read_text() == client.errors


@pytest.mark.req("FR-015")
async def test_errors_name_no_secret_of_the_file_or_the_environment(junction):
    secret = "s3cr3t-v4lue"
    servers = {
        "bad": {**scripted(last_words="no"), "env": {"TOKEN": secret, "KEY": "${KEY}"}},
        "gone": {"command": "no-such-program", "args": ["--token", secret], "env": {"A": secret}},
    }
    client = await junction(servers, "--debug", env={"KEY": secret})
    await client.tools()
    await client.end()
    assert "server 'gone' failed" in client.errors
    assert secret not in client.errors
    assert not any(secret.encode() in line for line in client.lines)
