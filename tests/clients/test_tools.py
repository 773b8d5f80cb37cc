"""Calls that are forced, strict, or stand beside a structure, drawn hot by a small model."""

import json
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 1, "maxItems": 4}},
    "required": ["numbers"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": WEATHER, "sum": SUM}
ANSWER = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMAS[name], **more}}


TOOLS = [tool("weather"), tool("sum")]


def ask(client, seed, **more):
    """Returns the text, calls and finish reason of one answer at temperature 1.5."""
    choice = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        temperature=1.5,
        seed=seed,
        max_tokens=400,
        **more,
    ).choices[0]
    return choice.message.content, choice.message.tool_calls or [], choice.finish_reason


def check_call(call):
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


def many(client, **more):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda seed: ask(client, seed, **more), range(16)))


def test_a_required_call_is_made_whatever_the_model_would_say(client):
    for content, calls, finish in many(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False):
        assert finish == "tool_calls" and len(calls) == 1 and not content
        check_call(calls[0])


def test_the_named_tool_is_called(client):
    named = {"type": "function", "function": {"name": "sum"}}
    for content, calls, finish in many(client, tools=TOOLS, tool_choice=named):
        assert finish == "tool_calls" and [call.function.name for call in calls] == ["sum"] and not content
        check_call(calls[0])


def test_strict_tools_are_only_called_as_their_schemas_say(client):
    strict = [tool("weather", strict=True), tool("sum", strict=True)]
    for _, calls, finish in many(client, tools=strict):
        for call in calls:
            check_call(call)
        assert finish in ("tool_calls", "stop", "length")


def test_a_structure_beside_tools_is_a_call_or_the_structure(client):
    structure = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
    for content, calls, finish in many(client, tools=TOOLS, response_format=structure):
        if finish == "length":
            continue
        for call in calls:
            check_call(call)
        if not calls:
            jsonschema.validate(json.loads(content), ANSWER)
        assert bool(calls) != bool(content)


def test_streamed_calls_are_the_whole_ones(client):
    for seed in range(4):
        request = dict(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        _, whole, _ = ask(client, seed, **request)
        stream = client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
            temperature=1.5,
            seed=seed,
            max_tokens=400,
            stream=True,
            **request,
        )
        name = arguments = ""
        for chunk in stream:
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        assert (name, arguments) == (whole[0].function.name, whole[0].function.arguments)


def test_a_tool_that_cannot_be_held_to_its_schema_is_refused_if_it_is_strict(client):
    import openai

    odd = tool("sum")
    odd["function"]["parameters"] = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    ask(client, 1, tools=[odd], tool_choice="required")
    odd["function"]["strict"] = True
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, 1, tools=[odd], tool_choice="required")
    assert "not" in str(refused.value)
