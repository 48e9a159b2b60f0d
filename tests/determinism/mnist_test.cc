// SPDX-License-Identifier: Apache-2.0
// A training run gives the same weights, bit for bit, on any number of threads.
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "examples/mnist/digits.h"
#include "examples/mnist/model.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "runtime/session.h"

// covers: values: the digit network's weights after 100 steps do not depend on the number of
//   threads

namespace millrace {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int kSteps = 100;
constexpr int64_t kBatch = 20;

struct Weights {
  std::vector<std::string> names;
  std::vector<Tensor> values;  // of all variables, Adam's among them
};

// Trains with dropout, as the example does.
StatusOr<Weights> Train(int num_threads) {
  Scope root;
  root.SetGraphSeed(kSeed);
  const MnistTrainer trainer = BuildMnistTrainer(root);
  const Operation init = GlobalVariablesInitializer(root);
  MR_RETURN_IF_ERROR(root.status());
  SessionOptions options;
  options.config.intra_op_parallelism_threads = num_threads;
  options.config.inter_op_parallelism_threads = num_threads;
  options.config.use_per_session_threads = true;
  MR_ASSIGN_OR_RETURN(auto session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  const Digits digits = DrawDigits(300, kSeed);
  BatchIterator batches(&digits, kSeed);
  for (int step = 0; step < kSteps; ++step) {
    MR_ASSIGN_OR_RETURN(DigitBatch batch, batches.Next(kBatch));
    MR_RETURN_IF_ERROR(session
                           ->Run({{trainer.images, std::move(batch.images)},
                                  {trainer.labels, std::move(batch.labels)},
                                  {trainer.keep_prob, Tensor::Scalar<float>(0.5f)}},
                                 {trainer.loss}, {trainer.train})
                           .status());
  }
  Weights weights;
  std::vector<FetchName> fetches;
  for (const Variable& variable : VariablesOf(root)) {
    weights.names.push_back(variable.value.name());
    fetches.push_back(variable.value);
  }
  MR_ASSIGN_OR_RETURN(weights.values, session->Run({}, fetches));
  return weights;
}

TEST(MnistDeterminismTest, WeightsAfterAHundredStepsDoNotDependOnTheThreads) {
  const StatusOr<Weights> alone = Train(1);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_GE(alone->values.size(), 8u * 3u);
  for (const int num_threads : {2, 4, 8}) {
    const StatusOr<Weights> shared = Train(num_threads);
    ASSERT_TRUE(shared.ok()) << shared.status();
    ASSERT_EQ(shared->names, alone->names);
    for (size_t i = 0; i < alone->values.size(); ++i) {
      EXPECT_TRUE(shared->values[i].bytes() == alone->values[i].bytes())
          << alone->names[i] << " on " << num_threads << " threads";
    }
  }
}

}  // namespace
}  // namespace millrace
