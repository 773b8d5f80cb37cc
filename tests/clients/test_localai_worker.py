"""LocalAI's verbs for workers, by hand over loopback, and what docs/localai.md says of `run.sh` and of models' files."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from conftest import MINI, ROOT, find_program
from test_localai import pb, services

SECONDS = 60
PAGE = (ROOT / "docs" / "localai.md").read_text()


@pytest.fixture(scope="session")
def http():
    """Nothing here has HTTP; the fixture that looks whether a server rests finds one that always does."""

    class Resting:
        def get(self, _):
            return self

        def json(self):
            return {"running": 0, "queue_size": 0, "open_streams": 0}

    return Resting()


@pytest.fixture
def home(tmp_path):
    """The folder of one cluster, with the variables that name it."""
    return os.environ | {"JACKALOPE_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(command, environment):
    # Its messages are shown if the test fails.
    process = subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=SECONDS)
        finally:
            process.kill()


def worker(*more):
    return [find_program(), "worker", "mlx-distributed", *more]


@contextmanager
def called(addr, metadata=None):
    """Returns a client of a backend that listens."""
    with grpc.insecure_channel(addr) as channel:
        stub = services.BackendStub(channel)
        answer = stub.Health(pb.HealthMessage(), timeout=SECONDS, wait_for_ready=True, metadata=metadata)
        assert answer.message == b"OK"
        yield stub


def load(stub, *options, model=str(MINI)):
    return stub.LoadModel(pb.ModelOptions(Model="LocalAI/mini", ModelFile=model, Options=options), timeout=SECONDS)


def said(stub):
    return stub.Predict(pb.PredictOptions(Prompt="The sea", Tokens=16, ModelIdentity="LocalAI/mini")).message


def hostfile(tmp_path):
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps([f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]))
    return path


def test_two_ranks_by_hand_serve_localai_in_any_order_and_again(tmp_path, home):
    hosts, addr = hostfile(tmp_path), f"127.0.0.1:{free_port()}"
    rank0 = worker("--hostfile", hosts, "--rank", "0", "--addr", addr, "--kv-mib", "64", "--load-wait", "2s")
    variables = {"MLX_DISTRIBUTED_HOSTFILE": str(hosts), "MLX_RANK": "1", "MLX_DISTRIBUTED_BACKEND": "ring"}
    with running(rank0, home), called(addr) as stub:
        with pytest.raises(grpc.RpcError) as caught:
            said(stub)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        early = load(stub)
        assert not early.success
        assert "there is no rank 1" in early.message and "worker mlx-distributed" in early.message, early.message
        with pytest.raises(grpc.RpcError) as caught:
            said(stub)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE and "is loading" in caught.value.details()
        with running(worker(), home | variables):
            deadline = time.monotonic() + SECONDS
            while not (loaded := load(stub)).success:
                assert time.monotonic() < deadline, loaded.message
            both = said(stub)
            assert sorted(stub.Status(pb.HealthMessage()).memory.breakdown) == ["rank 0", "rank 1"]
            other = load(stub, "hostfile:/another.json")
            assert not other.success and "this backend was started with" in other.message, other.message
            assert stub.Free(pb.HealthMessage(), timeout=SECONDS).success
            assert stub.Status(pb.HealthMessage()).state == pb.StatusResponse.UNINITIALIZED
            # The rank has stayed for the next one.
            deadline = time.monotonic() + SECONDS
            while not (loaded := load(stub)).success:
                assert time.monotonic() < deadline, loaded.message
            assert said(stub) == both
    # One rank alone says the same.
    with running(worker("--addr", addr), home), called(addr) as stub:
        assert load(stub).success
        assert said(stub) == both


def test_why_rank_0_does_not_start_is_told_beside_the_ranks_to_start(tmp_path, home):
    hosts, addr = hostfile(tmp_path), f"127.0.0.1:{free_port()}"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        rank0 = worker("--hostfile", hosts, "--rank", "0", "--addr", addr, "--kv-mib", "64", "--load-wait", "2s", "--data-ports", f"{port}-{port}")
        with running(rank0, home), called(addr) as stub:
            message = load(stub).message
    assert "last attempt failed: rank 0" in message and "Address already in use" in message, message
    assert "there is no rank 1" in message and "--rank 0" not in message, message


def block(kind, which=0):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[which]


def test_the_run_sh_and_the_models_file_of_the_page_work(tmp_path, home):
    hosts, addr = hostfile(tmp_path), f"127.0.0.1:{free_port()}"
    script = tmp_path / "run.sh"
    script.write_text(block("sh"))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    home = home | {"PATH": f"{find_program().parent}:{os.environ['PATH']}"}
    file = next(text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "options:" in text)
    assert "backend: mlx-distributed" in file
    options = [option.replace("/path/to/hosts.json", str(hosts)) for option in re.findall(r'^ *- "(.*)"$', file, re.MULTILINE)]
    assert len(options) == 3 and str(hosts) in options[0], options
    # LocalAI says nothing but the address; it makes the secret of the cluster when it first needs one.
    with running([script, "--addr", addr], home), called(addr) as stub:
        missing = load(stub, *options, model="/nowhere")
        assert not missing.success and "hint: " in missing.message, missing.message
        (tmp_path / "home").mkdir(mode=0o700, exist_ok=True)
        secret = tmp_path / "home" / "secret"
        secret.touch(mode=0o600)
        secret.write_text("5a" * 32)
        with running(worker("--hostfile", hosts, "--rank", "1"), home):
            loaded = load(stub, *options)
            assert loaded.success, loaded.message
            assert said(stub)


def test_a_backend_ends_when_localai_is_killed(tmp_path, home):
    addr = f"127.0.0.1:{free_port()}"
    # A shell in LocalAI's place, which does not hand itself over to the backend.
    parent = subprocess.Popen(["sh", "-c", f"'{find_program()}' worker mlx-distributed --addr {addr}; true"], env=home, stderr=subprocess.DEVNULL)
    with called(addr) as stub:
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                stub.Health(pb.HealthMessage(), timeout=1)
            except grpc.RpcError:
                break
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.1)


def test_beyond_this_machine_a_key_is_needed_which_localai_has_in_a_variable(home):
    ended = subprocess.run(worker("--addr", "0.0.0.0:0"), env=home, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 1 and "no key is required\nhint: " in ended.stderr
    addr = f"127.0.0.1:{free_port()}"
    variables = {"MLX_DISTRIBUTED_ADDR": addr, "LOCALAI_GRPC_AUTH_TOKEN": "secret"}
    with running(worker(), home | variables), called(addr, [("authorization", "Bearer secret")]) as stub:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Health(pb.HealthMessage())
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--rank", "1"], "a hostfile is needed"),
        (["--rank", "2", "--hostfile", "HOSTS"], "`--rank 2` does not exist"),
        (["--rank", "1", "--hostfile", "HOSTS"], "this machine has no secret of the cluster"),
        (["--rank", "1", "--hostfile", "/nowhere.json"], "there is no hostfile /nowhere.json"),
        (["--addr", "nowhere"], "hint: write HOST:PORT"),
    ],
)
def test_what_cannot_be_a_worker_is_told(tmp_path, home, words, told):
    words = [str(hostfile(tmp_path)) if word == "HOSTS" else word for word in words]
    ended = subprocess.run(worker(*words), env=home, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 1 and told in ended.stderr, ended.stderr


def test_a_worker_by_token_runs_the_ranks_of_whoever_has_the_token(tmp_path, home):
    port, control, token = free_port(), free_port(), "a token that nobody guesses"
    short = subprocess.run([find_program(), "worker", "p2p-mlx", "--token", "short"], env=home, capture_output=True, text=True, timeout=SECONDS)
    assert short.returncode == 1 and "fewer than 16 characters" in short.stderr
    without = subprocess.run([find_program(), "worker", "p2p-mlx"], env=home, capture_output=True, text=True, timeout=SECONDS)
    assert without.returncode == 1 and "a token is needed" in without.stderr
    served = [find_program(), "serve", "--model", MINI, "--hosts", "127.0.0.1,127.0.0.1", "--agent-port", port]
    served += ["--control-port", control, "--no-bootstrap", "--kv-mib", "64", "--port", "0", "--json", "--token"]
    elsewhere = home | {"JACKALOPE_HOME": str(tmp_path / "elsewhere")}
    with running([find_program(), "worker", "p2p-mlx"], home | {"TOKEN": token, "MLX_LISTEN_PORT": str(port)}) as agent:
        deadline = time.monotonic() + SECONDS
        while not (tmp_path / "home" / "agent.json").exists():
            assert time.monotonic() < deadline and agent.poll() is None
            time.sleep(0.01)
        with running([*served, token], elsewhere) as server:
            assert len(json.loads(server.stdout.readline())["ranks"]) == 2
            children = subprocess.run(["ps", "-o", "args=", "--ppid", str(agent.pid)], capture_output=True, text=True).stdout
            assert children.count("jackalope-rank") == 2, children
        stranger = subprocess.run([str(word) for word in served] + ["another one that is long"], env=elsewhere, capture_output=True, text=True, timeout=SECONDS)
        assert stranger.returncode == 1 and "another secret" in stranger.stderr, stranger.stderr
