"""Anthropic's API through its official client."""

import anthropic
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def claude(url):
    """The official client, without automatic retries."""
    with anthropic.Anthropic(base_url=url, api_key="not-needed", max_retries=0, timeout=120) as client:
        yield client


# This version of the client has no parameter for it, but the API has.
GREEDY = {"temperature": 0}


def ask(claude, model, messages=HELLO, **options):
    return claude.messages.create(model=model, messages=messages, **{"max_tokens": 40, "extra_body": GREEDY, **options})


def test_a_message_has_every_field(claude, model):
    message = ask(claude, model)
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", model)
    (block,) = message.content
    assert block.type == "text" and block.text.strip()
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.stop_sequence is None
    usage = message.usage
    assert 0 < usage.output_tokens <= 40
    assert usage.input_tokens + usage.cache_read_input_tokens > 0
    assert message._request_id.startswith("req_")


def test_the_same_is_said_as_to_other_clients(claude, client, model):
    theirs = client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=40)
    assert ask(claude, model).content[0].text == theirs.choices[0].message.content


def test_a_stream_comes_to_the_whole_message(claude, model):
    whole = ask(claude, model)
    with claude.messages.stream(model=model, messages=HELLO, max_tokens=40, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == whole.content[0].text
    assert streamed.content[0].text == text
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    for usage in (streamed.usage, whole.usage):
        assert usage.input_tokens + usage.cache_read_input_tokens == claude.messages.count_tokens(model=model, messages=HELLO).input_tokens


def test_raw_events_come_in_order(claude, model):
    events = list(ask(claude, model, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and events[0].message.content == []
    assert kinds[1] == "content_block_start"
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_stop_sequence_is_told(claude, model):
    uncut = ask(claude, model).content[0].text
    stop = uncut[5:8]
    message = ask(claude, model, stop_sequences=["\x07 never said \x07", stop])
    assert message.stop_reason == "stop_sequence"
    assert message.stop_sequence == stop
    assert message.content[0].text == uncut[: uncut.index(stop)]


def test_the_length_that_was_asked_for_is_kept(claude, model):
    message = ask(claude, model, max_tokens=3)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_a_tool_is_called_and_its_result_is_heard(claude, model):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = ask(claude, model, messages, tools=[WEATHER], max_tokens=60)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.id.startswith("toolu_") and call.name == "get_weather"
    # Which city is up to a very small model; that it is an argument of the tool is up to us.
    assert set(call.input) == {"city"} and isinstance(call.input["city"], str)
    with claude.messages.stream(model=model, messages=messages, tools=[WEATHER], max_tokens=60, extra_body=GREEDY) as stream:
        streamed = stream.get_final_message()
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [call.input]
    messages += [
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "condition": "sunny"}'},
        ]},
    ]
    answer = ask(claude, model, messages, tools=[WEATHER], max_tokens=60)
    assert [block.type for block in answer.content] == ["text"]


def test_no_tool_is_told_of_if_none_may_be_called(claude, model):
    def count(**options):
        return claude.messages.count_tokens(model=model, messages=HELLO, **options).input_tokens

    assert count(tools=[WEATHER], tool_choice={"type": "none"}) == count()
    assert count(tools=[WEATHER], tool_choice={"type": "auto"}) == count(tools=[WEATHER]) > count()


def test_what_agents_send_is_answered(claude, model):
    message = claude.beta.messages.create(
        model=model,
        max_tokens=32000,
        betas=["interleaved-thinking-2025-05-14"],
        system=[
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "A greeting.", "signature": "x"},
                {"type": "text", "text": "Hello."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
                {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {"city": "Rome"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "no"}], "is_error": True},
                {"type": "text", "text": "And now?"},
            ]},
        ],
        tools=[WEATHER],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        metadata={"user_id": "somebody"},
        thinking={"type": "adaptive"},
        extra_body={"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    )
    assert message.stop_reason in ("end_turn", "tool_use", "model_context_window_exceeded")


def test_the_second_turn_finds_the_first_in_the_cache(claude, model):
    messages = [{"role": "user", "content": "My favorite color is green. " * 8}]
    first = ask(claude, model, messages)
    messages += [{"role": "assistant", "content": first.content}, HELLO[0]]
    usage = ask(claude, model, messages).usage
    assert usage.cache_read_input_tokens > first.usage.input_tokens // 2
    counted = claude.messages.count_tokens(model=model, messages=messages).input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == counted


def test_models_are_listed(claude, model):
    (card,) = list(claude.models.list())
    assert (card.type, card.id) == ("model", model)
    assert claude.models.retrieve("default") == card


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"extra_body": {"temperature": 2}}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}, "messages[0].content[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"messages": [{"role": "user", "content": "Hello! " * 10_000}]}, "context"),
    ],
)
def test_a_bad_request_is_refused_by_name(claude, model, options, told):
    with pytest.raises(anthropic.BadRequestError) as raised:
        ask(claude, model, **options)
    assert raised.value.type == "invalid_request_error"
    assert told in raised.value.body["error"]["message"]
    assert raised.value.body["request_id"] == raised.value.request_id


def test_what_is_not_there_is_not_found(claude):
    with pytest.raises(anthropic.NotFoundError) as raised:
        ask(claude, "none")
    assert raised.value.type == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("none")
    # Agents have the names of Anthropic's models built in.
    assert claude.models.retrieve("claude-sonnet-4-5").id == claude.models.list().data[0].id


def test_a_forced_call_is_made(claude, model):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}
    tools = [{"name": "note", "description": "Notes a digit.", "input_schema": schema}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "note"}):
        answer = ask(claude, model, tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True})
        assert answer.stop_reason == "tool_use"
        assert [(block.type, block.name) for block in answer.content] == [("tool_use", "note")]
        assert 0 <= answer.content[0].input["a"] <= 9


def test_an_answer_goes_on_from_words_put_into_its_mouth(claude, model):
    question = {"role": "user", "content": "Hello!"}
    whole = ask(claude, model, messages=[question], extra_body={"temperature": 0}).content[0].text
    begun = whole[: len(whole) // 2].rstrip()
    messages = [question, {"role": "assistant", "content": begun}]
    rest = ask(claude, model, messages=messages, extra_body={"temperature": 0}).content[0].text
    assert rest and not rest.startswith(begun)
