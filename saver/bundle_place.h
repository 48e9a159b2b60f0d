// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BUNDLE_PLACE_H_
#define MILLRACE_SAVER_BUNDLE_PLACE_H_

// How a bundle gets its names: beside another one under the same prefix, which stays whole until
// one rename replaces its index, and beside others who give names under that prefix at the same
// time.
//
// Thread-safety: any thread.

#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// While it lives, this thread alone gives files of this process their names under a prefix: two
// that look at what stands there before either has written its index would take the same names, and
// the data of one would come under the index of the other. Prefixes are compared as texts.
class PrefixHold {
 public:
  explicit PrefixHold(const std::string& prefix);
  ~PrefixHold();
  PrefixHold(const PrefixHold&) = delete;
  PrefixHold& operator=(const PrefixHold&) = delete;

 private:
  const std::string prefix_;
};

// How a bundle takes the place of another under its prefix: its data files have other names, so
// the old one is whole until the new index replaces the old index, which is atomic.
struct Placement {
  int num_shards;      // of the new bundle, with an empty data file at the end if need be
  int old_shards = 0;  // of the bundle that is replaced; 0 when there is none
};

Placement PlaceBundle(FileSystem* fs, const std::string& prefix, int num_shards);

// Before the index of the new bundle: completes its data files.
Status FinishData(FileSystem* fs, const std::string& prefix, int num_data_files,
                  const Placement& place);

// After the index: what the old bundle leaves behind.
void DeleteReplacedData(FileSystem* fs, const std::string& prefix, const Placement& place);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BUNDLE_PLACE_H_
