"""An LLM classifies tools after the offline classifier has; a broken one changes nothing."""

import asyncio

import pytest
from tests.registry.llm_server import SKILL, LLMServer
from tests.registry.toolbox import tool, until

from mcp_junction.config.settings import Settings
from mcp_junction.redaction.settings import show_settings
from mcp_junction.registry import verdicts
from mcp_junction.registry.verdicts import LLMClassifier, LLMEndpoint

KEY = "sk-test-0123456789"
BROKEN = ("silent", "refuses", "redirects", "garbage", "prose", "unknown skills", "wrong ids")


@pytest.fixture
async def llm():
    """Starts LLM servers, which end with the test."""
    started: list[LLMServer] = []

    async def start(*given: str) -> LLMServer:
        server = await LLMServer(*given).start()
        started.append(server)
        return server

    yield start
    for server in started:
        await server.stop()


def ask(running, server: LLMServer, pause: float = 0.01):
    """Have a gateway ask this LLM."""
    work = running.registry.skills.classifier
    context = running.registry.context
    settings = context.settings._replace(
        llm_provider=server.provider,
        llm_base_url=server.url,
        llm_api_key=KEY,
        llm_model="a-model",
    )
    endpoint = LLMEndpoint(settings)
    work.llm = LLMClassifier(context, endpoint, work.wake, pause)
    return work


async def classified_by(running, by: str, count: int) -> list:
    """Wait until there are so many tools, and all have their skills by this classifier."""
    async with asyncio.timeout(20):
        while True:
            tools = await running.store.tools.all()
            is_there = len(tools) == count
            if is_there and all(one.is_classified and one.classified_by == by for one in tools):
                return tools
            await asyncio.sleep(0.02)


MAIL = [tool(f"send_email_{n}", "Send an email message to somebody") for n in range(50)]


@pytest.mark.req("K-2", "AG-US3-AC7", "J-CLASSIFIER")
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_the_verdict_of_an_llm_replaces_the_offline_one(single, toolbox, llm, provider):
    running, server = await single(), await llm(provider)
    server.gate.clear()
    work = ask(running, server)
    await running.add("mail", await toolbox(MAIL))
    work.begin()
    offline = await classified_by(running, "offline", 50)
    assert {one.primary_skill_id for one in offline} == {"communication"}
    await until(lambda: server.underway == 5)
    server.gate.set()
    tools = await classified_by(running, "llm:a-model", 50)
    assert {one.primary_skill_id for one in tools} == {SKILL}
    for one, before in zip(tools, offline, strict=True):
        assert one.skill_confidences == {SKILL: 0.8}
        assert one.own_skill_confidences == before.own_skill_confidences
    assert (server.most, len(server.requests)) == (5, 5), "batches of ten, five at once"
    first, headers, body = server.requests[0]
    assert body["model"] == "a-model"
    if provider == "openai":
        assert first.startswith("POST /chat/completions ")
        assert headers["authorization"] == f"Bearer {KEY}"
    else:
        assert first.startswith("POST /v1/messages ")
        assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    await work.llm.wait_until_done()
    await work.wait_until_done()
    skill = await running.registry.skills.get(SKILL)
    assert skill.tool_count == 50, "the vectors of skills follow"


@pytest.mark.req("K-2", "K-3", "AG-US3-AC4")
@pytest.mark.parametrize("mood", BROKEN)
async def test_a_broken_llm_leaves_tools_classified_offline(
    single, toolbox, llm, mood, monkeypatch, caplog
):
    monkeypatch.setattr(verdicts, "BATCH_SECONDS", 0.2 if mood == "silent" else 20.0)
    running, server = await single(), await llm("openai", mood)
    work = ask(running, server)
    await running.add("mail", await toolbox(MAIL[:3]))
    work.begin()
    await until(lambda: len(server.requests) >= 3)  # it is tried again
    tools = await classified_by(running, "offline", 3)
    assert {one.primary_skill_id for one in tools} == {"communication"}
    assert KEY not in caplog.text
    assert "sk-test" not in caplog.text
    server.moods[:] = ["good"]
    await classified_by(running, "llm:a-model", 3)


@pytest.mark.req("K-2")
@pytest.mark.parametrize("mood", ["prose", "unknown skills", "one missing", "too sure"])
async def test_an_invalid_answer_is_asked_for_once_more(single, toolbox, llm, mood):
    running, server = await single(), await llm("openai", mood, "good")
    work = ask(running, server, pause=1000)
    await running.add("mail", await toolbox(MAIL[:3]))
    work.begin()
    await classified_by(running, "llm:a-model", 3)
    assert len(server.requests) == 2
    roles = [one["role"] for one in server.requests[1][2]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "not valid" in server.requests[1][2]["messages"][-1]["content"]


@pytest.mark.req("K-2")
async def test_new_tools_are_classified_offline_while_the_llm_is_slow(single, toolbox, llm):
    running, server = await single(), await llm("anthropic")
    server.gate.clear()
    work = ask(running, server)
    await running.add("mail", await toolbox(MAIL[:2]))
    work.begin()
    await until(lambda: server.underway == 1)
    await running.add("more", await toolbox([tool("get_forecast", "The weather forecast")]))
    await classified_by(running, "offline", 3)
    server.gate.set()
    await classified_by(running, "llm:a-model", 3)


@pytest.mark.req("K-2")
@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://169.254.169.254/latest", ""),
        ("http://192.0.2.1:9", KEY),  # a key in plain text, off this machine
    ],
)
async def test_addresses_that_may_not_be_connected_to_are_not(single, url, key):
    running = await single()
    settings = running.registry.context.settings._replace(
        llm_provider="openai", llm_base_url=url, llm_model="m", llm_api_key=key
    )
    with pytest.raises(verdicts.ModelUnavailable, match="may not be connected to"):
        await LLMEndpoint(settings).classify([], [])


@pytest.mark.req("K-2")
def test_the_key_is_shown_nowhere():
    shown = show_settings(Settings(llm_api_key=KEY, llm_model="m"), {})
    assert KEY not in repr(shown)
    assert [one.value for one in shown if one.name == "llm_api_key"] == ["***"]
