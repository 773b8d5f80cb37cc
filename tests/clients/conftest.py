"""Starts one server for all tests, and hands out clients to it."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / "models" / "jackalope-mini"
START_SECONDS = 180
STOP_SECONDS = 2
IDLE_SECONDS = 30
# Makes the shipped model write on, whatever it wants to say: its special tokens are never drawn.
TALKATIVE = {"logit_bias": {"0": -100, "1": -100, "2": -100}}


def find_program():
    named = os.environ.get("JACKALOPE_BIN")
    candidates = [Path(named)] if named else [ROOT / "target" / kind / "jackalope" for kind in ("release", "debug")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    pytest.fail(f"there is no server to test: none of {[str(path) for path in candidates]} exists", pytrace=False)


def first_line(process):
    """Returns the first line of the program's standard output, within START_SECONDS."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        line = lines.get(timeout=START_SECONDS)
    except queue.Empty:
        process.kill()
        pytest.fail(f"the server was not ready within {START_SECONDS} seconds", pytrace=False)
    if line is None:
        pytest.fail(f"the server ended with status {process.wait()} before it was ready", pytrace=False)
    return line


@contextmanager
def started(model=None, *more, stderr=None):
    """A server of two ranks, and the line with which it announced that it is ready. It stops at SIGINT."""
    model = str(model or os.environ.get("JACKALOPE_MODEL", MINI))
    command = [str(find_program()), "serve", "--model", model, "--ranks", "2", "--port", "0", "--json", *more]
    # No test asks a hub for models.
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)
    try:
        yield json.loads(first_line(process))
        assert process.poll() is None, "the server outlives every test"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10 * STOP_SECONDS)
        took = time.monotonic() - began
        assert took < STOP_SECONDS, f"the server took {took:.1f} seconds to stop"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def url():
    """URL of the server, without a path."""
    if "JACKALOPE_URL" in os.environ:
        yield os.environ["JACKALOPE_URL"].rstrip("/")
        return
    with started() as ready:
        yield ready["url"].rstrip("/")


@pytest.fixture(scope="session")
def http(url):
    """Bare HTTP."""
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def client(url):
    """The official client, without automatic retries."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def model(client):
    """The id of the model that is served."""
    (card,) = client.models.list().data
    return card.id


@pytest.fixture(scope="session")
def context_tokens(http):
    return http.get("/health").json()["context_tokens"]


def wait_until_idle(http):
    """Waits until the server has nothing to compute; fails at a timeout."""
    deadline = time.monotonic() + IDLE_SECONDS
    while True:
        health = http.get("/health").json()
        busy = {key: health[key] for key in ("running", "queue_size", "open_streams")}
        if not any(busy.values()):
            return health
        assert time.monotonic() < deadline, f"the server never came to rest: {busy}"
        time.sleep(0.02)


@pytest.fixture
def idle(http):
    """`idle()` waits until the server has nothing to compute and returns its health."""
    return lambda: wait_until_idle(http)


@pytest.fixture(autouse=True)
def nothing_is_left_running(http):
    """After each test, the server must become idle."""
    yield
    wait_until_idle(http)
