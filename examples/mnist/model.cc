// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist/model.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "layers/layers.h"
#include "ops/ops.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/optimizer.h"
#include "train/sync_replicas.h"

namespace millrace {
namespace {

constexpr int64_t kFilterSide = 5;
constexpr int64_t kFilters1 = 32;
constexpr int64_t kFilters2 = 64;
constexpr int64_t kHidden = 1024;
constexpr double kLearningRate = 1e-4;

// Convolution, bias, relu, pooling that halves both sides.
Output ConvolutionBlock(const Scope& scope, const std::string& name, const Output& input,
                        int64_t filters, Variable* kernel) {
  const ConvolutionLayer active =
      Conv2D(scope.WithName(name), input, filters, kFilterSide,
             {.padding = "same",
              .activation = Relu,
              .kernel_initializer = TruncatedNormalInitializer({.stddev = 0.1}),
              .bias_initializer = ConstantInitializer(0.1)});
  *kernel = active.kernel;
  return MaxPooling2D(scope, active, 2, {.padding = "same"});
}

}  // namespace

MnistModel BuildMnistModel(const Scope& outer, Output images, std::optional<Output> keep_prob) {
  const Scope scope = outer.WithSubScope("cnn");
  const Output square =
      Reshape(scope, images, Const<int32_t>(scope, {-1, kDigitSide, kDigitSide, 1}));
  MnistModel model;
  const Output pool1 = ConvolutionBlock(scope, "convolution1", square, kFilters1, &model.filters1);
  const Output pool2 = ConvolutionBlock(scope, "convolution2", pool1, kFilters2, &model.filters2);
  Output hidden = Dense(scope.WithName("fully_connected"), Flatten(scope, pool2), kHidden,
                        {.activation = Relu,
                         .kernel_initializer = TruncatedNormalInitializer(),
                         .bias_initializer = ConstantInitializer(0.1)});
  if (keep_prob) hidden = DropoutByKeepProb(scope, hidden, *keep_prob);
  model.logits = Dense(scope.WithName("output"), hidden, kDigitClasses,
                       {.kernel_initializer = ZerosInitializer()});
  model.probabilities = Softmax(scope, model.logits);
  return model;
}

MnistTrainer BuildMnistTrainer(const Scope& scope, int64_t sync) {
  MnistTrainer trainer;
  trainer.images = Placeholder(scope.WithName("images"), DT_FLOAT, {-1, kDigitPixels});
  trainer.labels = Placeholder(scope.WithName("labels"), DT_FLOAT, {-1, kDigitClasses});
  trainer.keep_prob = PlaceholderWithDefault(scope.WithName("keep_prob"), Const(scope, 1.0f),
                                             PartialShape::Scalar());
  trainer.global_step = GlobalStep(scope);
  const MnistModel model = BuildMnistModel(scope, trainer.images, trainer.keep_prob);
  {
    const Scope optimizer = scope.WithSubScope("optimizer");
    trainer.loss =
        ReduceSum(optimizer.WithName("loss"),
                  SoftmaxCrossEntropyWithLogits(optimizer, model.logits, trainer.labels).loss);
    std::shared_ptr<Optimizer> adam =
        std::make_shared<AdamOptimizer>(AdamOptions{.learning_rate = kLearningRate});
    if (sync > 0) {
      adam = std::make_shared<SyncReplicasOptimizer>(
          std::move(adam), SyncReplicasOptions{.replicas_to_aggregate = sync});
    }
    trainer.train = adam->Minimize(optimizer, trainer.loss, {.global_step = trainer.global_step});
    trainer.step = StepAfter(optimizer, trainer.train, trainer.global_step);
  }
  const Scope evaluator = scope.WithSubScope("evaluator");
  const Output one = Const(evaluator, int32_t{1});
  const Output correct = Equal(evaluator, ArgMax(evaluator, model.probabilities, one),
                               ArgMax(evaluator, trainer.labels, one));
  trainer.accuracy = ReduceMean(evaluator.WithName("accuracy"), Cast(evaluator, correct, DT_FLOAT));
  const Output images = Size(evaluator, ArgMax(evaluator, trainer.labels, one));
  trainer.mean_loss =
      RealDiv(evaluator.WithName("mean_loss"), trainer.loss, Cast(evaluator, images, DT_FLOAT));
  return trainer;
}

StatusOr<MnistScore> Evaluate(Session* session, const MnistTrainer& trainer, const Digits& digits,
                              int64_t batch_size) {
  MnistScore score;
  for (int64_t begin = 0; begin < digits.size(); begin += batch_size) {
    const int64_t count = std::min(batch_size, digits.size() - begin);
    MR_ASSIGN_OR_RETURN(DigitBatch batch, MakeBatch(digits, begin, count));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        session->Run({{trainer.images, std::move(batch.images)},
                                      {trainer.labels, std::move(batch.labels)}},
                                     {trainer.mean_loss, trainer.accuracy}));
    score.mean_loss += static_cast<double>(out[0].scalar<float>()) * static_cast<double>(count);
    score.accuracy += static_cast<double>(out[1].scalar<float>()) * static_cast<double>(count);
  }
  const double images = static_cast<double>(std::max<int64_t>(digits.size(), 1));
  score.mean_loss /= images;
  score.accuracy /= images;
  return score;
}

Status ExportMnist(const std::string& checkpoint, const std::string& directory) {
  Scope root;
  const Output images = Placeholder(root.WithName("image"), DT_FLOAT, {-1, kDigitPixels});
  const Output key = Placeholder(root.WithName("key"), DT_INT64, {-1});
  const MnistModel model = BuildMnistModel(root, images, std::nullopt);
  const Output scores = Identity(root.WithName("scores"), model.probabilities);
  const Output prediction =
      ArgMax(root.WithName("prediction"), model.probabilities, Const(root, int32_t{1}));
  const Output key_out = Identity(root.WithName("key_out"), key);
  MR_RETURN_IF_ERROR(root.status());

  MR_ASSIGN_OR_RETURN(auto saver, Saver::Make(root, {.sharded = false}));
  MR_ASSIGN_OR_RETURN(auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(saver->Restore(session.get(), checkpoint));
  MR_ASSIGN_OR_RETURN(auto builder, SavedModelBuilder::Open(directory));
  MR_ASSIGN_OR_RETURN(
      const auto signature,
      PredictSignatureDef(root, {{"image", images}, {"key", key}},
                          {{"scores", scores}, {"prediction", prediction}, {"key", key_out}}));
  MR_RETURN_IF_ERROR(builder->AddMetaGraphAndVariables(
      session.get(), root, saver.get(), {.signatures = {{kDefaultServingSignature, signature}}}));
  MR_RETURN_IF_ERROR(builder->Save());
  return session->Close();
}

}  // namespace millrace
