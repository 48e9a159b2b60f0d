"""op_family: one family of ops: <name>.cc (definitions, shapes, kernels, gradients) and <name>_test.cc."""

load("//tools:copts.bzl", "MILLRACE_COPTS")

def op_family(name, srcs = None, deps = [], test_deps = [], test = True, **kwargs):
    """A library that registers its ops when it is linked, and its test.

    Args:
      name: the family; sources are <name>.cc, the builders are in <name>.h (part of //ops:builders).
      srcs: instead of [<name>.cc].
      deps: beyond the builders and the kernel API (inner loops in //ops/math, libraries).
      test_deps: beyond the op test kit: the families whose ops the test or a gradient in it runs. A
        missing one fails the test by name, "Op type not registered".
      test: whether there is a <name>_test.cc.
      **kwargs: passed to cc_library.
    """
    native.cc_library(
        name = name,
        srcs = srcs or [name + ".cc"],
        copts = MILLRACE_COPTS,
        visibility = ["//visibility:public"],
        deps = [
            "//ops:builders",
            "//runtime:kernel",
        ] + deps,
        alwayslink = True,
        **kwargs
    )
    if test:
        native.cc_test(
            name = name + "_test",
            size = "small",
            srcs = [name + "_test.cc"],
            copts = MILLRACE_COPTS,
            deps = [
                "//ops:builders",
                ":" + name,
                "//core/testing:tensor_testing",
                "//runtime/testing:op_test",
                "//third_party/gtest:gtest_main",
            ] + test_deps,
        )
