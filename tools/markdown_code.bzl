"""markdown_code: the code blocks of a page as files, so that a test builds what the page says."""

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
