"""Variables in the file, and what a child gets of the environment."""

import os

import pytest
from tests.plugin_journeys import scripted

MARKERS = {"MCP_JUNCTION_CHAIN", "MCP_JUNCTION_CHILD"}
ALWAYS = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM", *MARKERS}


async def about(client, key="one"):
    return await client.read(f"{key}:about")


@pytest.mark.req("US1-3", "FR-002", "FR-011")
async def test_variables_arrive_at_the_child_as_their_values(junction):
    entry = {
        **scripted("about"),
        "env": {"WHERE": "$HOME/x", "API_KEY": "${API_KEY}", "PLAIN": "p"},
    }
    client = await junction({"one": entry}, env={"HOME": "/home/somebody", "API_KEY": "s3cr3t"})
    env = (await about(client))["env"]
    assert env["WHERE"] == "/home/somebody/x"
    assert env["API_KEY"] == "s3cr3t"
    assert env["PLAIN"] == "p"


@pytest.mark.req("SC-004", "FR-002")
async def test_variables_are_replaced_in_every_kind_of_value(junction, tmp_path):
    entry = scripted("about")
    command, args = entry["command"], entry["args"]
    entry = {
        "command": "$BIN/python",
        "args": [*args, "${ARG}", "a-$ARG-b", "${ARG}${ARG}"],
        "env": {"BOTH": "$ARG ${ARG}"},
        "cwd": "${WHERE}/.",
    }
    env = {"BIN": os.path.dirname(command), "ARG": "va l", "WHERE": str(tmp_path)}
    client = await junction({"one": entry}, env=env)
    told = await about(client)
    assert told["argv"][-3:] == ["va l", "a-va l-b", "va lva l"]
    assert told["env"]["BOTH"] == "va l va l"
    assert told["cwd"] == str(tmp_path)


@pytest.mark.req("J-ENV-FORMS")
async def test_defaults_dollars_and_the_form_of_other_clients_are_understood(junction):
    forms = {
        "DEFAULT": "${UNSET:-fallback}",
        "EMPTY_DEFAULT": "${UNSET:-}",
        "SET": "${GIVEN:-fallback}",
        "OTHERS": "${env:GIVEN}",
        "DOLLAR": "$$5 $$GIVEN",
        "LOWER": "$given costs $5",
        "ONCE": "$NESTED",
    }
    entry = {**scripted("about"), "env": forms}
    env = {"UNSET": None, "GIVEN": "given", "NESTED": "${GIVEN} $GIVEN"}
    client = await junction({"one": entry}, env=env)
    got = (await about(client))["env"]
    assert {key: got[key] for key in forms} == {
        "DEFAULT": "fallback",
        "EMPTY_DEFAULT": "",
        "SET": "given",
        "OTHERS": "given",
        "DOLLAR": "$5 $GIVEN",
        "LOWER": "$given costs $5",
        "ONCE": "${GIVEN} $GIVEN",
    }


@pytest.mark.req("FR-002")
async def test_a_dotenv_file_beside_the_config_gives_variables_and_the_environment_wins(
    junction, tmp_path
):
    (tmp_path / ".env").write_text("FROM_FILE='from the file'\nexport BOTH=file # why\n")
    entry = {**scripted("about"), "env": {"A": "$FROM_FILE", "B": "$BOTH"}}
    client = await junction({"one": entry}, env={"BOTH": "environment"})
    env = (await about(client))["env"]
    assert (env["A"], env["B"]) == ("from the file", "environment")


@pytest.mark.req("J-ENV-INHERIT", "FR-011")
async def test_a_child_inherits_only_what_it_needs_to_run(junction):
    ours = {"SECRET": "x", "AWS_SECRET_ACCESS_KEY": "x", "LC_ALL": "C.UTF-8", "NO_PROXY": "*"}
    client = await junction({"one": scripted("about")}, env={**ours, "HOME": "/somewhere"})
    env = (await about(client))["env"]
    assert env["HOME"] == "/somewhere"
    assert env["LC_ALL"] == "C.UTF-8"
    assert env["NO_PROXY"] == "*"
    unexpected = {
        name
        for name in env.keys() - ALWAYS
        if not name.startswith("LC_")
        and not name.upper().endswith(("_PROXY", "_FILE", "_DIR"))
        and name not in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
    }
    assert unexpected == set()


@pytest.mark.req("J-ENV-INHERIT")
async def test_with_inherit_env_a_child_gets_everything(junction):
    entry = {**scripted("about"), "env": {"OVER": "from the file"}}
    client = await junction({"one": entry}, "--inherit-env", env={"SECRET": "x", "OVER": "outside"})
    env = (await about(client))["env"]
    assert env["SECRET"] == "x"
    assert env["OVER"] == "from the file"


@pytest.mark.req("FR-011", "EDGE-TWICE")
async def test_the_environment_of_one_server_is_not_that_of_another(junction):
    same = scripted("about")
    servers = {key: {**same, "env": {"WHO": key}} for key in ("first", "second")}
    client = await junction({**servers, "third": same})
    assert (await about(client, "first"))["env"]["WHO"] == "first"
    assert (await about(client, "second"))["env"]["WHO"] == "second"
    assert "WHO" not in (await about(client, "third"))["env"]


async def test_settings_come_from_the_command_line_the_environment_and_the_file_in_that_order(
    launch, config
):
    path = config({"one": scripted("echo")}, separator="/", name="from the file", prefix="always")
    env = {"JUNCTION_SEPARATOR": "+", "JUNCTION_NAME": "from the environment"}
    client = await launch(path, "--separator", "#", env=env)
    greeting = await client.introduce()
    assert greeting["serverInfo"]["name"] == "from the environment"
    assert list(await client.tools()) == ["one#echo"]


@pytest.mark.req("J-LENIENT")
async def test_with_lenient_the_servers_that_have_their_variables_are_started(junction):
    unset = {**scripted("echo"), "env": {"KEY": "${JUNCTION_TEST_UNSET}"}}
    client = await junction({"bad": unset, "good": scripted("echo")}, "--lenient")
    assert list(await client.tools()) == ["good:echo"]
    await client.complaint("JUNCTION_TEST_UNSET is not set")
