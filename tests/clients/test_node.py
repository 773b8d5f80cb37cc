"""The official Node client, driven by Node's own test runner: `node/client.test.mjs`."""

import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

NODE = Path(__file__).parent / "node"
INSTALL_SECONDS = 300
TEST_SECONDS = 300


def run(command, seconds, **options):
    done = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=seconds, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_node_client_gets_what_it_expects(url):
    if not (shutil.which("node") and shutil.which("npm")):
        # The only thing that may be missing, and it is said loudly.
        warnings.warn("NODE IS MISSING: the Node client was not tested", stacklevel=1)
        pytest.skip("node or npm is missing, so the Node client was NOT tested")
    if not (NODE / "node_modules").is_dir():
        run(["npm", "ci", "--no-audit", "--no-fund"], INSTALL_SECONDS)
    env = {"JACKALOPE_URL": url, "PATH": os.environ["PATH"]}
    told = run(["node", "--test", "--test-reporter=tap"], TEST_SECONDS, env=env)
    assert "# fail 0" in told and "# pass 0" not in told, told
