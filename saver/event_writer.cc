// SPDX-License-Identifier: Apache-2.0
#include "saver/event_writer.h"

#include <unistd.h>

#include <bit>
#include <climits>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/bounded_call.h"
#include "core/coding.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/record.h"
#include "proto/config.pb.h"
#include "proto/event.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/summary.pb.h"

namespace millrace {
namespace {

constexpr char kFileVersion[] = "brain.Event:2";
constexpr size_t kWakeBytes = size_t{64} << 10;
constexpr size_t kMaxTagBytes = size_t{1} << 30;
constexpr int kMaxNames = 1000;  // second names that are tried before giving up

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

// The double next to the microsecond, as TensorFlow writes it.
double SecondsOf(absl::Time time) { return static_cast<double>(absl::ToUnixMicros(time)) / 1e6; }

void PutDouble(std::string* out, double value) { PutFixed64(out, std::bit_cast<uint64_t>(value)); }

// The bytes of Event{wall_time, step, summary{value{tag, simple_value}}}: as protobuf's, without
// its messages (proto/event.proto, proto/summary.proto).
void PutScalarEvent(std::string* out, double wall_time, int64_t step, absl::string_view tag,
                    float value) {
  constexpr char kWallTime = 0x09, kStep = 0x10, kSummary = 0x2a, kValue = 0x0a, kTag = 0x0a,
                 kSimpleValue = 0x15;
  const size_t value_size =
      (tag.empty() ? 0 : 1 + VarintLength(tag.size()) + tag.size()) + 1 + sizeof(float);
  out->push_back(kWallTime);
  PutDouble(out, wall_time);
  if (step != 0) {
    out->push_back(kStep);
    PutVarint64(out, static_cast<uint64_t>(step));
  }
  out->push_back(kSummary);
  PutVarint64(out, 1 + VarintLength(value_size) + value_size);
  out->push_back(kValue);
  PutVarint64(out, value_size);
  if (!tag.empty()) {
    out->push_back(kTag);
    PutVarint64(out, tag.size());
    out->append(tag.data(), tag.size());
  }
  out->push_back(kSimpleValue);
  PutFixed32(out, std::bit_cast<uint32_t>(value));
}

}  // namespace

// What a writer's thread shares with it, and keeps when it is left behind.
struct EventWriter::State {
  State(const EventWriterOptions& o, std::string d) : options(o), directory(std::move(d)) {}

  const EventWriterOptions options;
  const std::string directory;

  Mutex mu;
  CondVar work;     // something for the thread
  CondVar changed;  // something from the thread
  // Events that the thread has not taken: 4 bytes of length before each.
  std::string pending ABSL_GUARDED_BY(mu);
  int pending_events ABSL_GUARDED_BY(mu) = 0;
  int num_waiting ABSL_GUARDED_BY(mu) = 0;  // for room
  // Flushes and syncs are counted: one is done when `done` has come to its number.
  uint64_t flush_asked ABSL_GUARDED_BY(mu) = 0, flush_done ABSL_GUARDED_BY(mu) = 0;
  uint64_t sync_asked ABSL_GUARDED_BY(mu) = 0, sync_done ABSL_GUARDED_BY(mu) = 0;
  // When what was added must be flushed; none while there is nothing.
  absl::Time flush_at ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();
  bool closing ABSL_GUARDED_BY(mu) = false;
  Status error ABSL_GUARDED_BY(mu);
  bool error_was_told ABSL_GUARDED_BY(mu) = false;
  std::set<std::string, std::less<>> tags_with_metadata ABSL_GUARDED_BY(mu);
  std::set<std::string> run_tags ABSL_GUARDED_BY(mu);

  // The thread's own.
  std::unique_ptr<RecordWriter> file;

  Status OpenFile();
  Status Put(absl::string_view framed);
  void Work();
  bool MustWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return closing || flush_asked > flush_done || sync_asked > sync_done ||
           pending_events >= options.max_queue || pending.size() >= kWakeBytes ||
           (num_waiting > 0 && !pending.empty());
  }

  std::string Where() const { return absl::StrCat("Events of '", directory, "'"); }
  Status Told() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (!error.ok()) error_was_told = true;
    return error;
  }
  Status Slow(absl::string_view what) const {
    return absl::DeadlineExceededError(
        absl::StrCat(Where(), ": the storage must ", what, " within ",
                     absl::FormatDuration(options.max_wait), ", got no answer"));
  }
  // append(out) adds the bytes of an event.
  template <typename Append>
  Status Add(size_t about_bytes, absl::Time now, Append append);
};

Status EventWriter::State::OpenFile() {
  const absl::Time now = options.clock->Now();
  const int64_t seconds = absl::ToUnixSeconds(now);
  const std::string host = options.host.empty() ? HostName() : options.host;
  std::unique_ptr<WritableFile> opened;
  for (int64_t name = seconds; opened == nullptr; ++name) {
    const std::string path = JoinPath(
        directory,
        absl::StrFormat("events.out.tfevents.%010d.%s%s", name, host, options.filename_suffix));
    auto made = options.fs->NewExclusiveFile(path);
    if (!made.ok() && (!absl::IsAlreadyExists(made.status()) || name - seconds >= kMaxNames)) {
      return made.status();
    }
    if (!made.ok()) continue;
    opened = *std::move(made);
    if (options.fs->FilesAppearWhole(path)) {
      // An empty object takes the name; readers see what is appended before the file is closed.
      MR_RETURN_IF_ERROR(opened->Close());
      MR_ASSIGN_OR_RETURN(opened, options.fs->NewAppendableFile(path));
    }
  }
  file = std::make_unique<RecordWriter>(std::move(opened));
  tensorflow::Event first;
  first.set_wall_time(static_cast<double>(seconds));
  first.set_file_version(kFileVersion);
  MR_RETURN_IF_ERROR(file->Write(first.SerializeAsString()));
  MR_RETURN_IF_ERROR(file->Sync());
  return options.fs->SyncDirectory(directory);
}

Status EventWriter::State::Put(absl::string_view framed) {
  while (!framed.empty()) {
    const size_t size = DecodeFixed32(framed.data());
    framed.remove_prefix(sizeof(uint32_t));
    MR_RETURN_IF_ERROR(file->Write(framed.substr(0, size)));
    framed.remove_prefix(size);
  }
  return absl::OkStatus();
}

void EventWriter::State::Work() {
  std::string batch;
  Status status;
  if (!options.filename_suffix.empty()) status = OpenFile();
  bool closed = false;
  while (!closed) {
    bool flush, sync;
    uint64_t flush_number, sync_number;
    {
      MutexLock lock(&mu);
      if (!status.ok() && error.ok()) error = status;
      changed.SignalAll();
      while (error.ok() && !MustWork() && options.clock->Now() < flush_at) {
        options.clock->WaitUntil(&work, &mu, flush_at);
      }
      while (!error.ok() && !closing) work.Wait(&mu);
      batch.clear();
      batch.swap(pending);
      pending_events = 0;
      flush_number = flush_asked;
      sync_number = sync_asked;
      sync = sync_number > sync_done;
      closed = closing;
      // Nothing is asked for: flush_number is done.
      flush = flush_number > flush_done || options.clock->Now() >= flush_at;
      if (flush || sync || closed) flush_at = absl::InfiniteFuture();
      changed.SignalAll();  // there is room
      status = error;
    }
    if (status.ok() && file == nullptr && !batch.empty()) status = OpenFile();
    if (status.ok()) status = Put(batch);
    if (file != nullptr) {
      if (status.ok() && sync) status = file->Sync();
      if (status.ok() && flush && !sync) status = file->Flush();
      if (closed) {
        const Status close = file->Close();
        if (status.ok()) status = close;
      }
    }
    MutexLock lock(&mu);
    if (!status.ok() && error.ok()) error = status;
    MR_DCHECK(flush_done <= flush_number && sync_done <= sync_number,
              "this thread alone says what is done, and the numbers grow");
    if (status.ok()) {
      flush_done = flush_number;
      if (sync) sync_done = sync_number;
    }
    changed.SignalAll();
  }
}

template <typename Append>
Status EventWriter::State::Add(size_t about_bytes, absl::Time now, Append append) {
  MutexLock lock(&mu);
  if (closing) return FailedPrecondition(Where(), ": add: the writer is closed");
  const auto is_full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return !pending.empty() &&
           static_cast<int64_t>(pending.size() + about_bytes) > options.max_pending_bytes;
  };
  if (error.ok() && is_full()) {
    const absl::Time deadline = now + options.max_wait;
    ++num_waiting;
    work.SignalAll();
    bool is_late = false;
    while (error.ok() && !closing && is_full() && !is_late) {
      is_late = options.clock->WaitUntil(&changed, &mu, deadline);
    }
    --num_waiting;
    if (is_late && error.ok() && !closing && is_full()) return Slow("take events");
    if (closing) return FailedPrecondition(Where(), ": add: the writer is closed");
  }
  if (!error.ok()) return Told();
  const bool had_work = MustWork();
  const size_t start = pending.size();
  pending.append(sizeof(uint32_t), '\0');
  append(&pending);
  EncodeFixed32(pending.data() + start,
                static_cast<uint32_t>(pending.size() - start - sizeof(uint32_t)));
  ++pending_events;
  const bool is_first = flush_at == absl::InfiniteFuture();
  if (is_first) flush_at = now + options.flush_every;
  if (is_first || (!had_work && MustWork())) work.SignalAll();
  return absl::OkStatus();
}

EventWriter::EventWriter(const EventWriterOptions& options, std::string directory)
    : options_(options), directory_(std::move(directory)) {
  MutexLock lock(&mu_);
  Start();
}

void EventWriter::Start() {
  auto state = std::make_shared<State>(options_, directory_);
  thread_ = std::make_shared<BoundedCall>(options_.clock, [state] { state->Work(); });
  state_ = std::move(state);
}

StatusOr<std::shared_ptr<EventWriter>> EventWriter::Open(const std::string& directory,
                                                         const EventWriterOptions& options) {
  const std::string where = absl::StrCat("Events of '", directory, "'");
  if (options.max_queue < 1) {
    return InvalidArgument(where, ": max_queue must be >= 1, got ", options.max_queue);
  }
  if (options.max_pending_bytes < 1) {
    return InvalidArgument(where, ": max_pending_bytes must be >= 1, got ",
                           options.max_pending_bytes);
  }
  if (options.flush_every < absl::ZeroDuration() || options.max_wait < absl::ZeroDuration()) {
    return InvalidArgument(where, ": flush_every and max_wait must be >= 0, got ",
                           absl::FormatDuration(options.flush_every), " and ",
                           absl::FormatDuration(options.max_wait));
  }
  for (const std::string* part : {&options.filename_suffix, &options.host}) {
    if (part->find('/') != std::string::npos) {
      return InvalidArgument(where, ": host and filename_suffix must have no '/', got '", *part,
                             "'");
    }
  }
  MR_RETURN_IF_ERROR(options.fs->RecursivelyCreateDirectory(directory));
  try {
    return std::shared_ptr<EventWriter>(new EventWriter(options, directory));
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(absl::StrCat(where, ": no thread: ", e.what()));
  }
}

EventWriter::~EventWriter() {
  const std::shared_ptr<State> last = state();
  bool was_told = false;
  {
    MutexLock lock(&last->mu);
    was_told = last->error_was_told;
  }
  const Status closed = Close();
  if (!closed.ok() && !was_told) LogWarning("Events are lost: ", closed.message());
}

std::shared_ptr<EventWriter::State> EventWriter::state() const {
  MutexLock lock(&mu_);
  return state_;
}

Status EventWriter::AddScalar(absl::string_view tag, float value, int64_t step) {
  const std::shared_ptr<State> s = state();
  if (tag.size() > kMaxTagBytes) {
    return InvalidArgument(s->Where(), ": a tag must have at most ", kMaxTagBytes, " bytes, got ",
                           tag.size());
  }
  const absl::Time now = s->options.clock->Now();
  return s->Add(tag.size() + 64, now,
                [&](std::string* out) { PutScalarEvent(out, SecondsOf(now), step, tag, value); });
}

Status EventWriter::AddEvent(tensorflow::Event event) {
  const std::shared_ptr<State> s = state();
  const absl::Time now = s->options.clock->Now();
  if (event.wall_time() == 0) event.set_wall_time(SecondsOf(now));
  const size_t size = event.ByteSizeLong();
  if (size > INT_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrCat(s->Where(), ": an event must be smaller than 2 GiB, got ", size, " bytes"));
  }
  return s->Add(size, now, [&](std::string* out) { event.AppendToString(out); });
}

Status EventWriter::AddHistogram(absl::string_view tag, const Histogram& histogram, int64_t step) {
  tensorflow::Event event;
  event.set_step(step);
  tensorflow::Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag(std::string(tag));
  histogram.WriteTo(value->mutable_histo());
  return AddEvent(std::move(event));
}

Status EventWriter::AddSummary(tensorflow::Summary summary, int64_t step) {
  {
    const std::shared_ptr<State> s = state();
    MutexLock lock(&s->mu);
    for (tensorflow::Summary::Value& value : *summary.mutable_value()) {
      if (value.has_metadata() && !s->tags_with_metadata.insert(value.tag()).second) {
        value.clear_metadata();
      }
    }
  }
  tensorflow::Event event;
  event.set_step(step);
  *event.mutable_summary() = std::move(summary);
  return AddEvent(std::move(event));
}

Status EventWriter::AddSerializedSummary(absl::string_view summary, int64_t step) {
  tensorflow::Summary parsed;
  if (summary.size() > INT_MAX ||
      !parsed.ParseFromArray(summary.data(), static_cast<int>(summary.size()))) {
    return InvalidArgument("Events of '", directory_,
                           "': a summary must be a serialized Summary message, got ",
                           summary.size(), " bytes that are none");
  }
  return AddSummary(std::move(parsed), step);
}

Status EventWriter::AddGraph(const tensorflow::GraphDef& graph, int64_t step) {
  tensorflow::Event event;
  event.set_step(step);
  if (!graph.SerializeToString(event.mutable_graph_def())) {
    return InvalidArgument("Events of '", directory_,
                           "': a graph must be smaller than 2 GiB, got more");
  }
  return AddEvent(std::move(event));
}

Status EventWriter::AddMetaGraph(const tensorflow::MetaGraphDef& meta_graph, int64_t step) {
  tensorflow::Event event;
  event.set_step(step);
  if (!meta_graph.SerializeToString(event.mutable_meta_graph_def())) {
    return InvalidArgument("Events of '", directory_,
                           "': a meta graph must be smaller than 2 GiB, got more");
  }
  return AddEvent(std::move(event));
}

Status EventWriter::AddRunMetadata(const tensorflow::RunMetadata& metadata, const std::string& tag,
                                   int64_t step) {
  {
    const std::shared_ptr<State> s = state();
    MutexLock lock(&s->mu);
    if (!s->run_tags.insert(tag).second) {
      return absl::AlreadyExistsError(
          absl::StrCat(s->Where(), ": the tag of a run must be a new one, got '", tag, "' again"));
    }
  }
  tensorflow::Event event;
  event.set_step(step);
  event.mutable_tagged_run_metadata()->set_tag(tag);
  if (!metadata.SerializeToString(event.mutable_tagged_run_metadata()->mutable_run_metadata())) {
    return InvalidArgument("Events of '", directory_,
                           "': metadata of a run must be smaller than 2 GiB, got more");
  }
  return AddEvent(std::move(event));
}

Status EventWriter::AddSessionLog(const tensorflow::SessionLog& log, int64_t step) {
  tensorflow::Event event;
  event.set_step(step);
  *event.mutable_session_log() = log;
  return AddEvent(std::move(event));
}

namespace {

// Waits until `done` has come to `number`, or there is an error.
template <typename S>
Status Await(S* s, const uint64_t& done, uint64_t number, const char* what)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(s->mu) {
  s->work.SignalAll();
  const absl::Time deadline = s->options.clock->Now() + s->options.max_wait;
  while (s->error.ok() && done < number) {
    if (s->options.clock->Now() >= deadline) return s->Slow(what);
    s->options.clock->WaitUntil(&s->changed, &s->mu, deadline);
  }
  return s->Told();
}

}  // namespace

Status EventWriter::Flush() {
  const std::shared_ptr<State> s = state();
  MutexLock lock(&s->mu);
  if (s->closing) return s->Told();
  return Await(s.get(), s->flush_done, ++s->flush_asked, "flush");
}

Status EventWriter::Sync() {
  const std::shared_ptr<State> s = state();
  MutexLock lock(&s->mu);
  if (s->closing) return s->Told();
  return Await(s.get(), s->sync_done, ++s->sync_asked, "sync");
}

Status EventWriter::Close() {
  std::shared_ptr<State> s;
  std::shared_ptr<BoundedCall> thread;
  {
    MutexLock lock(&mu_);
    s = state_;
    thread = thread_;
  }
  {
    MutexLock lock(&s->mu);
    s->closing = true;
    s->work.SignalAll();
    s->changed.SignalAll();  // calls that wait for room
  }
  const bool ended = thread->WaitUntil(options_.clock->Now() + options_.max_wait);
  MutexLock lock(&s->mu);
  return ended || !s->error.ok() ? s->Told() : s->Slow("take the rest");
}

Status EventWriter::Reopen() {
  const std::shared_ptr<State> s = state();
  {
    MutexLock lock(&s->mu);
    if (!s->closing && s->error.ok()) return absl::OkStatus();
  }
  Close().IgnoreError();  // what is wrong with it was told
  MutexLock lock(&mu_);
  if (state_ != s) return absl::OkStatus();  // another thread was faster
  try {
    Start();
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(absl::StrCat(s->Where(), ": no thread: ", e.what()));
  }
  return absl::OkStatus();
}

// --- Cache ---------------------------------------------------------------------------------------

struct EventWriterCache::State {
  Mutex mu;
  std::map<std::string, std::weak_ptr<EventWriter>> writers ABSL_GUARDED_BY(mu);
};

EventWriterCache::EventWriterCache() : state_(std::make_unique<State>()) {}
EventWriterCache::~EventWriterCache() = default;

StatusOr<std::shared_ptr<EventWriter>> EventWriterCache::Get(const std::string& directory,
                                                             const EventWriterOptions& options) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory + "/", error);
  const std::string key = error ? directory : absolute.lexically_normal().string();
  MutexLock lock(&state_->mu);
  std::erase_if(state_->writers, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<EventWriter>& slot = state_->writers[key];
  if (std::shared_ptr<EventWriter> writer = slot.lock()) return writer;
  MR_ASSIGN_OR_RETURN(std::shared_ptr<EventWriter> writer, EventWriter::Open(directory, options));
  slot = writer;
  return writer;
}

EventWriterCache* EventWriterCache::Default() {
  static EventWriterCache* const cache = new EventWriterCache();
  return cache;
}

}  // namespace millrace
