"""Smoke."""

from tests.plugin_rest import SERVERS


async def test_it_answers(served):
    answer = await served.client(None).get(SERVERS)
    print(answer.status_code, answer.text, answer.headers)
    answer = await served.client().get(SERVERS)
    print(answer.status_code, answer.text)
    answer = await served.client().get("/api/v1/openapi.json")
    print(answer.status_code, answer.text[:3000])
    answer = await served.client().get("/api/v1/docs")
    print(answer.status_code, answer.text[:300])
    print((await served.client().get("/api/v1/nowhere")).text)
    print((await served.client().put(SERVERS)).text)
    print((await served.client().get(SERVERS + "?limit=0")).text)
    print((await served.client().get(SERVERS + "?limit=x")).text)
    print((await served.client().get("/api/v1/events?follow=false")).text)
    print((await served.client().post(SERVERS, json={"name": "X"})).text)
