"""precompiled_header: headers of the system, parsed once, by the build's compiler with its flags.

GCC alone reads what is made here. Where the compiler is another, for a repository that uses this
one, and with --define=precompiled=off, the header is empty and nothing is precompiled: sources must
compile so, too (tools/presubmit.sh looks).

What makes it new: the headers in `srcs` and the flags, as for each action; and the versions of the
packages that the system's headers come from, by --workspace_status_command (.bazelrc): Bazel does
not see those headers.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# The header whose precompiled form stands next to it. A source that does not take that form says why
# (-Winvalid-pch) and ends here.
_NOT_USED = "#error The precompiled form of this header was not used, see the warning above.\n"

def _impl(ctx):
    header = ctx.actions.declare_file("%s/millrace_precompiled_%s.h" % (ctx.label.name, ctx.label.name))
    toolchain = find_cpp_toolchain(ctx)
    files = [header]
    hashes = ctx.actions.declare_file(ctx.label.name + ".sha256")
    if ctx.attr.on and toolchain.compiler in ["gcc", "compiler"] and not ctx.label.workspace_root:
        ctx.actions.write(header, _NOT_USED)

        # The key alone: the file names the host and the user, too.
        versions = ctx.actions.declare_file(ctx.label.name + ".versions")
        ctx.actions.run_shell(
            inputs = [ctx.info_file],
            outputs = [versions],
            command = "grep ^STABLE_SYSTEM_HEADERS '%s' > '%s' || true" %
                      (ctx.info_file.path, versions.path),
            mnemonic = "SystemVersions",
        )

        features = cc_common.configure_features(
            ctx = ctx,
            cc_toolchain = toolchain,
            requested_features = ctx.features,
            unsupported_features = ctx.disabled_features,
        )
        precompiled = ctx.actions.declare_file(header.basename + ".gch", sibling = header)
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = ctx.file.src.path,
            output_file = precompiled.path,
            use_pic = True,  # --force_pic
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts +
                                 ["-x", "c++-header", "-iquote", "."],
        )
        arguments = ctx.actions.args()
        arguments.add(hashes)
        arguments.add(precompiled)
        arguments.add(cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
        ))
        arguments.add_all(cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ))
        ctx.actions.run(
            executable = ctx.executable._compiler,
            arguments = [arguments],
            inputs = depset([ctx.file.src, versions] + ctx.files.hdrs, transitive = [toolchain.all_files]),
            outputs = [precompiled, hashes],
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = variables,
            ),
            mnemonic = "CppPrecompile",
            progress_message = "Precompiling %s" % ctx.file.src.short_path,
        )
        files.append(precompiled)
    else:
        ctx.actions.write(header, "")
        ctx.actions.write(hashes, "")
    return [
        DefaultInfo(files = depset(files)),
        OutputGroupInfo(hashes = depset([hashes])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset(files),
            quote_includes = depset([header.dirname]),
        )),
    ]

precompiled_header = rule(
    doc = "The precompiled form of `src`, for `-include millrace_precompiled_<name>.h` (//tools:cc.bzl).",
    implementation = _impl,
    attrs = {
        "copts": attr.string_list(doc = "Flags that the sources have beyond the build's."),
        "hdrs": attr.label_list(allow_files = [".h"], doc = "Headers of this project in src."),
        "on": attr.bool(mandatory = True),
        "src": attr.label(allow_single_file = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_compiler": attr.label(
            default = ":precompile",
            executable = True,
            cfg = "exec",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
