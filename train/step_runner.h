// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_STEP_RUNNER_H_
#define MILLRACE_TRAIN_STEP_RUNNER_H_

// StepRunner: runs the same fetches with ever new feeds: by name at first, which checks what they
// are, then by position for as long as the names stay. Besides, each run is fed the same tensors
// with values that its caller has kept.
//
// Thread-safety: thread-compatible. Lifetime: the session outlives it.
// Failure: the session's; a session that prepares nothing (Unimplemented) runs all by name.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"

namespace tensorflow {
class RunMetadata;
}  // namespace tensorflow

namespace millrace {

class StepRunner {
 public:
  StepRunner(Session* session, std::vector<FetchName> fetches, std::vector<FetchName> kept = {})
      : session_(session),
        fetches_(std::move(fetches)),
        kept_(std::move(kept)),
        results_(fetches_.size()) {}

  // `kept`: one value for each of the names. `traced`: gets the trace of the step; null: none.
  Status Run(const std::vector<Feed>& feeds, absl::Span<const Tensor> kept = {},
             tensorflow::RunMetadata* traced = nullptr);
  // Of the last Run that succeeded.
  const Tensor& result(size_t i) const { return results_[i]; }

 private:
  bool AsPrepared(const std::vector<Feed>& feeds) const;
  // All feeds; the first `num_given` are those of the call.
  Status RunByName(const std::vector<Feed>& feeds, size_t num_given);

  Session* const session_;
  const std::vector<FetchName> fetches_, kept_;
  std::vector<Tensor> results_;
  bool prepare_tried_ = false;
  std::unique_ptr<PreparedStep> prepared_;
  std::vector<FetchName> names_;  // of the feeds of prepared_, without those that are kept
  std::vector<Tensor> values_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_STEP_RUNNER_H_
