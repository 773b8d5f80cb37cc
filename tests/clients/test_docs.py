"""Runs the commands of the README."""

import re
import signal
import subprocess
import sys

import pytest

from conftest import ROOT, find_program, first_line

README = (ROOT / "README.md").read_text()
SECONDS = 120
MACHINES = "jackalope bootstrap"


def blocks(language):
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found, f"the README has no {language} block"
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


@pytest.mark.parametrize("line", shell(MACHINES).splitlines())
def test_commands_for_several_machines_are_understood(line):
    """`cargo test --test hosts` runs them over real hosts; here only their options are checked."""
    words = line.split("#")[0].split()[1:]
    names = words[:2] if words[0] in ("hosts", "models") else words[:1]
    known = help_of(*names)
    for option in (word for word in words if word.startswith("--")):
        assert option in known, f"{names} has no {option}"


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


ROWS = re.findall(r"^\| (`jackalope .*?) \| (.*) \|$", README, re.MULTILINE)
COMMANDS = set(re.findall(r"^  ([a-z-]+)  ", help_of(), re.MULTILINE)) - {"help"}


def commands_of(cell):
    """`jackalope start …`, `stop`: all commands of a row. Others are subcommands of the first."""
    names = [quoted.removeprefix("jackalope ").split()[0] for quoted in re.findall(r"`([^`]+)`", cell)]
    for name in names:
        assert name in COMMANDS or re.search(rf"^  {name} ", help_of(names[0]), re.MULTILINE), name
    return [name for name in names if name in COMMANDS]


@pytest.mark.parametrize("cell, row", ROWS, ids=[cell.split("`")[1] for cell, _ in ROWS])
def test_options_in_the_table_exist(cell, row):
    known = "".join(help_of(command) for command in commands_of(cell))
    known += "".join(help_of("models", name) for name in ("check", "sync") if "jackalope models" in cell)
    for option in re.findall(r"--[a-z-]+", cell + row):
        assert option in known, f"{cell} has no {option}"


def test_every_command_is_in_the_table():
    assert {command for cell, _ in ROWS for command in commands_of(cell)} == COMMANDS


def test_options_of_all_commands_exist():
    common = re.search(r"Each command that computes takes (.*?)\.\n", README, re.DOTALL)[1]
    for command in ("serve", "generate", "bench"):
        for option in re.findall(r"--[a-z-]+", common):
            assert option in help_of(command), f"{command} has no {option}"
