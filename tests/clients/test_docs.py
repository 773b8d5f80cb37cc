"""Runs the commands of the README, and checks those of the quick starts."""

import re
import signal
import subprocess
import sys

import pytest

from conftest import ROOT, find_program, first_line

README = (ROOT / "README.md").read_text()
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
QUICK_STARTS = [(ROOT / "docs" / f"quick-start-{system}.md").read_text() for system in ("macs", "linux")]
SECONDS = 120
MACHINES = "jackalope bootstrap"


def blocks(language, page=README):
    found = re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no {language} block"
    return found


def shell(command):
    return next(block for block in blocks("sh") if block.startswith(command))


def placed(text, url="http://127.0.0.1:8080"):
    """The text with this build, the shipped model, and the address of the test's server."""
    text = re.sub(r"^jackalope(?= )", lambda _: str(find_program()), text).replace("http://127.0.0.1:8080", url)
    return re.sub(r"\bDIR\b", str(ROOT / "models" / "jackalope-mini"), text)


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True, **options)


def help_of(*command):
    return run([str(find_program()), *command, "--help"]).stdout


def test_every_shell_block_is_tried_here():
    """`make demo` and `make test` are what CI runs, and tests/packaging runs `install.sh`."""
    tried = (
        "sh install.sh", "make demo", "make test", "jackalope serve", "jackalope chat", "curl ", MACHINES,
    )
    for block in blocks("sh"):
        assert block.startswith(tried), block
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile and "\ntest:" in makefile


def commands(page):
    """The commands of a page's blocks, as words after `jackalope`."""
    lines = "".join(blocks("sh", page)).splitlines()
    return [line.split("#")[0].split()[1:] for line in lines if line.startswith("jackalope ")]


def check_options(names, words):
    known = help_of(*names)
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b(?!-)", known), f"{names} has no {option}"


@pytest.mark.parametrize("words", commands(README + "".join(QUICK_STARTS)), ids=" ".join)
def test_commands_for_several_machines_are_understood(words):
    """`cargo test --test hosts` runs them over real hosts; here only their options are checked."""
    check_options(words[:2] if words[0] in ("hosts", "models", "token") else words[:1], words)


def test_a_hostfile_is_made_as_told(tmp_path):
    line = next(line for line in shell(MACHINES).splitlines() if line.startswith("jackalope hosts new"))
    run([str(find_program()), *line.split()[1:]], cwd=tmp_path)
    run([str(find_program()), "hosts", "lint", "hosts.json"], cwd=tmp_path)


def test_the_server_starts_as_told():
    command = placed(shell("jackalope serve")).split() + ["--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert '"ready"' in first_line(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    assert "[default: 8080]" in help_of("serve")


def test_chat_answers(url):
    command = placed(shell("jackalope chat")).split() + ["--url", url]
    assert run(command, input="Hello!\n").stdout.strip()


def test_curl_answers(url):
    answer = run(["bash", "-ec", placed(shell("curl "), url)]).stdout
    assert '"role":"assistant"' in answer.replace(" ", "")


def test_the_python_example_answers(url):
    (example,) = blocks("python")
    assert "assistant" in run([sys.executable, "-c", placed(example, url)]).stdout


COMMANDS = set(re.findall(r"^  ([a-z-]+)  ", help_of(), re.MULTILINE)) - {"help"}
ROWS = re.findall(r"^\| [^|]* \| ([^|]*`jackalope [^|]*) \|$", OPERATIONS, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS)
def test_commands_and_options_in_the_table_exist(row):
    """`jackalope start …`, `stop`: all words between backticks are commands, or options of the one before."""
    name = None
    for quoted in re.findall(r"`([^`]+)`", row):
        words = quoted.removeprefix("jackalope ").split(" -- ")[0].split()
        if not words[0].startswith("--"):
            name = words[0]
        assert name in COMMANDS
        check_options([name], words)


def test_options_of_all_commands_exist():
    common = re.search(r"Each command that computes takes (.*?)\.\n?\s", OPERATIONS, re.DOTALL)[1]
    options = re.findall(r"--[a-z-]+", common)
    assert 5 < len(options)
    for command in ("serve", "generate", "bench"):
        check_options([command], options)
