"""op_family: one family of ops: <name>.cc (definitions, shapes, kernels, gradients) and <name>_test.cc.

Also for families in packages and repositories of others: docs/adding_an_op.md, "An op outside the tree".
"""

load("//ops:op_library.bzl", "op_library")
load("//tools:cc.bzl", own_library = "cc_library", own_test = "cc_test")

def op_family(
        name,
        srcs = None,
        hdrs = [],
        deps = [],
        test_deps = [],
        test = True,
        shared = False,
        copts = [],
        visibility = ["//visibility:public"],
        **kwargs):
    """A library that registers its ops when it is linked, and its test.

    Args:
      name: the family; sources are <name>.cc, the builders are in <name>.h.
      srcs: instead of [<name>.cc].
      hdrs: [<name>.h] outside of //ops; there the builders of all families are //ops:builders.
      deps: beyond the builders and the kernel API (inner loops in //ops/math, libraries).
      test_deps: beyond the op test kit: the families whose ops the test or a gradient in it runs. A
        missing one fails the test by name, "Op type not registered".
      test: whether there is a <name>_test.cc.
      shared: also <name>.so, which a program loads with LoadOpLibrary.
      copts: flags of the compiler; this project's own warnings come to them in its own repository.
      visibility: of the library, and of <name>.so.
      **kwargs: passed to cc_library.
    """
    is_own = native.repository_name().lstrip("@") == Label("//ops").workspace_name
    cc_library = own_library if is_own else native.cc_library
    cc_test = own_test if is_own else native.cc_test
    cc_library(
        name = name,
        srcs = srcs or [name + ".cc"],
        hdrs = hdrs,
        copts = copts,
        visibility = visibility,
        deps = [
            Label("//ops:builders"),
            Label("//runtime:kernel"),
        ] + deps,
        alwayslink = True,
        **kwargs
    )
    if shared:
        op_library(
            name = name + ".so",
            visibility = visibility,
            deps = [":" + name],
        )
    if test:
        cc_test(
            name = name + "_test",
            size = "small",
            srcs = [name + "_test.cc"],
            copts = copts,
            deps = [
                Label("//ops:builders"),
                ":" + name,
                Label("//core/testing:tensor_testing"),
                Label("//runtime/testing:op_test"),
                Label("//third_party/gtest:gtest_main"),
            ] + test_deps,
        )
