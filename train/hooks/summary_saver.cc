// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/summary_saver.h"

#include <utility>
#include <vector>

#include "core/logging.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "proto/meta_graph.pb.h"
#include "train/hooks/event_summary_writer.h"
#include "train/summaries.h"

namespace millrace {
namespace {

// What the collection "summary_op" names, else all summaries in one. Invalid without any.
StatusOr<Output> DefaultSummaryOp(const Scope& root) {
  const auto found = root.collections()->find("summary_op");
  if (found != root.collections()->end() && found->second.node_list().value_size() > 0) {
    const auto& names = found->second.node_list().value();
    const std::string node = names[0].substr(0, names[0].find(':'));
    Node* const made = root.graph()->FindNode(node);
    if (names.size() > 1 || made == nullptr || made->num_outputs() == 0) {
      return InvalidArgument("collection 'summary_op' must name one tensor of the graph, got ",
                             names.size(), " names, '", names[0], "' first");
    }
    return Output(made, 0);
  }
  const Output all = MergeAllSummaries(root);
  MR_RETURN_IF_ERROR(root.status());
  return all;
}

}  // namespace

Status SummarySaverHook::Begin(HookSetup* setup) {
  MR_RETURN_IF_ERROR(CheckEvery("every", options_.every));
  if ((options_.writer == nullptr) == options_.output_dir.empty()) {
    return InvalidArgument("exactly one of writer and output_dir must be given, got ",
                           options_.writer == nullptr ? "neither" : "both");
  }
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  Output summary = options_.summary_op;
  if (!summary.valid()) {
    MR_ASSIGN_OR_RETURN(summary, DefaultSummaryOp(setup->scope_of_session()));
  }
  if (summary.valid() && summary.dtype() != DT_STRING) {
    return InvalidArgument("summary_op '", summary.name(), "' must give strings, got ",
                           summary.dtype());
  }
  writer_ = options_.writer;
  if (writer_ == nullptr) {
    MR_ASSIGN_OR_RETURN(owned_writer_, EventSummaryWriter::Open(options_.output_dir));
    writer_ = owned_writer_.get();
  }
  step_group_ = setup->AddGroup({.fetches = {global_step_.value}});
  summary_group_ = summary.valid() ? setup->AddGroup({.fetches = {summary}}) : -1;
  timer_ = StepTimer(options_.every);
  next_step_ = -1;
  return absl::OkStatus();
}

Status SummarySaverHook::AfterCreateSession(RunContext*, const CreatedSession&) {
  // A recovery may have gone back.
  timer_.Reset();
  next_step_ = -1;
  return absl::OkStatus();
}

StatusOr<GroupMask> SummarySaverHook::BeforeRun(RunContext* context) {
  if (next_step_ < 0) {
    return MaskOf(step_group_) | (summary_group_ >= 0 ? MaskOf(summary_group_) : kNoGroups);
  }
  if (summary_group_ < 0) return kNoGroups;
  const bool due =
      timer_.IsDue(next_step_, timer_.by_time() ? context->now() : absl::InfinitePast());
  return MaskOf(step_group_) | (due ? MaskOf(summary_group_) : kNoGroups);
}

Status SummarySaverHook::AfterRun(RunContext* context, const RunValues& values) {
  if (!values.has(step_group_)) return absl::OkStatus();
  // What was fetched may not have this run's own update yet.
  int64_t step = StepIn(values.value(step_group_)) + 1;
  if (next_step_ < 0) Note(writer_->AddSessionEvent(SessionEvent::kStart, step, ""));
  if (values.has(summary_group_)) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> now,
                        context->session()->Run({}, {global_step_.value}));
    step = StepIn(now[0]);
    timer_.Done(step, context->now());
    for (const std::string& summary : values.value(summary_group_).flat<std::string>()) {
      Note(writer_->AddSummary(summary, step));
    }
  }
  next_step_ = step + 1;
  return absl::OkStatus();
}

Status SummarySaverHook::End(const LoopEnd&) {
  Note(writer_->Flush());
  return absl::OkStatus();
}

void SummarySaverHook::Note(const Status& written) const {
  if (!written.ok()) LogWarning(name(), ": ", written.message());
}

}  // namespace millrace
