"""LangChain's OpenAI integration."""

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return f"sunny in {city}"


def chat(url, model, **options):
    return ChatOpenAI(
        base_url=f"{url}/v1", api_key="not-needed", model=model, temperature=0, max_tokens=60, max_retries=0, **options
    )


@pytest.mark.parametrize("use_responses_api", [False, True])
def test_a_question_is_answered_streamed_or_not(url, model, use_responses_api):
    llm = chat(url, model, use_responses_api=use_responses_api)
    whole = llm.invoke("Hello!")
    assert whole.text.strip()
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in llm.stream("Hello!")) == whole.text


@pytest.mark.parametrize("use_responses_api", [False, True])
def test_a_tool_is_called_and_its_result_is_heard(url, model, use_responses_api):
    llm = chat(url, model, use_responses_api=use_responses_api).bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Paris?")]
    answer = llm.invoke(messages)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    messages += [answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
    assert llm.invoke(messages).text.strip()


def test_documents_are_embedded(url, model):
    # The tokens of OpenAI's own models would be others than this model's.
    embeddings = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key="not-needed", model=model, check_embedding_ctx_length=False
    )
    vectors = embeddings.embed_documents(["Hello!", "Good morning."])
    assert len(vectors) == 2 and len(vectors[0]) == len(embeddings.embed_query("Hello!"))
