// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_OP_LIBRARIES_H_
#define MILLRACE_TOOLS_OP_LIBRARIES_H_

// The op libraries of a tool that runs graphs (tools/op_library_flag.h), loaded. The tool is linked
// with -rdynamic: the libraries find Millrace in it.

#include "core/status.h"
#include "tools/command_line.h"

namespace millrace {

// All of them, before the tool reads a graph. The errors of LoadOpLibrary (runtime/op_library.h),
// with the flag or the variable that names the library; those before it stay loaded.
Status LoadOpLibraries(const CommandLine& flags);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_OP_LIBRARIES_H_
