"""Agents and libraries as people install them, unmodified and without a person at the keyboard. The settings are those of
docs/clients.md.

The shipped model answers in 2048 tokens. Agents send long instructions, so they get a copy of it that accepts more, and instructions of
their own where the agent has an option for that; what is tested is the protocol, not the model.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import httpx
import pytest
from conftest import MINI, started

HERE = Path(__file__).parent
CONTEXT = 65536
AGENT_SECONDS = 300
QUESTION = "Who are you?"
ANSWER = "Jackalope"


@pytest.fixture(scope="session")
def long(tmp_path_factory):
    """A server whose model accepts the instructions of agents; its URL."""
    model = tmp_path_factory.mktemp("models") / "long"
    shutil.copytree(MINI, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    # Agents that set no limit would get answers as long as the context.
    with started(model, "--model-id", "mini", "--default-max-tokens", "64") as ready:
        yield ready["url"]


@pytest.fixture(scope="session")
def node_programs():
    if not (shutil.which("node") and shutil.which("npm")):
        warnings.warn("NODE IS MISSING: agents from npm were not tested", stacklevel=1)
        pytest.skip("node or npm is missing, so the agents from npm were NOT tested")
    if not (HERE / "node_modules").is_dir():
        done = subprocess.run(["npm", "install", "--no-save", "--no-audit", "--no-fund"], cwd=HERE, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
    return HERE / "node_modules/.bin"


def run(command, folder, may_fail=False, **env):
    """Runs an agent in an empty folder that is also its home, without the settings and keys of the machine's user."""
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"], **env}
    done = subprocess.run(
        [str(it) for it in command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=AGENT_SECONDS
    )
    assert may_fail or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_claude_code_answers_with_its_own_name_of_a_model(node_programs, long, tmp_path):
    said = run(
        [node_programs / "claude", "-p", QUESTION, "--model", "claude-sonnet-4-5", "--system-prompt", "Be brief.", "--tools", "", "--output-format", "json", "--max-turns", "1"],
        tmp_path,
        ANTHROPIC_BASE_URL=long,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        CLAUDE_CODE_MAX_OUTPUT_TOKENS="40",
        MAX_THINKING_TOKENS="0",
    )
    result = json.loads(said)
    assert not result["is_error"] and ANSWER in result["result"], result


def test_codex_answers(node_programs, long, tmp_path):
    (tmp_path / "brief.md").write_text("Be brief.")
    home = tmp_path / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(
        'model = "mini"\nmodel_provider = "jackalope"\nweb_search = "disabled"\n'
        f"model_instructions_file = '{tmp_path / 'brief.md'}'\n"
        "[features]\nmulti_agent = false\napps = false\n"
        f'[model_providers.jackalope]\nname = "Jackalope"\nbase_url = "{long}/v1"\nwire_api = "responses"\n'
    )
    command = [node_programs / "codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", "--json", QUESTION]
    said = run(command, tmp_path, may_fail=True)
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    # Its tools and environment fill most of the prompt, so the model says anything, and may go on until its
    # limit, which codex calls a failure.
    items = [it["item"]["type"] for it in events if it["type"] == "item.completed"]
    failures = [it["error"]["message"] for it in events if it["type"] == "turn.failed"]
    assert "agent_message" in items, said
    assert failures or any(it["type"] == "turn.completed" for it in events), said
    assert all("max_output_tokens" in it for it in failures), said


def test_opencode_answers(node_programs, long, tmp_path):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Jackalope",
        "options": {"baseURL": f"{long}/v1", "apiKey": "none"},
        "models": {"mini": {"name": "mini", "limit": {"context": CONTEXT, "output": 64}}},
    }
    brief = {"mode": "primary", "prompt": "Be brief.", "tools": {"*": False}}
    config = {
        "model": "jackalope/mini", "small_model": "jackalope/mini", "provider": {"jackalope": provider},
        "agent": {"brief": brief}, "share": "disabled", "autoupdate": False,
    }
    (tmp_path / "opencode.json").write_text(json.dumps(config))
    said = run([node_programs / "opencode", "run", "--agent", "brief", "--format", "json", QUESTION], tmp_path, OPENCODE_DISABLE_MODELS_FETCH="1")
    events = [json.loads(line) for line in said.splitlines()]
    texts = [it["part"]["text"] for it in events if it["type"] == "text"]
    assert any(it.strip() for it in texts) and not [it for it in events if it["type"] == "error"], said


def test_the_ai_sdk_of_vercel_answers_and_streams(node_programs, url, tmp_path):
    result = json.loads(run(["node", HERE / "vercel.mjs"], tmp_path, JACKALOPE_URL=url))
    assert ANSWER in result["text"] and result["streamed"] == result["text"]
    assert result["usage"]["inputTokens"] > 0 and result["usage"]["outputTokens"] > 0


def test_pydantic_ai_answers(url, model):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    agent = Agent(OpenAIChatModel(model, provider=provider), model_settings={"temperature": 0, "max_tokens": 40})
    assert ANSWER in agent.run_sync(QUESTION).output


def test_openai_agents_answer_through_both_endpoints(url, model):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    settings = ModelSettings(temperature=0, max_tokens=40)

    async def ask(kind):
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
        agent = Agent(name="brief", model=kind(model=model, openai_client=client), model_settings=settings)
        return (await Runner.run(agent, QUESTION)).final_output

    for kind in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
        assert ANSWER in asyncio.run(ask(kind)), kind


def test_llm_answers_and_streams(url, model, tmp_path):
    entry = f"- model_id: jackalope\n  model_name: {model}\n  api_base: {url}/v1\n  api_key_name: jackalope\n"
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    for extra in [["--no-stream"], []]:
        command = [Path(sys.executable).parent / "llm", "-m", "jackalope", "-o", "temperature", "0", "-o", "max_tokens", "40", *extra, QUESTION]
        said = run(command, tmp_path, LLM_USER_PATH=str(tmp_path), OPENAI_API_KEY="none")
        assert ANSWER in said, said


def test_the_proxy_of_litellm_passes_requests_on(url, model, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {"model_list": [{"model_name": "jackalope", "litellm_params": {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}}]}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "NO_DOCS": "True"}
    command = [Path(sys.executable).parent / "litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with open(tmp_path / "log", "w") as log, subprocess.Popen([str(it) for it in command], cwd=tmp_path, env=environment, stdout=log, stderr=log) as proxy:
        try:
            body = {"model": "jackalope", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
            deadline = time.monotonic() + AGENT_SECONDS
            answer = None
            while answer is None and time.monotonic() < deadline and proxy.poll() is None:
                try:
                    answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=60)
                except httpx.TransportError:
                    time.sleep(0.5)
            assert answer is not None and answer.status_code == 200, (tmp_path / "log").read_text()[-3000:]
            assert ANSWER in answer.json()["choices"][0]["message"]["content"]
        finally:
            proxy.terminate()
