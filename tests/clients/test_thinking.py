"""Thoughts told apart from answers, bounded by a budget, before structures and calls.

The shipped model does not think. With another template, which opens a thought before every answer, it thinks for as long
as it is let.
"""

import json
import shutil

import httpx
import jsonschema
import ollama
import openai
import pytest
from conftest import MINI, started

OPENING = """{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""
HELLO = [{"role": "user", "content": "Hello!"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "word": {"type": "string", "maxLength": 8}},
    "required": ["ok", "word"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": SCHEMA}}]
BUDGET = 6
# The tokens of "</think>" and what follows it are drawn beyond the budget.
CLOSING_MAX = 16


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """URL of a server with a reasoning model."""
    model = tmp_path_factory.mktemp("thinker") / "thinker"
    shutil.copytree(MINI, model)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    template = config["chat_template"]
    start = template.rindex("{%- if add_generation_prompt %}")
    config["chat_template"] = template[:start] + OPENING
    path.write_text(json.dumps(config))
    with started(model, "--thinking", "yes") as ready:
        yield ready["url"].rstrip("/")


@pytest.fixture(scope="module")
def client(thinker):
    with openai.OpenAI(base_url=f"{thinker}/v1", api_key="not-needed", max_retries=0, timeout=120) as client:
        yield client


def ask(client, seed=1, budget=BUDGET, **more):
    extra = {"thinking_token_budget": budget, **more.pop("extra_body", {})}
    request = dict(model="default", messages=HELLO, temperature=1.5, seed=seed, max_tokens=300)
    return client.chat.completions.create(**request, **more, extra_body=extra)


def test_a_budget_closes_the_thought_and_the_answer_follows(client):
    for seed in range(8):
        answer = ask(client, seed)
        message = answer.choices[0].message
        assert message.reasoning_content and message.reasoning_content == message.reasoning
        assert message.content and "think>" not in message.content + message.reasoning_content
        reasoning_tokens = answer.usage.completion_tokens_details.reasoning_tokens
        assert reasoning_tokens <= BUDGET + CLOSING_MAX


def test_without_a_budget_it_is_all_thought(client):
    request = dict(model="default", messages=HELLO, max_tokens=20, temperature=1.5, seed=3)
    request["logit_bias"] = {"0": -100, "1": -100, "2": -100}
    message = client.chat.completions.create(**request).choices[0].message
    assert message.reasoning_content and not message.content


def test_thinking_is_switched_off_by_the_request(client):
    message = ask(client, extra_body={"enable_thinking": False}).choices[0].message
    assert message.content and not getattr(message, "reasoning_content", None)


@pytest.mark.parametrize("budget", [0, BUDGET])
def test_a_structure_comes_after_the_thought(client, budget):
    structure = {"type": "json_schema", "json_schema": {"name": "note", "schema": SCHEMA}}
    for seed in range(4):
        answer = ask(client, seed, budget, response_format=structure).choices[0]
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(answer.message.content), SCHEMA)
        assert bool(getattr(answer.message, "reasoning_content", None)) == bool(budget)


def test_a_forced_call_comes_after_the_thought(client):
    for seed in range(4):
        answer = ask(client, seed, tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.reasoning_content
        jsonschema.validate(json.loads(answer.message.tool_calls[0].function.arguments), SCHEMA)


def test_thoughts_are_streamed_as_they_are_told_whole(client):
    whole = ask(client, 5).choices[0].message
    thought = text = ""
    for chunk in ask(client, 5, stream=True):
        delta = chunk.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        text += delta.content or ""
        assert not (thought == "" and text), "the thought comes first"
    assert (thought, text) == (whole.reasoning_content, whole.content)


def test_every_protocol_tells_thoughts_apart(thinker):
    story = [{"role": "user", "content": "Tell me a story about a dog."}]
    options = {"num_predict": 30, "temperature": 0}
    answer = ollama.Client(host=thinker).chat("thinker", story, think=True, options=options)
    assert answer.message.thinking
    body = {"model": "thinker", "messages": story, "max_tokens": 30, "temperature": 0, "thinking": {"type": "adaptive"}}
    answer = httpx.post(f"{thinker}/v1/messages", json=body, timeout=60).json()
    assert answer["content"][0]["type"] == "thinking" and answer["content"][0]["thinking"]
    body = {"model": "thinker", "input": story[0]["content"], "max_output_tokens": 30, "temperature": 0}
    answer = httpx.post(f"{thinker}/v1/responses", json=body, timeout=60).json()
    assert answer["output"][0]["type"] == "reasoning"
