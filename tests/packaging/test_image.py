"""The `Dockerfile`, without Docker: its own commands install an archive, and the image's command starts."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def steps():
    """The instructions of the Dockerfile, as (name, rest)."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [tuple(it.split(maxsplit=1)) for it in text.splitlines() if it.strip()]


def of(steps, name):
    return [rest for step, rest in steps if step == name]


def test_only_files_of_the_release_are_copied_and_sent_to_the_builder(steps, release, archive):
    copied = [it for it in of(steps, "COPY") if not it.startswith("--from")]
    assert len(copied) == 1
    *sources, _ = copied[0].split()
    lines = [it for it in (ROOT / ".dockerignore").read_text().splitlines() if not it.startswith("#")]
    assert lines == ["*", *(f"!{it}" for it in sources), "target/dist/*-symbols.tar.gz"]
    for source in sources:
        folder = release if source.startswith("target/dist/") else ROOT / Path(source).parent
        found = [it for it in folder.glob(Path(source).name) if "-symbols" not in it.name]
        assert len(found) == 1, f"{source}: {found}"
    assert archive.match(Path(sources[-1]).name)


def test_its_commands_install_an_archive_that_starts(steps, release, archive, run, tmp_path):
    """The commands run in order in folders of this test, apart from those that change the system."""
    system, install = of(steps, "RUN")
    checked = run("sh", "-nc", system)
    assert checked.returncode == 0, checked.stderr
    assert of(steps, "FROM")[0] == "debian:bookworm-slim AS base", "install.sh names Debian 12 as one that works"
    source, prefix, home = tmp_path / "release", tmp_path / "opt", tmp_path / "home"
    source.mkdir()
    home.mkdir()
    for path in [ROOT / "packaging/install.sh", release / "SHA256SUMS", archive]:
        shutil.copy(path, source)
    assert "/tmp/release" in install and "/opt/jackalope" in install
    command = install.replace("/tmp/release", str(source)).replace("/opt/jackalope", str(prefix))
    env = {"HOME": str(tmp_path / "root"), "PATH": os.environ["PATH"]}
    done = run("sh", "-c", command, env=env)
    assert done.returncode == 0, done.stderr
    assert sorted(it.name for it in prefix.iterdir()) == ["current", "versions"], "no key is part of the image"
    # Another user runs it, who cannot write there.
    for path in [prefix, *prefix.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    name, path = of(steps, "ENV")[0].split("=")
    assert name == "PATH" and path.endswith(":$PATH")
    env = {"HOME": str(home), "PATH": path.replace("/opt/jackalope", str(prefix)).replace("$PATH", os.environ["PATH"])}
    entry, args = json.loads(of(steps, "ENTRYPOINT")[0]), json.loads(of(steps, "CMD")[0])
    shown = run(shutil.which(entry[0], path=env["PATH"]), *entry[1:], *args, env=env)
    assert shown.returncode == 0 and "Usage: jackalope" in shown.stdout, shown.stderr
    demo = run(shutil.which(entry[0], path=env["PATH"]), "demo", env=env)
    assert demo.returncode == 0 and "rank 1" in demo.stdout, demo.stderr
    for path in [prefix, *prefix.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
