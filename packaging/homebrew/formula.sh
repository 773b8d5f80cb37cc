#!/bin/sh
# Prints the Homebrew formula of a release: formula.sh URL-OF-THE-REPOSITORY SHA256SUMS
#
# A tap keeps the result as Formula/jackalope.rb; `brew install OWNER/tap/jackalope` then installs the
# release's own archive.
set -eu
[ $# -eq 2 ] || { echo "usage: $0 URL-OF-THE-REPOSITORY SHA256SUMS" >&2; exit 2; }
url=$1 sums=$2

# Prints `version` of the archives.
version=$(sed -n 's/^[0-9a-f]*  jackalope-\([0-9][0-9A-Za-z.]*\)-.*\.tar\.gz$/\1/p' "$sums" | head -n 1)
[ -n "$version" ] || { echo "$sums names no archive" >&2; exit 1; }

# Prints the source for a platform, if the release has it.
source_of() {
    name="jackalope-$version-$1.tar.gz"
    hash=$(awk -v name="$name" '$2 == name { print $1 }' "$sums")
    [ -n "$hash" ] || return 0
    printf '    %s do\n      url "%s/releases/download/v%s/%s"\n      sha256 "%s"\n    end\n' \
        "$2" "$url" "$version" "$name" "$hash"
}

cat <<EOF
class Jackalope < Formula
  desc "Several machines, one LLM endpoint"
  homepage "$url"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
$(source_of macos-arm64 on_arm)
  end
  on_linux do
$(source_of linux-x86_64 on_intel)
$(source_of linux-aarch64 on_arm)
  end

  def install
    bin.install Dir["bin/*"]
    lib.install "lib/jackalope"
    share.install Dir["share/*"]
  end

  def caveats
    <<~EOS
      A server at boot: jackalope service install server -- --model ORG/NAME
      Repeat this after an upgrade.
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/jackalope --version")
    assert_match "rank 1", shell_output("#{bin}/jackalope demo")
  end
end
EOF
