"""LiteLLM, as its users reach any server that speaks OpenAI's protocol."""

import litellm

HELLO = [{"role": "user", "content": "Hello!"}]


def options(url, model):
    return {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "not-needed", "num_retries": 0}


def test_a_chat_is_answered_streamed_or_not(url, model):
    asked = {**options(url, model), "messages": HELLO, "temperature": 0, "max_tokens": 40}
    whole = litellm.completion(**asked)
    assert whole.choices[0].message.content.strip()
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    assert "".join(pieces) == whole.choices[0].message.content


def test_a_response_is_answered(url, model):
    response = litellm.responses(**options(url, model), input="Hello!", max_output_tokens=40, temperature=0)
    assert response.output[0].content[0].text.strip()


def test_texts_are_embedded(url, model):
    answer = litellm.embedding(**options(url, model), input=["Hello!", "Good morning."])
    assert len(answer.data) == 2
