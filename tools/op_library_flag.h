// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_OP_LIBRARY_FLAG_H_
#define MILLRACE_TOOLS_OP_LIBRARY_FLAG_H_

// --op_library, a flag of all tools: libraries with ops that the tool does not have. Those that run
// graphs load them (tools/op_libraries.h); those that read files only look whether they are there.
//
// Thread-safety: pure functions over the flags, the environment and files.

#include <string>
#include <vector>

#include "core/program.h"
#include "core/status.h"
#include "tools/command_line.h"

namespace millrace {

// Paths with ':' between them: libraries for every tool that is started with it.
inline constexpr char kOpLibrariesVariable[] = "MILLRACE_OP_LIBRARIES";

// May be given several times.
FlagSpec OpLibraryFlag();

struct OpLibraryPath {
  std::string source;  // "--op_library" or the variable's name
  std::string path;
};
// Those of the environment, then those of the flags, in their order.
std::vector<OpLibraryPath> OpLibraryPaths(const CommandLine& flags);

// NotFound for a library that is not there.
Status LookForOpLibraries(const CommandLine& flags);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_OP_LIBRARY_FLAG_H_
