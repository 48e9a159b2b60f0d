// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/replay_requests.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/logging.pb.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "proto/serving/regression.pb.h"
#include "serving/served_model.h"
#include "serving/testing/test_model.h"

// covers: serving: the last logged requests of a model are run on its next version, over several
//   files; a record that fails, is foreign, torn or of another model fails no load

namespace millrace {
namespace {

using tensorflow::serving::PredictionLog;

class ReplayRequestsTest : public ServingTest {
 protected:
  void SetUp() override {
    ServingTest::SetUp();
    ASSERT_OK_AND_ASSIGN(model_, ServedModel::Load("m", 1, dir_));
  }

  // Its signature says which it is: the log has no other mark.
  static std::string Record(const std::string& signature, const std::string& model = "m") {
    PredictionLog log;
    log.mutable_log_metadata()->mutable_model_spec()->set_name(model);
    auto* const request = log.mutable_regress_log()->mutable_request();
    request->mutable_model_spec()->set_name(model);
    request->mutable_model_spec()->set_signature_name(signature);
    *request->mutable_input() = InputOf({1, 2});
    return log.SerializeAsString();
  }
  void Write(int number, const std::vector<std::string>& records) {
    ASSERT_OK_AND_ASSIGN(const auto writer, RecordWriter::Open(fs_, PathOf(number)));
    for (const std::string& record : records) ASSERT_OK(writer->Write(record));
    ASSERT_OK(writer->Close());
  }
  std::string PathOf(int number) const {
    return absl::StrCat(prefix_, "-", absl::Dec(number, absl::kZeroPad8));
  }
  ReplayedRequests Replay(int64_t max_requests, const ReplayOptions& more = {}) {
    ReplayOptions options = more;
    options.max_requests = max_requests;
    return ReplayRequests(*model_, prefix_, options);
  }
  static int64_t Count(const ReplayedRequests& done, absl::StatusCode code) {
    const auto found = done.by_code.find(code);
    return found == done.by_code.end() ? 0 : found->second;
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string prefix_ = JoinPath(dir_, "requests.log");
  std::unique_ptr<ServedModel> model_;
};

TEST_F(ReplayRequestsTest, NoLogIsNothing) {
  EXPECT_EQ(Replay(10).num_run(), 0);
  EXPECT_OK(Replay(10).first_error);
  EXPECT_OK(ReplayRequests(*model_, JoinPath(dir_, "absent/log"), {}).first_error);
  EXPECT_EQ(ReplayRequests(*model_, "", {}).num_run(), 0);
}

TEST_F(ReplayRequestsTest, TheLastOnesRunOverSeveralFiles) {
  // The old ones would fail.
  Write(1, {Record("nil"), Record("nil"), Record("regress")});
  Write(2, {Record("regress"), Record("regress")});
  for (const auto& [max_requests, num_failed] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {2, 0}, {3, 0}, {4, 1}, {5, 2}, {99, 2}}) {
    const ReplayedRequests done = Replay(max_requests);
    const int64_t num_run = std::min<int64_t>(max_requests, 5);
    EXPECT_EQ(done.num_run(), num_run);
    EXPECT_EQ(Count(done, absl::StatusCode::kOk), num_run - num_failed) << max_requests;
    EXPECT_EQ(Count(done, absl::StatusCode::kInvalidArgument), num_failed) << max_requests;
    EXPECT_EQ(done.num_unreadable, 0);
    EXPECT_EQ(done.first_error.ok(), num_failed == 0) << done.first_error;
  }
  // Files that need not be read are not.
  ASSERT_OK(WriteFileAtomically(fs_, PathOf(1), std::string(100, 'x')));
  EXPECT_OK(Replay(2).first_error);
  EXPECT_FALSE(Replay(3).first_error.ok());
}

TEST_F(ReplayRequestsTest, OtherModelsOfThePrefixArePassedOver) {
  Write(1, {Record("regress"), Record("nil", "n"), Record("regress"), Record("nil", "n")});
  const ReplayedRequests done = Replay(10);
  EXPECT_EQ(done.num_run(), 2);
  EXPECT_EQ(Count(done, absl::StatusCode::kOk), 2);
}

TEST_F(ReplayRequestsTest, WhatCannotBeReadIsCounted) {
  Write(1, {Record("regress")});
  Write(2, {"\xff\xff", Record("regress")});
  ASSERT_OK(fs_->RecursivelyCreateDirectory(PathOf(3)));
  const ReplayedRequests done = Replay(10);
  EXPECT_EQ(Count(done, absl::StatusCode::kOk), 2);
  // The record that is none, and the directory.
  EXPECT_EQ(done.num_unreadable, 2);
  EXPECT_FALSE(done.first_error.ok());
}

// As a process leaves it that was killed, or one that is just writing.
TEST_F(ReplayRequestsTest, ATornEndIsNoError) {
  Write(1, {Record("regress"), Record("regress")});
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(fs_, PathOf(1)));
  for (const size_t cut : {size_t{1}, size_t{20}, bytes.size() / 2 - 4}) {
    ASSERT_OK(WriteFileAtomically(fs_, PathOf(1),
                                  absl::string_view(bytes).substr(0, bytes.size() - cut)));
    const ReplayedRequests done = Replay(10);
    EXPECT_EQ(Count(done, absl::StatusCode::kOk), 1) << cut;
    EXPECT_OK(done.first_error);
  }
}

TEST_F(ReplayRequestsTest, BytesAndBoundsEndIt) {
  Write(1, {Record("nil"), Record("regress"), Record("regress")});
  const auto size = static_cast<int64_t>(Record("regress").size());
  EXPECT_EQ(Replay(10, {.max_bytes = 2 * size}).num_run(), 2);
  EXPECT_EQ(Replay(10, {.max_bytes = 2 * size - 1}).num_run(), 1);
  // Those that are too large by themselves are passed over: "nil" is four letters shorter.
  EXPECT_EQ(Count(Replay(10, {.max_bytes = size - 1}), absl::StatusCode::kInvalidArgument), 1);
  EXPECT_EQ(Replay(10, {.max_bytes = size - 5}).num_run(), 0);

  // Both others are there, of two files.
  Write(1, {Record("regress")});
  Write(2, {Record(std::string(static_cast<size_t>(2 * size), 'x')), Record("regress")});
  const ReplayedRequests both = Replay(10, {.max_bytes = 2 * size});
  EXPECT_EQ(both.num_run(), 2);
  EXPECT_EQ(Count(both, absl::StatusCode::kOk), 2);
  const ReplayedRequests late = Replay(10, {.bounds = {.deadline = absl::Now()}});
  EXPECT_EQ(late.num_run(), 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.first_error)) << late.first_error;
  CancellationManager cancelled;
  cancelled.StartCancel();
  EXPECT_TRUE(absl::IsCancelled(Replay(10, {.bounds = {.cancellation = &cancelled}}).first_error));
}

}  // namespace
}  // namespace millrace
