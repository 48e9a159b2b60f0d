// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_VOCAB_REMAP_H_
#define MILLRACE_ESTIMATOR_VOCAB_REMAP_H_

// VocabRemap: where the words of a new vocabulary were in an old one.
//
// Failure: NotFound for a file that is not there; InvalidArgument for a file with fewer lines than
// are to be used, and for a word that it has twice; with file and line.

#include <cstdint>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "estimator/warm_start.h"

namespace millrace {

struct VocabRemap {
  // Of each row of the new one, buckets included: its row in the old one, -1 for none.
  std::vector<int64_t> old_of_new;
  int64_t old_size = 0;  // words of the old one
};

StatusOr<VocabRemap> MakeVocabRemap(FileSystem* fs, const VocabInfo& info);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_VOCAB_REMAP_H_
