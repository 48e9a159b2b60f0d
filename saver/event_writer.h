// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_EVENT_WRITER_H_
#define MILLRACE_SAVER_EVENT_WRITER_H_

// EventWriter: what a run has to show, as TensorBoard reads it: scalars, histograms, summaries of
// steps, graphs, traces, session logs, in files `events.out.tfevents.<seconds>.<host>` of a
// directory.
//
//   MR_ASSIGN_OR_RETURN(auto events, EventWriter::Open("run"));
//   MR_RETURN_IF_ERROR(events->AddScalar("loss", loss, step));
//
// Events are taken as bytes into memory; a thread of the writer puts them into the file, so a
// thread that adds one does not wait for the disk. What is promised:
//   * order is that of the Add calls;
//   * a call of Flush (Sync) returns when everything added before is the operating system's (is on
//     the device); without it that happens `flush_every` after the first event that is not: a
//     process that is killed loses no more than that (TensorFlow's loses two minutes);
//   * memory is bounded: a thread that adds more than `max_pending_bytes` waits for the disk,
//     `max_wait` at most;
//   * an error of the file (disk full) is returned by the next call and by every one after it; what
//     is added then is lost. Reopen begins a new file.
//   * nothing waits longer than `max_wait` for storage that hangs, not the destructor either; its
//     thread is left behind then.
//
// The file is made when the first event is written, so a writer of nothing leaves none. A name that
// is taken (a second writer in one second) is never written over: the number in it is increased.
//
// Thread-safety: all methods, from any thread. `fs` and `clock` must outlive the process's threads.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/histogram.h"
#include "core/mutex.h"
#include "core/status.h"

namespace tensorflow {
class Event;
class GraphDef;
class MetaGraphDef;
class RunMetadata;
class SessionLog;
class Summary;
}  // namespace tensorflow

namespace millrace {

class BoundedCall;  // core/bounded_call.h

struct EventWriterOptions {
  absl::Duration flush_every = absl::Seconds(10);
  // So many events, or 64 KiB of them, wait before the thread is woken: that costs 4 to 46 us.
  // (TensorFlow's 10 is the number at which it blocks.)
  int max_queue = 100;
  int64_t max_pending_bytes = int64_t{16} << 20;
  absl::Duration max_wait = absl::Seconds(30);
  // Behind the host in the file's name; with one the file is made at once. No '/'.
  std::string filename_suffix = "";
  std::string host = "";  // "" = this one's name
  FileSystem* fs = FileSystem::Default();
  Clock* clock = Clock::Real();
};

class EventWriter {
 public:
  // Makes the directory. InvalidArgument for options that mean nothing.
  static StatusOr<std::shared_ptr<EventWriter>> Open(const std::string& directory,
                                                     const EventWriterOptions& options = {});
  ~EventWriter();  // closes; an error that nobody was told is logged
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  const std::string& directory() const { return directory_; }

  // Of the present time. FailedPrecondition after Close.
  Status AddScalar(absl::string_view tag, float value, int64_t step);
  Status AddHistogram(absl::string_view tag, const Histogram& histogram, int64_t step);
  // What summary ops return. The metadata of a tag is written with its first value only.
  Status AddSummary(tensorflow::Summary summary, int64_t step);
  // InvalidArgument when the bytes are no Summary.
  Status AddSerializedSummary(absl::string_view summary, int64_t step);
  Status AddGraph(const tensorflow::GraphDef& graph, int64_t step = 0);
  Status AddMetaGraph(const tensorflow::MetaGraphDef& meta_graph, int64_t step = 0);
  // AlreadyExists for a tag that was used before: TensorBoard would show one of them.
  Status AddRunMetadata(const tensorflow::RunMetadata& metadata, const std::string& tag,
                        int64_t step = 0);
  Status AddSessionLog(const tensorflow::SessionLog& log, int64_t step);
  // Any other. Without a wall_time it gets the present one.
  Status AddEvent(tensorflow::Event event);

  Status Flush();
  Status Sync();
  // Writes what was added. The first error of the file, however often it is called.
  Status Close();
  // Goes on with a new file after Close or an error; else nothing.
  Status Reopen();

 private:
  struct State;

  EventWriter(const EventWriterOptions& options, std::string directory);
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<State> state() const;

  const EventWriterOptions options_;
  const std::string directory_;
  mutable Mutex mu_;
  std::shared_ptr<State> state_ ABSL_GUARDED_BY(mu_);  // never null
  std::shared_ptr<BoundedCall> thread_ ABSL_GUARDED_BY(mu_);
};

// One writer per directory: hooks that know nothing of each other write into one file.
//
// A writer lives, and its file stays open, as long as somebody who got it holds it. Thread-safety:
// any thread.
class EventWriterCache {
 public:
  EventWriterCache();
  ~EventWriterCache();

  // The directory's writer; a new one with `options` when there is none. Paths are compared as
  // absolute ones, without "." and "..", not through links.
  StatusOr<std::shared_ptr<EventWriter>> Get(const std::string& directory,
                                             const EventWriterOptions& options = {});

  // The one of this process; never destroyed.
  static EventWriterCache* Default();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_EVENT_WRITER_H_
