// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/batching.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/cores.h"
#include "core/tensor.h"
#include "serving/batching/leader_batcher.h"
#include "serving/batching/timed_batcher.h"
#include "serving/step_bounds.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

namespace {

// A version's way to the batcher of its server.
class VersionRunner : public StepRunner {
 public:
  VersionRunner(std::shared_ptr<StepBatcher> batcher, BatchClient client)
      : batcher_(std::move(batcher)), client_(std::move(client)) {}

  Status Run(PreparedStep* step, const StepBounds& bounds, absl::Span<const Tensor> feeds,
             absl::Span<Tensor> results) override {
    return batcher_->Run(client_, step, bounds, feeds, results);
  }
  void Forget(PreparedStep* step) override { batcher_->Forget(step); }

 private:
  const std::shared_ptr<StepBatcher> batcher_;
  const BatchClient client_;
};

}  // namespace

Batching::Batching(const BatchingOptions& options, std::shared_ptr<StepBatcher> batcher)
    : options_(options), batcher_(std::move(batcher)) {}

StatusOr<std::unique_ptr<Batching>> Batching::Create(const BatchingOptions& options) {
  std::shared_ptr<StepBatcher> batcher;
  if (options.parameters || options.per_model) {
    const int asked = options.parameters ? options.parameters->num_batch_threads : 0;
    MR_ASSIGN_OR_RETURN(batcher, TimedBatcher::Create(asked > 0 ? asked : UsableCores(),
                                                      options.clock, options.observer));
  } else {
    batcher = std::make_shared<LeaderBatcher>(
        options.max_running > 0 ? options.max_running : UsableCores(), options.clock,
        options.observer);
  }
  return std::unique_ptr<Batching>(new Batching(options, std::move(batcher)));
}

StatusOr<std::shared_ptr<StepRunner>> Batching::RunnerOf(const std::string& label,
                                                         const std::string& directory) const {
  BatchClient client{.label = label};
  if (options_.per_model) {
    const std::string file = JoinPath(directory, kBatchParametersFile);
    const StatusOr<std::string> text = ReadFileToString(options_.file_system, file);
    if (absl::IsNotFound(text.status())) return std::shared_ptr<StepRunner>();
    MR_RETURN_IF_ERROR(text.status());
    StatusOr<BatchParameters> parameters = ReadBatchParameters(*text);
    if (!parameters.ok()) return Prefixed(absl::StrCat("'", file, "'"), parameters.status());
    client.parameters = *std::move(parameters);
  } else if (options_.parameters) {
    client.parameters = *options_.parameters;
  }
  return std::shared_ptr<StepRunner>(std::make_shared<VersionRunner>(batcher_, std::move(client)));
}

}  // namespace millrace
