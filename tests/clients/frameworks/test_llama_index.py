"""LlamaIndex, through each of the three protocols."""

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

QUESTION = [ChatMessage(role="user", content="Who are you?")]
ANSWER = "Jackalope"


def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return f"sunny in {city}"


def openai_like(url, model):
    return OpenAILike(
        api_base=f"{url}/v1", api_key="none", model=model, context_window=2048, max_tokens=40, temperature=0,
        is_chat_model=True, is_function_calling_model=True, max_retries=0,
    )


def ollama(url, model):
    return Ollama(base_url=url, model=model, context_window=2048, temperature=0, request_timeout=120, additional_kwargs={"num_predict": 40})


def anthropic(url, model):
    # It knows the context of Anthropic's own models only; theirs stand for the default one.
    return Anthropic(base_url=url, api_key="none", model="claude-sonnet-4-5", temperature=0, max_tokens=40, max_retries=0)


@pytest.mark.parametrize("make", [openai_like, ollama, anthropic])
def test_a_chat_is_answered_streamed_or_not(url, model, make):
    llm = make(url, model)
    whole = llm.chat(QUESTION).message.content
    assert ANSWER in whole
    assert "".join(piece.delta or "" for piece in llm.stream_chat(QUESTION)) == whole


# Ollama's client orders a tool's schema so that the shipped model, which is small, calls nothing;
# ../test_ollama.py calls tools.
@pytest.mark.parametrize("make", [openai_like, anthropic])
def test_a_tool_is_called(url, model, make):
    llm = make(url, model)
    tool = FunctionTool.from_defaults(get_weather, description=get_weather.__doc__)
    answer = llm.chat_with_tools([tool], user_msg="What is the weather in Paris?")
    (call,) = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "get_weather" and "city" in call.tool_kwargs


def test_a_prompt_is_completed(url, model):
    llm = OpenAILike(api_base=f"{url}/v1", api_key="none", model=model, context_window=2048, max_tokens=20, temperature=0, max_retries=0)
    whole = llm.complete("Paris is the").text
    assert whole.strip()
    assert "".join(piece.delta or "" for piece in llm.stream_complete("Paris is the")) == whole
