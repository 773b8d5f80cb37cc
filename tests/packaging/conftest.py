"""The files of a release, as `cargo xtask dist` left them, and an unpacked copy."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def release():
    """The folder with everything that a release publishes."""
    folder = Path(os.environ.get("JACKALOPE_DIST", ROOT / "target/dist"))
    assert (folder / "SHA256SUMS").is_file(), "run `cargo xtask dist --profile dev` first"
    return folder


@pytest.fixture(scope="session")
def archive(release):
    """The archive of the programs."""
    found = [it for it in release.glob("jackalope-*.tar.gz") if "-symbols" not in it.name]
    assert len(found) == 1, f"one archive is expected in {release}: {found}"
    return found[0]


@pytest.fixture(scope="session")
def tree(archive, tmp_path_factory):
    """The unpacked archive."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture
def run():
    """Runs a command to its end and returns it with its output."""

    def run(*command, seconds=120, **options):
        return subprocess.run(
            [str(it) for it in command], capture_output=True, text=True, timeout=seconds, **options
        )

    return run
