// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TRAIN_EVENTS_H_
#define MILLRACE_TRAIN_TRAIN_EVENTS_H_

// TrainEvents: what Train shows in TensorBoard, in event files next to its checkpoints: scalars
// of steps, and each checkpoint.
//
// What was added is with the operating system when the next checkpoint is written, and 10 s after
// the first event that is not (saver/event_writer.h): a job that is killed keeps its curves up to
// its last checkpoint. The file is made with the first event.
//
// Thread-safety: all methods, from any thread. Lifetime: the file system and the clock outlive it.
// Failure: training is worth more than its curves: the first error is one warning, what is added
// then is lost, and after the next checkpoint another file is tried.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "saver/event_writer.h"

namespace millrace {

// The tag of the loss.
inline constexpr char kLossTag[] = "loss";

class TrainEvents {
 public:
  TrainEvents(std::string directory, FileSystem* fs, Clock* clock);

  void AddScalar(absl::string_view tag, double value, int64_t step);
  // `step` -1: none.
  void AddCheckpoint(const std::string& path, int64_t step);

 private:
  // The writer, which is opened once; null when it cannot be.
  std::shared_ptr<EventWriter> Writer();
  void Note(const Status& status);

  const std::string directory_;
  const EventWriterOptions options_;
  Mutex mu_;
  std::shared_ptr<EventWriter> writer_ ABSL_GUARDED_BY(mu_);
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;  // since the last new file
};

// The loss that the event files of `directory` show last at a step up to `step`; nullopt: none.
std::optional<double> LossShownAt(FileSystem* fs, const std::string& directory, int64_t step);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TRAIN_EVENTS_H_
