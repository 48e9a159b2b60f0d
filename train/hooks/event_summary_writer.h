// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_EVENT_SUMMARY_WRITER_H_
#define MILLRACE_TRAIN_HOOKS_EVENT_SUMMARY_WRITER_H_

// EventSummaryWriter: a SummaryWriter of event files (saver/event_writer.h), which TensorBoard
// reads.
//
//   MR_ASSIGN_OR_RETURN(auto writer, EventSummaryWriter::Open("run"));
//   StepCounterHook counter({.writer = writer.get()});
//
// All of one directory in one process write into one file: hooks that know nothing of each other
// may each open their own.
//
// Thread-safety: as SummaryWriter and EventWriter.
// Failure: of what is added, each time. An error of the file (a full disk) is returned by the first
// call that meets it; what is added then is lost without a word until a checkpoint (kCheckpoint)
// shows that the disk has room again, and begins another file.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"
#include "saver/event_writer.h"
#include "train/summary_writer.h"

namespace millrace {

class EventSummaryWriter : public SummaryWriter {
 public:
  explicit EventSummaryWriter(std::shared_ptr<EventWriter> events) : events_(std::move(events)) {}
  // Makes the directory; the file comes with the first event. `options` are those of the first who
  // opens it.
  static StatusOr<std::unique_ptr<EventSummaryWriter>> Open(const std::string& directory,
                                                            const EventWriterOptions& options = {});

  Status AddScalar(absl::string_view tag, double value, int64_t step) override;
  Status AddSummary(absl::string_view summary, int64_t step) override;
  Status AddGraph(const tensorflow::GraphDef& graph) override;
  Status AddMetaGraph(absl::string_view meta_graph) override;
  Status AddRunMetadata(absl::string_view tag, const tensorflow::RunMetadata& metadata,
                        int64_t step) override;
  Status AddSessionEvent(SessionEvent event, int64_t step, absl::string_view checkpoint) override;
  Status Flush() override;

 private:
  // `status`, unless it is an error of the file that was told.
  Status Told(const Status& status);
  // After an error, another file.
  Status Reopen();

  const std::shared_ptr<EventWriter> events_;
  Mutex mu_;
  bool has_failed_ ABSL_GUARDED_BY(mu_) = false;  // since a flush that succeeded, or a new file
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_EVENT_SUMMARY_WRITER_H_
