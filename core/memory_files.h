// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_MEMORY_FILES_H_
#define MILLRACE_CORE_MEMORY_FILES_H_

// MemoryFiles: files that are in memory, as a FileSystem to read from.
//
//   const std::shared_ptr<FileSystem> files = *MemoryFiles("m", {{"variables/a.index", bytes}});
//   ReadFileToString(files.get(), "m/variables/a.index");
//
// Names are relative to a root: "a", "variables/a". Directories are what the names say. The bytes
// never change, and nothing is ever added: open files keep them alive, without the file system.
//
// Thread-safety: all methods, from any thread.
// Failure: InvalidArgument for a name that is no relative path, or that is a file and a directory;
// reading as FileSystem says; PermissionDenied for all that would change a file.

#include <map>
#include <memory>
#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// Path -> bytes.
using NamedBytes = std::map<std::string, std::string>;

// `root` is what paths begin with: any text with a name in it.
StatusOr<std::shared_ptr<FileSystem>> MemoryFiles(std::string root, NamedBytes files);

}  // namespace millrace

#endif  // MILLRACE_CORE_MEMORY_FILES_H_
