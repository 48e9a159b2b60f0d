// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_SPILLING_COUNTER_H_
#define MILLRACE_DATA_SPILLING_COUNTER_H_

// SpillingCounter: counts by key, for as many keys as the disk holds, in a bounded amount of
// memory: how often each word comes, how many clicks a region has.
//
//   SpillingCounter counter(/*num_counts=*/2, {.max_bytes = 64 << 20, .directory = "work"});
//   MR_RETURN_IF_ERROR(counter.Add("north", {1, 0}));
//   MR_RETURN_IF_ERROR(counter.Finish());
//   while (*counter.Next()) Use(counter.key(), counter.counts());    // by ascending key
//
// How: sums are kept in memory; when the keys take too much of it they are handed to an
// ExternalSort and the sums begin anew; equal keys are added up at the end.
//
// Thread-safety: thread-compatible. Failure: of ExternalSort; OutOfRange for a sum above 2^63 - 1.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "data/external_sort.h"
#include "ops/loops/key_index.h"

namespace millrace::data {

class SpillingCounter {
 public:
  // A key has `num_counts` sums. Half of max_bytes is for them, half for sorting.
  SpillingCounter(size_t num_counts, const ExternalSortOptions& options);

  // Counts are >= 0.
  Status Add(absl::string_view key, absl::Span<const int64_t> counts);
  Status Add(absl::string_view key) { return Add(key, {1}); }
  // No more is added.
  Status Finish();
  // After Finish: the next key, in the order of their bytes; false at the end.
  StatusOr<bool> Next();
  const std::string& key() const { return key_; }
  absl::Span<const int64_t> counts() const { return counts_; }

  // How often memory did not suffice.
  int64_t num_spills() const { return num_spills_; }

 private:
  Status Spill();
  static Status AddTo(absl::string_view key, absl::Span<const int64_t> counts,
                      absl::Span<int64_t> sums);
  // The record that `sort_` gives now, as key and counts.
  Status Decode(std::string* key, std::vector<int64_t>* counts) const;

  const size_t num_counts_, max_bytes_;
  math::KeyIndex<std::string> index_;
  std::vector<int64_t> sums_;  // num_counts_ for each place
  size_t key_bytes_ = 0;
  ExternalSort sort_;
  int64_t num_spills_ = 0;
  std::string key_, next_key_;
  std::vector<int64_t> counts_, next_counts_;
  bool has_next_ = false;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_SPILLING_COUNTER_H_
