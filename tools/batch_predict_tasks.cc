// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_predict_tasks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "tools/batch_claims.h"
#include "tools/batch_parts.h"
#include "tools/batch_rows.h"

namespace millrace {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(500);
constexpr absl::Duration kReportPeriod = absl::Seconds(10);
constexpr char kShards[] = "shards";  // the item that is claimed to write them
// Parts that are waited for are named; more are counted.
constexpr size_t kMaxNamedParts = 4;

class BatchPredictTaskRun {
 public:
  BatchPredictTaskRun(const BatchPredictOptions& options, const LocalModel& model,
                      const BatchDirectory& directory)
      : options_(options),
        task_(*options.task),
        model_(model),
        directory_(directory),
        fs_(options.file_system),
        clock_(options.clock),
        claims_(fs_, directory.claims(), task_.name, task_.takeover, clock_),
        progressed_(clock_->Now()),
        throttle_(kReportPeriod, /*wait_first=*/true, clock_) {}

  StatusOr<BatchPredictSummary> Run() {
    MR_RETURN_IF_ERROR(directory_.Create());
    const StatusOr<std::unique_ptr<FileLock>> lock =
        directory_.TryLock(absl::StrFormat("lock-task-%05d", task_.index), task_.name);
    if (absl::IsUnavailable(lock.status())) {
      return Prefixed(absl::StrCat("batch_predict: ", task_.name, " must run once"), lock.status());
    }
    if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();
    StatusOr<BatchLineCounts> counts = RunToEnd();
    if (!counts.ok()) {
      // The others may have ended the job and cleared its files away.
      const StatusOr<bool> has_begun = directory_.HasBegun();
      const StatusOr<std::optional<BatchLineCounts>> done = directory_.Finished();
      if (!has_begun.ok() || !*has_begun || !done.ok() || !*done) return counts.status();
      counts = **done;
    }
    return BatchPredictSummary{.results = counts->results,
                               .errors = counts->errors,
                               .done_before = done_before_,
                               .task = task_.name,
                               .own = own_};
  }

 private:
  Status AwaitBegin() {
    while (true) {
      MR_ASSIGN_OR_RETURN(const bool has_begun, directory_.HasBegun());
      if (has_begun) return absl::OkStatus();
      const StatusOr<std::unique_ptr<FileLock>> lock = directory_.TryLock("lock", task_.name);
      if (!absl::IsUnavailable(lock.status())) {
        if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();
        return directory_.Begin();
      }
      MR_RETURN_IF_ERROR(
          Wait(absl::StrCat("the one that begins the job: ", lock.status().message())));
    }
  }

  StatusOr<BatchLineCounts> RunToEnd() {
    MR_RETURN_IF_ERROR(AwaitBegin());
    MR_ASSIGN_OR_RETURN(std::optional<BatchLineCounts> done, directory_.Finished());
    if (done) {
      done_before_ = done->results + done->errors;
      directory_.Clear();  // what a crash has left
      return *done;
    }
    MR_RETURN_IF_ERROR(directory_.CreateParts(/*claimed=*/true));
    MR_RETURN_IF_ERROR(Look());
    for (const auto& [begin, part] : parts_) done_before_ += part.lines;
    while (true) {
      MR_ASSIGN_OR_RETURN(done, directory_.Finished());
      if (done) return *done;
      const std::vector<int64_t> missing = Missing();
      if (!total_ || std::any_of(missing.begin(), missing.end(),
                                 [&](int64_t begin) { return claims_.IsFree(ItemOf(begin)); })) {
        MR_RETURN_IF_ERROR(Pass(missing));
      } else if (!missing.empty()) {
        MR_RETURN_IF_ERROR(Wait(WordsOf(missing)));
      } else {
        std::string whom;
        MR_ASSIGN_OR_RETURN(done, TryWriteShards(&whom));
        if (done) return *done;
        MR_RETURN_IF_ERROR(Wait(whom));
      }
      MR_RETURN_IF_ERROR(Look());
    }
  }

  // --- What there is -----------------------------------------------------------------------------

  static std::string ItemOf(int64_t begin) { return absl::StrFormat("rows-%015d", begin); }
  bool IsDone(absl::string_view item) const { return done_items_.count(item) > 0; }

  Status Look() {
    std::vector<std::string> others;
    MR_ASSIGN_OR_RETURN(const std::vector<BatchPart> parts,
                        FindBatchParts(fs_, directory_.parts(), &others));
    for (const BatchPart& part : parts) MR_RETURN_IF_ERROR(Note(part));
    return claims_.Look([this](absl::string_view item) { return !IsDone(item); });
  }
  // That it is done.
  Status Note(const BatchPart& part) {
    const auto [at, is_new] = parts_.emplace(part.begin, part);
    if (is_new) {
      done_items_.insert(ItemOf(part.begin));
      progressed_ = clock_->Now();
    }
    if (at->second.Name() == part.Name() && part.begin % options_.part_rows == 0 &&
        part.end - part.begin <= options_.part_rows && (!total_ || part.end <= *total_)) {
      return absl::OkStatus();
    }
    return absl::DataLossError(
        absl::StrCat("'", JoinPath(directory_.parts(), part.Name()),
                     "': all tasks must read the same rows, got other ones in this part"));
  }
  // The first rows of parts that are not done, as far as it is known how many there are.
  std::vector<int64_t> Missing() const {
    std::vector<int64_t> missing;
    for (int64_t begin = 0; begin < total_.value_or(0); begin += options_.part_rows) {
      if (parts_.count(begin) == 0) missing.push_back(begin);
    }
    return missing;
  }

  // --- Work --------------------------------------------------------------------------------------

  // Reads the rows, to the end the first time, later to the last free part of the `missing` ones,
  // and asks about those of parts that it can claim.
  Status Pass(const std::vector<int64_t>& missing) {
    std::optional<int64_t> last;
    if (total_) {
      for (const int64_t begin : missing) {
        if (claims_.IsFree(ItemOf(begin))) last = begin;
      }
    }
    MR_ASSIGN_OR_RETURN(BatchRows rows, BatchRows::Open(options_.Rows(), model_));
    std::optional<BatchRow> row;
    MR_ASSIGN_OR_RETURN(bool more, rows.Next(&row));
    // `row` is the first one of the part.
    for (int64_t begin = 0; more; begin += options_.part_rows) {
      if (last && begin > *last) return absl::OkStatus();
      if (fs_->FileExists(directory_.done())) return absl::OkStatus();
      MR_ASSIGN_OR_RETURN(std::optional<BatchClaim> claim, ClaimToAsk(ItemOf(begin)));
      if (claim) {
        MR_RETURN_IF_ERROR(AskPart(begin, &rows, &row, &more, &*claim));
        continue;
      }
      while (more && rows.num_read() <= begin + options_.part_rows) {
        MR_ASSIGN_OR_RETURN(more, rows.Next(&row));
      }
    }
    total_ = rows.num_read();
    progressed_ = clock_->Now();
    return absl::OkStatus();
  }

  // None when it is done, or another task's.
  StatusOr<std::optional<BatchClaim>> ClaimToAsk(const std::string& item) {
    if (IsDone(item)) return std::optional<BatchClaim>();
    return claims_.TryClaim(item);
  }

  // The one whose first row is `row`; then `row` is the first one behind it.
  Status AskPart(int64_t begin, BatchRows* rows, std::optional<BatchRow>* row, bool* more,
                 BatchClaim* claim) {
    MR_ASSIGN_OR_RETURN(BatchPartWriter writer, BatchPartWriter::Create(fs_, directory_.parts()));
    BatchPart part = {.begin = begin};
    std::vector<BatchRow> batch;
    bool is_whole = false;
    while (!is_whole) {
      if (*row) batch.push_back(*std::move(*row));
      claim->Beat();
      part.end = rows->num_read();
      MR_ASSIGN_OR_RETURN(*more, rows->Next(row));
      is_whole = !*more || part.end == begin + options_.part_rows;
      if (!is_whole && batch.size() < static_cast<size_t>(options_.batch_size)) continue;
      std::string lines;
      MR_RETURN_IF_ERROR(AskBatchRows(
          batch, rows->are_json(), model_, [claim] { claim->Beat(); }, &lines));
      MR_RETURN_IF_ERROR(writer.Append(lines));
      part.lines += static_cast<int64_t>(batch.size());
      batch.clear();
    }
    MR_RETURN_IF_ERROR(writer.Commit(part));
    own_ += part.lines;
    return Note(part);
  }

  // None, and whom it waits for, while another task does it.
  StatusOr<std::optional<BatchLineCounts>> TryWriteShards(std::string* whom) {
    if (!shards_claim_) {
      MR_ASSIGN_OR_RETURN(std::optional<BatchClaim> claim, claims_.TryClaim(kShards));
      if (!claim) {
        *whom = absl::StrCat(claims_.HolderOf(kShards), ", which writes the shards");
        return std::optional<BatchLineCounts>();
      }
      shards_claim_.emplace(*std::move(claim));
    }
    shards_claim_->Beat();
    // A task that slept while it wrote may go on: only a lock keeps it out.
    const StatusOr<std::unique_ptr<FileLock>> lock = directory_.TryLock("lock", task_.name);
    if (absl::IsUnavailable(lock.status())) {
      *whom = absl::StrCat("the one that writes the shards: ", lock.status().message());
      return std::optional<BatchLineCounts>();
    }
    if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();
    MR_ASSIGN_OR_RETURN(std::optional<BatchLineCounts> done, directory_.Finished());
    if (done) return done;
    // Without locks a job of other options could have begun at the same time.
    MR_RETURN_IF_ERROR(directory_.Begin());
    std::vector<BatchPart> parts;
    for (const auto& [begin, part] : parts_) parts.push_back(part);
    MR_ASSIGN_OR_RETURN(done, directory_.WriteShards(parts, [this] { shards_claim_->Beat(); }));
    directory_.Clear();
    return done;
  }

  // --- Waiting -----------------------------------------------------------------------------------

  // "worker 1 (rows 2001 to 3000)"
  std::string WordsOf(const std::vector<int64_t>& missing) const {
    std::vector<std::string> words;
    for (const int64_t begin : missing) {
      if (words.size() == kMaxNamedParts) {
        words.push_back(absl::StrCat(missing.size() - words.size(), " parts more"));
        break;
      }
      words.push_back(absl::StrCat(claims_.HolderOf(ItemOf(begin)), " (rows ", begin + 1, " to ",
                                   std::min(begin + options_.part_rows, *total_), ")"));
    }
    return absl::StrJoin(words, ", ");
  }

  // A little.
  Status Wait(const std::string& whom) {
    absl::Time since = progressed_;
    if (!shards_claim_) since = std::max(since, claims_.LastSignOf(kShards));
    const absl::Duration waited = clock_->Now() - since;
    if (waited >= task_.max_wait) {
      return WithExitCode(
          absl::DeadlineExceededError(absl::StrCat("batch_predict: ", task_.name, " waited ",
                                                   absl::FormatDuration(task_.max_wait), " for ",
                                                   whom, "; start it again to go on")),
          kExitRetryable);
    }
    if (throttle_.ShouldLog()) {
      LogInfo("batch_predict: ", task_.name, " waits for ", whom, ", since ",
              absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))));
    }
    clock_->SleepFor(std::min(kPoll, task_.max_wait - waited));
    return absl::OkStatus();
  }

  const BatchPredictOptions& options_;
  const BatchPredictTask& task_;
  const LocalModel& model_;
  const BatchDirectory& directory_;
  FileSystem* const fs_;
  Clock* const clock_;
  BatchClaims claims_;
  std::map<int64_t, BatchPart> parts_;             // that are done, by their first rows
  std::set<std::string, std::less<>> done_items_;  // the same, by their claims
  std::optional<int64_t> total_;                   // rows; none until all were read
  int64_t done_before_ = 0, own_ = 0;
  absl::Time progressed_;  // when this task has last seen a part come, or worked
  LogThrottle throttle_;
  std::optional<BatchClaim> shards_claim_;
};

}  // namespace

StatusOr<BatchPredictSummary> RunBatchPredictTask(const BatchPredictOptions& options,
                                                  const LocalModel& model,
                                                  const BatchDirectory& directory) {
  return BatchPredictTaskRun(options, model, directory).Run();
}

}  // namespace millrace
