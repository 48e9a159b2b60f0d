// SPDX-License-Identifier: Apache-2.0
#include "train/train_events.h"

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "core/logging.h"
#include "proto/event.pb.h"
#include "saver/event_scan.h"

namespace millrace {
namespace {

// Storage that hangs holds up neither a save nor the end of training for longer.
constexpr absl::Duration kMaxWait = absl::Seconds(5);

EventWriterOptions OptionsOf(FileSystem* fs, Clock* clock) {
  EventWriterOptions options;
  options.max_wait = kMaxWait;
  options.fs = fs;
  options.clock = clock;
  return options;
}

}  // namespace

TrainEvents::TrainEvents(std::string directory, FileSystem* fs, Clock* clock)
    : directory_(std::move(directory)), options_(OptionsOf(fs, clock)) {}

std::shared_ptr<EventWriter> TrainEvents::Writer() {
  Status status;
  {
    MutexLock lock(&mu_);
    if (writer_ != nullptr || has_failed_) return writer_;
    // With what else this process writes to the directory.
    StatusOr<std::shared_ptr<EventWriter>> opened =
        EventWriterCache::Default()->Get(directory_, options_);
    if (opened.ok()) {
      writer_ = *std::move(opened);
      return writer_;
    }
    status = opened.status();
  }
  Note(status);
  return nullptr;
}

void TrainEvents::Note(const Status& status) {
  if (status.ok()) return;
  {
    MutexLock lock(&mu_);
    if (std::exchange(has_failed_, true)) return;
  }
  LogWarning("Train: events for TensorBoard are lost until the next checkpoint is written: ",
             status.message());
}

void TrainEvents::AddScalar(absl::string_view tag, double value, int64_t step) {
  const std::shared_ptr<EventWriter> writer = Writer();
  if (writer != nullptr) Note(writer->AddScalar(tag, static_cast<float>(value), step));
}

void TrainEvents::AddCheckpoint(const std::string& path, int64_t step) {
  bool has_failed = false;
  {
    MutexLock lock(&mu_);
    has_failed = std::exchange(has_failed_, false);
  }
  const std::shared_ptr<EventWriter> writer = Writer();
  if (writer == nullptr) return;
  // A checkpoint was written: the disk has room again.
  if (has_failed) Note(writer->Reopen());
  tensorflow::SessionLog log;
  log.set_status(tensorflow::SessionLog::CHECKPOINT);
  log.set_checkpoint_path(path);
  Note(writer->AddSessionLog(log, std::max<int64_t>(step, 0)));
  Note(writer->Flush());
}

std::optional<double> LossShownAt(FileSystem* fs, const std::string& directory, int64_t step) {
  std::optional<double> loss;
  int64_t at = -1;
  // What cannot be read shows nothing.
  ScanScalars(fs, directory, [&](const EventScalar& scalar) {
    if (scalar.tag != kLossTag || scalar.step > step || scalar.step < at) return;
    loss = scalar.value;
    at = scalar.step;
  }).IgnoreError();
  return loss;
}

}  // namespace millrace
