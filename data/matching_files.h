// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_MATCHING_FILES_H_
#define MILLRACE_DATA_MATCHING_FILES_H_

// The files whose paths match a pattern: "data/*.csv", "logs/2020-1[0-2]/part-?".
//
// `*`, `?` and `[...]` stand for characters of one name between slashes; names that begin with a
// dot match only a pattern that does. Directories match, too. A pattern without such characters is
// the path itself, if it exists.
//
// Failure: the file system's; what cannot be listed because it does not exist matches nothing.

#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace::data {

// Sorted.
StatusOr<std::vector<std::string>> MatchingFiles(FileSystem* fs, const std::string& pattern);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_MATCHING_FILES_H_
