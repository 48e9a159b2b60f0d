#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The disk cache of builds: what one clone compiled, the next clone of the machine finds.

  tools/disk_cache.py path          prints the folder for --disk_cache; nothing when switched off
  tools/disk_cache.py key           prints the versions' part of its name
  tools/disk_cache.py trim [BYTES]  deletes what was used least recently until BYTES (10 GB) are left

Bazel knows sources and flags, but not the compiler and the headers in /usr/include: the folder is
named by the versions of the compiler and of all -dev packages, so an upgrade begins an empty cache.
Trimming counts the folders of all versions, and deletes nothing that does not look like part of
one. It goes by the last access, which most file systems keep to the day.

MILLRACE_DISK_CACHE names another folder for the caches, or is `off`. For one build, `--disk_cache=`
behind tools/test.sh or .ci/run switches it off.
"""

import hashlib
import os
import re
import subprocess

import program

LIMIT_BYTES = 10 * 1000 ** 3
# What turns sources into files, besides -dev packages: preprocessor, compiler, linker, protoc.
TOOLS = re.compile(r"(g\+\+|gcc|cpp|binutils|protobuf-compiler)(-.*)?$")
# What folder() makes.
FOLDER = re.compile(r"g\+\+-[0-9.]+-[0-9a-f]{16}$")


def root():
    """The folder that holds a cache for each set of versions; None when switched off."""
    asked = os.environ.get("MILLRACE_DISK_CACHE", "")
    if asked == "off":
        return None
    if asked:
        return os.path.abspath(asked)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "millrace", "bazel")


def versions():
    """`package version` of each installed package that decides what a compiler writes."""
    lines = subprocess.check_output(
        ["dpkg-query", "-W", "-f=${db:Status-Abbrev}|${Package}|${Version}|${Architecture}\n"],
        text=True).splitlines()
    chosen = []
    for line in lines:
        status, package, version, architecture = line.split("|")
        if status.startswith("ii") and (package.endswith("-dev") or TOOLS.match(package)):
            chosen.append(f"{package}:{architecture} {version}")
    return sorted(chosen)


def key():
    """Changes with the compiler and each package that headers come from."""
    compiler = subprocess.check_output(["g++", "-dumpfullversion"], text=True).strip()
    digest = hashlib.sha256("\n".join(versions()).encode()).hexdigest()[:16]
    return f"g++-{compiler}-{digest}"


def folder():
    return None if root() is None else os.path.join(root(), key())


def entries(top):
    """(last use, bytes, path) of each file that Bazel cached in the folders below `top`."""
    for name in os.listdir(top) if os.path.isdir(top) else []:
        if not FOLDER.match(name):
            continue
        for kind in ("ac", "cas"):
            for directory, _, names in os.walk(os.path.join(top, name, kind)):
                for path in (os.path.join(directory, name) for name in names):
                    try:
                        stat = os.stat(path)
                    except FileNotFoundError:
                        continue  # another trim
                    # Without access times (noatime) the time of writing decides.
                    yield max(stat.st_atime, stat.st_mtime), stat.st_size, path


def trim(top, limit_bytes):
    """Deletes the least recently used entries until `limit_bytes` are left."""
    files = list(entries(top))
    total = sum(size for _, size, _ in files)
    deleted = 0
    for _, size, path in sorted(files):
        if total <= limit_bytes:
            break
        try:
            os.remove(path)
        except FileNotFoundError:
            pass
        total -= size
        deleted += 1
    if deleted:
        print(f"disk cache: deleted {deleted} of {len(files)} files, kept {total / 1e9:.1f} GB")


def main():
    flags = program.Parser(__doc__)
    flags.add_argument("command", metavar="COMMAND", choices=["path", "key", "trim"],
                       help="path, key or trim")
    flags.add_argument("bytes", metavar="BYTES", nargs="?", type=int)
    args = flags.parse_args()
    if args.command != "trim":
        if args.bytes is not None:
            flags.error(f"unrecognized arguments: {args.bytes}")
        print(key() if args.command == "key" else folder() or "")
    elif root() is not None:
        trim(root(), LIMIT_BYTES if args.bytes is None else args.bytes)


if __name__ == "__main__":
    main()
