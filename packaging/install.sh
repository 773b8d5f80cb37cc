#!/bin/sh
# Installs Jackalope for this user, without root and without a compiler.
#
#   sh install.sh                      the newest release, to ~/.jackalope
#   sh install.sh --version 0.1.0      another release
#   sh install.sh --from DIR|URL       from a folder or a server with the files of a release
#   sh install.sh --prefix DIR         to another folder
#   sh install.sh --uninstall          removes it; models in Hugging Face's cache are kept
#
# Every file is checked with SHA-256 before it is used. The previous version is kept:
# `jackalope agent activate --previous` returns to it.
set -eu

# URL of the releases; a release sets it.
releases=''

fail() {
    printf 'error: %s\n' "$1" >&2
    shift
    for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done
    exit 1
}

usage() { sed -n 's/^#   \(sh install.sh.*\)/\1/p' "$0"; }

# Whether a program is installed.
has() { command -v "$1" >/dev/null 2>&1; }

# Prints the SHA-256 of a file.
hash_of() {
    if has sha256sum; then sum=$(sha256sum <"$1")
    elif has shasum; then sum=$(shasum -a 256 <"$1")
    elif has openssl; then sum=$(openssl dgst -sha256 -r <"$1")
    else fail 'no program computes SHA-256' 'install sha256sum, shasum or openssl'
    fi
    printf '%s\n' "${sum%% *}"
}

# Brings a file of the release: its name, and where to write it.
bring() {
    case "$source" in
        http://*|https://*) ;;
        *) [ -f "$source/$1" ] || fail "$source has no $1" 'the folder must have all files of a release'
           cp "$source/$1" "$2"; return ;;
    esac
    if has curl; then
        curl --fail --silent --show-error --location --retry 3 --connect-timeout 20 \
            --output "$2" "$source/$1" || fail "$source/$1 cannot be downloaded" "$source_hint"
    elif has wget; then
        wget --quiet --tries=3 --timeout=60 -O "$2" "$source/$1" \
            || fail "$source/$1 cannot be downloaded" "$source_hint"
    else
        fail 'neither curl nor wget is installed' \
            'install one of them, or copy the files of a release here and use --from DIR'
    fi
}

# Prints the platform as in the names of archives.
platform() {
    case "$(uname -sm)" in
        'Linux x86_64') echo linux-x86_64 ;;
        'Linux aarch64') echo linux-aarch64 ;;
        'Darwin arm64') echo macos-arm64 ;;
        *) fail "there is no archive for $(uname -sm)" 'build it from the sources: see README.md' ;;
    esac
}

uninstall() {
    program="$prefix/current/bin/jackalope"
    if [ ! -e "$prefix" ]; then
        echo "nothing is installed in $prefix"
    elif [ -x "$program" ]; then
        JACKALOPE_HOME="$prefix" "$program" uninstall 127.0.0.1 --yes
    else
        fail "$prefix is no installation of Jackalope" '--prefix names the folder to remove'
    fi
}

# Checks and unpacks an archive, and prints the folder that it contains.
unpack() {
    archive=$1 into=$2
    want=$(awk -v name="$(basename "$archive")" '$2 == name { print $1 }' "$into/SHA256SUMS")
    [ -n "$want" ] || fail "SHA256SUMS does not name $(basename "$archive")"
    found=$(hash_of "$archive")
    [ "$found" = "$want" ] || fail \
        "$(basename "$archive") is damaged: its SHA-256 is $found instead of $want" \
        'try again; if it stays so, the release or the way to it was changed: do not use it'
    tar -xzf "$archive" -C "$into" || fail 'the archive cannot be unpacked' 'is the disk full?'
    tree="$into/$(basename "$archive" .tar.gz)"
    # The archive is what was published; this finds what a full disk or a bad one did to its files.
    while read -r want file; do
        [ "$(hash_of "$tree/$file")" = "$want" ] || fail "$file is damaged" 'is the disk full, or bad?'
    done <"$tree/SHA256SUMS"
    printf '%s\n' "$tree"
}

install() {
    has tar || fail 'tar is not installed'
    system=$(platform)
    mkdir -p "$prefix/versions" || fail "$prefix cannot be written" '--prefix names another folder'
    work=$(mktemp -d "$prefix/.install.XXXXXX") || fail "$prefix cannot be written"
    # $work is known only now, and nothing is left of it whatever happens.
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM HUP
    bring SHA256SUMS "$work/SHA256SUMS"
    archive=$(awk -v platform="$system" '
        $2 ~ "^jackalope-[0-9][0-9A-Za-z.+-]*-" platform "\\.tar\\.gz$" { print $2; exit }' "$work/SHA256SUMS")
    [ -n "$archive" ] || fail "this release has no archive for $system" \
        'choose another one with --version, or build it from the sources: see README.md'
    echo "downloading $archive"
    bring "$archive" "$work/$archive"
    tree=$(unpack "$work/$archive" "$work")
    for program in jackalope jackalope-rank; do
        said=$("$tree/bin/$program" --version 2>&1) || fail "$program does not start here: $said" \
            'on Linux it needs glibc 2.35 or later and libstdc++ 6 (Debian 12, Ubuntu 22.04, Fedora 36)' \
            'on macOS it needs version 14 or later'
    done
    id=$(cat "$tree/ID")
    rm -rf "${prefix:?}/versions/$id"
    mv "$tree" "$prefix/versions/$id"
    JACKALOPE_HOME="$prefix" "$prefix/versions/$id/bin/jackalope" agent activate "$id" \
        </dev/null >/dev/null
    echo "installed: $said in $prefix/versions/$id"
    advise
}

# Says how to call the program.
advise() {
    bin="$prefix/current/bin"
    case ":$PATH:" in
        *":$bin:"*) ;;
        *) printf 'Add it to your PATH, here and in the profile of your shell:\n'
           # shellcheck disable=SC2016 # the reader's shell expands it
           printf '  export PATH="%s:$PATH"\n' "$bin" ;;
    esac
    printf 'Then: jackalope demo\n'
}

version='' from='' do=install
prefix=${JACKALOPE_HOME:-${HOME:?HOME is not set}/.jackalope}
while [ $# -gt 0 ]; do
    case "$1" in
        --version|--from|--prefix)
            if [ $# -lt 2 ] || [ -z "$2" ]; then fail "$1 needs a value" 'see --help'; fi
            case "$1" in
                --version) version=${2#v} ;;
                --from) from=${2%/} ;;
                --prefix) prefix=$2 ;;
            esac
            shift 2 ;;
        --uninstall) do=uninstall; shift ;;
        --help|-h) usage; exit 0 ;;
        *) fail "unknown option $1" 'see --help' ;;
    esac
done
case "$prefix" in
    /*) ;;
    *) prefix="$PWD/$prefix" ;;
esac
source_hint='is the address right, and does this machine reach it?'
if [ -n "$from" ]; then
    [ -z "$version" ] || fail '--version and --from exclude each other'
    source=$from
elif [ -n "$version" ]; then
    source="$releases/download/v$version"
    source_hint="is $version a release? $releases lists them"
else
    source="$releases/latest/download"
fi
if [ "$do" = install ] && [ -z "$from$releases" ]; then
    fail 'this copy of install.sh does not know where releases are' \
        'take the one of a release, or give a folder or a server with --from'
fi
"$do"
