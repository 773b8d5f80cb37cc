"""Requests that schemathesis makes of the description of the API, fit and unfit ones, to a real server."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
import schemathesis

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90
START_SECONDS = 180
CHECKS = "status_code_conformance,content_type_conformance,response_schema_conformance,not_a_server_error"
# They never end; the test below reads their beginnings.
ENDLESS = ["/metrics/stream", "/v1/pulls/events", "/v1/copies/events"]
# Asks machines for up to 20 seconds each time.
SLOW = "/v1/diagnosis"


def find_program():
    named = os.environ.get("JACKALOPE_BIN")
    candidates = [Path(named)] if named else [ROOT / "target" / kind / "jackalope" for kind in ("release", "debug")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    pytest.fail(f"there is no server to test: none of {[str(path) for path in candidates]} exists", pytrace=False)


SAID = [{"role": "user", "content": "Once upon a time"}]
FUNCTION = {"name": "sum", "description": "adds", "parameters": {"type": "object", "properties": {}}}
# What is invented is mostly refused; these are answered.
ANSWERED = [
    ("/v1/chat/completions", {"messages": SAID, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {"messages": SAID, "stream": True}),
    ("/v1/completions", {"prompt": ["Once", "A dog"], "echo": True, "logprobs": 2}),
    ("/v1/completions", {"prompt": [5, 6, 7], "stream": True, "return_token_ids": True}),
    ("/v1/responses", {"input": "Once upon a time"}),
    ("/v1/responses", {"input": SAID, "stream": True, "tools": [{"type": "function", **FUNCTION}]}),
    ("/v1/embeddings", {"input": ["Once", "A dog"]}),
    ("/v1/embeddings", {"input": "Once", "encoding_format": "base64"}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 8}),
    ("/v1/messages", {"messages": SAID, "max_tokens": 8, "stream": True}),
    ("/v1/messages/count_tokens", {"messages": SAID}),
    ("/api/chat", {"messages": SAID, "stream": False, "logprobs": True}),
    ("/api/chat", {"messages": SAID}),
    ("/api/generate", {"prompt": "Once upon", "stream": False, "options": {"num_predict": 4}}),
    ("/api/generate", {"prompt": "Once upon"}),
    ("/api/embed", {"input": ["Once", "A dog"]}),
    ("/api/embeddings", {"prompt": "Once"}),
    ("/api/show", {"model": "default"}),
    ("/tokenize", {"prompt": "Once", "return_token_strs": True}),
    ("/tokenize", {"messages": SAID}),
    ("/detokenize", {"tokens": [5, 6]}),
]


@pytest.fixture(scope="session")
def url():
    """A server whose answers are short."""
    command = [str(find_program()), "serve", "--model", str(ROOT / "models" / "jackalope-mini"), "--ranks", "2"]
    command += ["--port", "0", "--json", "--default-max-tokens", "8", "--request-timeout", "30"]
    # What unloads the model is asked too; the next request loads it again.
    command += ["--load-on-demand", "true"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    # Without a first line in time, reading it ends with the server.
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        line = process.stdout.readline()
        timer.cancel()
        assert line, "the server ended before it was ready"
        yield json.loads(line)["url"].rstrip("/")
        assert process.poll() is None, "the server outlives every test"
    finally:
        process.kill()
        process.wait()


def test_the_answers_are_those_that_are_described(url, tmp_path):
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json"]
    command += ["--phases", "fuzzing", "--max-examples", "50", "--seed", "1", "--generation-deterministic"]
    command += ["--no-shrink", "--continue-on-failure", "--checks", CHECKS, "--exclude-path", SLOW]
    command += [word for path in ENDLESS for word in ("--exclude-path", path)]
    command += ["--request-timeout", "40", "--warnings", "off", "--no-color"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=2 * SECONDS)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-2_000:]


@pytest.fixture(scope="session")
def description(url):
    return schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize(("path", "body"), ANSWERED)
def test_what_is_asked_rightly_is_answered_as_described(description, path, body):
    answer = description[path]["POST"].Case(body=body, media_type="application/json").call_and_validate()
    assert answer.status_code == 200


@pytest.mark.parametrize(("path", "field"), zip(ENDLESS, ["model", "pulls", "copies"], strict=True))
def test_the_endless_answers_are_streams_of_events(url, path, field):
    began = time.monotonic()
    with urllib.request.urlopen(url + path, timeout=10) as answer:
        assert answer.headers.get_content_type() == "text/event-stream"
        line = answer.readline()
    assert line.startswith(b"data: ") and field in json.loads(line.removeprefix(b"data: "))
    assert time.monotonic() - began < 10
