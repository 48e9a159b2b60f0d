"""millrace_workspace: the repositories that Millrace needs, for its WORKSPACE and its users'.

    local_repository(name = "millrace", path = "/path/to/millrace")   # or http_archive

    load("@millrace//:workspace.bzl", "millrace_workspace")

    millrace_workspace()

Libraries are Debian's packages: @millrace//tools:install_deps.sh. Flags: docs/using_millrace.md.
"""

load("//third_party/protobuf:system_protos.bzl", "system_protos")

def _stand_in_impl(ctx):
    source = ctx.path(Label("//:WORKSPACE")).dirname.get_child("third_party").get_child("bazel_compat")
    for entry in source.get_child(ctx.name).readdir():
        ctx.symlink(entry, entry.basename)

_stand_in = repository_rule(implementation = _stand_in_impl, local = True)

def millrace_workspace():
    """Repositories that are there already stay as they are."""

    # Bazel 4.2.3 fetches these three while resolving toolchains and tests, even
    # for a project of C++ only. Small in-tree stand-ins keep the build offline.
    for name in ["remote_coverage_tools", "rules_cc", "rules_java"]:
        if not native.existing_rule(name):
            _stand_in(name = name)

    # @system_protobuf//:any_proto and the other well-known types.
    if not native.existing_rule("system_protobuf"):
        system_protos(name = "system_protobuf")
