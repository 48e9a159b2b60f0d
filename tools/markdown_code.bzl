"""What a page says, built and run: its code as files, its commands as a test."""

def markdown_code(name, page, files):
    """Writes the blocks "```cpp <file>" of a page to files of those names.

    Args:
      name: of the rule.
      page: the Markdown file.
      files: all files that the page names.
    """
    native.genrule(
        name = name,
        srcs = [page],
        outs = files,
        cmd = "$(location //tools:markdown_code.py) $(location %s) $(RULEDIR) %s" % (page, " ".join(files)),
        tools = [
            "//tools:markdown_code.py",
            "//tools:program.py",
        ],
    )

def markdown_commands(name, page, programs = [], **kwargs):
    """A test that runs the blocks "```sh <file>" of a page and compares what they print.

    Args:
      name: of the test.
      page: the Markdown file; tools/page_commands.py says what counts in it.
      programs: that its commands call by their names.
      **kwargs: of the test.
    """
    native.sh_test(
        name = name,
        srcs = ["//tools:page_commands.py"],
        args = ["$(location %s)" % label for label in [page] + programs],
        data = [
            page,
            "//tools:markdown_code.py",
            "//tools:program.py",
        ] + programs,
        **kwargs
    )
