// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist/model.h"

#include <algorithm>

#include "layers/dropout.h"
#include "layers/initial_values.h"
#include "ops/ops.h"
#include "saver/saved_model.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

constexpr int64_t kFilterSide = 5;
constexpr int64_t kFilters1 = 32;
constexpr int64_t kFilters2 = 64;
constexpr int64_t kHidden = 1024;
constexpr double kLearningRate = 1e-4;

// Convolution, bias, relu, pooling that halves both sides.
Output ConvolutionLayer(const Scope& outer, const std::string& name, Output input, int64_t channels,
                        int64_t filters) {
  const Scope scope = outer.WithSubScope(name);
  const Variable kernel =
      TruncatedNormalVariable(scope, "kernel", {kFilterSide, kFilterSide, channels, filters}, 0.1);
  const Variable bias = FilledVariable(scope, "bias", {static_cast<int32_t>(filters)}, 0.1f);
  const Output convolved = Conv2D(scope, input, kernel.value);
  const Output active = Relu(scope, BiasAdd(scope, convolved, bias.value));
  return MaxPool(scope, active);
}

}  // namespace

MnistModel BuildMnistModel(const Scope& outer, Output images, std::optional<Output> keep_prob) {
  const Scope scope = outer.WithSubScope("cnn");
  const Output square =
      Reshape(scope, images, Const<int32_t>(scope, {-1, kDigitSide, kDigitSide, 1}));
  const Output pool1 = ConvolutionLayer(scope, "convolution1", square, 1, kFilters1);
  const Output pool2 = ConvolutionLayer(scope, "convolution2", pool1, kFilters1, kFilters2);

  const Scope dense = scope.WithSubScope("fully_connected");
  const int64_t features = (kDigitSide / 4) * (kDigitSide / 4) * kFilters2;
  const Output flat =
      Reshape(dense, pool2, Const<int32_t>(dense, {-1, static_cast<int32_t>(features)}));
  const Variable w2 = TruncatedNormalVariable(dense, "kernel", {features, kHidden}, 1.0);
  const Variable b2 = FilledVariable(dense, "bias", {kHidden}, 0.1f);
  Output hidden = Relu(dense, BiasAdd(dense, MatMul(dense, flat, w2.value), b2.value));

  const Scope last = scope.WithSubScope("output");
  if (keep_prob) {
    hidden = Dropout(last, hidden, Sub(last, Const(last, 1.0f), *keep_prob));
  }
  const Variable w0 = FilledVariable(last, "kernel", {kHidden, kDigitClasses}, 0.0f);
  const Variable b0 = FilledVariable(last, "bias", {kDigitClasses}, 0.0f);
  MnistModel model;
  model.logits = BiasAdd(last, MatMul(last, hidden, w0.value), b0.value);
  model.probabilities = Softmax(last, model.logits);
  return model;
}

MnistTrainer BuildMnistTrainer(const Scope& scope) {
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
    trainer.train = AdamOptimizer({.learning_rate = kLearningRate})
                        .Minimize(optimizer, trainer.loss, {.global_step = trainer.global_step});
    trainer.step = StepAfter(optimizer, trainer.train, trainer.global_step);
  }
  const Scope evaluator = scope.WithSubScope("evaluator");
  const Output one = Const(evaluator, int32_t{1});
  const Output correct = Equal(evaluator, ArgMax(evaluator, model.probabilities, one),
                               ArgMax(evaluator, trainer.labels, one));
  trainer.accuracy = ReduceMean(evaluator.WithName("accuracy"), Cast(evaluator, correct, DT_FLOAT));
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
                                     {trainer.loss, trainer.accuracy}));
    score.loss += static_cast<double>(out[0].scalar<float>());
    score.accuracy += static_cast<double>(out[1].scalar<float>()) * static_cast<double>(count);
  }
  score.accuracy /= static_cast<double>(std::max<int64_t>(digits.size(), 1));
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
