"""Ollama's API through its official client."""

import json

import ollama
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]
GREEDY = {"temperature": 0, "num_predict": 40}


@pytest.fixture(scope="module")
def llama(url):
    return ollama.Client(host=url, timeout=120)


@pytest.fixture(scope="module")
def name(model):
    """Name of the model in this API."""
    return f"{model}:latest"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_a_chat_has_every_field(llama, client, model, name):
    answer = llama.chat(name, HELLO, options=GREEDY)
    assert (answer.model, answer.done) == (name, True)
    assert answer.done_reason in ("stop", "length")
    assert answer.message.role == "assistant"
    assert answer.total_duration >= answer.prompt_eval_duration + answer.eval_duration > 0
    assert answer.prompt_eval_count > 0 and 0 < answer.eval_count <= 40
    theirs = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=40)
    assert answer.message.content == theirs.choices[0].message.content


def test_a_stream_comes_to_the_whole_answer(llama, name):
    whole = llama.chat(name, HELLO, options=GREEDY)
    parts = list(llama.chat(name, HELLO, options=GREEDY, stream=True))
    assert len(parts) > 2
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].done_reason, parts[-1].eval_count) == (whole.done_reason, whole.eval_count)


def test_a_text_is_generated(llama, name):
    chat = llama.chat(name, HELLO, options=GREEDY)
    answer = llama.generate(name, "Hello!", options=GREEDY)
    assert answer.response == chat.message.content
    parts = llama.generate(name, "Hello!", options=GREEDY, stream=True)
    assert "".join(part.response for part in parts) == answer.response
    raw = llama.generate(name, "Hello!", raw=True, options=GREEDY)
    assert raw.prompt_eval_count < answer.prompt_eval_count


def test_options_do_what_they_say(llama, name):
    cut = llama.chat(name, HELLO, options={**GREEDY, "num_predict": 3})
    assert (cut.eval_count, cut.done_reason) == (3, "length")
    uncut = llama.chat(name, HELLO, options=GREEDY).message.content
    stopped = llama.chat(name, HELLO, options=ollama.Options(temperature=0, num_predict=40, stop=[uncut[5:8]]))
    assert stopped.message.content == uncut[: uncut.index(uncut[5:8])]
    assert llama.chat(name, HELLO, options={"top_k": 1, "seed": 1, "num_predict": 40, "num_ctx": 4096}).message.content == uncut


def test_log_probabilities_are_told(llama, name):
    answer = llama.chat(name, HELLO, options=GREEDY, logprobs=True, top_logprobs=2)
    # The token that ends the answer is no part of its content.
    assert answer.done_reason == "stop"
    assert len(answer.logprobs) + 1 == answer.eval_count
    for entry in answer.logprobs:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].token == entry.token


def test_a_tool_is_called_and_its_result_is_heard(llama, name):
    messages = [{"role": "user", "content": "What's the weather in Oslo?"}]
    options = {**GREEDY, "num_predict": 60}
    message = llama.chat(name, messages, tools=[WEATHER], options=options).message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    # Which city is up to a very small model; that it is an argument of the tool is up to us.
    assert set(call.function.arguments) == {"city"}
    streamed = [call for part in llama.chat(name, messages, tools=[WEATHER], options=options, stream=True) for call in part.message.tool_calls or []]
    assert [it.function for it in streamed] == [call.function]
    messages += [message, {"role": "tool", "tool_name": "get_weather", "content": '{"temperature": 21, "condition": "sunny"}'}]
    answer = llama.chat(name, messages, tools=[WEATHER], options=options).message
    assert not answer.tool_calls and answer.content.strip()


def test_models_are_listed_and_shown(llama, model, name, context_tokens):
    (listed,) = llama.list().models
    assert listed.model == name
    assert listed.size > 0 and listed.modified_at.year >= 2024
    assert listed.details.family and listed.details.parameter_size and listed.details.quantization_level
    shown = llama.show(name)
    assert shown.details == listed.details
    architecture = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{architecture}.context_length"] == context_tokens
    assert {"completion", "tools"} <= set(shown.capabilities)
    (running,) = llama.ps().models
    assert (running.name, running.digest, running.context_length) == (name, listed.digest, context_tokens)
    assert running.size > 0


def test_an_empty_request_loads_the_model(llama, name):
    assert llama.generate(name).done_reason == "load"
    assert llama.chat(name).done_reason == "load"


def test_a_model_that_is_there_need_not_be_fetched(llama, name):
    assert llama.pull(name).status == "success"
    assert [part.status for part in llama.pull(name, stream=True)] == ["success"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"options": {"temperature": -1}}, "options.temperature"),
        ({"options": {"num_predict": "many"}}, "options.num_predict"),
        ({"format": {"not": {}}}, "format"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"messages": [{"role": "user", "content": "x", "images": [b"x"]}]}, "messages[0].images"),
    ],
)
def test_a_bad_request_is_refused_by_name(llama, name, options, told):
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError) as raised:
            answer = llama.chat(name, **{"messages": HELLO, **options}, stream=stream)
            list(answer)
        assert raised.value.status_code == 400
        assert told in raised.value.error


def test_what_is_not_there_is_not_found(llama):
    for ask in (lambda: llama.chat("llama3", HELLO), lambda: llama.show("llama3"), lambda: llama.delete("llama3")):
        with pytest.raises(ollama.ResponseError) as raised:
            ask()
        assert raised.value.status_code == 404
        assert "model 'llama3' not found" in raised.value.error
    with pytest.raises(ollama.ResponseError) as raised:
        llama.pull("org/none")
    assert "HF_HUB_OFFLINE forbids requests to" in raised.value.error


def test_the_version_is_one(http):
    assert len(http.get("/api/version").json()["version"].split(".")) == 3
    assert http.head("/api/tags").status_code == 200


def test_a_structure_is_kept(llama, name):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    for seed in range(4):
        options = {"temperature": 1.5, "seed": seed, "num_predict": 60}
        told = llama.chat(name, HELLO, format=schema, options=options).message.content
        assert list(json.loads(told)) == ["ok"]
        streamed = llama.generate(name, "Hello!", format="json", options={**options, "num_predict": 400}, stream=True)
        *_, last = parts = list(streamed)
        if last.done_reason == "stop":
            assert isinstance(json.loads("".join(part.response for part in parts)), dict)


def test_texts_become_vectors_of_length_one(llama, name):
    embedded = llama.embed(name, ["one text", "another"])
    assert len(embedded.embeddings) == 2 and embedded.prompt_eval_count > 0
    for vector in embedded.embeddings:
        assert abs(sum(value * value for value in vector) - 1) < 1e-4
    assert llama.embed(name, "one text").embeddings[0] == embedded.embeddings[0]
    assert len(llama.embeddings(name, "one text").embedding) == len(embedded.embeddings[0])
