// SPDX-License-Identifier: Apache-2.0
//
// A batch prediction by several tasks, which this process simulates: a task is killed, or stopped
// and goes on later, at every operation on files, while another one runs to its end. What is
// written must be what one process writes.
#include "tools/batch_predict_tasks.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/meta_graph.pb.h"
#include "saver/loaded_model.h"
#include "saver/model_signature.h"
#include "tools/batch_predict_job.h"
#include "tools/local_model.h"

// covers: serving: several tasks of a batch prediction write each row once, byte for byte as one
//   process, whichever is killed, or stopped and goes on, at any operation on files
// covers: serving: a task of a batch prediction says whom it waits for, gives up after the time
//   that a flag sets, and refuses to work with tasks of other options

namespace millrace {
namespace {

constexpr absl::Duration kTakeover = absl::Seconds(10), kMaxWait = absl::Minutes(1);

// Who sleeps moves the time.
class SleepersClock : public Clock {
 public:
  absl::Time Now() override { return now_; }
  bool WaitUntil(CondVar*, Mutex*, absl::Time) override { return true; }
  void SleepFor(absl::Duration duration) override {
    now_ += duration;
    if (on_sleep) on_sleep();
  }
  std::function<void()> on_sleep;

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// Real files that are not synced, which would take most of the time; before operation k that
// changes them, something else happens.
class InterruptedFileSystem : public FileSystem {
 public:
  InterruptedFileSystem(int64_t k, bool has_locks, std::function<void()> interrupt)
      : k_(k), has_locks_(has_locks), interrupt_(std::move(interrupt)) {}
  int64_t num_operations() const { return num_operations_; }

  StatusOr<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) override {
    Count();
    return Wrapped(base_->NewWritableFile(path));
  }
  StatusOr<std::unique_ptr<WritableFile>> NewAppendableFile(const std::string& path) override {
    Count();
    return Wrapped(base_->NewAppendableFile(path));
  }
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    Count();
    return Wrapped(base_->NewExclusiveFile(path));
  }
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    return base_->NewRandomAccessFile(path);
  }
  bool FileExists(const std::string& path) override { return base_->FileExists(path); }
  StatusOr<bool> IsDirectory(const std::string& path) override { return base_->IsDirectory(path); }
  StatusOr<uint64_t> GetFileSize(const std::string& path) override {
    return base_->GetFileSize(path);
  }
  StatusOr<double> GetModificationTime(const std::string& path) override {
    return base_->GetModificationTime(path);
  }
  StatusOr<std::vector<std::string>> GetChildren(const std::string& directory) override {
    return base_->GetChildren(directory);
  }
  Status CreateDirectory(const std::string& path) override {
    Count();
    return base_->CreateDirectory(path);
  }
  Status RecursivelyCreateDirectory(const std::string& path) override {
    Count();
    return base_->RecursivelyCreateDirectory(path);
  }
  Status DeleteFile(const std::string& path) override {
    Count();
    return base_->DeleteFile(path);
  }
  Status DeleteDirectory(const std::string& path) override {
    Count();
    return base_->DeleteDirectory(path);
  }
  Status RecursivelyDelete(const std::string& path) override {
    Count();
    return base_->RecursivelyDelete(path);
  }
  Status RenameFile(const std::string& source, const std::string& target) override {
    Count();
    return base_->RenameFile(source, target);
  }
  Status SyncDirectory(const std::string& directory) override {
    Count();
    return base_->IsDirectory(directory).status();
  }
  StatusOr<std::unique_ptr<FileLock>> TryLockFile(const std::string& path,
                                                  absl::string_view holder) override {
    Count();
    return has_locks_ ? base_->TryLockFile(path, holder) : FileSystem::TryLockFile(path, holder);
  }

 private:
  class File : public WritableFile {
   public:
    File(InterruptedFileSystem* fs, std::unique_ptr<WritableFile> base)
        : fs_(fs), base_(std::move(base)) {}
    Status Append(absl::string_view data) override {
      fs_->Count();
      return base_->Append(data);
    }
    Status Flush() override { return base_->Flush(); }
    Status Sync() override {
      fs_->Count();
      return base_->Flush();
    }
    Status Close() override {
      fs_->Count();
      return base_->Close();
    }

   private:
    InterruptedFileSystem* const fs_;
    std::unique_ptr<WritableFile> base_;
  };

  void Count() {
    if (++num_operations_ == k_) interrupt_();
  }
  StatusOr<std::unique_ptr<WritableFile>> Wrapped(StatusOr<std::unique_ptr<WritableFile>> file) {
    MR_RETURN_IF_ERROR(file.status());
    return std::make_unique<File>(this, *std::move(file));
  }

  FileSystem* const base_ = FileSystem::Posix();
  const int64_t k_;
  const bool has_locks_;
  const std::function<void()> interrupt_;
  int64_t num_operations_ = 0;
};

// y = -x; it refuses every batch with 13 in it.
struct NegativeModel {
  std::map<float, int> answered;                 // how often, by x
  std::function<Status(int call)> on_call = {};  // from 1 on

  LocalModel Model() {
    tensorflow::TensorInfo info;
    info.set_name("t:0");
    info.set_dtype(tensorflow::DT_FLOAT);
    info.mutable_tensor_shape()->add_dim()->set_size(-1);
    LocalModel model;
    model.inputs.emplace("x", SignatureTensor(info));
    model.outputs.emplace("y", SignatureTensor(info));
    model.predict = [this](const NamedTensors& inputs) -> StatusOr<NamedTensors> {
      if (on_call) MR_RETURN_IF_ERROR(on_call(++calls_));
      const absl::Span<const float> x = inputs.at("x").flat<float>();
      std::vector<float> y;
      for (const float value : x) {
        if (value == 13) return InvalidArgument("x must not be 13");
        y.push_back(-value);
      }
      for (const float value : x) ++answered[value];
      MR_ASSIGN_OR_RETURN(Tensor result,
                          Tensor::FromValues<float>(Shape{static_cast<int64_t>(y.size())}, y));
      return NamedTensors{{"y", std::move(result)}};
    };
    return model;
  }

 private:
  int calls_ = 0;
};

class BatchPredictTasksTest : public ::testing::Test {
 protected:
  using Files = std::map<std::string, std::string>;

  BatchPredictTasksTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("tasks_", RandomHexName()))),
        out_(JoinPath(dir_, "out")) {
    SetMinLogLevel(LogLevel::kError);
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir_));
    // Ten rows that are read, in parts of three: the second has a blank one and two bad ones.
    EXPECT_OK(
        WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), "1\n2\n3\n\n13\n[\n5\n6\n7\n8\n"));
    BatchPredictOptions alone = Options(JoinPath(dir_, "alone"));
    alone.task.reset();
    NegativeModel model;
    const StatusOr<BatchPredictSummary> summary = RunBatchPredict(alone, model.Model());
    EXPECT_OK(summary);
    EXPECT_EQ(summary.ok() ? summary->ToString() : "", "7 results and 2 errors");
    expected_ = Predictions(JoinPath(dir_, "alone"));
    EXPECT_EQ(expected_.size(), 4u);  // of both kinds, two shards
  }
  ~BatchPredictTasksTest() override { Fs()->RecursivelyDelete(dir_).IgnoreError(); }
  static FileSystem* Fs() { return FileSystem::Posix(); }

  BatchPredictOptions Options(const std::string& out, int index = 0, int num_tasks = 2) {
    BatchPredictOptions options = {.inputs = {JoinPath(dir_, "rows.json")},
                                   .output_directory = out,
                                   .num_shards = 2,
                                   .batch_size = 2,
                                   .part_rows = 3};
    options.task = {.index = index,
                    .num_tasks = num_tasks,
                    .name = absl::StrCat("task ", index),
                    .takeover = kTakeover,
                    .max_wait = kMaxWait};
    options.clock = &clock_;
    return options;
  }
  StatusOr<BatchPredictSummary> RunTask(int index, const std::string& out,
                                        FileSystem* files = nullptr) {
    NegativeModel model;
    BatchPredictOptions options = Options(out, index);
    options.file_system = files == nullptr ? &files_ : files;
    return RunBatchPredict(options, model.Model());
  }
  // The shards, by their names.
  static Files Predictions(const std::string& out) {
    Files files;
    const StatusOr<std::vector<std::string>> names = Fs()->GetChildren(out);
    EXPECT_OK(names);
    if (!names.ok()) return files;
    for (const std::string& name : *names) {
      if (!absl::StartsWith(name, "prediction.")) continue;
      const StatusOr<std::string> text = ReadFileToString(Fs(), JoinPath(out, name));
      EXPECT_OK(text);
      files[name] = text.value_or("");
    }
    return files;
  }

  const std::string dir_, out_;
  SleepersClock clock_;
  InterruptedFileSystem files_{/*k=*/0, /*has_locks=*/true, [] {}};
  Files expected_;
};

TEST_F(BatchPredictTasksTest, TheyShareTheRowsOut) {
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), "1\n2\n3\n4\n5\n6\n7\n8\n"));
  NegativeModel first, second;
  BatchPredictOptions options = Options(out_, 0), other = Options(out_, 1);
  options.part_rows = other.part_rows = 2;
  // While task 0 has the first part, task 1 does the second, and fails in the third.
  second.on_call = [](int call) {
    return call == 1 ? absl::OkStatus() : absl::UnavailableError("away");
  };
  first.on_call = [&](int call) -> Status {
    if (call > 1) return absl::OkStatus();
    EXPECT_STATUS(RunBatchPredict(other, second.Model()), absl::StatusCode::kUnavailable, "away");
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary, RunBatchPredict(options, first.Model()));
  EXPECT_EQ(summary.ToString(), "8 results and 0 errors; 6 by task 0 now");
  EXPECT_EQ(second.answered, (std::map<float, int>{{3, 1}, {4, 1}}));
  EXPECT_EQ(first.answered, (std::map<float, int>{{1, 1}, {2, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1}}));
  // What nobody needs any more is gone.
  EXPECT_FALSE(Fs()->FileExists(JoinPath(out_, ".batch_predict/parts")));
  EXPECT_FALSE(Fs()->FileExists(JoinPath(out_, ".batch_predict/claims")));
  // The other one, started again, asks nothing.
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary again, RunBatchPredict(other, second.Model()));
  EXPECT_EQ(again.ToString(),
            "8 results and 0 errors; 8 of these rows were done before; 0 by task 1 now");
}

TEST_F(BatchPredictTasksTest, ThreeAtOnceWriteWhatOneWrites) {
  std::vector<StatusOr<BatchPredictSummary>> summaries(3, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([this, i, &summaries] {
      NegativeModel model;
      BatchPredictOptions options = Options(out_, i, 3);
      options.clock = Clock::Real();
      options.task->takeover = absl::Minutes(10);
      options.task->max_wait = absl::Hours(1);
      summaries[static_cast<size_t>(i)] = RunBatchPredict(options, model.Model());
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t own = 0;
  for (const auto& summary : summaries) {
    ASSERT_OK(summary);
    EXPECT_EQ(summary->results, 7);
    EXPECT_EQ(summary->errors, 2);
    own += summary->own;
  }
  EXPECT_EQ(own, 9);
  EXPECT_EQ(Predictions(out_), expected_);
}

TEST_F(BatchPredictTasksTest, NoRowsAtAll) {
  ASSERT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, "rows.json"), "\n"));
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary, RunTask(0, out_));
  EXPECT_EQ(summary.ToString(), "0 results and 0 errors; 0 by task 0 now");
  EXPECT_EQ(Predictions(out_).size(), 4u);
}

TEST_F(BatchPredictTasksTest, KilledAtEveryStep) {
  int64_t num_operations = 0;
  {
    FaultyFileSystem files(&files_, out_);
    ASSERT_OK(RunTask(0, out_, &files));
    num_operations = files.num_operations();
  }
  EXPECT_EQ(Predictions(out_), expected_);
  for (int64_t k = 1; k <= num_operations; ++k) {
    for (const int next : {0, 1}) {
      SCOPED_TRACE(absl::StrCat("killed at operation ", k, ", then task ", next));
      const std::string out = JoinPath(dir_, absl::StrCat("out", k, "-", next));
      FaultyFileSystem files(&files_, out);
      files.FailOperation(k, absl::ResourceExhaustedError("killed"), /*sticky=*/true);
      // Only what is cleared away at the end, and what says that a claim is over, may fail unseen.
      const StatusOr<BatchPredictSummary> killed = RunTask(0, out, &files);
      if (!killed.ok()) {
        EXPECT_EQ(killed.status().code(), absl::StatusCode::kResourceExhausted);
      }
      ASSERT_OK(RunTask(next, out));
      EXPECT_EQ(Predictions(out), expected_);
      // The other one finds it done.
      ASSERT_OK_AND_ASSIGN(const BatchPredictSummary last, RunTask(1 - next, out));
      EXPECT_EQ(last.own, 0);
      EXPECT_EQ(last.done_before, 9);
      EXPECT_EQ(Predictions(out), expected_);
    }
  }
}

TEST_F(BatchPredictTasksTest, GoesOnAfterEveryCutOfThePower) {
  FaultyFileSystem files(&files_, out_);
  ASSERT_OK(RunTask(0, out_, &files));
  const std::string after = JoinPath(dir_, "after");
  for (int64_t cut = 0; cut <= files.num_operations(); ++cut) {
    for (const Loss loss : {Loss::kEverythingUnsynced, Loss::kRandom}) {
      SCOPED_TRACE(absl::StrCat("after operation ", cut, ", loss ", static_cast<int>(loss)));
      ASSERT_OK(files.RestoreCut(cut, loss, /*seed=*/static_cast<uint64_t>(cut), after));
      ASSERT_OK(RunTask(1, after));
      EXPECT_EQ(Predictions(after), expected_);
    }
  }
}

TEST_F(BatchPredictTasksTest, StoppedAtEveryStepWhileAnotherRunsToItsEnd) {
  for (const bool has_locks : {true, false}) {
    // Task 0 alone, to count.
    const std::string alone = JoinPath(dir_, absl::StrCat("count", has_locks));
    InterruptedFileSystem count(0, has_locks, [] {});
    ASSERT_OK(RunTask(0, alone, &count));
    for (int64_t k = 1; k <= count.num_operations(); ++k) {
      SCOPED_TRACE(absl::StrCat("stopped at operation ", k, has_locks ? "" : ", without locks"));
      const std::string out = JoinPath(dir_, absl::StrCat("out", k, "-", has_locks));
      InterruptedFileSystem others(0, has_locks, [] {});
      InterruptedFileSystem files(k, has_locks, [&] {
        const StatusOr<BatchPredictSummary> other = RunTask(1, out, &others);
        if (other.ok()) {
          EXPECT_EQ(Predictions(out), expected_);
        } else {
          // Task 0 has stopped with the lock: nobody else may write what it writes.
          EXPECT_TRUE(has_locks);
          EXPECT_STATUS(other.status(), absl::StatusCode::kDeadlineExceeded,
                        "held by task 0; start it again to go on");
        }
      });
      ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary, RunTask(0, out, &files));
      EXPECT_GE(files.num_operations(), k);
      EXPECT_EQ(summary.results, 7);
      EXPECT_EQ(summary.errors, 2);
      EXPECT_EQ(Predictions(out), expected_);
    }
  }
}

TEST_F(BatchPredictTasksTest, ATaskThatSleepsInAModelIsTakenOverFrom) {
  NegativeModel sleeper;
  sleeper.on_call = [&](int call) -> Status {
    if (call > 1) return absl::OkStatus();
    const absl::Time begun = clock_.Now();
    const StatusOr<BatchPredictSummary> other = RunTask(1, out_);
    EXPECT_OK(other);
    EXPECT_EQ(other.ok() ? other->own : -1, 9);
    EXPECT_GE(clock_.Now() - begun, kTakeover);
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary,
                       RunBatchPredict(Options(out_, 0), sleeper.Model()));
  EXPECT_EQ(summary.own, 0);
  EXPECT_EQ(summary.results, 7);
  EXPECT_EQ(Predictions(out_), expected_);
}

TEST_F(BatchPredictTasksTest, GivesUpOnATaskThatLivesAndDoesNothing) {
  NegativeModel idle;
  idle.on_call = [&](int call) -> Status {
    if (call > 1) return absl::OkStatus();
    // It beats while the other one sleeps.
    const std::string claim = JoinPath(out_, ".batch_predict/claims/rows-000000000000000.00000");
    clock_.on_sleep = [claim] {
      StatusOr<std::unique_ptr<WritableFile>> file = Fs()->NewAppendableFile(claim);
      ASSERT_OK(file);
      ASSERT_OK((*file)->Append("."));
      ASSERT_OK((*file)->Close());
    };
    const absl::Time begun = clock_.Now();
    const StatusOr<BatchPredictSummary> other = RunTask(1, out_);
    EXPECT_STATUS(other.status(), absl::StatusCode::kDeadlineExceeded,
                  "batch_predict: task 1 waited 1m for task 0 (rows 1 to 3); start it again");
    EXPECT_GE(ExitCode(other.status()), kExitRetryable);
    EXPECT_GE(clock_.Now() - begun, kMaxWait);
    clock_.on_sleep = nullptr;
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary,
                       RunBatchPredict(Options(out_, 0), idle.Model()));
  // Those of the first part; the other one has done the rest.
  EXPECT_EQ(summary.own, 3);
  EXPECT_EQ(Predictions(out_), expected_);
}

TEST_F(BatchPredictTasksTest, ATaskRunsOnce) {
  NegativeModel model;
  model.on_call = [&](int call) -> Status {
    if (call > 1) return absl::OkStatus();
    EXPECT_STATUS(RunTask(0, out_), absl::StatusCode::kUnavailable,
                  "batch_predict: task 0 must run once: ");
    return absl::OkStatus();
  };
  ASSERT_OK(RunBatchPredict(Options(out_, 0), model.Model()));
}

TEST_F(BatchPredictTasksTest, OtherOptionsThanTheOtherTasksAreRefused) {
  ASSERT_OK(RunTask(0, out_));
  NegativeModel model;
  const auto refused = [&](const BatchPredictOptions& options, const std::string& why) {
    EXPECT_STATUS(RunBatchPredict(options, model.Model()), absl::StatusCode::kFailedPrecondition,
                  why);
  };
  refused(Options(out_, 2, 3), "num_tasks: 2, not 3");
  BatchPredictOptions options = Options(out_, 1);
  options.part_rows = 4;
  refused(options, "part_rows: 3, not 4");
  options = Options(out_, 1);
  options.model = "another one";
  refused(options, "model: \"\", not \"another one\"");
  options = Options(out_, 1);
  options.task.reset();
  refused(options, "num_tasks: 2, not none");
  // A job that one process does alone takes no tasks.
  refused(Options(JoinPath(dir_, "alone"), 1), "num_tasks: none, not 2");
}

TEST_F(BatchPredictTasksTest, WrongTasksAreRefused) {
  NegativeModel model;
  EXPECT_STATUS(RunBatchPredict(Options(out_, 2, 2), model.Model()),
                absl::StatusCode::kInvalidArgument,
                "must be in [0, 2), the number of tasks, got 2");
  BatchPredictOptions options = Options(out_);
  options.task->max_wait = options.task->takeover;
  EXPECT_STATUS(RunBatchPredict(options, model.Model()), absl::StatusCode::kInvalidArgument,
                "the longest wait longer than it, got 10s and 10s");
}

}  // namespace
}  // namespace millrace
