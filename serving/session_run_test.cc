// SPDX-License-Identifier: Apache-2.0
#include "serving/session_run.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"
#include "proto/named_tensor.pb.h"
#include "proto/serving/session_service.pb.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"
#include "serving/testing/test_model.h"

// covers: serving: SessionRun runs any part of a version's graph by names or by aliases

namespace millrace {
namespace {

using absl::StatusCode;
using tensorflow::serving::SessionRunRequest;
using tensorflow::serving::SessionRunResponse;

constexpr int64_t kMaxSplatBytes = 1 << 20;

void Feed(const std::string& name, const Tensor& value, SessionRunRequest* request) {
  tensorflow::NamedTensorProto* const feed = request->add_feed();
  feed->set_name(name);
  EXPECT_OK(TensorToProto(value, feed->mutable_tensor()));
}

class SessionRunTest : public ServingTest {
 protected:
  void SetUp() override {
    ServingTest::SetUp();
    ASSERT_OK_AND_ASSIGN(model_, ServedModel::Load("flowers", 3, dir_));
  }
  Status Ask(const SessionRunRequest& request, const StepBounds& bounds = {}) {
    return SessionRun(*model_, request, bounds, kMaxSplatBytes, &response_);
  }

  std::unique_ptr<ServedModel> model_;
  SessionRunResponse response_;
};

TEST_F(SessionRunTest, RunsByNamesOfTheGraphAndByAliases) {
  SessionRunRequest request;
  request.mutable_model_spec()->set_name("asked");
  Feed("x:0", TensorOf<float>({1, 2}, {1, 2}), &request);
  Feed("k:0", TensorOf<float>({}, {10}), &request);
  request.add_fetch("sum:0");
  request.add_fetch("product:0");
  ASSERT_OK(Ask(request));
  ASSERT_EQ(response_.tensor_size(), 2);
  EXPECT_EQ(response_.tensor(0).name(), "sum:0");
  EXPECT_EQ(response_.tensor(0).tensor().float_val(1), 12);
  EXPECT_EQ(response_.tensor(1).tensor().float_val(1), 20);
  EXPECT_EQ(response_.model_spec().name(), "asked");
  EXPECT_EQ(response_.model_spec().version().value(), 3);
  EXPECT_FALSE(response_.has_metadata());

  request.mutable_options()->set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  ASSERT_OK(Ask(request));
  EXPECT_GT(response_.metadata().step_stats().dev_stats_size(), 0);

  SessionRunRequest by_alias;
  by_alias.set_tensor_name_is_alias(true);
  Feed("x", TensorOf<float>({1, 2}, {1, 2}), &by_alias);
  Feed("k", TensorOf<float>({}, {10}), &by_alias);
  by_alias.add_fetch("sum");
  ASSERT_OK(Ask(by_alias));
  EXPECT_EQ(response_.tensor(0).name(), "sum");
  EXPECT_EQ(response_.tensor(0).tensor().float_val(1), 12);
}

TEST_F(SessionRunTest, WhatCannotBeIsRefused) {
  SessionRunRequest unknown;
  unknown.add_fetch("nobody:0");
  EXPECT_STATUS(Ask(unknown), StatusCode::kNotFound, "nobody");
  EXPECT_EQ(response_.ByteSizeLong(), 0u);

  SessionRunRequest no_alias;
  no_alias.set_tensor_name_is_alias(true);
  no_alias.add_fetch("sum:0");
  EXPECT_STATUS(Ask(no_alias), StatusCode::kInvalidArgument,
                "must be an alias of a dense tensor of the signature, got 'sum:0'");
  no_alias.mutable_model_spec()->set_signature_name("nil");
  EXPECT_STATUS(Ask(no_alias), StatusCode::kFailedPrecondition,
                "Serving signature key \"nil\" not found.");

  SessionRunRequest broken;
  Feed("x:0", TensorOf<float>({1, 2}, {1, 2}), &broken);
  broken.mutable_feed(0)->mutable_tensor()->set_tensor_content("abc");
  broken.add_fetch("x:0");
  EXPECT_STATUS(Ask(broken), StatusCode::kInvalidArgument, "tensor parsing error: x:0");

  SessionRunRequest splat;
  tensorflow::TensorProto* const proto = splat.add_feed()->mutable_tensor();
  proto->set_dtype(tensorflow::DT_FLOAT);
  proto->mutable_tensor_shape()->add_dim()->set_size(int64_t{1} << 40);
  proto->add_float_val(1);
  EXPECT_STATUS(Ask(splat), StatusCode::kResourceExhausted, "that the feeds do not list");
}

TEST_F(SessionRunTest, HeedsItsBounds) {
  SessionRunRequest request;
  request.add_fetch("words:0");
  EXPECT_STATUS(Ask(request, {.deadline = absl::Now() - absl::Seconds(1)}),
                StatusCode::kDeadlineExceeded, "");
  CancellationManager cancellation;
  cancellation.StartCancel();
  EXPECT_STATUS(Ask(request, {.cancellation = &cancellation}), StatusCode::kCancelled, "");
  EXPECT_OK(Ask(request));
}

// TensorFlow Serving's own: a variable that one signature reads and others change.
TEST(SessionRun, ChangesAVariableOfTensorFlowsCounter) {
  const std::string path = SharedDataPath("serving/saved_model_counter/00000123");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_model_counter";
  ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("counter", 123, path));
  const auto count = [&](const std::string& signature) -> float {
    SessionRunRequest request;
    request.mutable_model_spec()->set_signature_name(signature);
    request.set_tensor_name_is_alias(true);
    const auto& outputs = model->signatures().at(signature).outputs();
    request.add_fetch(outputs.begin()->first);
    SessionRunResponse response;
    EXPECT_OK(SessionRun(*model, request, {}, kMaxSplatBytes, &response));
    const auto tensor = TensorFromProto(response.tensor(0).tensor());
    return tensor.ok() ? tensor->flat<float>()[0] : -1;
  };
  const float before = count("get_counter");
  count("incr_counter");
  EXPECT_EQ(count("get_counter"), before + 1);
}

}  // namespace
}  // namespace millrace
