// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/wire_model.h"

#include <utility>

#include "absl/time/time.h"
#include "data/dataset.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/input_fn.h"
#include "estimator/mode.h"
#include "estimator/model_graph.h"
#include "estimator/params.h"
#include "estimator/run_config.h"
#include "examples/census/model.h"
#include "examples/census/people.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

// Batches of census that are made before the first step, and then repeated.
constexpr int64_t kKeptBatches = 8;
constexpr int64_t kClasses = 10;
constexpr absl::Duration kAwaitTasks = absl::Seconds(60);

// Numbers with some variety; the values do not matter.
Tensor Spread(const Shape& shape) {
  Tensor tensor = *Tensor::Zeros(DT_FLOAT, shape);
  size_t i = 0;
  for (float& v : tensor.mutable_flat<float>()) {
    v = static_cast<float>(i++ * 37 % 101) / 101 - 0.5f;
  }
  return tensor;
}

void BuildLinear(const Scope& scope, int64_t batch, WireModel* model) {
  const Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
  const Output y = Placeholder(scope.WithName("y"), DT_FLOAT, {-1});
  const Variable step = GlobalStep(scope);
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, 0.0f));
  const Variable b = MakeVariable(scope.WithName("b"), Const(scope, 0.0f));
  const Output predicted = Add(scope, Mul(scope, w.value, x), b.value);
  model->loss = ReduceMean(scope.WithName("loss"), Square(scope, Sub(scope, predicted, y)));
  model->train = GradientDescentOptimizer({.learning_rate = 0.1})
                     .Minimize(scope, model->loss, {.global_step = step});
  model->step = StepAfter(scope.WithName("step_after"), model->train, step);
  model->inputs = {x, y};
  model->batch = {Spread(Shape{batch}), Spread(Shape{batch})};
}

struct CnnSizes {
  int64_t side, filters1, filters2, window, hidden;
};
constexpr CnnSizes kCnn = {.side = 12, .filters1 = 8, .filters2 = 16, .window = 3, .hidden = 64};
// examples/mnist.
constexpr CnnSizes kDigits = {
    .side = 28, .filters1 = 32, .filters2 = 64, .window = 5, .hidden = 1024};

void BuildCnn(const Scope& scope, const CnnSizes& sizes, int64_t batch, WireModel* model) {
  const Output images =
      Placeholder(scope.WithName("images"), DT_FLOAT, {-1, sizes.side, sizes.side, 1});
  const Output labels = Placeholder(scope.WithName("labels"), DT_FLOAT, {-1, kClasses});
  const Variable step = GlobalStep(scope);
  const auto half = [&scope](const Output& x) {
    return MaxPooling2D(scope, x, 2, {.padding = "same"});
  };
  const Conv2DLayerAttrs attrs = {.padding = "same", .activation = Relu};
  const Output first = half(Conv2D(scope, images, sizes.filters1, sizes.window, attrs));
  const Output second = half(Conv2D(scope, first, sizes.filters2, sizes.window, attrs));
  const Output hidden = Dense(scope, Flatten(scope, second), sizes.hidden, {.activation = Relu});
  const Output logits = Dense(scope, hidden, kClasses);
  model->loss =
      ReduceMean(scope.WithName("loss"), SoftmaxCrossEntropyWithLogits(scope, logits, labels).loss);
  model->train =
      AdamOptimizer({.learning_rate = 1e-4}).Minimize(scope, model->loss, {.global_step = step});
  model->step = StepAfter(scope.WithName("step_after"), model->train, step);
  model->inputs = {images, labels};
  Tensor classes = *Tensor::Zeros(DT_FLOAT, Shape{batch, kClasses});
  for (int64_t i = 0; i < batch; ++i) {
    classes.mutable_flat<float>()[static_cast<size_t>(i * kClasses + i % kClasses)] = 1;
  }
  model->batch = {Spread(Shape{batch, sizes.side, sizes.side, 1}), std::move(classes)};
}

// As the Estimator trains it, without its loop.
StatusOr<WireModel> MakeCensus(int64_t batch, const std::string& tf_config) {
  // Nothing is written there: there is no loop that would.
  const RunConfigFields fields = {.model_dir = "census_model", .tf_random_seed = 1};
  MR_ASSIGN_OR_RETURN(const RunConfig config, RunConfig::Make(fields, tf_config));
  const census::ModelOptions options;
  const Estimator income = census::IncomeModel(options, config);
  MR_RETURN_IF_ERROR(income.status());
  EstimatorParts parts;
  parts.model_fn = income.model_fn();
  parts.model_dir = income.model_dir();
  parts.config = income.config();
  const InputFn people = census::People(
      {.rows = census::DrawPeople(kKeptBatches * batch, 1),
       .num_epochs = 1,
       .batch_size = batch,
       .prepare = [options](const data::Dataset& rows) { return census::WithIds(options, rows); }});
  const InputFn kept = [&people](const Scope& scope, Mode mode, const Params& params,
                                 const RunConfig& run) -> StatusOr<Input> {
    MR_ASSIGN_OR_RETURN(const Input once, people(InputFnCall{scope, mode, params, run}));
    return Input(once.dataset()->Cache().Repeat(), once.columns());
  };
  MR_ASSIGN_OR_RETURN(const ModelGraph graph, BuildModelGraph(parts, Mode::kTrain, kept));
  WireModel model;
  model.root = graph.root;
  model.dataset = graph.iterator;
  model.loss = graph.spec.loss;
  model.step = graph.global_step.value;
  model.train = graph.spec.train_op;
  return model;
}

StatusOr<WireModel> MakeFed(absl::string_view name, int64_t batch, const std::string& tf_config) {
  MR_ASSIGN_OR_RETURN(const ClusterConfig cluster, ClusterConfig::Parse(tf_config));
  WireModel model;
  const Scope scope = model.root.WithDevice(ReplicaDeviceSetter(cluster));
  if (name == "linear") {
    BuildLinear(scope, batch, &model);
  } else {
    BuildCnn(scope, name == "cnn" ? kCnn : kDigits, batch, &model);
  }
  return model;
}

}  // namespace

std::vector<Feed> WireModel::Feeds() const {
  std::vector<Feed> feeds;
  for (size_t i = 0; i < inputs.size(); ++i) feeds.emplace_back(inputs[i], batch[i]);
  return feeds;
}

StatusOr<WireModel> MakeWireModel(absl::string_view name, int64_t batch,
                                  const std::string& tf_config) {
  if (batch < 1) return InvalidArgument("MakeWireModel: batch must be >= 1, got ", batch);
  if (name != "linear" && name != "census" && name != "cnn" && name != "digits") {
    return InvalidArgument("MakeWireModel: model must be linear, census, cnn or digits, got '",
                           name, "'");
  }
  MR_ASSIGN_OR_RETURN(WireModel model, name == "census" ? MakeCensus(batch, tf_config)
                                                        : MakeFed(name, batch, tf_config));
  model.init = GlobalVariablesInitializer(model.root);
  model.tables = TablesInitializer(model.root);
  MR_RETURN_IF_ERROR(model.root.status());
  return model;
}

StatusOr<std::unique_ptr<Session>> BeginWireModel(const WireModel& model,
                                                  const std::string& target) {
  SessionOptions options;
  options.target = target;
  options.creation_timeout = kAwaitTasks;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(model.root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {model.init, model.tables}).status());
  if (model.dataset) {
    const data::InitializableIterator& dataset = *model.dataset;
    MR_RETURN_IF_ERROR(
        session->Run({{dataset.dataset, dataset.feed}}, {}, {dataset.initializer}).status());
  }
  return session;
}

StatusOr<std::unique_ptr<PreparedStep>> PrepareWireStep(const WireModel& model, Session* session) {
  const std::vector<FetchName> feeds(model.inputs.begin(), model.inputs.end());
  return session->Prepare(feeds, {model.loss, model.step}, {model.train});
}

}  // namespace millrace
