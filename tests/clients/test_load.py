"""Many concurrent requests, clients that disconnect, and the server's reports about itself."""

import asyncio

import httpx
import openai
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]
# Goes on until the context is full, unless its client leaves.
ENDLESS = {"max_tokens": 1500, "extra_body": {"ignore_eos": True}}


def endless(model):
    return {"model": model, "messages": HELLO, "max_tokens": 1500, "ignore_eos": True}


def asynchronous(url, max_retries=0):
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=max_retries, timeout=300)


def test_a_stream_that_is_left_ends_on_the_server(client, model, http, idle):
    before = idle()["counters"]["cancelled"]
    stream = client.chat.completions.create(model=model, messages=HELLO, stream=True, n=2, **ENDLESS)
    for _, _chunk in zip(range(5), stream):
        pass
    assert http.get("/health").json()["running"] == 2
    stream.close()
    assert idle()["counters"]["cancelled"] == before + 2


def test_an_answer_that_is_not_waited_for_ends_on_the_server(model, http, idle, url):
    before = idle()["counters"]["cancelled"]
    with pytest.raises(httpx.ReadTimeout), httpx.Client(base_url=url, timeout=0.5) as client:
        client.post("/v1/chat/completions", json=endless(model) | {"n": 8})
    assert idle()["counters"]["cancelled"] == before + 8


def test_the_official_client_leaves_in_the_same_way(client, model, idle):
    before = idle()["counters"]["cancelled"]
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(model=model, messages=HELLO, n=8, **ENDLESS)
    assert idle()["counters"]["cancelled"] == before + 8


def test_an_answer_does_not_depend_on_what_else_runs(url, model):
    questions = ["Hello!", "Who are you?", "What is 3 + 4?", "Tell me a short story.", "What is the capital of France?"]

    async def ask(client, number):
        answer = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": questions[number % len(questions)]}],
            seed=number,
            temperature=0 if number % 2 else 1.2,
            max_tokens=30,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        return answer.choices[0].model_extra["token_ids"]

    async def compare():
        async with asynchronous(url) as client:
            alone = [await ask(client, number) for number in range(10)]
            together = await asyncio.gather(*(ask(client, number % 10) for number in range(60)))
            assert together == [alone[number % 10] for number in range(60)]

    asyncio.run(compare())


def test_streams_do_not_mix(url, model):
    async def read(client, number):
        word = f"{number:03}"
        options = {"model": model, "prompt": f"{word} and {word} and", "temperature": 0, "echo": True, "max_tokens": 20}
        stream = await client.completions.create(stream=True, **options)
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text.startswith(f"{word} and {word} and")
        return text == (await client.completions.create(**options)).choices[0].text

    async def read_all():
        async with asynchronous(url) as client:
            assert all(await asyncio.gather(*(read(client, number) for number in range(40))))

    asyncio.run(read_all())


def test_too_many_at_once_are_sent_away_with_advice(url, model, http, idle):
    idle()

    async def open_stream(client):
        try:
            return await client.chat.completions.create(model=model, messages=HELLO, stream=True, **ENDLESS)
        except openai.RateLimitError as error:
            return error

    async def flood():
        async with asynchronous(url) as client:
            opened = await asyncio.gather(*(open_stream(client) for _ in range(380)))
            refused = [it for it in opened if isinstance(it, openai.RateLimitError)]
            accepted = [it for it in opened if not isinstance(it, openai.RateLimitError)]
            for stream in accepted:
                await stream.close()
            return refused, accepted

    refused, accepted = asyncio.run(flood())
    assert refused, "not everybody can be served at once"
    assert accepted, "but some are"
    for error in refused:
        assert error.type == "rate_limit_error"
        assert error.code in ("queue_full", "too_many_streams")
        assert int(error.response.headers["retry-after"]) >= 1
    idle()
    assert http.get("/health/ready").status_code == 200


def test_a_client_that_tries_again_gets_through(url, model):
    """The official client's own retries are enough to get past a full server."""

    async def ask_all():
        async with asynchronous(url, max_retries=20) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model=model, messages=HELLO, max_tokens=8) for _ in range(380))
            )
            assert all(answer.choices for answer in answers)

    asyncio.run(ask_all())


def test_health_tells_how_the_server_is(http, model, idle):
    health = idle()
    assert health["status"] == "healthy" and health["ok"] is True
    assert health["model"] == health["model_name"] == model
    assert health["world_size"] == len(health["ranks"]) == 2
    assert health["queue_max"] > 0 and health["uptime_seconds"] >= 0
    heads = [(rank["facts"]["kv_heads"]["start"], rank["facts"]["kv_heads"]["end"]) for rank in health["ranks"]]
    assert heads[0][1] == heads[1][0], "the ranks hold neighbouring heads"
    for rank in health["ranks"]:
        # The phase is the one of the last heartbeat.
        assert rank["facts"]["weights_bytes"] > 0 and rank["phase"] in ("idle", "computing")
    assert http.get("/health/live").json()["status"] == "alive"
    assert http.get("/health/ready").json()["ready"] is True
    assert http.get("/version").json()["version"]


def test_models_are_listed(client, model):
    assert client.models.retrieve(model).id == model
    assert client.models.retrieve("default").id == model
    (card,) = client.models.list().data
    assert card.object == "model" and card.owned_by == "jackalope" and card.created > 0


def test_a_long_prompt_does_not_stop_the_others(url, model, context_tokens):
    async def run():
        async with asynchronous(url) as client:
            stream = await client.chat.completions.create(model=model, messages=HELLO, stream=True, **ENDLESS)
            arrived = 0
            long = [{"role": "user", "content": "word " * (context_tokens // 3)}]
            answering = asyncio.create_task(client.chat.completions.create(model=model, messages=long, max_tokens=1))
            async for _ in stream:
                arrived += 1
                if answering.done():
                    break
            assert answering.done() and answering.result().usage.prompt_tokens > context_tokens // 4
            assert arrived > 1, "tokens came while the prompt was computed"
            await stream.close()

    asyncio.run(run())
