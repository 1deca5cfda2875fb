"""Four cells: a client of either era in front of a server of either era alone, feature by feature.

Over HTTP in front, with the server over HTTP and over stdio. Each test is one cell of the table in
`docs/conformance.md`.
"""

import asyncio
import uuid

import pytest
from mcp import MCPError
from mcp_types import ElicitResult, PromptReference, ResourceTemplateReference
from tests.journeys_eras.clients import (
    HOME,
    connected,
    pages,
    prompt_names,
    resource_uris,
    said,
    spelled,
    text_of,
    tool_names,
    watching,
)
from tests.journeys_eras.ledger import BOUND
from tests.journeys_eras.offers import (
    ASKING_DOCUMENT,
    ASKING_PROMPT,
    DOCUMENT,
    GREETING,
    ITEM,
    PAGE,
    RESOURCES,
    TOOLS,
)
from tests.journeys_eras.stacks import DIRECT, PAGE_SIZE, Stack

ERAS = ("old", "new")
SHELF = RESOURCES[2]
# Client, server, the server's transport.
CELLS = [
    (client, server, transport)
    for client in ERAS
    for server in ERAS
    for transport in ("http", "stdio")
    if not DIRECT or (client == server and transport == "http")
]

pytestmark = [
    pytest.mark.req("J-ERAS"),
    pytest.mark.parametrize(("era", "server_era", "transport"), CELLS),
    pytest.mark.timeout(60),
]


@pytest.fixture
def stack(stacks, server_era, transport) -> Stack:
    return stacks.http(server_era, transport)


@pytest.fixture
def nonce() -> str:
    return uuid.uuid4().hex[:8]


# Questions


@pytest.mark.feature("elicitation")
async def test_a_question_to_the_user_is_answered(stack, era, nonce):
    async with connected(era, stack.url) as (client, person):
        assert await said(client, "ask_user", nonce=nonce) == f"{nonce}: accept Ada"
        assert person.asked == [f"Who is {nonce}?"]
    assert stack.ledger.events(nonce)[-1] == "answered"


@pytest.mark.feature("elicitation")
async def test_two_questions_one_after_the_other(stack, era, nonce):
    async with connected(era, stack.url) as (client, person):
        expected = f"{nonce}: accept Ada, accept Ada"
        assert await said(client, "ask_twice", nonce=nonce) == expected
        assert person.asked == ["First?", "Second?"]


@pytest.mark.feature("elicitation")
async def test_prompts_and_resources_ask_too(stack, era):
    async with connected(era, stack.url) as (client, person):
        prompt = await client.get_prompt(spelled(client, ASKING_PROMPT))
        assert prompt.messages[0].content.text == "Greet accept Ada"
        (content,) = (await client.read_resource(ASKING_DOCUMENT)).contents
        assert content.text == "For accept Ada"
        assert person.asked == ["Who is to be greeted?", "Who reads?"]


@pytest.mark.feature("elicitation")
async def test_a_client_that_takes_no_questions_is_not_asked(stack, era, nonce):
    async with connected(era, stack.url, asks=False) as (client, person):
        try:
            result = await client.call_tool(spelled(client, "ask_user"), {"nonce": nonce})
        except MCPError as error:
            result = error
        # 2026-07-28 has a code for it; nothing else is a good reason to fail.
        assert result.code == -32021 if isinstance(result, MCPError) else result.is_error
        assert await said(client, "echo", text="still here") == "still here"
        assert person.asked == []
    assert "answered" not in stack.ledger.events(nonce)


@pytest.mark.feature("sampling")
async def test_a_question_to_the_model_is_answered(stack, era):
    async with connected(era, stack.url) as (client, person):
        assert await said(client, "ask_model", prompt="What?") == "a-model: forty-two"
        assert person.prompted == ["What?"]


@pytest.mark.feature("roots")
async def test_roots_are_told(stack, era):
    async with connected(era, stack.url) as (client, _):
        assert await said(client, "ask_roots") == HOME


@pytest.mark.feature("elicitation", "sampling", "roots")
async def test_three_kinds_of_question_in_one_call(stack, era):
    async with connected(era, stack.url) as (client, person):
        assert await said(client, "ask_all") == f"accept Ada, a-model: forty-two, {HOME}"
        assert (person.asked, person.prompted) == (["Who?"], ["What?"])


@pytest.mark.feature("elicitation")
async def test_two_clients_are_each_asked_their_own(stack, era, server_era, transport):
    async with (
        connected(era, stack.url) as (one, first),
        connected(era, stack.url) as (two, second),
    ):
        a, b = uuid.uuid4().hex[:8], uuid.uuid4().hex[:8]
        answers = await asyncio.gather(
            text_of(one, "ask_user", nonce=a), text_of(two, "ask_user", nonce=b)
        )
        assert set(first.asked) <= {f"Who is {a}?"}
        assert set(second.asked) <= {f"Who is {b}?"}
        if (server_era, transport) == ("old", "stdio"):
            return  # nothing says whose question it is; it is refused rather than guessed
        assert answers == [f"{a}: accept Ada", f"{b}: accept Ada"]


@pytest.mark.feature("elicitation")
async def test_many_questions_at_once_are_each_answered(stack, era, server_era, transport):
    if (era, server_era, transport) == ("new", "old", "stdio"):
        pytest.skip("nothing says which call a question belongs to, and each call is by itself")
    nonces = [uuid.uuid4().hex[:8] for _ in range(20)]
    async with connected(era, stack.url) as (client, person):
        calls = (said(client, "ask_user", nonce=nonce) for nonce in nonces)
        assert await asyncio.gather(*calls) == [f"{nonce}: accept Ada" for nonce in nonces]
        assert sorted(person.asked) == sorted(f"Who is {nonce}?" for nonce in nonces)


@pytest.mark.feature("elicitation")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_refuse(stack, era, nonce, action):
    async with connected(era, stack.url) as (client, person):
        person.answer = ElicitResult(action=action)
        assert await said(client, "ask_user", nonce=nonce) == f"{nonce}: {action} None"


@pytest.mark.feature("elicitation")
async def test_what_the_user_said_arrives_as_it_was(stack, era, nonce):
    words = 'Zoë "🚦"\n\r\u2028\\ \x7f'
    async with connected(era, stack.url) as (client, person):
        person.answer = ElicitResult(action="accept", content={"name": words})
        assert await said(client, "ask_user", nonce=nonce) == f"{nonce}: accept {words}"


# While a call runs


@pytest.mark.feature("progress")
async def test_progress_arrives_in_order(stack, era):
    heard = []

    async def on_progress(done, total, message):
        heard.append((done, total, message))

    async with connected(era, stack.url) as (client, _):
        tool = spelled(client, "steps")
        result = await client.call_tool(tool, {"steps": 4}, progress_callback=on_progress)
        assert result.content[0].text == "4 steps"
    assert heard == [(step, 4, f"step {step}") for step in (1, 2, 3, 4)]


@pytest.mark.feature("cancellation")
async def test_a_cancelled_call_ends_at_the_server(stack, era, nonce):
    running = asyncio.Event()

    async def on_progress(*said):
        running.set()

    async with connected(era, stack.url) as (client, _):
        tool = spelled(client, "hold")
        call = asyncio.ensure_future(
            client.call_tool(tool, {"nonce": nonce}, progress_callback=on_progress)
        )
        await asyncio.wait_for(running.wait(), BOUND)
        assert stack.ledger.events(nonce) == ["started"]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(stack.ledger.wait_for, nonce, "cancelled")
        assert await said(client, "echo", text="after") == "after"


@pytest.mark.feature("logging")
async def test_logs_come_from_the_level_asked_for(stack, era):
    async with connected(era, stack.url, log_level="warning") as (client, person):
        assert await said(client, "speak") == "spoken"
        await until(lambda: len(person.logs) >= 2)
        assert person.logs == [("warning", "said at warning"), ("error", "said at error")]


@pytest.mark.feature("logging")
async def test_two_clients_have_their_own_level(stack, era):
    async with (
        connected(era, stack.url, log_level="error") as (one, first),
        connected(era, stack.url, log_level="info") as (two, second),
    ):
        assert await said(one, "speak") == await said(two, "speak") == "spoken"
        await until(lambda: first.logs and len(second.logs) >= 3)
        assert [level for level, _ in first.logs] == ["error"]
        assert [level for level, _ in second.logs] == ["info", "warning", "error"]


@pytest.mark.feature("logging")
async def test_who_did_not_ask_for_logs_in_the_new_era_hears_none(stack, era):
    if era == "old":
        pytest.skip("in the handshake era a server decides what comes without a level")
    async with connected(era, stack.url) as (client, person):
        assert await said(client, "speak") == "spoken"
        assert person.logs == []


# News


@pytest.mark.feature("list_changed")
@pytest.mark.parametrize("kind", ["tools", "prompts", "resources"])
async def test_a_list_that_grew_is_announced_and_complete(stack, era, kind, nonce):
    listing = {"tools": tool_names, "prompts": prompt_names, "resources": resource_uris}[kind]
    async with connected(era, stack.url) as (client, person):
        before = await listing(client)
        async with watching(client, person, kind) as following:
            assert await said(client, "grow", kind=kind, name=f"g{nonce}") == "grown"
            while await following() != kind:
                pass  # in the handshake era every list is announced to everyone
            after = await listing(client)
            while not any(f"g{nonce}" in name for name in after):
                # Another test's change may have been announced first.
                assert await following()
                after = await listing(client)
    assert set(before) < set(after)


@pytest.mark.feature("subscriptions")
async def test_only_what_was_subscribed_to_is_told(stack, era):
    async with (
        connected(era, stack.url) as (client, person),
        watching(client, person, uris=[DOCUMENT]) as following,
    ):
        assert await said(client, "touch", uri=SHELF) == "touched"
        assert await said(client, "touch", uri=DOCUMENT) == "touched"
        assert await news(following) == DOCUMENT


@pytest.mark.feature("subscriptions")
async def test_one_of_two_subscribers_leaves_and_the_other_still_hears(stack, era):
    async with (
        connected(era, stack.url) as (one, first),
        connected(era, stack.url) as (two, other),
        watching(one, first, uris=[SHELF]) as following,
    ):
        async with watching(two, other, uris=[SHELF]) as too:
            await said(one, "touch", uri=SHELF)
            assert await news(following) == await news(too) == SHELF
        await said(one, "touch", uri=SHELF)
        assert await news(following) == SHELF


# Lists and completions


@pytest.mark.feature("completions")
async def test_arguments_of_prompts_and_templates_are_completed(stack, era):
    async with connected(era, stack.url) as (client, _):
        prompt = PromptReference(type="ref/prompt", name=spelled(client, GREETING))
        found = await client.complete(prompt, {"name": "name", "value": "A"})
        assert found.completion.values == ["Ada", "Alan"]
        (template,) = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == ITEM
        ref = ResourceTemplateReference(type="ref/resource", uri=template.uri_template)
        found = await client.complete(ref, {"name": "number", "value": "1"})
        assert found.completion.values == ["1", "10"]


@pytest.mark.feature("pagination")
async def test_every_page_together_is_the_whole_list(stack, era):
    async with connected(era, stack.url) as (client, _):
        listed = await pages(client.list_tools, "tools")
        names = [tool.name for page in listed for tool in page]
        # What the server grew meanwhile comes on top.
        assert len(set(names)) == len(names) >= len(TOOLS)
        for own in TOOLS:
            assert any(name.endswith(own) for name in names), own
        size = PAGE if DIRECT else PAGE_SIZE
        assert [len(page) for page in listed[:-1]] == [size] * (len(listed) - 1)
        assert 1 <= len(listed[-1]) <= size
        uris = await resource_uris(client)
        assert set(RESOURCES) <= set(uris)
        assert len(set(uris)) == len(uris)


@pytest.mark.feature("pagination")
async def test_a_cursor_that_was_never_given_out_is_refused(stack, era):
    if DIRECT:
        pytest.skip("the server takes any number")
    async with connected(era, stack.url) as (client, _):
        with pytest.raises(MCPError) as refused:
            await client.list_tools(cursor="never given out", cache_mode="refresh")
        assert refused.value.code == -32602


async def news(following) -> str:
    """The next resource that changed; of lists nobody asked here."""
    while (heard := await following()) in ("tools", "prompts", "resources"):
        pass
    return heard


async def until(condition) -> None:
    async with asyncio.timeout(BOUND):
        while not condition():  # noqa: ASYNC110 - callbacks of the SDK fill what it looks at
            await asyncio.sleep(0.01)
