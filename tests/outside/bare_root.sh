#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Uses Millrace as somebody does who has a bare Debian and docs/using_millrace.md: makes a minimal
# Debian of this machine's release in DIR, a new user in it, a clone of this repository, and then by
# the page alone:
#
#   1. tools/install.sh, which says what to install as root, and again after that
#   2. the programs of tests/outside with g++, clang, CMake, C, ctypes and an op library of one's
#      own, against the installed prefix (installed_test.py), the tutorial and the examples
#      (examples_test.py)
#   3. unless --no-bazel: the same program in a Bazel workspace of its own (bazel_test.py)
#
# Usage: tests/outside/bare_root.sh [--disk-cache DIR2] [--no-bazel] DIR
#
# For root, with debootstrap. The mirror and its keys are those of this machine's apt. DIR may have a
# Debian already, for another run; nothing outside of it is changed, and mounts end with this
# program. --disk-cache: what builds here have left (tools/disk_cache.py path) is read there; it
# needs the same compiler and packages. BARE_ROOT_BUILD is put before the commands that compile
# Millrace: BARE_ROOT_BUILD="nice -n 10".
#
# Takes the packages' download and a build of the library and the tools, and one more with Bazel.

# covers: outside: `docs/using_millrace.md` is enough on a bare Debian (run by hand, as root)

set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../tools/program.sh"

bazel=1
disk_cache=
root=
while [[ $# -gt 0 ]]; do
  case "$1" in
    --no-bazel) bazel= ;;
    --disk-cache)
      [[ $# -gt 1 ]] || wrong_arguments "argument --disk-cache: expected one argument"
      disk_cache=$2
      shift
      ;;
    --disk-cache=*) disk_cache=${1#--disk-cache=} ;;
    -*) wrong_arguments "unrecognized arguments: $1" ;;
    *)
      [[ -z "$root" ]] || wrong_arguments "unrecognized arguments: $1"
      root=$1
      ;;
  esac
  shift
done
[[ -n "$root" ]] || wrong_arguments "the following arguments are required: DIR"
fail() { echo "bare_root.sh: $1" >&2; exit 1; }
[[ $(id -u) -eq 0 ]] || fail "must be run by root, got user $(id -un)"
command -v debootstrap >/dev/null || fail "debootstrap must be installed; apt-get install debootstrap"
root=$(realpath -m "$root")
[[ "$root" != / ]] || fail "DIR must be a folder of its own, got /"
say() { printf '\n== %s\n' "$1"; }

# Mounts are this program's alone: they end with it.
if [[ "${BARE_ROOT_NAMESPACE:-}" != 1 ||
      "$(readlink /proc/self/ns/mnt)" == "$(readlink /proc/1/ns/mnt)" ]]; then
  arguments=("$root")
  [[ -z "$disk_cache" ]] || arguments+=(--disk-cache "$(realpath "$disk_cache")")
  [[ -n "$bazel" ]] || arguments+=(--no-bazel)
  BARE_ROOT_NAMESPACE=1 exec unshare --mount --propagation private "$here/bare_root.sh" "${arguments[@]}"
fi

if [[ ! -e "$root/etc/debian_version" ]]; then
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v release="$release" '$2 == release && $3 == "main" { print $1; exit }')
  [[ -n "$mirror" ]] || fail "apt's sources must have $release main, got none"
  say "debootstrap $release"
  debootstrap --variant=minbase "$release" "$root" "$mirror"
fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"

# As this machine reaches its mirror, so does the root.
rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
for path in /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/trusted.gpg /etc/apt/trusted.gpg.d \
  /etc/apt/keyrings /etc/apt/auth.conf.d /usr/share/keyrings /etc/resolv.conf /etc/hosts; do
  [[ ! -e "$path" ]] || { mkdir -p "$root$(dirname "$path")"; cp -rL "$path" "$root$(dirname "$path")/"; }
done
grep -lE '^Acquire' /etc/apt/apt.conf.d/* 2>/dev/null | xargs -r cp -t "$root/etc/apt/apt.conf.d/" || true

settings=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8)
for name in http_proxy https_proxy no_proxy; do
  [[ -z "${!name:-}" ]] || settings+=("$name=${!name}")
done
user=newcomer
home=/home/$user
as_root() { chroot "$root" env -i HOME=/root DEBIAN_FRONTEND=noninteractive "${settings[@]}" bash -ec "$1"; }
as_user() {  # $wrap before it
  ${wrap:-} chroot --userspec="$user:$user" "$root" env -i HOME="$home" USER="$user" "${settings[@]}" \
    bash -ec "cd ~/millrace; $1"
}
# Bazel's server would stay, and keep this program's mounts.
end_server() { as_user "! command -v bazel >/dev/null || bazel shutdown" >/dev/null 2>&1 || true; }
trap end_server EXIT
building() { wrap=${BARE_ROOT_BUILD:-} as_user "$1"; }

say "a new user with a clone"
chroot "$root" id "$user" >/dev/null 2>&1 || chroot "$root" useradd --create-home --shell /bin/bash "$user"
rm -rf "$root$home/millrace" "$root$home/prefix" "$root$home/out"
git -c safe.directory='*' clone --quiet --no-hardlinks "$here/../.." "$root$home/millrace"
chroot "$root" chown -R "$user:$user" "$home/millrace"

if ! as_user "tools/install_deps.sh" 2>"$root$home/needed"; then
  say "what is missing: install.sh says what root should run"
  if message=$(as_user "tools/install.sh --prefix ~/prefix" 2>&1); then
    fail "install.sh must fail without packages"
  fi
  echo "$message"
  command=$(sed -n 's/^  \(apt-get update && apt-get install .*\)$/\1/p' <<<"$message")
  [[ -n "$command" ]] || fail "install.sh must name the command to run"
  as_root "$command" >"$root/root/install.log" 2>&1 || { tail -20 "$root/root/install.log"; exit 1; }
fi

if [[ -n "$disk_cache" ]]; then
  say "the disk cache"
  cache=$(as_user "mkdir -p \$(tools/disk_cache.py path); tools/disk_cache.py path")
  # An overlay: what is written stays in the root.
  mkdir -p "$root/cache/new" "$root/cache/work"
  mount -t overlay overlay -o "lowerdir=$disk_cache,upperdir=$root/cache/new,workdir=$root/cache/work" \
    "$root$cache"
  find "$root$cache" -type d -exec chown "$(chroot "$root" id -u "$user")" {} +
fi

say "tools/install.sh --prefix ~/prefix"
SECONDS=0
building "tools/install.sh --prefix ~/prefix"
echo "install.sh: $SECONDS s"
as_user "du -sh ~/prefix ~/prefix/*; ls -l ~/prefix/lib; nm -D --defined-only ~/prefix/lib/libmillrace.so | wc -l"

# For C++20 with clang, too.
as_root "command -v clang++-16 >/dev/null || apt-get install -yq --no-install-recommends clang-16" \
  >"$root/root/clang.log" 2>&1 || { tail -20 "$root/root/clang.log"; exit 1; }

say "programs outside, with the prefix alone"
for name in installed examples; do
  as_user "mkdir -p ~/out/$name
    OUTSIDE_PREFIX=~/prefix OUTSIDE_ALL=1 TEST_TMPDIR=~/out/$name tests/outside/${name}_test.py"
done

if [[ -n "$bazel" ]]; then
  say "a Bazel workspace outside"
  SECONDS=0
  building "mkdir ~/out/bazel; TEST_TMPDIR=~/out/bazel tests/outside/bazel_test.py"
  echo "bazel_test.py: $SECONDS s"
fi
say "all of it works"
