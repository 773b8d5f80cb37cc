"""The archive of a release: complete, without paths and debug information, and enough by itself."""

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import time
from pathlib import Path

import pytest

# What the system must have: the C and C++ libraries of every Linux with glibc.
BASE_SYSTEM = re.compile(r"^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+)\.so\.\d+$")

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="namespaces and ELF are Linux's")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lines_of(path):
    return [line.split("  ", 1) for line in path.read_text().splitlines()]


def test_every_file_is_named_with_its_hash(release, tree):
    named = {name: want for want, name in lines_of(tree / "SHA256SUMS")}
    files = {str(it.relative_to(tree)) for it in tree.rglob("*") if it.is_file()}
    assert files == named.keys() | {"SHA256SUMS"}
    assert all(sha256(tree / name) == want for name, want in named.items())
    for want, name in lines_of(release / "SHA256SUMS"):
        assert sha256(release / name) == want, name


def test_it_has_what_a_user_needs(tree):
    for name in [
        "ID",
        "bin/jackalope",
        "bin/jackalope-rank",
        "share/jackalope/models/jackalope-mini/config.json",
        "share/man/man1/jackalope.1",
        "share/man/man1/jackalope-serve.1",
        "share/bash-completion/completions/jackalope",
        "share/zsh/site-functions/_jackalope",
        "share/fish/vendor_completions.d/jackalope.fish",
        "share/doc/jackalope/LICENSE-MIT",
        "share/doc/jackalope/README.md",
    ]:
        assert (tree / name).stat().st_size > 0, name
    page = (tree / "share/man/man1/jackalope-serve.1").read_text()
    assert ".SH OPTIONS" in page and r"\-\-model" in page
    assert not list((tree / "share/man/man1").glob("*pack*")), "hidden commands have no page"


def test_owners_dates_and_order_are_those_of_nobody(archive):
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    assert {(it.uid, it.gid, it.mtime) for it in members} == {(0, 0, 1_000_000_000)}
    assert {it.mode for it in members} == {0o644, 0o755}
    names = [Path(it.name) for it in members]
    assert names == sorted(names)


def test_the_bill_of_materials_and_the_licences_name_every_part(tree):
    bill = json.loads((tree / "share/doc/jackalope/jackalope.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    refs = [it["bom-ref"] for it in bill["components"]]
    assert len(refs) == len(set(refs)) and len(refs) > 150
    assert any(it.startswith("pkg:npm/preact@") for it in refs), "the packages of the web page are parts too"
    known = {*refs, bill["metadata"]["component"]["bom-ref"]}
    for dependency in bill["dependencies"]:
        assert dependency["ref"] in known and set(dependency["dependsOn"]) <= known, dependency
    libraries = {str(it.relative_to(tree)) for it in (tree / "lib").rglob("*") if ".so" in it.name or it.suffix in (".dylib", ".metallib")}
    assert libraries and libraries <= known
    text = (tree / "share/doc/jackalope/THIRD-PARTY-LICENSES.txt").read_text()
    for component in bill["components"]:
        is_ours = component["name"].startswith("jackalope-")
        assert component.get("licenses"), component
        name = f"{component['name']} {component.get('version', '')}".strip()
        assert is_ours or name in text or component["bom-ref"] in text or name.startswith("mlx "), name
    assert "MLX 0." in text and "Permission is hereby granted" in text


@ON_LINUX
def test_programs_have_no_debug_information_and_no_path_of_the_build(tree, run):
    for name in ["jackalope", "jackalope-rank"]:
        sections = run("readelf", "--sections", "--wide", tree / "bin" / name).stdout
        # A pointer to pretty-printers for gdb stays; it is no debug information.
        sections = sections.replace(".debug_gdb_scripts", "")
        assert ".text" in sections and ".debug_" not in sections and ".symtab" not in sections
        assert ".gnu_debuglink" in sections
        dynamic = run("readelf", "--dynamic", tree / "bin" / name).stdout
        paths = re.findall(r"(?:runpath|rpath): \[(.*)\]", dynamic)
        assert all(it.startswith("$ORIGIN") for path in paths for it in path.split(":")), paths


def needed_files(tree, run):
    """Files of the system that the loader needs for both programs."""
    found = set()
    for name in ["jackalope", "jackalope-rank"]:
        listed = run("ldd", tree / "bin" / name)
        assert listed.returncode == 0 and "not found" not in listed.stdout, listed.stdout
        for line in listed.stdout.splitlines():
            library, _, path = line.strip().partition(" => ")
            path = (path or library).split(" (")[0]
            if str(tree) in path or not path.startswith("/"):
                continue
            assert BASE_SYSTEM.match(Path(path).name), f"{name} needs {path}"
            found.add(Path(path))
    return found


@ON_LINUX
def test_the_demonstration_runs_with_nothing_but_the_base_system(tree, run, tmp_path, capsys):
    may = run("unshare", "--mount", "--pid", "--fork", "true").returncode == 0
    if not may:
        pytest.skip("this user may not create mount namespaces: the archive was NOT run by itself")
    root = tmp_path / "root"
    shutil.copytree(tree, root / "jackalope")
    for path in needed_files(tree, run):
        (root / str(path.parent).lstrip("/")).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / str(path).lstrip("/"))
    for folder in ["proc", "dev", "tmp", "root"]:
        (root / folder).mkdir()
    (root / "etc").mkdir()
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    for device in ["null", "urandom", "random"]:
        (root / "dev" / device).touch()
    chroot = shutil.which("chroot", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    binds = " && ".join(f"mount --bind /dev/{it} dev/{it}" for it in ["null", "urandom", "random"])
    script = (
        f"cd '{root}' && mount --make-rprivate / && {binds} && mount -t proc proc proc && "
        f"exec env -i HOME=/root TMPDIR=/tmp {chroot} . /jackalope/bin/jackalope demo"
    )
    began = time.monotonic()
    shown = run("unshare", "--mount", "--pid", "--fork", "sh", "-c", script)
    seconds = time.monotonic() - began
    assert shown.returncode == 0, f"{shown.stdout}\n{shown.stderr}"
    assert "I am Jackalope" in shown.stdout and "rank 1: " in shown.stdout, shown.stdout
    with capsys.disabled():
        print(f"\n   the unpacked archive answered and ended in {seconds:.1f} s", file=sys.stderr)


@ON_LINUX
def test_the_programs_of_the_archive_make_the_same_installation_again(tree, run, tmp_path):
    """`bootstrap` installs on other machines from an installation: it finds all files in it."""
    packed = run(tree / "bin/jackalope", "pack", tmp_path / "again", env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert packed.returncode == 0, packed.stderr
    assert json.loads(packed.stdout)["id"] == (tree / "ID").read_text().strip()
    for name in ["bin/jackalope", "bin/jackalope-rank"]:
        assert sha256(tmp_path / "again" / name) == sha256(tree / name)
    libraries = [it for it in (tree / "lib").rglob("*") if it.is_file()]
    assert libraries
    for library in libraries:
        assert sha256(tmp_path / "again" / library.relative_to(tree)) == sha256(library)
