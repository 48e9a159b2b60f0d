// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/request_log.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "proto/serving/regression.pb.h"
#include "saver/model_signature.h"
#include "serving/aliased_tensor.h"
#include "serving/model_requests.h"
#include "serving/model_versions.h"
#include "serving/monitoring/sampling.h"
#include "serving/servable.h"
#include "serving/served_model.h"
#include "serving/testing/test_model.h"
#include "serving/warm_up.h"

// covers: serving: the log of a model's requests is sampled, rotated, bounded and readable, and
// warms
//   a version up; a full queue drops records, counts them and holds up no request

namespace millrace {
namespace {

namespace serving = tensorflow::serving;
using serving::PredictionLog;
using Paths = std::vector<std::string>;

class RequestLogTest : public ::testing::Test {
 protected:
  RequestLogTest()
      : base_(JoinPath(::testing::TempDir(), "request_log_" + RandomHexName())),
        counts_(registry_.AddCounter({"logged", "", {"model_name", "status_code"}})) {}
  ~RequestLogTest() override { files_->RecursivelyDelete(base_).IgnoreError(); }
  void SetUp() override {
    ASSERT_OK(files_->RecursivelyCreateDirectory(JoinPath(base_, "m")));
    ASSERT_OK(ExportTestModel(JoinPath(base_, "m/1")));
  }

  std::vector<ModelSettings> Models(double rate) {
    ModelSettings model;
    model.name = "m";
    model.base_path = JoinPath(base_, "m");
    model.request_log = {rate, JoinPath(base_, "logs/m")};
    return {model};
  }
  void StartLog(RequestLogOptions options = {}) {
    requests_.reset();
    log_.reset();
    auto log = RequestLog::Start(versions_, counts_, options);
    ASSERT_OK(log);
    log_ = *std::move(log);
    requests_ = std::make_unique<ModelRequests>(versions_, absl::Minutes(1), log_);
  }
  void Start(double rate, RequestLogOptions options = {}) {
    ModelVersions::Options versions;
    versions.loader = [](const VersionToLoad& version,
                         CancellationManager*) -> StatusOr<std::shared_ptr<Servable>> {
      MR_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model,
                          ServedModel::Load(version.model, version.version, version.directory));
      return std::shared_ptr<Servable>(std::move(model));
    };
    versions.source.trust_new_versions = true;
    versions.poll_period = absl::ZeroDuration();
    auto created = ModelVersions::Create(std::move(versions));
    ASSERT_OK(created);
    versions_ = *std::move(created);
    ASSERT_OK(versions_->SetModels(Models(rate)));
    ASSERT_TRUE(versions_->WaitUntilTried(absl::InfiniteFuture()).empty());
    StartLog(options);
  }

  static serving::PredictRequest PredictOf(const std::string& signature = "") {
    serving::PredictRequest request;
    request.mutable_model_spec()->set_name("m");
    request.mutable_model_spec()->set_signature_name(signature);
    EXPECT_OK(TensorToContentProto(Tensor::Of<float>({{1, 2}}), &(*request.mutable_inputs())["x"]));
    EXPECT_OK(TensorToContentProto(Tensor::Scalar(2.0f), &(*request.mutable_inputs())["k"]));
    return request;
  }
  Status Predict(const std::string& signature = "") {
    serving::PredictResponse response;
    return requests_->Predict(PredictOf(signature), {}, &response);
  }
  int64_t Logged(const std::string& code) { return counts_->Find({"m", code})->value(); }

  Paths LogFiles() {
    const StatusOr<Paths> names = files_->GetChildren(JoinPath(base_, "logs"));
    return names.value_or(Paths());  // no folder: none
  }
  std::vector<PredictionLog> Records(const std::string& name) {
    std::vector<PredictionLog> logs;
    auto reader = RecordReader::Open(files_, JoinPath(base_, "logs/" + name));
    EXPECT_OK(reader);
    if (!reader.ok()) return logs;
    for (;;) {
      const StatusOr<absl::string_view> record = (*reader)->Next();
      if (!record.ok()) {
        EXPECT_TRUE(absl::IsOutOfRange(record.status())) << record.status();
        return logs;
      }
      EXPECT_TRUE(logs.emplace_back().ParseFromString(std::string(*record)));
    }
  }

  FileSystem* const files_ = FileSystem::Posix();
  const std::string base_;
  MetricRegistry registry_;
  MetricValues* const counts_;
  std::shared_ptr<ModelVersions> versions_;
  std::shared_ptr<RequestLog> log_;
  std::unique_ptr<ModelRequests> requests_;
};

TEST_F(RequestLogTest, RecordsAreReadableAndWarmAModelUp) {
  Start(1);
  ASSERT_OK(Predict());
  EXPECT_FALSE(Predict("of nobody").ok());  // is not logged: it would fail a warm-up
  serving::ClassificationRequest classify;
  classify.mutable_model_spec()->set_name("m");
  classify.mutable_model_spec()->set_signature_name("classify_scores");
  *classify.mutable_input() = InputOf({1, 2});
  serving::ClassificationResponse classified;
  ASSERT_OK(requests_->Classify(classify, {}, &classified));
  serving::RegressionRequest regress;
  regress.mutable_model_spec()->set_name("m");
  regress.mutable_model_spec()->set_signature_name("regress");
  *regress.mutable_input() = InputOf({1});
  serving::RegressionResponse regressed;
  ASSERT_OK(requests_->Regress(regress, {}, &regressed));
  serving::MultiInferenceRequest multi;
  serving::InferenceTask* const task = multi.add_tasks();
  *task->mutable_model_spec() = regress.model_spec();
  task->set_method_name(kRegressMethod);
  *multi.mutable_input() = InputOf({1});
  serving::MultiInferenceResponse results;
  ASSERT_OK(requests_->MultiInference(multi, {}, &results));
  log_->Stop();

  ASSERT_EQ(LogFiles(), Paths({"m-00000001"}));
  const std::vector<PredictionLog> logs = Records("m-00000001");
  ASSERT_EQ(logs.size(), 4u);
  EXPECT_EQ(logs[0].predict_log().request().SerializeAsString().size(),
            PredictOf().SerializeAsString().size());
  EXPECT_EQ(logs[0].predict_log().response().outputs().size(), 3);  // product, sum, words
  EXPECT_EQ(logs[0].log_metadata().model_spec().name(), "m");
  EXPECT_EQ(logs[0].log_metadata().model_spec().version().value(), 1);
  EXPECT_EQ(logs[0].log_metadata().sampling_config().sampling_rate(), 1);
  EXPECT_GT(logs[0].log_metadata().timestamp_secs(), 0);
  EXPECT_EQ(logs[1].classify_log().response().DebugString(), classified.DebugString());
  EXPECT_EQ(logs[2].regress_log().request().DebugString(), regress.DebugString());
  EXPECT_TRUE(logs[3].has_multi_inference_log());
  EXPECT_EQ(Logged("OK"), 4);

  const std::string warm_up = JoinPath(base_, absl::StrCat("w/", kWarmUpFile));
  ASSERT_OK(files_->RecursivelyCreateDirectory(Dirname(warm_up)));
  ASSERT_OK(files_->RenameFile(JoinPath(base_, "logs/m-00000001"), warm_up));
  const auto model = ServedModel::Load("m", 1, JoinPath(base_, "m/1"));
  ASSERT_OK(model);
  const StatusOr<int64_t> run = WarmUp(**model, JoinPath(base_, "w"));
  ASSERT_OK(run);
  EXPECT_EQ(*run, 4);
}

// What a front has as tensors becomes messages.
TEST_F(RequestLogTest, RequestsOfTensorsAreLogged) {
  Start(1);
  auto model = requests_->Pin("m", {}, {});
  ASSERT_OK(model);
  const std::vector<AliasedTensor> inputs = {{"x", Tensor::Of<float>({{1, 2}})}};
  const std::vector<AliasedTensor> outputs = {{"y", Tensor::Scalar(3.0f)}};
  RequestRecord record;
  record.model = "m";
  record.signature = "s";
  record.served = &**model;
  record.inputs = inputs;
  record.outputs = outputs;
  serving::PredictRequest rest;  // what the front knows but for the inputs
  rest.mutable_model_spec()->set_name("m");
  rest.mutable_model_spec()->set_signature_name("s");
  rest.mutable_model_spec()->set_version_label("stable");
  rest.add_output_filter("y");
  record.request = &rest;
  log_->Ended(record);
  log_->Stop();
  const std::vector<PredictionLog> logs = Records("m-00000001");
  ASSERT_EQ(logs.size(), 1u);
  const serving::PredictLog& log = logs[0].predict_log();
  EXPECT_EQ(log.request().model_spec().signature_name(), "s");
  EXPECT_EQ(log.response().model_spec().version().value(), 1);
  const StatusOr<Tensor> x = TensorFromProto(log.request().inputs().at("x"));
  ASSERT_OK(x);
  EXPECT_EQ(x->dim(1), 2);
  EXPECT_TRUE(log.response().outputs().contains("y"));
  EXPECT_EQ(log.request().output_filter(0), "y");
  EXPECT_EQ(log.request().model_spec().version_label(), "stable");
}

TEST_F(RequestLogTest, FilesAreRotatedAndTheOldestDeleted) {
  RequestLogOptions options;
  options.max_file_bytes = 1;  // a record each
  options.max_files = 3;
  Start(1, options);
  for (int i = 0; i < 5; ++i) ASSERT_OK(Predict());
  log_->Flush();
  EXPECT_EQ(LogFiles(), Paths({"m-00000003", "m-00000004", "m-00000005"}));
  EXPECT_EQ(Records("m-00000005").size(), 1u);
  // Another process goes on behind them, and keeps its hands off other files.
  const std::string other = JoinPath(base_, "logs/m-other");
  ASSERT_OK(WriteFileAtomically(files_, other, ""));
  StartLog(options);
  ASSERT_OK(Predict());
  log_->Stop();
  EXPECT_EQ(LogFiles(), Paths({"m-00000004", "m-00000005", "m-00000006", "m-other"}));
  EXPECT_EQ(Logged("OK"), 6);
}

TEST_F(RequestLogTest, AnotherListOfModelsChangesWhatIsLogged) {
  Start(0);
  ASSERT_OK(Predict());
  log_->Flush();
  EXPECT_TRUE(LogFiles().empty());
  ASSERT_OK(versions_->SetModels(Models(1)));
  ASSERT_OK(Predict());
  log_->Flush();
  EXPECT_EQ(Records("m-00000001").size(), 1u);
  ASSERT_OK(versions_->SetModels(Models(0)));
  ASSERT_OK(Predict());
  log_->Stop();
  EXPECT_EQ(Records("m-00000001").size(), 1u);
  EXPECT_EQ(Logged("OK"), 1);
}

// No record fits into this queue.
TEST_F(RequestLogTest, AFullQueueDropsAndCounts) {
  RequestLogOptions options;
  options.max_queue_bytes = 1;
  Start(1, options);
  for (int i = 0; i < 3; ++i) ASSERT_OK(Predict());
  log_->Stop();
  EXPECT_TRUE(LogFiles().empty());
  EXPECT_EQ(Logged("RESOURCE_EXHAUSTED"), 3);
  EXPECT_EQ(Logged("OK"), 0);
}

// Without a response it cannot be copied, which would count as INTERNAL.
TEST_F(RequestLogTest, WhatDoesNotFitIsNotEvenCopied) {
  const serving::PredictRequest request = PredictOf();
  RequestLogOptions options;
  options.max_queue_bytes = static_cast<int64_t>(request.ByteSizeLong()) - 1;
  Start(1, options);
  auto model = requests_->Pin("m", {}, {});
  ASSERT_OK(model);
  RequestRecord record;
  record.model = "m";
  record.served = &**model;
  record.request = &request;
  log_->Ended(record);
  // The same for a front's tensors.
  const std::vector<AliasedTensor> inputs = {{"x", *Tensor::Zeros(DT_FLOAT, Shape{1000})}};
  record.request = nullptr;
  record.inputs = inputs;
  log_->Ended(record);
  log_->Stop();
  EXPECT_EQ(Logged("RESOURCE_EXHAUSTED"), 2);
  EXPECT_EQ(Logged("INTERNAL"), 0);
}

// Its files take what is written, and have no room for it when it is flushed.
class FullDisk : public FaultyFileSystem {
 public:
  explicit FullDisk(const std::string& root) : FaultyFileSystem(FileSystem::Posix(), root) {}
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    MR_RETURN_IF_ERROR(FaultyFileSystem::NewExclusiveFile(path).status());
    return std::unique_ptr<WritableFile>(std::make_unique<File>());
  }

 private:
  class File : public WritableFile {
   public:
    Status Append(absl::string_view) override { return absl::OkStatus(); }
    Status Flush() override { return absl::ResourceExhaustedError("no space left"); }
    Status Sync() override { return Flush(); }
    Status Close() override { return Flush(); }
  };
};

TEST_F(RequestLogTest, WhatIsNotFlushedIsNotCountedOk) {
  for (const int64_t max_file_bytes : {int64_t{1}, int64_t{1} << 20}) {  // closed, flushed
    FullDisk disk(JoinPath(base_, "logs"));
    RequestLogOptions options;
    options.max_file_bytes = max_file_bytes;
    options.file_system = &disk;
    Start(1, options);
    const int64_t before = Logged("RESOURCE_EXHAUSTED");
    for (int i = 0; i < 3; ++i) ASSERT_OK(Predict());
    log_->Flush();
    EXPECT_EQ(Logged("RESOURCE_EXHAUSTED") - before, 3);
    EXPECT_EQ(Logged("OK"), 0);
    requests_.reset();
    log_.reset();  // before its disk
  }
}

TEST_F(RequestLogTest, AFullDiskTakesNoOldFileAway) {
  RequestLogOptions options;
  options.max_file_bytes = 1;  // a record each
  options.max_files = 2;
  Start(1, options);
  for (int i = 0; i < 2; ++i) ASSERT_OK(Predict());
  log_->Stop();
  const Paths kept = {"m-00000001", "m-00000002"};
  EXPECT_EQ(LogFiles(), kept);
  FullDisk disk(JoinPath(base_, "logs"));
  options.file_system = &disk;
  StartLog(options);
  for (int i = 0; i < 3; ++i) ASSERT_OK(Predict());
  log_->Stop();
  EXPECT_EQ(LogFiles(), kept);
  EXPECT_EQ(Records("m-00000001").size(), 1u);
  EXPECT_EQ(Logged("OK"), 2);
  requests_.reset();
  log_.reset();  // before its disk
  // There is room again.
  options.file_system = files_;
  StartLog(options);
  ASSERT_OK(Predict());
  log_->Stop();
  EXPECT_EQ(LogFiles(), Paths({"m-00000002", "m-00000003"}));
}

// Each record closes the other prefix' file.
TEST_F(RequestLogTest, AFileThatWasClosedForOthersGoesOn) {
  RequestLogOptions options;
  options.max_open_files = 1;
  options.max_files = 2;
  Start(1, options);
  std::vector<ModelSettings> models = Models(1);
  models.push_back(models[0]);
  models[1].name = "n";
  models[1].request_log.filename_prefix = JoinPath(base_, "logs/n");
  ASSERT_OK(versions_->SetModels(models));
  auto model = requests_->Pin("m", {}, {});
  ASSERT_OK(model);
  RequestRecord record;
  record.served = &**model;
  for (int i = 0; i < 3; ++i) {
    for (const char* name : {"m", "n"}) {
      record.model = name;
      log_->Ended(record);
    }
  }
  log_->Stop();
  EXPECT_EQ(LogFiles(), Paths({"m-00000001", "n-00000001"}));
  EXPECT_EQ(Records("m-00000001").size(), 3u);
  EXPECT_EQ(Records("n-00000001").size(), 3u);
  EXPECT_EQ(Logged("OK"), 3);
}

TEST_F(RequestLogTest, AFileThatCannotBeWrittenHoldsUpNothing) {
  Start(1);
  // Where its folder would be.
  ASSERT_OK(WriteFileAtomically(files_, JoinPath(base_, "logs"), ""));
  for (int i = 0; i < 3; ++i) ASSERT_OK(Predict());
  log_->Stop();
  EXPECT_EQ(Logged("OK"), 0);
  int64_t failed = 0;
  for (const auto& [labels, cell] : counts_->cells()) failed += cell->value();
  EXPECT_EQ(failed, 3);
  ASSERT_OK(Predict());  // after its end
}

// A process that was killed: readers end at the torn record.
TEST_F(RequestLogTest, ATornEndIsSkipped) {
  Start(1);
  for (int i = 0; i < 2; ++i) ASSERT_OK(Predict());
  log_->Stop();
  const std::string path = JoinPath(base_, "logs/m-00000001");
  const StatusOr<std::string> bytes = ReadFileToString(files_, path);
  ASSERT_OK(bytes);
  ASSERT_OK(
      WriteFileAtomically(files_, path, absl::string_view(*bytes).substr(0, bytes->size() - 3)));
  auto reader = RecordReader::Open(files_, path);
  ASSERT_OK(reader);
  EXPECT_OK((*reader)->Next());
  EXPECT_STATUS((*reader)->Next(), absl::StatusCode::kDataLoss, "truncated record");
  EXPECT_TRUE((*reader)->is_cut());
}

TEST(SamplingTest, RatesHold) {
  int sampled = 0;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(IsSampled(0));
    EXPECT_TRUE(IsSampled(1));
    sampled += IsSampled(0.5) ? 1 : 0;
  }
  // Twenty standard deviations (50) on both sides.
  EXPECT_GT(sampled, 4000);
  EXPECT_LT(sampled, 6000);
}

}  // namespace
}  // namespace millrace
