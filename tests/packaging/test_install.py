"""`install.sh` against a server on this machine: good releases, damaged ones, and missing tools."""

import functools
import hashlib
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "packaging/install.sh"

# Programs that the script may use, besides those that a test leaves out.
TOOLS = "sh awk basename cat cp curl dirname env grep gzip mkdir mktemp mv ps pwd rm sed sha256sum shasum sleep tail tar tr uname wc df".split()


@pytest.fixture
def machine(tmp_path, run):
    """A user with an empty home, and only the named tools."""

    def machine(*args, without=(), **env):
        bin = tmp_path / "tools"
        shutil.rmtree(bin, ignore_errors=True)
        bin.mkdir()
        for tool in TOOLS:
            path = shutil.which(tool)
            if path and tool not in without:
                (bin / tool).symlink_to(path)
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        return run("sh", SCRIPT, *args, env={"HOME": str(home), "PATH": str(bin), **env})

    machine.home = tmp_path / "home"
    return machine


@pytest.fixture
def published(release, archive, tmp_path):
    """A server with a copy of the release, which tests may damage."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name in [archive.name, "SHA256SUMS", "install.sh"]:
        shutil.copy(release / name, folder / name)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder_and_url = (folder, f"http://127.0.0.1:{server.server_port}")
        yield folder_and_url
        server.shutdown()


def left(home):
    """Files that an installation left, besides versions in use."""
    return [it for it in home.rglob("*") if it.is_file()]


def test_shellcheck_finds_nothing(run):
    # Installed beside this test's Python, from PyPI.
    found = run(shutil.which("shellcheck") or Path(os.sys.executable).parent / "shellcheck", SCRIPT)
    assert found.returncode == 0, found.stdout


def test_it_installs_runs_installs_again_and_removes(machine, published, archive, run):
    _, url = published
    done = machine("--from", url)
    assert done.returncode == 0, done.stderr
    assert "export PATH=" in done.stdout and "jackalope demo" in done.stdout
    home = machine.home / ".jackalope"
    program = home / "current/bin/jackalope"
    env = {"HOME": str(machine.home), "PATH": os.environ["PATH"]}
    assert run(program, "--version", env=env).stdout.startswith("jackalope ")
    assert (home / "current/share/jackalope/models/jackalope-mini/config.json").is_file()
    assert not list(home.glob(".install.*"))
    assert len(list((home / "versions").iterdir())) == 1
    again = machine("--from", url, PATH_EXTRA="x")
    assert again.returncode == 0 and len(list((home / "versions").iterdir())) == 1, again.stderr
    gone = machine("--uninstall")
    assert gone.returncode == 0 and not home.exists(), gone.stderr
    assert "nothing is installed" in machine("--uninstall").stdout


def test_another_folder_and_a_folder_as_source(machine, release, tmp_path):
    done = machine("--from", release, "--prefix", tmp_path / "else where", without=["curl"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "else where/current/bin/jackalope").is_file()
    assert not (machine.home / ".jackalope").exists()
    gone = machine("--uninstall", "--prefix", tmp_path / "else where")
    assert gone.returncode == 0 and not (tmp_path / "else where").exists(), gone.stderr


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1000])


def absent(path):
    path.unlink()


@pytest.mark.parametrize(
    ("harm", "reason"), [(flipped, "is damaged"), (cut, "is damaged"), (absent, "cannot be downloaded")]
)
def test_a_damaged_archive_is_refused_and_leaves_nothing(machine, published, archive, harm, reason):
    folder, url = published
    harm(folder / archive.name)
    done = machine("--from", url)
    assert done.returncode == 1 and reason in done.stderr and "hint: " in done.stderr, done
    assert left(machine.home) == []


def test_a_damaged_release_leaves_the_installed_version_in_use(machine, published, archive, run):
    folder, url = published
    assert machine("--from", url).returncode == 0
    before = os.readlink(machine.home / ".jackalope/current")
    flipped(folder / archive.name)
    assert machine("--from", url).returncode == 1
    assert os.readlink(machine.home / ".jackalope/current") == before
    program = machine.home / ".jackalope/current/bin/jackalope-rank"
    assert run(program, "--version").returncode == 0


def test_a_file_that_changed_inside_a_well_hashed_archive_is_found(machine, published, archive, run, tmp_path):
    """The sums in the archive are checked after unpacking, as a bad disk would need it."""
    folder, url = published
    name = archive.name.removesuffix(".tar.gz")
    run("tar", "-xzf", folder / archive.name, "-C", tmp_path)
    (tmp_path / name / "share/man/man1/jackalope.1").write_text("changed")
    run("tar", "-czf", folder / archive.name, "-C", tmp_path, name)
    digest = hashlib.sha256((folder / archive.name).read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    done = machine("--from", url)
    assert done.returncode == 1 and "jackalope.1 is damaged" in done.stderr, done.stderr
    assert left(machine.home) == []


@pytest.mark.parametrize(
    ("sums", "reason"), [("", "has no archive for"), ("0  jackalope-1-plan9-mips.tar.gz\n", "has no archive for")]
)
def test_a_release_without_this_platform_is_refused(machine, published, sums, reason):
    folder, url = published
    (folder / "SHA256SUMS").write_text(sums)
    done = machine("--from", url)
    assert done.returncode == 1 and reason in done.stderr and "hint: " in done.stderr, done


@pytest.mark.parametrize(
    ("args", "without", "reason"),
    [
        ([], [], "does not know where releases are"),
        (["--from", "http://127.0.0.1:1"], [], "cannot be downloaded"),
        (["--from", "http://127.0.0.1:1"], ["curl", "wget"], "neither curl nor wget"),
        (["--from", "/nowhere"], [], "has no SHA256SUMS"),
        (["--version"], [], "--version needs a value"),
        (["--version", "1", "--from", "/x"], [], "exclude each other"),
        (["--quick"], [], "unknown option --quick"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_hint(machine, args, without, reason):
    done = machine(*args, without=without)
    assert done.returncode == 1 and reason in done.stderr, done
    assert left(machine.home) == []


def test_no_hash_tool_is_no_installation(machine, release):
    done = machine("--from", release, without=["sha256sum", "shasum", "openssl"])
    assert done.returncode == 1 and "no program computes SHA-256" in done.stderr, done
    assert left(machine.home) == []


def test_a_foreign_folder_is_not_removed(machine, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter").write_text("dear")
    done = machine("--uninstall", "--prefix", tmp_path / "mine")
    assert done.returncode == 1 and (tmp_path / "mine/letter").exists(), done
