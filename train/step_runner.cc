// SPDX-License-Identifier: Apache-2.0
#include "train/step_runner.h"

#include <utility>

#include "absl/types/span.h"
#include "proto/config.pb.h"

namespace millrace {

Status StepRunner::Run(const std::vector<Feed>& feeds, absl::Span<const Tensor> kept,
                       tensorflow::RunMetadata* traced) {
  if (kept.size() != kept_.size()) {
    return Internal("StepRunner: a run must have a value for each of ", kept_.size(),
                    " names, got ", kept.size());
  }
  if (prepared_ == nullptr || !AsPrepared(feeds) || traced != nullptr) {
    std::vector<Feed> all = feeds;
    for (size_t i = 0; i < kept.size(); ++i) all.emplace_back(kept_[i], kept[i]);
    if (traced != nullptr) {
      tensorflow::RunOptions options;
      options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
      MR_ASSIGN_OR_RETURN(results_, session_->Run(options, all, fetches_, {}, traced));
      return absl::OkStatus();
    }
    return RunByName(all, feeds.size());
  }
  for (size_t i = 0; i < feeds.size(); ++i) values_[i] = feeds[i].value;
  for (size_t i = 0; i < kept.size(); ++i) values_[feeds.size() + i] = kept[i];
  const Status status = prepared_->RunInto(values_, absl::MakeSpan(results_));
  for (Tensor& value : values_) value = Tensor();  // memory for the next batch
  return status;
}

bool StepRunner::AsPrepared(const std::vector<Feed>& feeds) const {
  if (feeds.size() != names_.size()) return false;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].name.node_id() != names_[i].node_id() ||
        feeds[i].name.graph_id() != names_[i].graph_id() ||
        feeds[i].name.name() != names_[i].name()) {
      return false;
    }
  }
  return true;
}

Status StepRunner::RunByName(const std::vector<Feed>& feeds, size_t num_given) {
  MR_ASSIGN_OR_RETURN(results_, session_->Run(feeds, fetches_));
  if (prepare_tried_) return absl::OkStatus();
  prepare_tried_ = true;
  auto prepared = session_->Prepare(NamesOf(feeds, fetches_, {}));
  if (!prepared.ok()) {
    // Some sessions cannot: names will do.
    return absl::IsUnimplemented(prepared.status()) ? absl::OkStatus() : prepared.status();
  }
  prepared_ = *std::move(prepared);
  for (size_t i = 0; i < num_given; ++i) names_.push_back(feeds[i].name);
  values_.resize(feeds.size());
  return absl::OkStatus();
}

}  // namespace millrace
