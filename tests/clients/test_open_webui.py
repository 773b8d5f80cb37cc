"""What Open WebUI 0.12.4 sends to a server, request by request, and what it reads of the answers. It is not run itself: it stands on
torch and about a hundred other packages. The requests are those of its `backend/open_webui`: `routers/openai.py` (`get_all_models_responses`,
`generate_chat_completion`), `routers/tasks.py` (`generate_title`) and `routers/ollama.py` (`get_all_models`, `get_ollama_versions`,
`get_ollama_loaded_models`, `generate_chat_completion`).
"""

import json

import pytest

QUESTION = [{"role": "user", "content": "Who are you?"}]
ANSWER = "Jackalope"
# The connection's key, and what it says of itself to every server.
HEADERS = {
    "Content-Type": "application/json", "Authorization": "Bearer none", "HTTP-Referer": "https://openwebui.com/", "X-Title": "Open WebUI",
    "X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-User-Id": "1", "X-OpenWebUI-User-Email": "ann@example.org", "X-OpenWebUI-User-Role": "admin",
}


def test_it_finds_the_models_of_an_openai_connection(http, model):
    answer = http.get("/v1/models", headers=HEADERS).raise_for_status().json()
    assert model in [it["id"] for it in answer["data"]]


def test_a_chat_is_streamed_with_its_usage(http, model):
    body = {
        "stream": True, "model": model, "messages": QUESTION, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": 40,
    }
    with http.stream("POST", "/v1/chat/completions", json=body, headers=HEADERS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert ANSWER in said
    assert 0 < chunks[-1]["usage"]["completion_tokens"]


def test_a_title_is_generated(http, model):
    # The beginning of its template (`config.py`, `DEFAULT_TITLE_GENERATION_PROMPT_TEMPLATE`); the model decides what it makes of it.
    content = '### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n### Output:\nJSON format: { "title": "" }'
    body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": False, "max_tokens": 40}
    answer = http.post("/v1/chat/completions", json=body, headers=HEADERS).raise_for_status().json()
    assert isinstance(answer["choices"][0]["message"]["content"], str)


def test_it_finds_the_models_of_an_ollama_connection(http, model):
    get = lambda path: http.get(path, headers=HEADERS).raise_for_status().json()  # noqa: E731
    (version,) = get("/api/version").values()
    # It takes the version apart as three numbers.
    assert len([int(it) for it in version.split("-")[0].split(".")]) == 3
    (tag,) = [it for it in get("/api/tags")["models"] if it["name"].split(":")[0] == model]
    # It merges the lists of several servers by `model`, and shows the rest.
    assert tag["model"] == tag["name"] and tag["size"] > 0 and tag["details"]["family"]
    (loaded,) = get("/api/ps")["models"]
    assert loaded["model"] == tag["model"] and "expires_at" in loaded


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_of_an_ollama_connection_is_answered(http, model, stream):
    body = {"model": model, "messages": QUESTION, "options": {"temperature": 0, "num_predict": 40}, "stream": stream, "keep_alive": "5m"}
    answer = http.post("/api/chat", content=json.dumps(body), headers=HEADERS).raise_for_status()
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["done"] and ANSWER in "".join(it["message"]["content"] for it in lines)
