// SPDX-License-Identifier: Apache-2.0
#include "train/step_trace.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/logging.h"
#include "core/status.h"
#include "proto/config.pb.h"
#include "runtime/step_stats.h"

namespace millrace {
namespace {

constexpr char kVariable[] = "MILLRACE_TRACE";
constexpr char kDirectoryVariable[] = "MILLRACE_TRACE_DIR";
// A trace is in memory until it is written.
constexpr int64_t kMaxSteps = 1'000;

// Of the steps that the variable names: a process traces them once.
std::atomic<bool> is_step_done{false};                  // relaxed, as the next
std::atomic<bool> has_signal{false};                    // relaxed: orders nothing else
static_assert(std::atomic<bool>::is_always_lock_free);  // the handler writes it

void OnSignal(int) { has_signal.store(true, std::memory_order_relaxed); }

// Once per process; a handler of the program's stays.
void HandleSignal() {
  static const bool handled = [] {
    struct sigaction now = {};
    if (::sigaction(SIGUSR2, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return false;
    struct sigaction wanted = {};
    wanted.sa_handler = OnSignal;
    wanted.sa_flags = SA_RESTART;
    return ::sigaction(SIGUSR2, &wanted, nullptr) == 0;
  }();
  static_cast<void>(handled);
}

// "/job:worker/task:1" -> "worker-1".
std::string TaskForNames() {
  std::string task = LogTask();
  if (task.empty()) return "local";
  return absl::StrReplaceAll(task, {{"/job:", ""}, {"/task:", "-"}, {"/", "-"}});
}

}  // namespace

StatusOr<std::unique_ptr<StepTrace>> StepTrace::OfEnvironment() {
  std::unique_ptr<StepTrace> trace(new StepTrace);
  if (const char* const text = std::getenv(kVariable); text != nullptr && *text != '\0') {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(':', 1));
    if (!absl::SimpleAtoi(parts.first, &trace->from_) || trace->from_ < 0 ||
        !absl::SimpleAtoi(parts.second, &trace->count_) || trace->count_ < 1 ||
        trace->count_ > kMaxSteps) {
      return InvalidArgument(kVariable, ": must be STEP:COUNT with a count of 1 to ", kMaxSteps,
                             ", got '", text, "'");
    }
  }
  const char* const directory = std::getenv(kDirectoryVariable);
  trace->directory_ = directory == nullptr ? "" : directory;
  HandleSignal();
  return trace;
}

bool StepTrace::HasSignal() { return has_signal.load(std::memory_order_relaxed); }

bool StepTrace::Begins(int64_t step) {
  if (step >= from_) {
    from_ = INT64_MAX;
    if (is_step_done.exchange(true, std::memory_order_relaxed)) return false;
  } else if (!has_signal.exchange(false, std::memory_order_relaxed)) {
    return false;  // another loop has it
  }
  left_ = count_;
  first_ = last_ = step + 1;
  stats_.Clear();
  return true;
}

void StepTrace::Add(int64_t step, const tensorflow::StepStats& stats) {
  stats_.MergeFrom(stats);
  // Those of other tasks in between are not in the trace.
  if (left_ == count_) first_ = step;
  last_ = std::max(last_, step);
  if (left_ == 1) return End();
  --left_;
}

void StepTrace::End() {
  if (left_ == 0) return;
  left_ = 0;
  if (stats_.dev_stats_size() == 0) return;
  FileSystem* const files = FileSystem::Default();
  const std::string path = JoinPath(
      directory_, absl::StrCat("trace-", TaskForNames(), "-", first_, "-", last_, ".json"));
  Status written =
      directory_.empty() ? absl::OkStatus() : files->RecursivelyCreateDirectory(directory_);
  if (written.ok()) written = WriteFileAtomically(files, path, WriteChromeTrace(stats_));
  stats_.Clear();
  if (written.ok()) {
    LogInfo("Traced steps ", first_, " to ", last_, " to ", path);
  } else {
    LogWarning("Trace of steps ", first_, " to ", last_, " not written: ", written.message());
  }
}

Status StepTraceHook::AfterCreateSession(RunContext*, const CreatedSession& created) {
  trace_->End();
  step_ = std::max<int64_t>(0, created.global_step);
  is_first_ = true;
  return absl::OkStatus();
}

StatusOr<GroupMask> StepTraceHook::BeforeRun(RunContext* context) {
  is_traced_ = !is_first_ && trace_->Wants(step_);
  is_first_ = false;
  if (is_traced_) {
    tensorflow::RunOptions options;
    options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
    context->MergeOptions(options);
  }
  return kNoGroups;
}

Status StepTraceHook::AfterRun(RunContext*, const RunValues& values) {
  ++step_;
  if (is_traced_ && values.metadata() != nullptr)
    trace_->Add(step_, values.metadata()->step_stats());
  return absl::OkStatus();
}

}  // namespace millrace
