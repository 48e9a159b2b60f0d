// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_EXPORT_MARKER_H_
#define MILLRACE_SAVER_EXPORT_MARKER_H_

// The file that says that an exported model is complete: it lists all other files of the model's
// directory with their sizes, and is written and synced after all of them. A server that finds it
// and the files that it lists need not wait whether more come, and one that finds a part of them
// knows that the rest is on its way (serving/version_source.h). TensorFlow ignores it.
//
//   millrace export 1
//   1200 saved_model.pb
//   4096 variables/variables.data-00000-of-00001
//   160 variables/variables.index
//   end
//
// Names are relative, sorted, and escaped as in C. Files that come later (warm-up requests, say)
// need not be listed; where a listed one is replaced by one of another size, delete the marker.
//
// Thread-safety: pure functions but for the files.
// Failure: the file system's errors; DataLoss for a file that is no such list, or is cut off.

#include <cstdint>
#include <map>
#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

inline constexpr char kExportIsComplete[] = "export_is_complete";

// Of the files that are in the directory now.
Status WriteExportMarker(FileSystem* fs, const std::string& directory);

// Names and sizes.
StatusOr<std::map<std::string, uint64_t>> ReadExportMarker(FileSystem* fs,
                                                           const std::string& directory);
// That they are there in these sizes: NotFound, DataLoss.
Status CheckExportMarker(FileSystem* fs, const std::string& directory);

}  // namespace millrace

#endif  // MILLRACE_SAVER_EXPORT_MARKER_H_
