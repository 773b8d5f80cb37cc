"""gRPC as LocalAI calls its backends, with Google's own client, compared with HTTP."""

import json
import sys
import threading
import time
from pathlib import Path

import grpc
import httpx
import pytest

from conftest import TALKATIVE, started

sys.path.insert(0, str(Path(__file__).parent))
pb, services = grpc.protos_and_services("backend.proto")

TALK = json.dumps(TALKATIVE["logit_bias"])
MIB = 1 << 20


@pytest.fixture(scope="module")
def ready():
    """A server of two ranks that serves LocalAI too."""
    with started(None, "--grpc-addr", "localhost:0") as ready:
        yield ready


@pytest.fixture(scope="module")
def url(ready):
    """URL of the HTTP server, for the fixtures of all tests."""
    return ready["url"].rstrip("/")


@pytest.fixture(scope="module")
def http(url):
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def backend(ready):
    # What LocalAI sets.
    options = [("grpc.max_receive_message_length", 50 * MIB), ("grpc.max_send_message_length", 50 * MIB)]
    with grpc.insecure_channel(ready["grpc_addr"], options=options) as channel:
        stub = services.BackendStub(channel)
        assert stub.Health(pb.HealthMessage(), timeout=60).message == b"OK"
        loaded = stub.LoadModel(pb.ModelOptions(Model=ready["model"], ContextSize=512), timeout=60)
        assert loaded.success and loaded.message == "Model loaded successfully", loaded
        yield stub


def asked(**more):
    """The defaults that LocalAI sends, greedy."""
    usual = {"Threads": 4, "TopP": 0.95, "TailFreeSamplingZ": 1.0, "TypicalP": 1.0, "LogitBias": TALK}
    return pb.PredictOptions(**(usual | more))


def chat(text="Tell me about the sea.", **more):
    return asked(UseTokenizerTemplate=True, Messages=[pb.Message(role="user", content=text)], **more)


def greedy(**more):
    return {"temperature": 0, "top_p": 0.95, **TALKATIVE} | more


def refused(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_a_model_that_is_not_there_is_told_in_the_answer(backend, ready):
    wrong = backend.LoadModel(pb.ModelOptions(Model="/nowhere/at-all"), timeout=60)
    assert not wrong.success
    assert wrong.message.startswith("Error loading model: the model /nowhere/at-all does not exist\nhint: ")
    for option, told in [("warmth:1", "must be one of hostfile, "), ("hostfile:/x.json", "was started with its models")]:
        wrong = backend.LoadModel(pb.ModelOptions(Model=ready["model"], Options=[option]), timeout=60)
        assert not wrong.success and told in wrong.message, wrong
    # The one that was loaded stays so.
    assert backend.Predict(asked(Prompt="The", Tokens=2, ModelIdentity=ready["model"])).tokens == 2


def test_a_conversation_is_answered_as_over_http(backend, http):
    body = greedy(model="default", max_tokens=24, messages=[{"role": "user", "content": "Tell me about the sea."}])
    expected = http.post("/v1/chat/completions", json=body).json()
    reply = backend.Predict(chat(Tokens=24, Logprobs=1))
    assert reply.message.decode() == expected["choices"][0]["message"]["content"]
    assert reply.tokens == expected["usage"]["completion_tokens"] == 24
    assert reply.prompt_tokens == expected["usage"]["prompt_tokens"]
    assert reply.timing_token_generation > 0
    assert len(json.loads(reply.logprobs)["content"]) == 24


def test_a_prompt_is_answered_as_over_http_and_streamed_as_whole(backend, http):
    for stop in [[], ["e"]]:
        body = greedy(model="default", max_tokens=40, prompt="The sea", stop=stop)
        expected = http.post("/v1/completions", json=body).json()
        options = asked(Prompt="The sea", Tokens=40, StopPrompts=stop)
        whole = backend.Predict(options)
        assert whole.message.decode() == expected["choices"][0]["text"]
        *pieces, last = backend.PredictStream(options)
        assert b"".join(piece.message for piece in pieces) == whole.message
        assert "".join(piece.chat_deltas[0].content for piece in pieces).encode() == whole.message
        assert (last.message, last.tokens, last.prompt_tokens) == (b"", whole.tokens, whole.prompt_tokens)


def test_many_streams_at_once_say_what_each_says_alone(backend):
    prompts = [f"Number {number} is" for number in range(8)]
    alone = [backend.Predict(asked(Prompt=prompt, Tokens=24)).message for prompt in prompts]
    together = [None] * len(prompts)

    def stream(idx):
        replies = backend.PredictStream(asked(Prompt=prompts[idx], Tokens=24))
        together[idx] = b"".join(reply.message for reply in replies)

    threads = [threading.Thread(target=stream, args=[idx]) for idx in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_cancelled_call_frees_its_sequence(backend, http, idle):
    stream = backend.PredictStream(asked(Prompt="Once", Tokens=400, IgnoreEOS=True))
    next(stream)
    assert http.get("/health").json()["running"] == 1
    before = backend.GetMetrics(pb.HealthMessage()).tokens_generated
    stream.cancel()
    idle()
    assert backend.GetMetrics(pb.HealthMessage()).tokens_generated - before < 400
    # A whole answer that nobody waits for any more.
    code, _ = refused(lambda: backend.Predict(asked(Prompt="Once", Tokens=400, IgnoreEOS=True), timeout=0.05))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    idle()


def test_what_does_not_fit_or_is_not_here_is_refused(backend):
    code, details = refused(lambda: backend.Predict(asked(Prompt="x" * (17 * MIB))))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "too large" in details
    code, details = refused(lambda: backend.Predict(asked(Prompt="long " * 20_000)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "maximum context length" in details
    for call in [lambda: backend.TTS(pb.HealthMessage()), lambda: list(backend.TTSStream(pb.HealthMessage()))]:
        code, details = refused(call)
        assert code == grpc.StatusCode.UNIMPLEMENTED and "is not what this backend does" in details
    for wrong, told in [({"Grammar": "root ::= [a-z]+"}, "Grammar"), ({"Images": ["aGk="]}, "Images"), ({"Temperature": 3}, "Temperature")]:
        code, details = refused(lambda: backend.Predict(asked(Prompt="x", **wrong)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and details.startswith(told), details
    code, details = refused(lambda: backend.Predict(asked(Prompt="x", ModelIdentity="another")))
    assert code == grpc.StatusCode.NOT_FOUND and "model identity mismatch" in details


def test_vectors_and_tokens_are_those_of_http(backend, http):
    listed = http.post("/v1/embeddings", json={"model": "default", "input": "The sea"}).json()
    found = backend.Embedding(pb.PredictOptions(Embeddings="The sea"))
    assert list(found.embeddings) == pytest.approx(listed["data"][0]["embedding"], abs=1e-6)
    assert (found.tokens, found.dim, found.layout) == (1, len(found.embeddings), 1)
    assert found.prompt_tokens == listed["usage"]["prompt_tokens"]
    tokens = backend.TokenizeString(pb.PredictOptions(Prompt="The sea"))
    assert list(tokens.tokens) == http.post("/tokenize", json={"model": "default", "prompt": "The sea"}).json()["tokens"]
    said = http.post("/detokenize", json={"model": "default", "tokens": list(tokens.tokens)}).json()["prompt"]
    assert backend.Detokenize(pb.DetokenizeRequest(tokens=tokens.tokens)).content == said


def test_status_tells_memory_of_both_ranks(backend):
    # Ranks tell their memory with their beats, one a second.
    for _ in range(100):
        status = backend.Status(pb.HealthMessage())
        if 0 < min(status.memory.breakdown.values(), default=0):
            break
        time.sleep(0.1)
    assert status.state == pb.StatusResponse.READY
    assert sorted(status.memory.breakdown) == ["rank 0", "rank 1"]
    assert status.memory.total == sum(status.memory.breakdown.values()) > 0


def test_keys_are_asked_for():
    with started(None, "--grpc-addr", "localhost:0", "--api-key", "secret") as ready:
        with grpc.insecure_channel(ready["grpc_addr"]) as channel:
            stub = services.BackendStub(channel)
            code, _ = refused(lambda: stub.Health(pb.HealthMessage()))
            assert code == grpc.StatusCode.UNAUTHENTICATED
            key = [("authorization", "Bearer secret")]
            assert stub.Health(pb.HealthMessage(), metadata=key).message == b"OK"
