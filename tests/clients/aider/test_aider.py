"""aider, unmodified and without a person at the keyboard. The settings are those of docs/clients.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AIDER_SECONDS = 180
QUESTION = "Who are you?"

# What docs/clients.md says, and what keeps it from asking and from talking to other hosts.
QUIET = ["--no-check-update", "--analytics-disable", "--no-show-model-warnings", "--no-git", "--no-pretty", "--yes-always", "--no-detect-urls"]


def aider(folder, url, *args):
    """Runs aider in an empty folder that is also its home."""
    environment = {
        "HOME": str(folder), "PATH": os.environ["PATH"], "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(Path(sys.executable).parent / "aider"), *QUIET, *args]
    done = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=AIDER_SECONDS)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_question_is_answered(url, model, tmp_path, stream):
    said = aider(tmp_path, url, "--model", f"openai/{model}", "--chat-mode", "ask", "--map-tokens", "0", stream, "--message", QUESTION)
    assert "Tokens: " in said and "litellm." not in said, said
