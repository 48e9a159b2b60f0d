// SPDX-License-Identifier: Apache-2.0
#include "run/run_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "run/run_id_text.h"

namespace millrace {
namespace {

// Runs that are remembered. Each costs what its name does, and a container some kilobytes.
constexpr size_t kMaxRuns = 1000;
// Of a remembered name, besides its text: a node of a set.
constexpr int64_t kNoteBytes = 96;

std::string Name(const TrainingRun& run) {
  return absl::StrCat("Run '", run.name, "' (", RunIdText(run.id), ")");
}

std::string EpochOf(const TrainingRun& run) {
  return run.epoch == 0 ? std::string() : absl::StrCat(", epoch ", run.epoch);
}

}  // namespace

RunRegistry::RunRegistry(std::string task, Clock* clock, absl::Duration linger,
                         MakeResources make_resources, int64_t max_note_bytes)
    : task_(std::move(task)),
      clock_(clock),
      linger_(linger),
      make_resources_(std::move(make_resources)),
      max_note_bytes_(max_note_bytes) {}

Status RunRegistry::Superseded(const TrainingRun& run, const Entry& entry) const {
  const auto other = runs_.find(entry.superseded_by);
  const std::string by =
      absl::StrCat("run ", entry.superseded_by,
                   other == runs_.end() ? "" : absl::StrCat(" of ", other->second.run.chief));
  if (run.is_chief) return FencedError(task_, run, by);
  return absl::AbortedError(absl::StrCat(task_, ": ", Name(run),
                                         " must be the newest of its name, got one that ", by,
                                         " supersedes; open a new session"));
}

Status RunRegistry::CheckChief(const TrainingRun& run, const Entry& entry) const {
  if (!run.is_chief || entry.claim == 0 || run.chief == entry.run.chief) return absl::OkStatus();
  const bool is_older = run.epoch < entry.run.epoch ||
                        (run.epoch == entry.run.epoch && entry.fenced.count(run.chief) != 0);
  return is_older ? FencedError(task_, run, absl::StrCat(entry.run.chief, EpochOf(entry.run)))
                  : absl::OkStatus();
}

StatusOr<RunRegistry::Entry*> RunRegistry::FindOrMake(const TrainingRun& run) {
  const auto found = runs_.find(run.id);
  if (found != runs_.end()) return &found->second;
  // Else runs that strangers opened, and left with a container each, would keep all places.
  if (runs_.size() >= kMaxRuns) FreeIdle(run.id, "finds no place");
  while (runs_.size() >= kMaxRuns) {
    auto oldest = runs_.end();
    for (auto it = runs_.begin(); it != runs_.end(); ++it) {
      if (it->second.resources != nullptr || it->second.sessions > 0) continue;
      if (oldest == runs_.end() || it->second.last_session < oldest->second.last_session) {
        oldest = it;
      }
    }
    if (oldest == runs_.end()) {
      return absl::ResourceExhaustedError(absl::StrCat(task_, ": at most ", kMaxRuns,
                                                       " runs may be under way, got one more: '",
                                                       run.name, "' (", RunIdText(run.id), ")"));
    }
    note_bytes_ -= oldest->second.note_bytes;
    runs_.erase(oldest);
  }
  Entry* const entry = &runs_[run.id];
  entry->run = run;
  return entry;
}

Status RunRegistry::CheckNameIsFree(const TrainingRun& run) const {
  if (run.name.empty()) return absl::OkStatus();
  for (const auto& [id, other] : runs_) {
    if (id == run.id || other.run.name != run.name || !other.superseded_by.empty() ||
        other.end.has_value() || other.claim == 0 || other.run.chief == run.chief ||
        other.of_chiefs.count(other.run.chief) == 0) {
      continue;
    }
    return BusyRunError(task_, run,
                        absl::StrCat(RunIdText(id), " of ", other.run.chief, EpochOf(other.run),
                                     ", with ", other.sessions, " sessions"));
  }
  return absl::OkStatus();
}

Status RunRegistry::Claim(const TrainingRun& run, Entry* entry) {
  const bool is_first = entry->claim == 0;
  // Only those that do not count can come back at all.
  if (!is_first && entry->run.chief != run.chief) Note(entry->run.chief, entry, &entry->fenced);
  if (is_first) {
    LogInfo(task_, ": ", Name(run), " is claimed by ", run.chief, EpochOf(run));
  } else if (entry->run.chief != run.chief) {
    LogInfo(task_, ": ", Name(run), " is claimed by ", run.chief, EpochOf(run), "; sessions of ",
            entry->run.chief, EpochOf(entry->run), " are refused from now on");
  }
  if (entry->end.has_value()) {
    LogInfo(task_, ": ", Name(run), " had ended at step ", entry->end->global_step,
            " and is trained further by ", run.chief);
    entry->end.reset();
  }
  const int64_t epoch = is_first ? run.epoch : std::max(run.epoch, entry->run.epoch);
  entry->run = run;
  entry->run.epoch = epoch;
  entry->claim = ++claims_;
  for (auto& [id, other] : runs_) {
    if (run.name.empty() || id == run.id || other.run.name != run.name ||
        !other.superseded_by.empty()) {
      continue;
    }
    other.superseded_by = run.id;
    LogInfo(task_, ": ", Name(other.run), " is superseded by ", RunIdText(run.id), " of ",
            run.chief);
    FreeIfOver(&other);
  }
  FreeIdle(run.id, "was claimed");
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<RunResources>> RunRegistry::Open(const TrainingRun& run) {
  MR_RETURN_IF_ERROR(CheckRun(run));
  if (run.id.empty()) {
    return InvalidArgument(task_, ": run '", run.name, "' must have an id here, got none");
  }
  MR_RETURN_IF_ERROR(Check(run));
  if (run.is_chief) MR_RETURN_IF_ERROR(CheckNameIsFree(run));
  MR_ASSIGN_OR_RETURN(Entry* const entry, FindOrMake(run));
  if (run.is_chief) {
    MR_RETURN_IF_ERROR(Claim(run, entry));
  } else if (entry->end.has_value()) {
    return RunEndedError(task_, entry->run, *entry->end);
  }
  MR_DCHECK(entry->superseded_by.empty(),
            "Check refuses a superseded run, and no Claim supersedes its own");
  // Before the counts: no memory may be left for it.
  if (entry->resources == nullptr) entry->resources = make_resources_();
  if (run.is_chief) ++entry->of_chiefs[run.chief];
  ++entry->sessions;
  return entry->resources;
}

void RunRegistry::NoteTrainer(const TrainingRun& run, const std::string& task) {
  const auto it = runs_.find(run.id);
  if (it == runs_.end() || run.is_chief) return;
  Note(task, &it->second, &it->second.trainers);
}

void RunRegistry::Note(const std::string& name, Entry* entry, std::set<std::string>* notes) {
  if (notes->count(name) != 0) return;
  const int64_t bytes = kNoteBytes + static_cast<int64_t>(name.size());
  if (note_bytes_ + bytes > max_note_bytes_ && entry->note_bytes + bytes > kOwnNoteBytes) return;
  notes->insert(name);
  entry->note_bytes += bytes;
  note_bytes_ += bytes;
}

std::set<std::string> RunRegistry::TrainersOf(absl::string_view id) const {
  const auto it = runs_.find(id);
  return it == runs_.end() ? std::set<std::string>() : it->second.trainers;
}

void RunRegistry::Close(const TrainingRun& run) {
  const auto it = runs_.find(run.id);
  if (it == runs_.end() || it->second.sessions == 0) return;
  --it->second.sessions;
  const auto chief =
      run.is_chief ? it->second.of_chiefs.find(run.chief) : it->second.of_chiefs.end();
  if (chief != it->second.of_chiefs.end() && --chief->second == 0) {
    it->second.of_chiefs.erase(chief);
  }
  it->second.last_session = clock_->Now();
  FreeIfOver(&it->second);
}

Status RunRegistry::Check(const TrainingRun& run) const {
  const auto it = runs_.find(run.id);
  if (it == runs_.end()) return absl::OkStatus();
  if (!it->second.superseded_by.empty()) return Superseded(run, it->second);
  return CheckChief(run, it->second);
}

Status RunRegistry::End(const TrainingRun& run, const RunEnd& end) {
  if (!run.is_chief) {
    return FailedPrecondition(task_, ": the end of run '", run.name,
                              "' must be told by a session of its chief, got another one's");
  }
  MR_RETURN_IF_ERROR(Check(run));
  NoteEnd(run, end);
  return absl::OkStatus();
}

void RunRegistry::NoteEnd(const TrainingRun& run, const RunEnd& end) {
  StatusOr<Entry*> entry = FindOrMake(run);
  if (!entry.ok()) return;  // nobody could ask for so many
  if ((*entry)->claim == 0) (*entry)->claim = ++claims_;
  if ((*entry)->end == end) return;
  (*entry)->end = end;
  (*entry)->ended = clock_->Now();
  LogInfo(task_, ": ", Name((*entry)->run), " has ended at step ", end.global_step,
          end.reason.empty() ? "" : absl::StrCat(": ", end.reason));
  FreeIfOver(*entry);
}

FoundRun RunRegistry::Find(absl::string_view name, absl::string_view id) const {
  const Entry* found = nullptr;
  if (!id.empty()) {
    const auto it = runs_.find(id);
    if (it != runs_.end() && it->second.claim > 0) found = &it->second;
  } else {
    for (const auto& [other, entry] : runs_) {
      if (entry.run.name != name || entry.claim == 0 || !entry.superseded_by.empty()) continue;
      if (found == nullptr || entry.claim > found->claim) found = &entry;
    }
  }
  FoundRun result;
  if (found == nullptr) return result;
  result.run = found->run;
  if (!found->superseded_by.empty()) {
    result.state = FoundRun::State::kSuperseded;
  } else if (found->end.has_value()) {
    result.state = FoundRun::State::kEnded;
    result.end = *found->end;
  } else {
    result.state = FoundRun::State::kClaimed;
  }
  return result;
}

std::optional<RunRegistry::Finished> RunRegistry::FindFinished() const {
  const Entry* newest = nullptr;
  for (const auto& [id, entry] : runs_) {
    if (entry.claim > 0 && (newest == nullptr || entry.claim > newest->claim)) newest = &entry;
  }
  if (newest == nullptr || !newest->end.has_value()) return std::nullopt;
  for (const auto& [id, entry] : runs_) {
    if (&entry != newest && entry.sessions > 0) return std::nullopt;
  }
  return Finished{newest->run, *newest->end, newest->ended, newest->sessions};
}

std::shared_ptr<RunResources> RunRegistry::ContainerOf(absl::string_view id) const {
  const auto it = runs_.find(id);
  return it == runs_.end() ? nullptr : it->second.resources;
}

// --- Containers ----------------------------------------------------------------------------------

void RunRegistry::FreeIfOver(Entry* entry) {
  if (entry->sessions > 0) return;
  if (!entry->superseded_by.empty()) {
    Free(entry, absl::StrCat("it was superseded by ", entry->superseded_by,
                             " and its last session has closed"));
  } else if (entry->end.has_value()) {
    Free(entry, "it has ended and its last session has closed");
  }
}

void RunRegistry::FreeIdle(const std::string& other_id, absl::string_view why) {
  const absl::Time now = clock_->Now();
  for (auto& [id, entry] : runs_) {
    if (id == other_id || entry.sessions > 0 || now - entry.last_session < linger_) continue;
    Free(&entry,
         absl::StrCat("it has had no session for ", absl::FormatDuration(now - entry.last_session),
                      " and run ", other_id, " ", why));
  }
}

void RunRegistry::Free(Entry* entry, std::string reason) {
  if (entry->resources == nullptr) return;
  MR_DCHECK(entry->sessions == 0, "a container goes after the last session that uses it");
  freed_.push_back({entry->run, std::exchange(entry->resources, nullptr), std::move(reason)});
}

std::vector<RunRegistry::Freed> RunRegistry::TakeFreed() { return std::exchange(freed_, {}); }

}  // namespace millrace
