// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_GRAPH_FILES_H_
#define MILLRACE_FORMATS_GRAPH_FILES_H_

// Files that graphs name: a graph comes from a peer, and its ops that read and write files
// (SaveV2, RestoreV2, MergeV2Checkpoints, ReadFile, WriteFile) do so for it. A process may give it
// only some directories (roots): what lies elsewhere is PermissionDenied, whether the path says so
// itself, by "..", or by a symbolic link on its way. What the program itself opens (logs, its
// Saver's state) is not concerned.
//
// Kernels that take a path from a tensor or an attr open it with GraphFiles(), never with
// FileSystem::Default().
//
// Thread-safety: all functions, from any thread. Links that others put in place between the look
// and the use are followed: the roots' owner is trusted, peers are not.
// Failure: PermissionDenied, InvalidArgument for a path with a NUL; otherwise that of FileSystem.

#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// POSIX files, inside the roots of the process when it has any.
FileSystem* GraphFiles();

// For the whole process, from now on; none: everywhere. FailedPrecondition for a root that is no
// directory.
Status SetGraphFileRoots(const std::vector<std::string>& roots);

// `base` confined to `roots`, which are directories of this machine. `base` outlives it.
StatusOr<std::unique_ptr<FileSystem>> ConfineFiles(FileSystem* base,
                                                   const std::vector<std::string>& roots);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_GRAPH_FILES_H_
