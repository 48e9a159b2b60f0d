"""What programs outside of this repository see: headers under one prefix, exported symbols."""

def _public_headers_impl(ctx):
    out = ctx.actions.declare_directory(ctx.label.name)
    headers = depset(transitive = [d[CcInfo].compilation_context.headers for d in ctx.attr.deps])
    lines = ctx.actions.args()
    lines.set_param_file_format("multiline")
    lines.use_param_file("%s", use_always = True)
    lines.add_all(headers, map_each = _header_line)
    roots = ctx.actions.args()
    roots.add(out.path)
    roots.add_all(ctx.attr.roots)
    ctx.actions.run(
        executable = ctx.file._tool,
        arguments = [lines, roots],
        inputs = depset([ctx.file._program], transitive = [headers]),
        outputs = [out],
        mnemonic = "PublicHeaders",
        progress_message = "Writing public headers",
        env = {"PATH": "/usr/bin:/bin"},
    )
    return [
        # As `data`, too.
        DefaultInfo(files = depset([out]), data_runfiles = ctx.runfiles([out])),
        cc_common.merge_cc_infos(
            direct_cc_infos = [CcInfo(
                compilation_context = cc_common.create_compilation_context(
                    headers = depset([out]),
                    system_includes = depset([out.path]),
                ),
            )],
            cc_infos = [d[CcInfo] for d in ctx.attr.deps],
        ),
    ]

def _header_line(file):
    """"graph/scope.h=PATH": the name is without the folders of the header's repository."""
    if file.extension != "h":
        return None
    name = file.short_path
    if name.startswith("../"):
        name = name[name.index("/", 3) + 1:]
    return name + "=" + file.path

# The headers `roots` of `deps` and what they include, as <millrace/...>; a C++ library.
public_headers = rule(
    implementation = _public_headers_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "roots": attr.string_list(mandatory = True),
        "_program": attr.label(
            allow_single_file = True,
            default = "//tools:program.py",
        ),
        "_tool": attr.label(
            allow_single_file = True,
            default = "//tools:public_headers.py",
        ),
    },
)

def _public_symbols_impl(ctx):
    libraries = []
    for dep in ctx.attr.deps:
        for linked in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linked.libraries:
                file = library.pic_static_library or library.static_library
                if file != None:
                    libraries.append(file)
    libraries = depset(libraries).to_list()
    args = ctx.actions.args()
    args.add(ctx.file.headers.path)
    args.add(ctx.file._version)
    args.add(ctx.outputs.script)
    args.add(ctx.outputs.flags)
    args.add_all(libraries)
    ctx.actions.run(
        executable = ctx.file._tool,
        arguments = [args],
        inputs = libraries + [ctx.file.headers, ctx.file._program, ctx.file._version],
        outputs = [ctx.outputs.script, ctx.outputs.flags],
        mnemonic = "PublicSymbols",
        progress_message = "Listing public symbols",
        env = {"PATH": "/usr/bin:/bin"},
    )

# What `headers` declare and `deps` define: a version script and flags for the linker.
public_symbols = rule(
    implementation = _public_symbols_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "headers": attr.label(allow_single_file = True),
        "script": attr.output(mandatory = True),
        "flags": attr.output(mandatory = True),
        "_program": attr.label(
            allow_single_file = True,
            default = "//tools:program.py",
        ),
        "_tool": attr.label(
            allow_single_file = True,
            default = "//tools:public_symbols.py",
        ),
        "_version": attr.label(
            allow_single_file = True,
            default = "//core:version.h",
        ),
    },
)
