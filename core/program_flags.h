// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PROGRAM_FLAGS_H_
#define MILLRACE_CORE_PROGRAM_FLAGS_H_

// The flags of a program that defines them with ABSL_FLAG.
//
//   int main(int argc, char** argv) {
//     absl::SetProgramUsageMessage("Fits y = wx + b.");
//     millrace::ParseProgramFlags(argc, argv);
//
// --help (also -h) and --version show what core/program.h says and end the program with 0. An
// unknown flag (its message names the nearest one), a word that is no flag, and a value of another
// kind end it with 1. Relative paths are those of the user's directory, also under `bazel run`.
//
// Thread-safety: once, at the start of main. Failure: ends the program.

namespace millrace {

void ParseProgramFlags(int argc, char** argv);

}  // namespace millrace

#endif  // MILLRACE_CORE_PROGRAM_FLAGS_H_
