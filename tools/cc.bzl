"""cc_library, cc_test and cc_binary of this project: its warnings, and a precompiled header.

    load("//tools:cc.bzl", "cc_library", "cc_test")

Arguments are those of Bazel's rules, and
  precompiled: False for a source whose flags or language (-std=c++17) a precompiled header has not.
"""

load("//tools:copts.bzl", "MILLRACE_COPTS")

# GCC 12 forgets that precompiled lines are the system's: these warnings, which know too little of
# std::string's own code, are about it.
_WITHOUT_WARNINGS = [
    "-Wno-array-bounds",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
]

# Folders that a step does not run through, compiled at -O1 as --per_file_copt in .bazelrc says.
_COLD = ["estimator", "examples", "layers", "saver", "tools", "train"]

def _precompiled(srcs):
    """The header that the sources share; None without C++ sources."""
    if type(srcs) != "list":
        return None
    sources = [source for source in srcs if source.endswith(".cc")]
    if not sources:
        return None

    # As --per_file_copt in .bazelrc.
    tests = [source for source in sources if source.endswith("_test.cc")]
    folders = native.package_name().split("/")
    if tests or "testing" in folders:
        return "test"
    return "cold" if folders[0] in _COLD else "library"

def _arguments(precompiled, srcs, copts, deps):
    header = _precompiled(srcs) if precompiled else None
    copts = copts + MILLRACE_COPTS
    if header:
        copts = copts + _WITHOUT_WARNINGS + ["-Winvalid-pch", "-include", "millrace_precompiled_%s.h" % header]
        deps = deps + [Label("//third_party/precompiled:" + header)]
    return {"copts": copts, "deps": deps, "srcs": srcs}

def cc_library(name, srcs = [], copts = [], deps = [], precompiled = True, **kwargs):
    native.cc_library(name = name, **dict(kwargs, **_arguments(precompiled, srcs, copts, deps)))

def cc_test(name, srcs = [], copts = [], deps = [], precompiled = True, **kwargs):
    native.cc_test(name = name, **dict(kwargs, **_arguments(precompiled, srcs, copts, deps)))

def cc_binary(name, srcs = [], copts = [], deps = [], precompiled = True, **kwargs):
    native.cc_binary(name = name, **dict(kwargs, **_arguments(precompiled, srcs, copts, deps)))
