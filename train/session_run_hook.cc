// SPDX-License-Identifier: Apache-2.0
#include "train/session_run_hook.h"

#include <algorithm>

#include "core/dtype.h"
#include "proto/config.pb.h"
#include "proto/meta_graph.pb.h"
#include "train/run_state.h"

namespace millrace {

Status SessionRunHook::Begin(HookSetup*) { return absl::OkStatus(); }
Status SessionRunHook::AfterCreateSession(RunContext*, const CreatedSession&) {
  return absl::OkStatus();
}
StatusOr<GroupMask> SessionRunHook::BeforeRun(RunContext*) { return kNoGroups; }
Status SessionRunHook::AfterRun(RunContext*, const RunValues&) { return absl::OkStatus(); }
Status SessionRunHook::WhileOthersTrain(RunContext*) { return absl::OkStatus(); }
Status SessionRunHook::End(const LoopEnd&) { return absl::OkStatus(); }

int64_t StepIn(const Tensor& value) {
  if (!value.has_value() || value.num_elements() != 1) return -1;
  if (value.dtype() == DT_INT64) return value.scalar<int64_t>();
  if (value.dtype() == DT_INT32) return value.scalar<int32_t>();
  return -1;
}

// --- HookSetup -----------------------------------------------------------------------------------

int HookSetup::AddGroup(HookGroup group) {
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

StatusOr<Variable> HookSetup::GlobalStep() const {
  if (!scope_.collections()->contains("global_step")) {
    return FailedPrecondition(
        "the graph must have a global step, got none; GlobalStep(scope) makes one, and the "
        "optimizer counts it (.global_step)");
  }
  return millrace::GlobalStep(scope_);
}

Status HookSetup::Claim(const std::string& what) {
  for (const auto& [claimed, by] : claims_) {
    if (claimed != what) continue;
    return absl::AlreadyExistsError(
        absl::StrCat(what, " must be written by one hook, got a second one after ", by));
  }
  claims_.emplace_back(what, hook_);
  return absl::OkStatus();
}

void HookSetup::StartHook(std::string name) { hook_ = std::move(name); }

// --- A run ---------------------------------------------------------------------------------------

RunState::RunState() = default;
RunState::~RunState() = default;

Session* RunContext::session() const { return run_->session; }

int64_t RunContext::run_number() const { return run_->run_number; }

absl::Time RunContext::now() const {
  if (!run_->now) run_->now = run_->clock->Now();
  return *run_->now;
}

void RunContext::RequestStop(absl::string_view reason) const {
  if (run_->stop_requested) return;
  run_->stop_requested = run_->is_goal = true;
  run_->reason = std::string(reason);
}

void RunContext::RequestLeave(const Status& result) const {
  // A task that leaves with an error must not end the run for the others, whatever was said before.
  run_->is_goal = false;
  run_->stop_requested = true;
  run_->leave_with.Update(result);
}

void RunContext::NothingToSave() const { run_->nothing_to_save = true; }

bool RunContext::nothing_to_save() const { return run_->nothing_to_save; }

bool RunContext::stop_requested() const { return run_->stop_requested; }

void RunContext::Feed(int group, int index, Tensor value) const {
  const std::vector<GroupRange>& ranges = run_->feed_ranges[hook_];
  if (group < 0 || static_cast<size_t>(group) >= ranges.size()) return;
  const GroupRange& range = ranges[static_cast<size_t>(group)];
  if (index < 0 || static_cast<size_t>(index) >= range.size) return;
  run_->feeds[range.first + static_cast<size_t>(index)] = std::move(value);
}

void RunContext::MergeOptions(const tensorflow::RunOptions& options) const {
  if (run_->options == nullptr) {
    run_->options = std::make_unique<tensorflow::RunOptions>(options);
    return;
  }
  tensorflow::RunOptions* const all = run_->options.get();
  const auto level = std::max(all->trace_level(), options.trace_level());
  const int64_t timeout = std::max(all->timeout_in_ms(), options.timeout_in_ms());
  const bool graphs = all->output_partition_graphs() || options.output_partition_graphs();
  const bool oom =
      all->report_tensor_allocations_upon_oom() || options.report_tensor_allocations_upon_oom();
  all->MergeFrom(options);
  all->set_trace_level(level);
  all->set_timeout_in_ms(timeout);
  all->set_output_partition_graphs(graphs);
  all->set_report_tensor_allocations_upon_oom(oom);
}

const Tensor& RunValues::value(int group, int index) const {
  static const Tensor* const none = new Tensor();
  if (!has(group) || static_cast<size_t>(group) >= ranges_.size()) return *none;
  const GroupRange& range = ranges_[static_cast<size_t>(group)];
  if (index < 0 || static_cast<size_t>(index) >= range.size) return *none;
  return results_[range.first + static_cast<size_t>(index)];
}

}  // namespace millrace
