"""POST /v1/responses through the official client."""

import json

import openai
import pytest

from conftest import TALKATIVE

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


def ask(client, model, input="Hello!", **options):
    options.setdefault("temperature", 0)
    options.setdefault("max_output_tokens", 40)
    return client.responses.create(model=model, input=input, **options)


def checked(event):
    """The event, once it is shown to have every field of its type: the client itself lets any pass."""
    type(event).model_validate(event.model_dump(warnings="error"), strict=False)
    return event


def test_a_response_has_every_field(client, model):
    response = checked(ask(client, model, instructions="Be brief.", metadata={"a": "b"}))
    assert response.id.startswith("resp_") and response.object == "response"
    assert response.model == model
    assert response.status in ("completed", "incomplete")
    assert response.instructions == "Be brief." and response.metadata == {"a": "b"}
    (message,) = response.output
    assert message.type == "message" and message.role == "assistant"
    assert response.output_text.strip()
    assert response.temperature == 0 and response.parallel_tool_calls is True
    usage = response.usage
    assert usage.input_tokens > 0 and 0 < usage.output_tokens <= 40
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


def test_a_response_says_what_a_chat_says(client, model):
    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello!"}], temperature=0, max_tokens=40
    )
    assert ask(client, model).output_text == chat.choices[0].message.content


def test_a_cut_response_is_incomplete(client, model):
    response = ask(client, model, max_output_tokens=3, extra_body=TALKATIVE)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_stream_comes_to_the_whole_response(client, model):
    whole = ask(client, model)
    events = [checked(event) for event in ask(client, model, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    told = "".join(event.delta for event in events[4:-4])
    assert told == events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_the_stream_helper_follows(client, model):
    with client.responses.stream(model=model, input="Hello!", temperature=0, max_output_tokens=40) as stream:
        told = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == told == ask(client, model).output_text


def test_a_tool_is_called_and_its_result_is_heard(client, model):
    question = "What is the weather in Paris?"
    response = ask(client, model, question, tools=[WEATHER], max_output_tokens=60)
    call = response.output[-1]
    assert call.type == "function_call" and call.name == "get_weather"
    assert "city" in json.loads(call.arguments)
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": json.dumps({"temperature": 21, "condition": "sunny"}),
    }
    options = {"tools": [WEATHER], "max_output_tokens": 60}
    continued = ask(client, model, [result], previous_response_id=response.id, **options)
    assert continued.output_text.strip()
    # The same as the whole conversation at once, in the client's own types.
    items = [{"role": "user", "content": question}, *response.output, result]
    assert ask(client, model, items, **options).output_text == continued.output_text


def test_a_streamed_call_is_the_whole_one(client, model):
    options = {"tools": [WEATHER], "max_output_tokens": 60}
    question = "What is the weather in Paris?"
    whole = ask(client, model, question, **options)
    with client.responses.stream(model=model, input=question, temperature=0, **options) as stream:
        arguments = "".join(
            checked(event).delta for event in stream if event.type == "response.function_call_arguments.delta"
        )
        final = stream.get_final_response()
    assert final.output[-1].name == "get_weather"
    assert final.output[-1].arguments == arguments == whole.output[-1].arguments


def test_a_conversation_is_continued_and_found_in_the_cache(client, model):
    first = ask(client, model, "My favorite color is blue. " * 8)
    second = ask(client, model, "Hello!", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens // 2
    items = client.responses.input_items.list(second.id, order="asc").data
    assert [item.role for item in items] == ["user", "assistant", "user"]


def test_a_response_is_kept_until_it_is_deleted(client, model):
    response = ask(client, model)
    assert client.responses.retrieve(response.id).output_text == response.output_text
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match=response.id):
        ask(client, model, previous_response_id=response.id)
    unkept = ask(client, model, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_logprobs_tell_every_token_of_the_text(client, model):
    response = ask(client, model, top_logprobs=2, include=["message.output_text.logprobs"])
    content = response.output[0].content[0]
    told = b"".join(bytes(entry.bytes) for entry in content.logprobs).decode()
    assert told.startswith(content.text)
    assert all(len(entry.top_logprobs) == 2 for entry in content.logprobs)


def test_what_is_passed_over_is_noted(client, model):
    raw = client.responses.with_raw_response.create(
        model=model, input="Hello!", max_output_tokens=5, text={"verbosity": "low"}
    )
    assert "verbosity" in raw.headers["x-jackalope-note"]


def test_built_in_tools_are_refused_by_name(client, model):
    with pytest.raises(openai.BadRequestError, match="web_search"):
        ask(client, model, tools=[{"type": "web_search"}])
