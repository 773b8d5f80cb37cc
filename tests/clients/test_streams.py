"""Streams, through the official client and on the wire."""

import json

import pytest

from conftest import TALKATIVE

HELLO = [{"role": "user", "content": "Hello!"}]


def stream_chat(client, model, messages=HELLO, **options):
    options.setdefault("temperature", 0)
    options.setdefault("max_tokens", 40)
    return list(client.chat.completions.create(model=model, messages=messages, stream=True, **options))


def events(http, path, body):
    """Returns every event of a stream, and its comments."""
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        blocks = "".join(response.iter_text()).split("\n\n")
    assert blocks.pop() == "", "a stream ends with an empty line"
    return [block.removeprefix("data: ") for block in blocks if not block.startswith(":")]


def test_a_stream_comes_in_order(client, model):
    chunks = stream_chat(client, model)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" and chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert all(chunk.choices[0].finish_reason is None for chunk in chunks[:-1])
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].choices[0].delta.content is None


def test_a_stream_comes_piece_by_piece(client, model):
    chunks = stream_chat(client, model, **TALKATIVE)
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) > 10


@pytest.mark.parametrize("options", [{}, {"n": 3, "seed": 2, "temperature": 1.2}, {"stop": ["e"]}, {"logprobs": True, "top_logprobs": 2}])
def test_a_stream_is_the_whole_answer(client, model, options):
    whole = client.chat.completions.create(model=model, messages=HELLO, max_tokens=40, **{"temperature": 0, **options})
    chunks = stream_chat(client, model, stream_options={"include_usage": True}, **options)
    usage = chunks.pop()
    assert usage.choices == []
    assert usage.usage.completion_tokens == whole.usage.completion_tokens
    assert usage.usage.prompt_tokens == whole.usage.prompt_tokens
    for choice in whole.choices:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(chunk.delta.content or "" for chunk in mine) == choice.message.content
        assert mine[-1].finish_reason == choice.finish_reason
        if choice.logprobs:
            assert [entry for chunk in mine if chunk.logprobs for entry in chunk.logprobs.content] == choice.logprobs.content


def test_usage_comes_last_and_only_if_asked_for(http, model):
    body = {"model": model, "messages": HELLO, "stream": True, "max_tokens": 5}
    *chunks, done = events(http, "/v1/chat/completions", body)
    assert done == "[DONE]"
    assert all("usage" not in json.loads(chunk) for chunk in chunks)
    *chunks, usage, done = events(http, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert all(json.loads(chunk)["usage"] is None for chunk in chunks)
    assert json.loads(usage)["choices"] == [] and json.loads(usage)["usage"]["total_tokens"] > 0


def test_token_ids_are_streamed(http, model):
    body = {"model": model, "messages": HELLO, "temperature": 0, "max_tokens": 20, "return_token_ids": True}
    whole = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    choices = [json.loads(event)["choices"][0] for event in events(http, "/v1/chat/completions", {**body, "stream": True})[:-1]]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for choice in choices for token in choice.get("token_ids") or []] == whole["token_ids"]


def test_a_completion_is_streamed(client, model):
    options = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 30, "logprobs": 1, "echo": True}
    whole = client.completions.create(**options).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(stream=True, **options)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for field in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [entry for chunk in chunks if chunk.logprobs for entry in getattr(chunk.logprobs, field)] == getattr(whole.logprobs, field)


def test_a_tool_call_is_streamed(client, model):
    from test_chat import WEATHER

    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    options = {"tools": [WEATHER], "max_tokens": 60}
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0, **options)
    (wanted,) = whole.choices[0].message.tool_calls
    chunks = stream_chat(client, model, messages, **options)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert calls[0].index == 0 and calls[0].id.startswith("call_")
    assert calls[0].function.name == wanted.function.name == "get_weather"
    assert "".join(call.function.arguments for call in calls) == wanted.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
