// SPDX-License-Identifier: Apache-2.0
#include "run/training_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/random_bits.h"
#include "core/status_kind.h"
#include "run/run_end_limits.h"
#include "run/run_id_text.h"

namespace millrace {
namespace {

constexpr char kFenced[] = "millrace.run/fenced_by";
constexpr char kBusy[] = "must wait until no other run of its name is trained";

std::string NameOf(const TrainingRun& run) {
  return absl::StrCat("run '", run.name, "'",
                      run.id.empty() ? "" : absl::StrCat(" (", RunIdText(run.id), ")"));
}

// One `key=value` a line, values escaped; others may add keys. Bounded: it travels in trailers.
std::string Encode(const RunEnd& end) {
  const bool is_short = end.checkpoint.size() <= kMaxCheckpointBytes;
  return absl::StrCat(
      "global_step=", end.global_step,
      "\ncheckpoint=", is_short ? absl::Utf8SafeCEscape(end.checkpoint) : "",
      "\nreason=", absl::Utf8SafeCEscape(absl::string_view(end.reason).substr(0, kMaxReasonBytes)),
      "\n");
}

RunEnd Decode(absl::string_view text) {
  RunEnd end;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    int64_t step = 0;
    if (entry.first == "global_step" && absl::SimpleAtoi(entry.second, &step)) {
      end.global_step = step;
    }
    std::string* const field = entry.first == "checkpoint" ? &end.checkpoint
                               : entry.first == "reason"   ? &end.reason
                                                           : nullptr;
    if (field != nullptr && !absl::CUnescape(entry.second, field)) field->clear();
  }
  return end;
}

}  // namespace

std::string NewRunId() { return absl::StrCat(RandomHexName(), RandomHexName()); }

Status CheckRun(const TrainingRun& run) {
  if (run.name.size() > kMaxRunNameBytes) {
    return InvalidArgument("Run: name must have at most ", kMaxRunNameBytes, " bytes, got ",
                           run.name.size());
  }
  if (run.id.size() > kMaxRunIdBytes ||
      !std::all_of(run.id.begin(), run.id.end(), absl::ascii_isalnum)) {
    return InvalidArgument("Run '", run.name, "': id must be at most ", kMaxRunIdBytes,
                           " letters and digits, got '", absl::CEscape(run.id.substr(0, 80)), "'");
  }
  if (run.chief.size() > kMaxChiefBytes) {
    return InvalidArgument("Run '", run.name, "': chief must have at most ", kMaxChiefBytes,
                           " bytes, got ", run.chief.size());
  }
  if (run.is_chief && run.id.empty()) {
    return InvalidArgument("Run '", run.name,
                           "': its chief must have an id for it, got none; NewRunId() makes one");
  }
  return absl::OkStatus();
}

Status RunEndedError(absl::string_view where, const TrainingRun& run, const RunEnd& end) {
  Status status = FailedPrecondition(
      where, ": ", NameOf(run), " must be under way, got one that has ended",
      end.global_step < 0 ? "" : absl::StrCat(" at step ", end.global_step),
      end.reason.empty() ? "" : absl::StrCat(": ", end.reason),
      end.checkpoint.empty() ? "" : absl::StrCat("; its checkpoint is '", end.checkpoint, "'"));
  status.SetPayload(kRunEndKind, absl::Cord(Encode(end)));
  return status;
}

std::optional<RunEnd> RunEndOf(const Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRunEndKind);
  if (!payload.has_value()) return std::nullopt;
  return Decode(std::string(*payload));
}

Status FencedError(absl::string_view where, const TrainingRun& run, absl::string_view by) {
  Status status = FailedPrecondition(where, ": a session of ", NameOf(run),
                                     " must be of its newest chief, got one that is fenced by ", by,
                                     "; end this process, the other one trains");
  status.SetPayload(kFenced, absl::Cord(by));
  return status;
}

bool IsFenced(const Status& status) { return status.GetPayload(kFenced).has_value(); }

Status BusyRunError(absl::string_view task, const TrainingRun& run, absl::string_view by) {
  return absl::UnavailableError(
      absl::StrCat(task, ": Run '", run.name, "' (", RunIdText(run.id), ") of ", run.chief, " ",
                   kBusy, ", got ", by, "; give each job a logdir of its own, or end the other"));
}

bool TellsOfBusyRun(const Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), kBusy);
}

}  // namespace millrace
