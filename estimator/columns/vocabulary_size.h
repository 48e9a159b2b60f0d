// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_VOCABULARY_SIZE_H_
#define MILLRACE_ESTIMATOR_COLUMNS_VOCABULARY_SIZE_H_

// How many lines a vocabulary file has: the number of its ids when none is asked for.

#include <cstdint>
#include <string>

#include "core/status.h"

namespace millrace {

// The last line counts whether or not a newline ends it. The file is read once, in pieces. Errors
// of the file system, with the path.
StatusOr<int64_t> CountVocabularyLines(const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_VOCABULARY_SIZE_H_
