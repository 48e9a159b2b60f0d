"""op_library: op families as a shared library that a program loads (runtime/op_library.h)."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _linker_inputs(targets):
    return [
        linker_input
        for target in targets
        for linker_input in target[CcInfo].linking_context.linker_inputs.to_list()
    ]

def _op_library_impl(ctx):
    if not ctx.label.name.endswith(".so"):
        fail("op_library: name must end with '.so', got '%s'" % ctx.label.name)
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # Millrace and what it uses are in the program: a copy of theirs would register for itself.
    in_program = {str(i.owner): True for i in _linker_inputs(ctx.attr._program)}
    inputs = [i for i in _linker_inputs(ctx.attr.deps) if str(i.owner) not in in_program]
    if ctx.attr.says_version:
        version = ctx.attr._version
        inputs += [i for i in _linker_inputs([version]) if i.owner == version.label]
    linked = cc_common.link(
        actions = ctx.actions,
        cc_toolchain = toolchain,
        feature_configuration = features,
        linking_contexts = [cc_common.create_linking_context(linker_inputs = depset(inputs))],
        name = ctx.label.name[:-len(".so")] + "_ops",  # lib<name>.so is the families' own
        output_type = "dynamic_library",
    )
    made = linked.library_to_link
    library = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(
        output = library,
        target_file = made.resolved_symlink_dynamic_library or made.dynamic_library,
    )
    return [DefaultInfo(
        files = depset([library]),
        runfiles = ctx.runfiles(files = [library]),
    )]

op_library = rule(
    doc = "Links op families, and what they use beyond Millrace, to the shared library <name>.",
    implementation = _op_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo], doc = "op_family targets"),
        "says_version": attr.bool(
            default = True,
            doc = "False where one of the sources has MILLRACE_OP_LIBRARY().",
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_program": attr.label_list(
            default = [
                Label("//ops"),
                Label("//ops:builders"),
                Label("//runtime"),
                Label("//runtime:op_library"),
                Label("//train"),
            ],
            providers = [CcInfo],
        ),
        "_version": attr.label(
            default = Label("//runtime:op_library_version"),
            providers = [CcInfo],
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
