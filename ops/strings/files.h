// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_FILES_H_
#define MILLRACE_OPS_STRINGS_FILES_H_

// Whole files as strings: what a graph reads and writes in each step.
//
// The file system is that of the process that runs the node. A server with roots opens files in
// them only (formats/graph_files.h); elsewhere a file is PermissionDenied. Every error names the
// file.

#include "graph/node_builder.h"

namespace millrace {

// The bytes of file `filename`, both string scalars, as they are in this step: a read is neither
// computed ahead nor shared with another read. NotFound for a file that is not there;
// FailedPrecondition for a directory; ResourceExhausted for a file of more than 2 GiB.
inline Output ReadFile(ScopeAt at, Output filename) { return BuildOp(at, "ReadFile", {filename}); }

// Writes the bytes `contents` to file `filename`, both string scalars. Directories that are missing
// are made. A file that exists is replaced at once: readers get all of its old bytes or all of the
// new ones.
inline Operation WriteFile(ScopeAt at, Output filename, Output contents) {
  return BuildOp(at, "WriteFile", {filename, contents});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_FILES_H_
