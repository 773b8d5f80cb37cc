"""Whatever a client sends, the official client raises the right class, and the server continues."""

import httpx
import openai
import pytest

HELLO = [{"role": "user", "content": "Hello!"}]
CHAT = "/v1/chat/completions"


def refused(client, model, kind=openai.BadRequestError, **options):
    options = {"messages": HELLO, "max_tokens": 5, **options}
    with pytest.raises(kind) as raised:
        client.chat.completions.create(model=model, **options)
    error = raised.value
    assert error.type == "invalid_request_error"
    assert error.message
    return error


@pytest.fixture(autouse=True)
def the_server_lives(client, model):
    yield
    answer = client.chat.completions.create(model=model, messages=HELLO, max_tokens=5)
    assert answer.choices[0].finish_reason


def test_a_model_that_is_not_served(client):
    error = refused(client, "gpt-5", openai.NotFoundError)
    assert (error.code, error.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("temperature", -1),
        ("temperature", 3),
        ("top_p", 2),
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", 10**30),
        ("n", 0),
        ("n", 1000),
        ("seed", 1.5),
        ("stop", ["x"] * 100),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("logit_bias", {"99999999": 1}),
        ("top_logprobs", 50),
        ("tool_choice", "required"),
        ("functions", {"name": "f"}),
        ("temperature", "warm"),
        ("messages", []),
    ],
)
def test_a_bad_value_is_named(client, model, param, value):
    extra = {"logprobs": True} if param == "top_logprobs" else {}
    error = refused(client, model, **{param: value}, **extra)
    assert error.param == param
    assert param in error.message


def test_a_path_leads_to_the_bad_field(client, model):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = refused(client, model, messages=[*HELLO, {"role": "user", "content": [{"type": "text", "text": "See:"}, image]}])
    assert error.param == "messages[1].content[1]"
    error = refused(client, model, messages=[{"role": "nobody", "content": "x"}])
    assert error.param == "messages[0].role"


def test_a_prompt_beyond_the_context(client, model, context_tokens):
    error = refused(client, model, messages=[{"role": "user", "content": "Hello! " * context_tokens}])
    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert str(context_tokens) in error.message and "hint:" in error.message


def test_prompts_that_are_none(client, model):
    for prompt in ("", [], [[]], [10**9]):
        with pytest.raises(openai.BadRequestError) as raised:
            client.completions.create(model=model, prompt=prompt)
        assert raised.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=model, prompt="x", suffix="y")
    assert raised.value.param == "suffix"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"messages": [}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"temperature": 1e999}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"[]", "invalid_type"),
        (b'{"model": "\xff\xfe"}', "invalid_utf8"),
    ],
)
def test_a_body_that_is_no_request(http, body, code):
    response = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert response.json()["detail"] == error["message"]
    if code == "invalid_json":
        assert "line 1, column" in error["message"]


def test_only_json_is_taken(http):
    response = http.post(CHAT, content=b"{}", headers={"content-type": "text/plain"})
    assert response.status_code == 415
    assert "content-type" in response.json()["error"]["message"]


def test_a_body_of_100_mb(http, client, model):
    response = http.post(CHAT, content=b" " * 100_000_000, headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"
    with pytest.raises(openai.APIStatusError) as raised:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x" * 100_000_000}])
    assert raised.value.status_code == 413


def test_addresses_that_are_none(http):
    for path in ("/v1/nothing", "/nothing", "/v1/models/none"):
        assert http.get(path).status_code == 404
    response = http.get(CHAT)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "method_not_allowed"


def test_a_request_that_breaks_off(url):
    """Half a body and nothing more: its slot is free again at once."""
    host, port = httpx.URL(url).host, httpx.URL(url).port
    import socket

    for _ in range(20):
        with socket.create_connection((host, port)) as connection:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
            connection.sendall(head.encode() + b'{"model": ')


def test_the_name_of_a_request_comes_back(http):
    assert http.get("/v1/models", headers={"x-request-id": "abc-123"}).headers["x-request-id"] == "abc-123"
    assert http.get("/v1/models").headers["x-request-id"].startswith("req_")
