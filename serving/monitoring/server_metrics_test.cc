// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/server_metrics.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/process_metrics.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "serving/served_model.h"
#include "serving/testing/test_model.h"

// covers: serving: requests are counted by TensorFlow Serving's names, and by version and
// signature;
//   the series of a version go with it; no client makes series

namespace millrace {
namespace {

using absl::StrContains;

class ServerMetricsTest : public ServingTest {
 protected:
  std::unique_ptr<ServedModel> Load(int64_t version) {
    StatusOr<std::unique_ptr<ServedModel>> model = ServedModel::Load("m", version, dir_);
    EXPECT_OK(model);
    if (!model.ok()) return nullptr;
    (*model)->set_note(metrics_.NoteOf(**model, absl::Seconds(2)));
    return *std::move(model);
  }
  static RequestRecord RecordOf(const ServedModel* served) {
    RequestRecord record;
    record.origin.entrypoint = RequestEntrypoint::kGrpc;
    record.model = "m";
    record.served = served;
    record.latency = absl::Microseconds(20);
    record.run_time = absl::Microseconds(9);
    return record;
  }

  ServerMetrics metrics_;
};

TEST_F(ServerMetricsTest, CountsByModelVersionAndSignature) {
  const std::unique_ptr<ServedModel> model = Load(3);
  ASSERT_NE(model, nullptr);
  RequestRecord record = RecordOf(model.get());
  metrics_.Began(*model);
  metrics_.Began(*model);
  EXPECT_EQ(metrics_.num_running(), 2);
  EXPECT_EQ(metrics_.num_running("m", 3), 2);
  EXPECT_EQ(metrics_.num_running("m", 4), 0);
  metrics_.Ended(record);
  record.api = RequestApi::kClassify;
  record.signature = "classify";
  record.num_examples = 3;
  record.status = absl::InvalidArgumentError("x");
  metrics_.Ended(record);
  EXPECT_EQ(metrics_.num_running(), 0);
  // A name that the model does not have makes no series.
  metrics_.Began(*model);
  record.signature = "of nobody";
  record.num_examples = 0;
  metrics_.Ended(record);

  const std::string page = metrics_.Page();
  for (const char* line : {
           ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 1\n",
           ":tensorflow:serving:request_count{model_name=\"m\",status=\"INVALID_ARGUMENT\"} 2\n",
           // 20 us are above 18 and not above 32.4.
           ":tensorflow:serving:request_latency_bucket{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"GRPC\",le=\"18\"} 0\n",
           ":tensorflow:serving:request_latency_bucket{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"GRPC\",le=\"32.4\"} 1\n",
           ":tensorflow:serving:request_latency_sum{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"GRPC\"} 20\n",
           ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"GRPC\"} 1\n",
           ":tensorflow:serving:runtime_latency_bucket{model_name=\"m\",API=\"Predict\","
           "runtime=\"TF1\",le=\"10\"} 1\n",
           ":tensorflow:serving:request_example_counts_bucket{model=\"m\",le=\"2\"} 0\n",
           ":tensorflow:serving:request_example_counts_bucket{model=\"m\",le=\"4\"} 1\n",
           ":tensorflow:serving:request_example_count_total{model=\"m\"} 3\n",
           "millrace_requests_total{model_name=\"m\",version=\"3\",signature=\"serving_default\","
           "status=\"OK\"} 1\n",
           "millrace_requests_total{model_name=\"m\",version=\"3\",signature=\"classify\","
           "status=\"INVALID_ARGUMENT\"} 1\n",
           "millrace_requests_total{model_name=\"m\",version=\"3\",signature=\"\","
           "status=\"INVALID_ARGUMENT\"} 1\n",
           "millrace_request_latency_seconds_count{model_name=\"m\",version=\"3\","
           "signature=\"classify\"} 1\n",
           "millrace_requests_running{model_name=\"m\",version=\"3\"} 0\n",
           "millrace_version_load_seconds{model_name=\"m\",version=\"3\"} 2\n",
       }) {
    EXPECT_TRUE(StrContains(page, line)) << line << page;
  }
  EXPECT_FALSE(StrContains(page, "of nobody")) << page;
  // Both that failed have no latency there.
  EXPECT_FALSE(StrContains(page, "request_latency_count{model_name=\"m\",API=\"Classify\""))
      << page;
}

TEST_F(ServerMetricsTest, SeriesOfAVersionGoWithIt) {
  std::unique_ptr<ServedModel> old = Load(3);
  const std::unique_ptr<ServedModel> next = Load(4);
  ASSERT_NE(old, nullptr);
  ASSERT_NE(next, nullptr);
  for (ServedModel* model : {old.get(), next.get()}) {
    metrics_.Began(*model);
    metrics_.Ended(RecordOf(model));
  }
  EXPECT_TRUE(StrContains(metrics_.Page(), "version=\"3\""));
  old.reset();
  const std::string page = metrics_.Page();
  EXPECT_FALSE(StrContains(page, "version=\"3\"")) << page;
  EXPECT_TRUE(StrContains(page, "version=\"4\"")) << page;
  // Of both.
  EXPECT_TRUE(
      StrContains(page, ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 2\n"))
      << page;
}

// There is no list of models here, so the name is no model's.
TEST_F(ServerMetricsTest, UnknownModelsCountTogether) {
  for (const char* name : {"a", "b"}) {
    RequestRecord record = RecordOf(nullptr);
    record.model = name;
    record.run_time = absl::ZeroDuration();
    record.status = absl::NotFoundError("x");
    metrics_.Ended(record);
  }
  const std::string page = metrics_.Page();
  EXPECT_TRUE(StrContains(
      page, ":tensorflow:serving:request_count{model_name=\"\",status=\"NOT_FOUND\"} 2\n"))
      << page;
  EXPECT_FALSE(StrContains(page, "runtime_latency_bucket")) << page;
}

TEST_F(ServerMetricsTest, CountsBatchesWarmUpsAndWaits) {
  const auto batching = metrics_.BatchingOf("pool");
  batching->LeftQueue(3, absl::Microseconds(100));
  batching->RanBatch(4, 1);
  metrics_.WarmedUp({"m", 1, "/models/m/1"}, absl::OkStatus(), absl::Microseconds(10), 5);
  metrics_.AddWaiting([] { return 2; });
  metrics_.AddWaiting([] { return 3; });
  EXPECT_EQ(metrics_.num_waiting(), 5);
  const std::string before = metrics_.Page();
  for (const char* line : {
           ":tensorflow:serving:batching_session:queuing_latency_bucket{thread_pool_name=\"pool\","
           "le=\"100\"} 1\n",
           ":tensorflow:serving:batching_session:input_batch_size_sum{thread_pool_name=\"pool\"} "
           "3\n",
           ":tensorflow:serving:batching_session:processed_batch_size_sum{thread_pool_name="
           "\"pool\"} 4\n",
           ":tensorflow:serving:batching_session:padding_size_sum{thread_pool_name=\"pool\"} 1\n",
           ":tensorflow:serving:batching_session:wrapped_run_count 1\n",
           "millrace_requests_waiting 5\n",
       }) {
    EXPECT_TRUE(StrContains(before, line)) << line << before;
  }
  // No version of that directory is there any more.
  EXPECT_FALSE(StrContains(before, "/models/m/1")) << before;
  EXPECT_GT(ProcessResidentBytes(), 0);
  EXPECT_GT(ProcessCpuSeconds(), 0);
}

}  // namespace
}  // namespace millrace
