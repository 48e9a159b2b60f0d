"""Compiler flags for code of this project (not for generated code)."""

MILLRACE_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wsign-conversion",
    # GCC 12 at -O3 in C++20 reports std::string's own code.
    "-Wno-restrict",
    "-Werror",
]
