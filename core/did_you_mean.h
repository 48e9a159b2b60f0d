// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_DID_YOU_MEAN_H_
#define MILLRACE_CORE_DID_YOU_MEAN_H_

// DidYouMean: the hint of a message about a name that nothing has.
//
//   DidYouMean best("dense/kernal");
//   for (const auto& node : graph.nodes()) best.Consider(node->name());
//   return NotFound("...: not found", best.Hint());   // "; did you mean 'dense/kernel'?"
//
// Near, from best to worst: the same but for the case of letters; the same last part ("kernel" for
// "dense/kernel"), when only one candidate has it; few edits (a letter more, less, other, or two
// swapped), at most a third of the name and three.
//
// Thread-safety: thread-compatible. Lifetime: the name and the candidates outlive it.
// Failure: none; nothing near is an empty hint.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

class DidYouMean {
 public:
  // Candidates beyond this number are not looked at: a hint is not worth more time.
  static constexpr size_t kMaxCandidates = 100'000;

  explicit DidYouMean(absl::string_view name);
  void Consider(absl::string_view candidate);
  // "; did you mean '<candidate>'?", or "".
  std::string Hint() const;

 private:
  const absl::string_view name_;
  size_t considered_ = 0;
  size_t best_distance_;  // of best_; beyond it nothing counts
  absl::string_view best_;
  absl::string_view last_part_;
  size_t num_last_parts_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_DID_YOU_MEAN_H_
