#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a release of the commit that is checked out: Debian packages, the source, their SHA-256 sums.
#
# Usage: tools/release.sh [--out DIR]     default: dist, a new folder
#
#   libmillraceMAJOR.MINOR, libmillrace-dev, millrace-tools, millrace-doc (.deb), checked by lintian
#   millrace-VERSION.tar.gz                                               the commit's files
#   SHA256SUMS
#
# millrace-tools has man pages and completion for bash, made of what the programs say of themselves.
# Needs debhelper, help2man and lintian (it says so). The working tree must be clean. Nothing is sent
# anywhere.
set -euo pipefail

source "$(dirname "$0")/program.sh"

out=dist
while [[ $# -gt 0 ]]; do
  case "$1" in
    --out)
      [[ $# -gt 1 ]] || wrong_arguments "argument --out: expected one argument"
      out=$2
      shift
      ;;
    --out=*) out=${1#--out=} ;;
    *) wrong_arguments "unrecognized arguments: $1" ;;
  esac
  shift
done
fail() {
  echo "$program: $1" >&2
  exit 1
}
out=$(realpath -m "$out")  # from here, not from the repository
[[ ! -e "$out" ]] || fail "--out must not exist, got '$out'"
cd "$(dirname "$0")/.."
for needed in dh:debhelper help2man:help2man lintian:lintian dpkg-buildpackage:dpkg-dev; do
  command -v "${needed%%:*}" > /dev/null ||
    fail "needs ${needed%%:*}, got none; apt-get install ${needed##*:}"
done
[[ -z "$(git status --porcelain)" ]] || fail "the working tree must be clean, got changes (git status)"

version=$(sed -n 's/^#define MILLRACE_VERSION "\(.*\)"/\1/p' core/version.h)
soversion=${version%.*}
grep -q "^## $version" CHANGELOG.md || fail "CHANGELOG.md must have '## $version', got none"
export SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$out"
git archive --format=tar --prefix="millrace-$version/" HEAD | gzip -n > "$out/millrace-$version.tar.gz"

tools/install.sh --prefix "$work/prefix"
tree="$work/millrace-$version"
staged="$tree/staged/usr"
mkdir -p "$staged"
cp -a "$work/prefix/." "$staged/"
rm "$staged/share/millrace/LICENSE"  # Debian has it
# Where Debian's pkg-config looks for one architecture.
multiarch="$staged/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)"
mkdir -p "$multiarch"
mv "$staged/lib/pkgconfig" "$multiarch/"
sed -i 's|^prefix=.*|prefix=/usr|' "$multiarch/pkgconfig/millrace.pc"

# What the programs say of themselves.
programs=()
for path in "$staged"/bin/*; do programs+=("$(basename "$path")"); done
mkdir -p "$staged/share/man/man1" "$staged/share/bash-completion/completions"
for name in "${programs[@]}"; do
  # The first line of what it says it does.
  about=$("$staged/bin/$name" --help | sed -n '/^$/,$p' | sed -n '2{s/\.$//;s/^ *//;p}')
  help2man --no-info --section=1 --source="Millrace $version" --manual="Millrace" \
    --name="${about:-a program of Millrace}" \
    --output="$staged/share/man/man1/$name.1" "$staged/bin/$name"
done
completions="$staged/share/bash-completion/completions"
tools/completion.py --bin "$staged/bin" "${programs[@]}" > "$completions/millrace"
for name in "${programs[@]}"; do ln -s millrace "$completions/$name"; done

cp -a tools/debian "$tree/debian"
sed -i "s/@SOVERSION@/$soversion/g" "$tree/debian/control" "$tree/debian/rules"
{
  echo "millrace ($version) unstable; urgency=medium"
  printf '\n  * CHANGELOG.md has what is new.\n\n'
  echo " -- The Millrace authors <millrace@example.org>  $(date -R -u -d "@$SOURCE_DATE_EPOCH")"
} > "$tree/debian/changelog"
echo "usr/lib/libmillrace.so.*" > "$tree/debian/libmillrace$soversion.install"
printf '%s\n' usr/include usr/lib/libmillrace.so "usr/lib/*/pkgconfig" usr/lib/cmake \
  usr/share/millrace/ops.pbtxt > "$tree/debian/libmillrace-dev.install"
printf '%s\n' usr/bin usr/share/man usr/share/bash-completion > "$tree/debian/millrace-tools.install"
printf '%s\n' usr/share/millrace/README.md usr/share/millrace/docs usr/share/millrace/examples \
  > "$tree/debian/millrace-doc.install"

(cd "$tree" && dpkg-buildpackage -b -us -uc) > "$work/build.log" 2>&1 || {
  tail -n 40 "$work/build.log" >&2
  fail "dpkg-buildpackage must make the packages, see above"
}
cp "$work"/*.deb "$out/"
lintian --fail-on error,warning "$work"/*.deb || fail "lintian must find nothing, see above"
(cd "$out" && sha256sum -- * > SHA256SUMS)
ls -l "$out"
echo "Millrace $version is in $out"
