// SPDX-License-Identifier: Apache-2.0
//
// Models whose requests are batched: ServedModel with a runner, and what a runner hears of steps.

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/input.pb.h"
#include "runtime/session.h"
#include "serving/aliased_tensor.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batching.h"
#include "serving/run_step.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"
#include "serving/step_runner.h"
#include "serving/testing/test_model.h"

// covers: serving: batched requests to a model get their own answers, from Predict and Classify;
//   a model's own batching_params.pbtxt counts for it alone; the runner forgets each step that goes

namespace millrace {
namespace {

using absl::StatusCode;

class BatchedModelTest : public ServingTest {
 protected:
  std::unique_ptr<ServedModel> LoadWith(std::shared_ptr<StepRunner> runner,
                                        int max_output_sets = 64) {
    ServedModelOptions options;
    options.max_output_sets = max_output_sets;
    options.runner = std::move(runner);
    auto model = ServedModel::Load("flowers", 3, dir_, options);
    EXPECT_OK(model.status());
    return model.ok() ? *std::move(model) : nullptr;
  }
  std::unique_ptr<ServedModel> LoadBatched(const BatchingOptions& options) {
    const auto batching = Batching::Create(options);
    EXPECT_OK(batching.status());
    const auto runner = (*batching)->RunnerOf("a test", dir_);
    EXPECT_OK(runner.status());
    return LoadWith(*runner);
  }
  // -x, by the signature whose output is Neg(x).
  static void ExpectNegative(const ServedModel& model, float value) {
    const std::vector<AliasedTensor> inputs = {
        {"inputs", TensorOf<float>({1, 2}, {value, value + 1})}};
    const auto outputs = model.PredictTensors("regress_x", inputs, {}, {}, PredictCaller::kGrpc);
    ASSERT_OK(outputs.status());
    ExpectTensorEqual((*outputs)[0].tensor, TensorOf<float>({1, 2}, {-value, -value - 1}));
  }
  static void ExpectScore(const ServedModel& model, float value) {
    tensorflow::serving::ClassificationRequest request;
    request.mutable_model_spec()->set_signature_name("classify");
    *request.mutable_input() = InputOf({value});
    tensorflow::serving::ClassificationResponse response;
    ASSERT_OK(model.Classify(request, {}, &response));
    ASSERT_EQ(response.result().classifications_size(), 1);
    EXPECT_EQ(response.result().classifications(0).classes(0).score(), 2 * value + 1);
  }
  static void AskFromManyThreads(const ServedModel& model) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&model, i] {
        for (int k = 0; k < 25; ++k) {
          const auto value = static_cast<float>(100 * i + k);
          ExpectNegative(model, value);
          ExpectScore(model, value);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_F(BatchedModelTest, EachRequestGetsItsOwnAnswerByWhatWaits) {
  const auto model = LoadBatched({.max_running = 1});
  ASSERT_NE(model, nullptr);
  AskFromManyThreads(*model);
}

TEST_F(BatchedModelTest, EachRequestGetsItsOwnAnswerByParameters) {
  const auto model = LoadBatched({.parameters = BatchParameters{.max_batch_size = 8,
                                                                .max_enqueued_batches = 100,
                                                                .num_batch_threads = 2,
                                                                .allowed_batch_sizes = {2, 8},
                                                                .max_execution_batch_size = 8}});
  ASSERT_NE(model, nullptr);
  AskFromManyThreads(*model);
}

// k of serving_default is a scalar.
TEST_F(BatchedModelTest, ScalarInputsRunAloneAndByParametersAreRefusedAsByTensorFlowServing) {
  const std::vector<AliasedTensor> inputs = {{"x", TensorOf<float>({1, 2}, {1, 2})},
                                             {"k", TensorOf<float>({}, {10})}};
  const auto alone = LoadBatched({});
  ASSERT_NE(alone, nullptr);
  EXPECT_OK(alone->PredictTensors("", inputs, {}, {}, PredictCaller::kGrpc).status());
  const auto model = LoadBatched({.parameters = BatchParameters{}});
  ASSERT_NE(model, nullptr);
  EXPECT_STATUS(model->PredictTensors("", inputs, {}, {}, PredictCaller::kGrpc),
                StatusCode::kInvalidArgument,
                "Batching Run() input tensors must have at least one dimension");
}

TEST_F(BatchedModelTest, AVersionsOwnFileCountsForItAlone) {
  ASSERT_OK_AND_ASSIGN(const auto batching, Batching::Create({.per_model = true}));
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<StepRunner> runner, batching->RunnerOf("a test", dir_));
  EXPECT_EQ(runner, nullptr);
  const std::string file = JoinPath(dir_, kBatchParametersFile);
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), file, "max_batch_size { value: 1 }"));
  ASSERT_OK_AND_ASSIGN(runner, batching->RunnerOf("a test", dir_));
  const auto model = LoadWith(runner);
  ASSERT_NE(model, nullptr);
  ExpectNegative(*model, 1);
  const std::vector<AliasedTensor> inputs = {{"inputs", TensorOf<float>({2, 2}, {1, 2, 3, 4})}};
  EXPECT_STATUS(model->PredictTensors("regress_x", inputs, {}, {}, PredictCaller::kGrpc),
                StatusCode::kInvalidArgument,
                "Task size 2 is larger than maximum input batch size 1");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), file, "allowed_batch_sizes: 3"));
  EXPECT_STATUS(batching->RunnerOf("a test", dir_), StatusCode::kInvalidArgument,
                "batching_params.pbtxt': Last entry in allowed_batch_sizes must match");
}

// Knows the steps that ran and are not forgotten.
class RememberingRunner : public StepRunner {
 public:
  Status Run(PreparedStep* step, const StepBounds& bounds, absl::Span<const Tensor> feeds,
             absl::Span<Tensor> results) override {
    {
      MutexLock lock(&mu_);
      steps_.insert(step);
    }
    return RunStep(step, bounds, feeds, results);
  }
  void Forget(PreparedStep* step) override {
    MutexLock lock(&mu_);
    steps_.erase(step);
  }
  size_t num_steps() {
    MutexLock lock(&mu_);
    return steps_.size();
  }

 private:
  Mutex mu_;
  std::set<PreparedStep*> steps_ ABSL_GUARDED_BY(mu_);
};

TEST_F(BatchedModelTest, TheRunnerForgetsEachStepThatGoes) {
  const auto runner = std::make_shared<RememberingRunner>();
  {
    const auto model = LoadWith(runner, /*max_output_sets=*/1);
    ASSERT_NE(model, nullptr);
    const std::vector<AliasedTensor> inputs = {{"x", TensorOf<float>({1, 2}, {1, 2})},
                                               {"k", TensorOf<float>({}, {10})}};
    const auto ask = [&](const std::vector<std::string>& filter) {
      EXPECT_OK(model->PredictTensors("", inputs, filter, {}, PredictCaller::kGrpc).status());
    };
    ask({});
    EXPECT_EQ(runner->num_steps(), 1u);
    ask({"sum"});
    EXPECT_EQ(runner->num_steps(), 2u);
    ask({"product"});  // in the place of the one before
    EXPECT_EQ(runner->num_steps(), 2u);
  }
  EXPECT_EQ(runner->num_steps(), 0u);
}

}  // namespace
}  // namespace millrace
