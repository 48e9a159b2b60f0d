// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/replay_requests.h"

#include <cstddef>
#include <deque>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/exceptions.h"
#include "core/paced_thread.h"
#include "core/record.h"
#include "proto/serving/logging.pb.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "serving/monitoring/request_log.h"
#include "serving/run_step.h"
#include "serving/warm_up.h"

namespace millrace {
namespace {

using tensorflow::serving::PredictionLog;

constexpr size_t kMaxMessageBytes = std::numeric_limits<int>::max();  // protobuf's limit

bool Parse(absl::string_view record, PredictionLog* log) {
  return record.size() <= kMaxMessageBytes &&
         log->ParseFromArray(record.data(), static_cast<int>(record.size()));
}

class Replay {
 public:
  Replay(const ServedModel& model, const ReplayOptions& options)
      : model_(model), options_(options) {}

  Status Read(const std::string& prefix) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                        RequestLogFiles(options_.file_system, prefix));
    // The newest first: what it lacks comes from the one before.
    for (auto path = paths.rbegin(); path != paths.rend() && !is_full_; ++path) {
      std::deque<std::string> earlier;
      MR_RETURN_IF_ERROR(ReadFile(*path, &earlier));
      for (auto record = earlier.rbegin(); record != earlier.rend(); ++record) {
        records_.push_front(std::move(*record));
      }
    }
    return absl::OkStatus();
  }

  Status Run() {
    PredictionLog log;
    for (const std::string& record : records_) {
      MR_RETURN_IF_ERROR(CheckBounds(options_.bounds));
      if (!Parse(record, &log)) continue;  // it was read so already
      const Status run =
          NoExceptions("replay", [&] { return RunWarmUpRecord(model_, options_.bounds, log); });
      PacePoint();
      ++done_.by_code[run.code()];
      if (!run.ok()) Note(Prefixed("a logged request", run));
    }
    return absl::OkStatus();
  }

  void Note(Status status) {
    if (done_.first_error.ok()) done_.first_error = std::move(status);
  }
  ReplayedRequests done() const { return done_; }

 private:
  // The last records of the model that still have room, in their order.
  Status ReadFile(const std::string& path, std::deque<std::string>* kept) {
    StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Open(options_.file_system, path);
    if (!reader.ok()) {
      Unreadable(reader.status());
      return absl::OkStatus();
    }
    int64_t bytes = 0;
    PredictionLog log;
    for (;;) {
      MR_RETURN_IF_ERROR(CheckBounds(options_.bounds));
      const StatusOr<absl::string_view> record = (*reader)->Next();
      if (absl::IsOutOfRange(record.status())) break;
      if (!record.ok()) {
        // The end of a process that was killed, or of what is just being written.
        if (!(*reader)->is_cut()) Unreadable(record.status());
        break;
      }
      if (!Parse(*record, &log)) {
        Unreadable(InvalidArgument("'", path, "': each record must be a PredictionLog, got ",
                                   record->size(), " bytes that are none"));
        continue;
      }
      if (log.log_metadata().model_spec().name() != model_.name()) continue;
      if (static_cast<int64_t>(record->size()) > options_.max_bytes) continue;
      kept->emplace_back(*record);
      bytes += static_cast<int64_t>(record->size());
      while (!kept->empty() && !HasRoom(static_cast<int64_t>(kept->size()), bytes)) {
        bytes -= static_cast<int64_t>(kept->front().size());
        kept->pop_front();
        is_full_ = true;
      }
    }
    bytes_ += bytes;
    if (static_cast<int64_t>(records_.size() + kept->size()) >= options_.max_requests) {
      is_full_ = true;
    }
    return absl::OkStatus();
  }
  bool HasRoom(int64_t num_records, int64_t bytes) const {
    return static_cast<int64_t>(records_.size()) + num_records <= options_.max_requests &&
           bytes_ + bytes <= options_.max_bytes;
  }
  void Unreadable(Status status) {
    ++done_.num_unreadable;
    Note(std::move(status));
  }

  const ServedModel& model_;
  const ReplayOptions& options_;
  std::deque<std::string> records_;
  int64_t bytes_ = 0;  // of records_
  bool is_full_ = false;
  ReplayedRequests done_;
};

}  // namespace

int64_t ReplayedRequests::num_run() const {
  int64_t sum = 0;
  for (const auto& [code, count] : by_code) sum += count;
  return sum;
}

ReplayedRequests ReplayRequests(const ServedModel& model, const std::string& prefix,
                                const ReplayOptions& options) {
  if (prefix.empty() || options.max_requests <= 0) return {};
  Replay replay(model, options);
  const Status done = NoExceptions("replay", [&]() -> Status {
    MR_RETURN_IF_ERROR(replay.Read(prefix));
    return replay.Run();
  });
  if (!done.ok()) replay.Note(Prefixed("replay of logged requests", done));
  return replay.done();
}

}  // namespace millrace
