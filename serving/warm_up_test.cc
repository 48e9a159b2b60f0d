// SPDX-License-Identifier: Apache-2.0

#include "serving/warm_up.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "proto/serving/regression.pb.h"
#include "runtime/session.h"
#include "saver/model_signature.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"
#include "serving/step_runner.h"
#include "serving/testing/test_model.h"

// covers: serving: a model's warm-up records are run before it serves; more than 1000, a failing, a
//   foreign and a cut one are errors that name it
// covers: serving: warm-up takes no place in a queue or batch

namespace millrace {
namespace {

using absl::StatusCode;
using tensorflow::serving::PredictionLog;

PredictionLog ClassifyRecord(const std::string& signature) {
  PredictionLog log;
  auto* const request = log.mutable_classify_log()->mutable_request();
  request->mutable_model_spec()->set_signature_name(signature);
  *request->mutable_input() = InputOf({1, 2});
  return log;
}

class WarmUpTest : public ServingTest {
 protected:
  void SetUp() override {
    ServingTest::SetUp();
    auto model = ServedModel::Load("flowers", 3, dir_);
    ASSERT_OK(model.status());
    model_ = *std::move(model);
    ASSERT_OK(fs_->RecursivelyCreateDirectory(JoinPath(dir_, "assets.extra")));
  }
  void Write(const std::vector<std::string>& records) {
    ASSERT_OK_AND_ASSIGN(const auto writer, RecordWriter::Open(fs_, path_));
    for (const std::string& record : records) ASSERT_OK(writer->Write(record));
    ASSERT_OK(writer->Close());
  }
  void Write(const std::vector<PredictionLog>& logs) {
    std::vector<std::string> records;
    for (const PredictionLog& log : logs) records.push_back(log.SerializeAsString());
    Write(records);
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string path_ = JoinPath(dir_, kWarmUpFile);
  std::unique_ptr<ServedModel> model_;
};

TEST_F(WarmUpTest, NoFileIsNoRecord) {
  ASSERT_OK_AND_ASSIGN(const int64_t records, WarmUp(*model_, dir_));
  EXPECT_EQ(records, 0);
}

TEST_F(WarmUpTest, EveryKindOfRequestIsRun) {
  std::vector<PredictionLog> logs(3);
  auto* const regression = logs[0].mutable_regress_log()->mutable_request();
  regression->mutable_model_spec()->set_signature_name("regress");
  *regression->mutable_input() = InputOf({1});
  auto* const inference = logs[1].mutable_multi_inference_log()->mutable_request();
  inference->add_tasks()->mutable_model_spec()->set_name("any");
  inference->mutable_tasks(0)->mutable_model_spec()->set_signature_name("classify_scores");
  inference->mutable_tasks(0)->set_method_name(kClassifyMethod);
  *inference->mutable_input() = InputOf({1});
  auto* const predict = logs[2].mutable_predict_log()->mutable_request();
  predict->mutable_model_spec()->set_signature_name("serving_default");
  for (const char* alias : {"x", "k"}) {
    auto& tensor = (*predict->mutable_inputs())[alias];
    tensor.set_dtype(tensorflow::DT_FLOAT);
    tensor.add_float_val(1);
  }
  auto* const shape = (*predict->mutable_inputs())["x"].mutable_tensor_shape();
  shape->add_dim()->set_size(1);
  shape->add_dim()->set_size(2);
  predict->add_output_filter("sum");
  logs.push_back(ClassifyRecord("classify"));
  logs.emplace_back();  // no request
  Write(logs);
  ASSERT_OK_AND_ASSIGN(const int64_t records, WarmUp(*model_, dir_, {.iterations = 2}));
  EXPECT_EQ(records, 5);
  EXPECT_EQ(model_->num_output_sets(), 1);  // the filter's
}

TEST_F(WarmUpTest, AFailingRecordIsNamedAndEndsIt) {
  Write(std::vector<PredictionLog>{ClassifyRecord("classify"), ClassifyRecord("nil")});
  const Status status = WarmUp(*model_, dir_).status();
  EXPECT_STATUS(
      status, StatusCode::kInvalidArgument,
      absl::StrCat("Warm-up record 1 of ", path_, ": No signature was found with the name: nil"));
}

// Refuses all steps.
class FullRunner : public StepRunner {
 public:
  Status Run(PreparedStep*, const StepBounds&, absl::Span<const Tensor>,
             absl::Span<Tensor>) override {
    return absl::ResourceExhaustedError("the queue is full");
  }
  void Forget(PreparedStep*) override {}
};

TEST_F(WarmUpTest, TakesNoPlaceOfAModelThatBatches) {
  Write(std::vector<PredictionLog>{ClassifyRecord("classify")});
  ServedModelOptions options;
  options.runner = std::make_shared<FullRunner>();
  ASSERT_OK_AND_ASSIGN(const auto batched, ServedModel::Load("flowers", 3, dir_, options));
  const PredictionLog log = ClassifyRecord("classify");
  tensorflow::serving::ClassificationResponse response;
  EXPECT_STATUS(batched->Classify(log.classify_log().request(), {}, &response),
                StatusCode::kResourceExhausted, "the queue is full");
  ASSERT_OK_AND_ASSIGN(const int64_t records, WarmUp(*batched, dir_));
  EXPECT_EQ(records, 1);
}

TEST_F(WarmUpTest, KindsThatNothingRunsAreNamed) {
  PredictionLog session_run, streamed;
  session_run.mutable_session_run_log();
  streamed.mutable_predict_streamed_log();
  Write(std::vector<PredictionLog>{session_run});
  EXPECT_STATUS(WarmUp(*model_, dir_).status(), StatusCode::kUnimplemented,
                "Unsupported log_type for warmup: 5 (session_run_log)");
  Write(std::vector<PredictionLog>{streamed});
  EXPECT_STATUS(WarmUp(*model_, dir_).status(), StatusCode::kUnimplemented,
                "Unsupported log_type for warmup: 7 (predict_streamed_log)");
}

TEST_F(WarmUpTest, AThousandRecordsAreTheMost) {
  std::vector<std::string> records(1000);  // empty messages
  Write(records);
  ASSERT_OK_AND_ASSIGN(const int64_t run, WarmUp(*model_, dir_));
  EXPECT_EQ(run, 1000);
  records.emplace_back();
  Write(records);
  EXPECT_STATUS(WarmUp(*model_, dir_).status(), StatusCode::kInvalidArgument,
                absl::StrCat("Number of warmup records exceeds the maximum (1000) at ", path_));
}

TEST_F(WarmUpTest, BytesThatAreNoRecordsAreNamed) {
  Write(std::vector<std::string>{"\xff\xff"});
  EXPECT_STATUS(WarmUp(*model_, dir_).status(), StatusCode::kInvalidArgument,
                absl::StrCat("Failed to parse warmup record: \\xff\\xff from ", path_));
  Write(std::vector<PredictionLog>{ClassifyRecord("classify"), ClassifyRecord("classify")});
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(fs_, path_));
  const size_t record = bytes.size() / 2;  // both are equal
  // Cut inside the second one, inside its length, inside the first one's; another file.
  for (const std::string& cut : {bytes.substr(0, bytes.size() - 3), bytes.substr(0, record + 5),
                                 bytes.substr(0, 7), std::string("these are no records at all")}) {
    ASSERT_OK(WriteFileAtomically(fs_, path_, cut));
    EXPECT_STATUS(WarmUp(*model_, dir_).status(), StatusCode::kDataLoss,
                  ". Please verify your warmup data is in TFRecord format.");
  }
}

// The model counts its steps.
TEST(SharedWarmUp, EachRecordRunsSoManyTimes) {
  const std::string shared = SharedDataPath("serving/saved_model_counter/00000123");
  if (shared.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_model_counter";
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const auto model, ServedModel::Load("counter", 123, shared));
  const std::string dir = JoinPath(::testing::TempDir(), absl::StrCat("warm_up_", RandomHexName()));
  ASSERT_OK(fs->RecursivelyCreateDirectory(JoinPath(dir, "assets.extra")));
  PredictionLog log;
  auto* const request = log.mutable_predict_log()->mutable_request();
  request->mutable_model_spec()->set_signature_name("incr_counter");
  {
    ASSERT_OK_AND_ASSIGN(const auto writer, RecordWriter::Open(fs, JoinPath(dir, kWarmUpFile)));
    for (int i = 0; i < 2; ++i) ASSERT_OK(writer->Write(log.SerializeAsString()));
    ASSERT_OK(writer->Close());
  }
  ASSERT_OK(WarmUp(*model, dir, {.iterations = 3}).status());
  request->mutable_model_spec()->set_signature_name("get_counter");
  tensorflow::serving::PredictResponse response;
  ASSERT_OK(model->Predict(*request, {}, &response));
  EXPECT_EQ(response.outputs().at("output").float_val(0), 6);
  EXPECT_OK(fs->RecursivelyDelete(dir));
}

}  // namespace
}  // namespace millrace
