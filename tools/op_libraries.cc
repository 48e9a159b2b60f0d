// SPDX-License-Identifier: Apache-2.0
#include "tools/op_libraries.h"

#include "runtime/op_library.h"
#include "tools/op_library_flag.h"

namespace millrace {

Status LoadOpLibraries(const CommandLine& flags) {
  for (const OpLibraryPath& library : OpLibraryPaths(flags)) {
    MR_RETURN_IF_ERROR(Prefixed(library.source, LoadOpLibrary(library.path).status()));
  }
  return absl::OkStatus();
}

}  // namespace millrace
