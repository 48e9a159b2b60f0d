// SPDX-License-Identifier: Apache-2.0
//
// Event files: what is written, what is read, and storage that fails or hangs.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/histogram.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/status.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"
#include "proto/event.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_reader.h"
#include "saver/event_writer.h"

// covers: events: event files have TensorFlow's names, first record, order and bytes; a file of
//   TensorFlow's is written again byte for byte
// covers: events: a full disk, at each of its operations, is reported by the next call and by
//   Close, and earlier records are readable; storage that hangs delays no caller for long
// covers: events: a reader follows files that grow byte by byte, ends where one is cut, names each
//   wrong byte and goes on with the next file
// covers: article 2-16: save by hand, summaries by hand, flush, stop
// covers: article 2-28: event files that TensorBoard reads: version, scalar, histogram, graph,
//   session log

namespace millrace {
namespace {

using absl::StatusCode;
using tensorflow::Event;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

FileSystem* Fs() { return FileSystem::Posix(); }

// A file system whose appends do what a test says first.
class HookedFileSystem : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  std::function<void()> on_append = [] {};
  std::function<void()> on_flush = [] {};

  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    MR_ASSIGN_OR_RETURN(auto file, FaultyFileSystem::NewExclusiveFile(path));
    return std::unique_ptr<WritableFile>(new File(this, std::move(file)));
  }

 private:
  class File : public WritableFile {
   public:
    File(HookedFileSystem* fs, std::unique_ptr<WritableFile> file)
        : fs_(fs), file_(std::move(file)) {}
    Status Append(absl::string_view data) override {
      fs_->on_append();
      return file_->Append(data);
    }
    Status Flush() override {
      const Status status = file_->Flush();
      fs_->on_flush();
      return status;
    }
    Status Sync() override { return file_->Sync(); }
    Status Close() override { return file_->Close(); }

   private:
    HookedFileSystem* const fs_;
    const std::unique_ptr<WritableFile> file_;
  };
};

class Events : public ::testing::Test {
 protected:
  Events() : directory_(JoinPath(::testing::TempDir(), absl::StrCat("events_", RandomHexName()))) {}
  ~Events() override { Fs()->RecursivelyDelete(directory_).IgnoreError(); }

  std::shared_ptr<EventWriter> OpenWriter(EventWriterOptions options = {}) {
    options.host = "host";
    auto writer = EventWriter::Open(directory_, options);
    EXPECT_OK(writer);
    return writer.ok() ? *writer : nullptr;
  }
  std::vector<std::string> Names() const {
    auto names = Fs()->GetChildren(directory_);
    EXPECT_OK(names);
    return *names;
  }
  // The bytes of all records of all files.
  std::vector<std::string> Records() const {
    std::vector<std::string> records;
    for (const std::string& name : Names()) {
      auto reader = RecordReader::Open(Fs(), JoinPath(directory_, name));
      EXPECT_OK(reader);
      for (;;) {
        const auto record = (*reader)->Next();
        if (!record.ok()) break;
        records.emplace_back(*record);
      }
    }
    return records;
  }

  const std::string directory_;
};

// All up to the end, which is `end`.
std::vector<Event> ReadAll(EventReader* reader, Status* end) {
  std::vector<Event> events;
  for (;;) {
    StatusOr<Event> event = reader->Next();
    if (!event.ok()) {
      *end = event.status();
      return events;
    }
    events.push_back(*std::move(event));
  }
}
std::vector<Event> ReadAll(const std::string& path, Status* end = nullptr) {
  auto reader = EventReader::Open(Fs(), path);
  EXPECT_OK(reader);
  Status status;
  std::vector<Event> events = ReadAll(reader->get(), &status);
  if (end != nullptr) {
    *end = status;
  } else {
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status;
  }
  return events;
}

// "tag=value" of every scalar.
std::vector<std::string> Scalars(const std::vector<Event>& events) {
  std::vector<std::string> scalars;
  for (const Event& event : events) {
    for (const auto& value : event.summary().value()) {
      scalars.push_back(absl::StrCat(value.tag(), "=", value.simple_value()));
    }
  }
  return scalars;
}

TEST_F(Events, AFileBeginsWithItsVersionAndHasTheNameOfItsSecond) {
  FakeClock clock(absl::FromUnixMillis(1234567));
  auto writer = OpenWriter({.clock = &clock});
  ASSERT_OK(writer->Flush());
  EXPECT_THAT(Names(), SizeIs(0)) << "nothing was added";
  ASSERT_OK(writer->AddScalar("loss", 0.5f, 7));
  ASSERT_OK(writer->Close());

  EXPECT_THAT(Names(), ElementsAre("events.out.tfevents.0000001234.host"));
  const std::vector<Event> events = ReadAll(directory_);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].wall_time(), 1234);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].wall_time(), 1234.567);
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].summary().value(0).tag(), "loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 0.5f);
}

TEST_F(Events, ScalarsAreTheBytesOfProtobuf) {
  FakeClock clock(absl::FromUnixMillis(1700000000123));
  auto writer = OpenWriter({.clock = &clock});
  std::vector<std::string> want;
  for (const std::string& tag : {std::string("a"), std::string(), std::string(300, 'x')}) {
    for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{300}, INT64_MAX, int64_t{-1}}) {
      for (const float value : {0.0f, -0.0f, 1.5f, -3e30f}) {
        ASSERT_OK(writer->AddScalar(tag, value, step));
        Event event;
        event.set_wall_time(1700000000.123);
        event.set_step(step);
        auto* one = event.mutable_summary()->add_value();
        one->set_tag(tag);
        one->set_simple_value(value);
        want.push_back(event.SerializeAsString());
      }
    }
  }
  ASSERT_OK(writer->Close());
  std::vector<std::string> got = Records();
  got.erase(got.begin());
  EXPECT_EQ(got, want);
}

TEST_F(Events, EveryKindIsReadAsItWasAdded) {
  auto writer = OpenWriter();
  tensorflow::GraphDef graph;
  graph.add_node()->set_name("n");
  tensorflow::MetaGraphDef meta;
  meta.mutable_meta_info_def()->add_tags("train");
  tensorflow::RunMetadata run;
  run.mutable_step_stats()->add_dev_stats()->set_device("cpu");
  tensorflow::SessionLog log;
  log.set_status(tensorflow::SessionLog::CHECKPOINT);
  log.set_checkpoint_path("run/model.ckpt-3");
  Histogram histogram;
  histogram.Add(0);
  Event message;
  message.set_wall_time(5);
  message.mutable_log_message()->set_message("hello");
  ASSERT_OK(writer->AddGraph(graph));
  ASSERT_OK(writer->AddMetaGraph(meta, 1));
  ASSERT_OK(writer->AddRunMetadata(run, "step 2", 2));
  ASSERT_OK(writer->AddSessionLog(log, 3));
  ASSERT_OK(writer->AddHistogram("h", histogram, 4));
  ASSERT_OK(writer->AddEvent(message));
  ASSERT_OK(writer->Sync());
  EXPECT_STATUS(writer->AddRunMetadata(run, "step 2", 2), StatusCode::kAlreadyExists,
                "the tag of a run must be a new one, got 'step 2' again");
  ASSERT_OK(writer->Close());

  const std::vector<Event> events = ReadAll(directory_);
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(events[1].graph_def(), graph.SerializeAsString());
  EXPECT_EQ(events[2].meta_graph_def(), meta.SerializeAsString());
  EXPECT_EQ(events[3].tagged_run_metadata().tag(), "step 2");
  EXPECT_EQ(events[3].tagged_run_metadata().run_metadata(), run.SerializeAsString());
  EXPECT_EQ(events[4].session_log().checkpoint_path(), "run/model.ckpt-3");
  EXPECT_EQ(events[4].session_log().status(), tensorflow::SessionLog::CHECKPOINT);
  EXPECT_EQ(events[5].step(), 4);
  EXPECT_THAT(events[5].summary().value(0).histo().bucket(), ElementsAre(0, 1, 0));
  EXPECT_EQ(events[6].log_message().message(), "hello");
  EXPECT_EQ(events[6].wall_time(), 5) << "its own";
}

TEST_F(Events, MetadataIsWrittenWithTheFirstValueOfATag) {
  tensorflow::Summary summary;
  for (const char* tag : {"a", "b"}) {
    auto* value = summary.add_value();
    value->set_tag(tag);
    value->set_simple_value(1);
    value->mutable_metadata()->mutable_plugin_data()->set_plugin_name("p");
  }
  auto writer = OpenWriter();
  ASSERT_OK(writer->AddScalar("a", 1, 1));  // without metadata: does not count
  ASSERT_OK(writer->AddSummary(summary, 2));
  summary.mutable_value(1)->set_tag("c");
  ASSERT_OK(writer->AddSerializedSummary(summary.SerializeAsString(), 3));
  EXPECT_STATUS(writer->AddSerializedSummary("\x0a\xff", 4), StatusCode::kInvalidArgument,
                "a summary must be a serialized Summary message, got 2 bytes that are none");
  ASSERT_OK(writer->Close());
  const std::vector<Event> events = ReadAll(directory_);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_TRUE(events[2].summary().value(0).has_metadata());
  EXPECT_TRUE(events[2].summary().value(1).has_metadata());
  EXPECT_FALSE(events[3].summary().value(0).has_metadata());
  EXPECT_TRUE(events[3].summary().value(1).has_metadata());
}

TEST_F(Events, TwoWritersOfOneSecondHaveAFileEach) {
  FakeClock clock(absl::FromUnixSeconds(100));
  auto first = OpenWriter({.clock = &clock});
  auto second = OpenWriter({.clock = &clock});
  ASSERT_OK(first->AddScalar("first", 1, 1));
  ASSERT_OK(first->Flush());
  ASSERT_OK(second->AddScalar("second", 2, 2));
  ASSERT_OK(second->Close());
  ASSERT_OK(first->AddScalar("first", 3, 3));
  ASSERT_OK(first->Close());
  ASSERT_OK(first->Reopen());
  ASSERT_OK(first->AddScalar("again", 4, 4));
  ASSERT_OK(first->Close());
  EXPECT_THAT(Names(), ElementsAre("events.out.tfevents.0000000100.host",
                                   "events.out.tfevents.0000000101.host",
                                   "events.out.tfevents.0000000102.host"));
  const std::vector<Event> events = ReadAll(directory_);
  EXPECT_THAT(Scalars(events), ElementsAre("first=1", "first=3", "second=2", "again=4"));
  for (const Event& event : events) EXPECT_EQ(event.wall_time(), 100);
}

TEST_F(Events, ASuffixIsInTheNameOfAFileThatIsMadeAtOnce) {
  FakeClock clock(absl::FromUnixSeconds(100));
  auto writer = OpenWriter({.filename_suffix = ".v2", .clock = &clock});
  ASSERT_OK(writer->Close());
  EXPECT_THAT(Names(), ElementsAre("events.out.tfevents.0000000100.host.v2"));
  EXPECT_THAT(ReadAll(directory_), SizeIs(1));
}

TEST_F(Events, AreFlushedWhenTheirTimeHasCome) {
  FakeClock clock;
  HookedFileSystem fs(Fs(), directory_);
  Notification flushed;
  int flushes = 0;  // the file's first record is flushed at once
  fs.on_flush = [&] {
    if (++flushes == 2) flushed.Notify();
  };
  auto writer = OpenWriter({.flush_every = absl::Seconds(120), .fs = &fs, .clock = &clock});
  clock.AwaitWaiters(1);
  ASSERT_OK(writer->AddScalar("loss", 1, 1));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(120));
  flushed.Wait();
  EXPECT_THAT(Scalars(ReadAll(directory_)), ElementsAre("loss=1"));
  ASSERT_OK(writer->Close());
}

// One that is added later waits no longer than the first.
TEST_F(Events, AreFlushedTenSecondsAfterTheFirstThatIsNot) {
  FakeClock clock;
  HookedFileSystem fs(Fs(), directory_);
  Notification flushed, flushed_again;
  int flushes = 0;  // the file's first record is flushed at once
  fs.on_flush = [&] {
    ++flushes;
    if (flushes == 2) flushed.Notify();
    if (flushes == 3) flushed_again.Notify();
  };
  auto writer = OpenWriter({.fs = &fs, .clock = &clock});
  clock.AwaitWaiters(1);
  ASSERT_OK(writer->AddScalar("loss", 1, 1));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(9));
  EXPECT_FALSE(flushed.HasBeenNotified());
  ASSERT_OK(writer->AddScalar("loss", 2, 2));
  clock.Advance(absl::Seconds(1));
  flushed.Wait();
  EXPECT_THAT(Scalars(ReadAll(directory_)), ElementsAre("loss=1", "loss=2"));
  // The time of the next one begins with it.
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(60));
  ASSERT_OK(writer->AddScalar("loss", 3, 3));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(10));
  flushed_again.Wait();
  EXPECT_THAT(Scalars(ReadAll(directory_)), ElementsAre("loss=1", "loss=2", "loss=3"));
  ASSERT_OK(writer->Close());
}

TEST_F(Events, AreWrittenInTheOrderOfTheCallsWhateverTheQueue) {
  for (const int max_queue : {1, 3, 1000}) {
    auto writer = OpenWriter({.max_queue = max_queue, .max_pending_bytes = 500});
    std::vector<std::string> want;
    for (int i = 0; i < 500; ++i) {
      ASSERT_OK(writer->AddScalar("x", static_cast<float>(i), i));
      want.push_back(absl::StrCat("x=", i));
    }
    ASSERT_OK(writer->Flush());
    EXPECT_EQ(Scalars(ReadAll(directory_)), want);
    ASSERT_OK(writer->Close());
    ASSERT_OK(Fs()->RecursivelyDelete(directory_));
  }
}

TEST_F(Events, OfManyThreadsAreAllThere) {
  auto writer = OpenWriter({.max_queue = 2});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) EXPECT_OK(writer->AddScalar("x", 1, i));
      EXPECT_OK(writer->Flush());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(writer->Close());
  EXPECT_THAT(ReadAll(directory_), SizeIs(401));
}

TEST_F(Events, AFullDiskIsToldByTheNextCallAndByClose) {
  // Learns how many operations there are, then fails each.
  int64_t num_operations = 0;
  for (int64_t k = 0; k <= num_operations; ++k) {
    Fs()->RecursivelyDelete(directory_).IgnoreError();
    FaultyFileSystem fs(Fs(), directory_);
    if (k > 0) fs.FailOperation(k, absl::ResourceExhaustedError("disk full"));
    auto opened = EventWriter::Open(directory_, {.host = "host", .fs = &fs});
    if (!opened.ok()) {
      EXPECT_STATUS(opened, StatusCode::kResourceExhausted, "disk full") << k;
      continue;
    }
    auto& writer = *opened;
    ASSERT_OK(writer->AddScalar("before", 1, 1));
    const Status flushed = writer->Flush();
    const Status added = writer->AddScalar("after", 2, 2);
    const Status closed = writer->Close();
    if (k == 0) {
      num_operations = fs.num_operations();
      ASSERT_GT(num_operations, 5);
      continue;
    }
    const std::string what = absl::StrCat(k, ": ", fs.OperationText(k));
    EXPECT_STATUS(closed, StatusCode::kResourceExhausted, "disk full") << what;
    EXPECT_EQ(writer->Close(), closed) << what;
    EXPECT_EQ(writer->Flush(), closed) << what;
    if (!flushed.ok()) {
      EXPECT_EQ(added, flushed) << what;
    }
    // What is there is whole up to where the disk was full; a new file goes on.
    for (const Event& event : ReadAll(directory_)) EXPECT_GT(event.wall_time(), 0) << what;
    ASSERT_OK(writer->Reopen()) << what;
    ASSERT_OK(writer->AddScalar("again", 3, 3)) << what;
    ASSERT_OK(writer->Close()) << what;
    EXPECT_THAT(Scalars(ReadAll(directory_)), ::testing::Contains("again=3")) << what;
  }
}

// What a thread that is left behind uses to its end, of which nobody hears.
struct HungStorage {
  explicit HungStorage(const std::string& directory) : fs(Fs(), directory) {
    fs.on_append = [this] {
      if (!hangs.HasBeenNotified()) hangs.Notify();
      answers.Wait();
    };
  }
  FakeClock clock;
  HookedFileSystem fs;
  Notification hangs, answers;
};

TEST_F(Events, StorageThatHangsHoldsNobodyUpForLong) {
  static auto* const kept = new std::vector<std::unique_ptr<HungStorage>>();
  kept->push_back(std::make_unique<HungStorage>(directory_));
  HungStorage& storage = *kept->back();
  FakeClock& clock = storage.clock;
  auto writer =
      OpenWriter({.max_queue = 1, .max_pending_bytes = 100, .fs = &storage.fs, .clock = &clock});
  ASSERT_OK(writer->AddScalar("taken", 1, 1));
  storage.hangs.Wait();
  ASSERT_OK(writer->AddScalar("waits for the thread", 2, 2));
  // Each of them waits for the clock alone.
  const std::vector<std::function<Status()>> calls = {
      [&] { return writer->AddScalar(std::string(100, 'x'), 3, 3); },
      [&] { return writer->Flush(); },
      [&] { return writer->Sync(); },
      [&] { return writer->Close(); },
  };
  for (const auto& call : calls) {
    Status status;
    std::thread caller([&] { status = call(); });
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(30));
    caller.join();
    EXPECT_STATUS(status, StatusCode::kDeadlineExceeded, "within 30s, got no answer");
  }
  std::thread destroyer([&] { writer = nullptr; });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(30));
  destroyer.join();
  storage.answers.Notify();
}

TEST_F(Events, WhatMeansNothingIsRefused) {
  struct Case {
    EventWriterOptions options;
    const char* text;
  };
  const Case cases[] = {
      {{.max_queue = 0}, "max_queue must be >= 1, got 0"},
      {{.max_pending_bytes = 0}, "max_pending_bytes must be >= 1, got 0"},
      {{.flush_every = -absl::Seconds(1)}, "flush_every and max_wait must be >= 0, got -1s"},
      {{.filename_suffix = "a/b"}, "must have no '/', got 'a/b'"},
      {{.host = "/"}, "must have no '/', got '/'"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(EventWriter::Open(directory_, c.options), StatusCode::kInvalidArgument, c.text);
  }
  auto writer = OpenWriter();
  ASSERT_OK(writer->Close());
  EXPECT_STATUS(writer->AddScalar("x", 1, 1), StatusCode::kFailedPrecondition,
                "the writer is closed");
  EXPECT_STATUS(EventWriter::Open("/proc/no/such", {}), StatusCode::kNotFound, "/proc/no");
}

TEST_F(Events, OneDirectoryHasOneWriterWhileSomebodyHoldsIt) {
  EventWriterCache cache;
  ASSERT_OK_AND_ASSIGN(auto first, cache.Get(directory_));
  ASSERT_OK_AND_ASSIGN(auto second, cache.Get(absl::StrCat(directory_, "/./x/../")));
  ASSERT_OK_AND_ASSIGN(auto other, cache.Get(JoinPath(directory_, "eval")));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, other);
  ASSERT_OK(first->Close());
  first = second = nullptr;
  ASSERT_OK_AND_ASSIGN(auto third, cache.Get(directory_));
  EXPECT_OK(third->AddScalar("x", 1, 1));
  EXPECT_EQ(EventWriterCache::Default(), EventWriterCache::Default());
}

// --- The reader ----------------------------------------------------------------------------------

TEST_F(Events, ACutFileEndsWhereItIsCut) {
  auto writer = OpenWriter();
  for (int i = 0; i < 3; ++i) ASSERT_OK(writer->AddScalar("x", static_cast<float>(i), i));
  ASSERT_OK(writer->Close());
  const std::string path = JoinPath(directory_, Names()[0]);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(Fs(), path));
  ASSERT_OK(Fs()->DeleteFile(path));

  // The reader follows the file as it grows byte by byte, and sees each event once.
  const std::string growing = JoinPath(directory_, "growing.tfevents");
  ASSERT_OK_AND_ASSIGN(auto file, Fs()->NewWritableFile(growing));
  ASSERT_OK(file->Flush());
  ASSERT_OK_AND_ASSIGN(auto reader, EventReader::Open(Fs(), directory_));
  size_t seen = 0;
  for (size_t size = 1; size <= bytes.size(); ++size) {
    ASSERT_OK(file->Append(absl::string_view(bytes).substr(size - 1, 1)));
    ASSERT_OK(file->Flush());
    Status end;
    seen += ReadAll(reader.get(), &end).size();
    EXPECT_EQ(end.code(), StatusCode::kOutOfRange) << end;
    const size_t at_once = ReadAll(growing).size();
    EXPECT_EQ(seen, at_once) << size;
  }
  EXPECT_EQ(seen, 4u);
}

TEST_F(Events, ABadFileIsNamedAndTheNextOneIsRead) {
  FakeClock clock(absl::FromUnixSeconds(100));
  for (const char* tag : {"first", "second"}) {
    auto writer = OpenWriter({.clock = &clock});
    ASSERT_OK(writer->AddScalar(tag, 1, 1));
    ASSERT_OK(writer->AddScalar(tag, 2, 2));
    ASSERT_OK(writer->Close());
  }
  const std::string path = JoinPath(directory_, Names()[0]);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(Fs(), path));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    ASSERT_OK(WriteFileAtomically(Fs(), path, bad));
    ASSERT_OK_AND_ASSIGN(auto reader, EventReader::Open(Fs(), directory_));
    Status end;
    ReadAll(reader.get(), &end);
    EXPECT_STATUS(end, StatusCode::kDataLoss, path) << at;
    EXPECT_THAT(Scalars(ReadAll(reader.get(), &end)), ElementsAre("second=1", "second=2"));
    EXPECT_EQ(end.code(), StatusCode::kOutOfRange);

    Status alone, again;
    ASSERT_OK_AND_ASSIGN(auto one, EventReader::Open(Fs(), path));
    ReadAll(one.get(), &alone);
    ReadAll(one.get(), &again);
    EXPECT_EQ(alone.code(), StatusCode::kDataLoss);
    EXPECT_EQ(again, alone) << "of the last file it repeats";
  }
}

TEST_F(Events, ARecordThatIsNoEventIsNamed) {
  const std::string path = JoinPath(directory_, "x.tfevents");
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(directory_));
  ASSERT_OK_AND_ASSIGN(auto records, RecordWriter::Open(Fs(), path));
  ASSERT_OK(records->Write("\x0a\xff"));
  ASSERT_OK(records->Close());
  Status end;
  ReadAll(path, &end);
  EXPECT_STATUS(end, StatusCode::kDataLoss,
                "the record before 18 must be an Event message, got 2 bytes that are none");
}

TEST_F(Events, ADirectoryWithoutFilesIsReadWhenThereAreSome) {
  EXPECT_STATUS(EventReader::Open(Fs(), directory_), StatusCode::kNotFound, directory_);
  auto writer = OpenWriter();
  ASSERT_OK_AND_ASSIGN(auto reader, EventReader::Open(Fs(), directory_));
  EXPECT_STATUS(reader->Next(), StatusCode::kOutOfRange, "no more events");
  ASSERT_OK(writer->AddScalar("x", 1, 1));
  ASSERT_OK(writer->Flush());
  Status end;
  EXPECT_THAT(Scalars(ReadAll(reader.get(), &end)), ElementsAre("x=1"));
  ASSERT_OK(writer->AddScalar("x", 2, 2));
  ASSERT_OK(writer->Flush());
  EXPECT_THAT(Scalars(ReadAll(reader.get(), &end)), ElementsAre("x=2"));
}

TEST_F(Events, OfTensorFlowAreWrittenAgainByteForByte) {
  const std::string path = SharedDataPath("events/wandb_simple.tfevents");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no events/wandb_simple.tfevents";
  const std::vector<Event> events = ReadAll(path);
  ASSERT_EQ(events.size(), 105u);
  FakeClock clock(absl::FromUnixSeconds(1585769947));
  auto writer = OpenWriter({.clock = &clock});
  for (const Event& event : events) {
    if (event.has_file_version()) continue;
    ASSERT_OK(writer->AddEvent(event));
  }
  ASSERT_OK(writer->Close());
  ASSERT_OK_AND_ASSIGN(const std::string want, ReadFileToString(Fs(), path));
  ASSERT_OK_AND_ASSIGN(const std::string got,
                       ReadFileToString(Fs(), JoinPath(directory_, Names()[0])));
  EXPECT_TRUE(got == want) << got.size() << " bytes, TensorFlow's " << want.size();
}

}  // namespace
}  // namespace millrace
