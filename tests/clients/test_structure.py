"""Answers are what was asked for, however hot the sampler is: judged by an independent validator."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import jsonschema
import openai
import pytest
from schemas import ALL

HOT = {"temperature": 1.5, "max_tokens": 160}
HELLO = [{"role": "user", "content": "Tell me about Oslo."}]
CONCURRENCY = 16


def wanted(name, schema):
    legal = re.sub("[^a-zA-Z0-9_-]", "_", name)[:64]
    return {"type": "json_schema", "json_schema": {"name": legal, "schema": schema, "strict": True}}


def judge(schema, text):
    """Raises if the text is not an instance. Multiples are counted in decimals: 0.3 is three times 0.1."""
    value = json.loads(text)
    if "multipleOf" in schema and isinstance(schema["multipleOf"], float):
        assert Decimal(text) % Decimal(str(schema["multipleOf"])) == 0
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    draft = jsonschema.Draft7Validator if isinstance(schema.get("items"), list) else jsonschema.Draft202012Validator
    draft(schema, format_checker=checker).validate(value)


def test_every_completed_answer_is_what_its_schema_says(client, model):
    assert 200 <= len(ALL)

    def ask(numbered):
        seed, (name, schema) = numbered
        answer = client.chat.completions.create(
            model=model, messages=HELLO, response_format=wanted(name, schema), seed=seed, **HOT
        )
        (choice,) = answer.choices
        return name, schema, choice.finish_reason, choice.message.content

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        answers = list(pool.map(ask, enumerate(ALL)))
    unfinished = []
    for name, schema, reason, text in answers:
        if reason == "length":
            unfinished.append(name)
            continue
        assert reason == "stop", name
        try:
            judge(schema, text)
        except Exception as err:
            raise AssertionError(f"{name}: {text}\n{err}") from err
    assert len(unfinished) < len(ALL) // 10, f"{len(unfinished)} answers never ended: {unfinished}"


def test_vllm_names_and_choices(client, model):
    def say(n=1, **extra):
        answer = client.chat.completions.create(model=model, messages=HELLO, n=n, extra_body=extra, **HOT)
        assert len(answer.choices) == n
        return [choice.message.content for choice in answer.choices]

    assert set(say(n=4, guided_choice=["yes", "no", "perhaps"])) <= {"yes", "no", "perhaps"}
    assert all(re.fullmatch("[0-9]{3}-[a-f]+", text) for text in say(n=3, structured_outputs={"regex": "[0-9]{3}-[a-f]{1,5}"}))
    assert say(guided_grammar='start: "a" "b"')[0] == "ab"
    assert json.loads(say(guided_json={"const": [1, {"ä": None}]})[0]) == [1, {"ä": None}]
    (text,) = say(guided_json=json.dumps({"type": "boolean"}))
    assert json.loads(text) in (True, False)


def test_streams_and_completions_are_bound_too(client, model):
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
    stream = client.chat.completions.create(model=model, messages=HELLO, stream=True, response_format=wanted("s", schema), **HOT)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    judge(schema, text)
    answer = client.completions.create(model=model, prompt="Once", extra_body={"response_format": wanted("s", schema)}, **HOT)
    judge(schema, answer.choices[0].text)
    greedy = client.completions.create(
        model=model, prompt="Once", temperature=0, max_tokens=60, extra_body={"guided_choice": ["zebra zebra"]}
    )
    assert greedy.choices[0].text == "zebra zebra"


def test_the_end_waits_for_min_tokens_and_lists_bound_tokens(client, http, model):
    # The shipped model ends its answers with one of these, which a bias makes it want at once.
    eager = {"logit_bias": {"0": 100, "1": 100, "2": 100}}
    few = client.chat.completions.create(model=model, messages=HELLO, max_tokens=40, extra_body=eager)
    many = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=40, extra_body=eager | {"min_tokens": 12}
    )
    assert few.usage.completion_tokens < 12 <= many.usage.completion_tokens
    answer = http.post(
        "/v1/completions",
        json={"prompt": "Once", "max_tokens": 20, "allowed_token_ids": [300, 301], "return_token_ids": True, "temperature": 1.5},
    ).json()
    assert set(answer["choices"][0]["token_ids"]) <= {300, 301}
    text = client.chat.completions.create(model=model, messages=HELLO, max_tokens=40, temperature=0).choices[0].message.content
    word = max(re.findall("[A-Za-z]+", text), key=len)
    other = client.chat.completions.create(
        model=model, messages=HELLO, max_tokens=40, temperature=0, extra_body={"bad_words": [word]}
    )
    assert word not in other.choices[0].message.content.split()


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"response_format": wanted("a", {"type": "object", "not": {}})}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}}, "response_format.json_schema.name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": {"uniqueItems": True}}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
        ({"structured_outputs": {"json": {"$ref": "https://example.org/"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"invented": 1}}, "structured_outputs.invented"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"min_tokens": 99, "max_tokens": 5}, "min_tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(client, model, extra, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=HELLO, extra_body=extra)
    assert refused.value.param == param
