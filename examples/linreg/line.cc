// SPDX-License-Identifier: Apache-2.0
#include "examples/linreg/line.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/clock.h"
#include "core/tensor.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "layers/losses.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "train/adam.h"
#include "train/hooks/progress_hook.h"
#include "train/metrics.h"

namespace millrace {
namespace {

constexpr double kSlope = 0.8;
constexpr double kIntercept = 1;

}  // namespace

EstimatorSpec Line(const Scope& scope, const Features& features, const Labels& labels, Mode mode) {
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, 0.1f));
  const Variable b = MakeVariable(scope.WithName("b"), Const(scope, 0.1f));
  const Output line = Add(scope, Mul(scope, w.value, features["x"]), b.value);
  EstimatorSpec spec = {.mode = mode, .predictions = line};
  if (mode == Mode::kPredict) return spec;

  spec.loss = MeanSquaredError(scope, labels, line);
  if (mode == Mode::kEval) {
    spec.eval_metric_ops = {{"mse", metrics::MeanSquaredError(scope, labels, line)}};
    return spec;
  }
  spec.training_hooks = {std::make_shared<ProgressHook>(ProgressHookOptions{.loss = spec.loss})};
  spec.train_op = AdamOptimizer().Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

InputFn Points(const PointsOptions& options) {
  return [options](const RunConfig& config) -> StatusOr<Input> {
    const uint64_t task =
        std::hash<std::string>()(config.task_type()) * 31 + static_cast<uint64_t>(config.task_id());
    const data::GeneratorFactory rows = [options, task](auto*) -> StatusOr<data::Generator> {
      auto random = std::make_shared<std::mt19937_64>(options.seed * 1000003 + task);
      return [options, random, left = options.rows](data::Element* row) mutable -> StatusOr<bool> {
        if (left-- == 0) return false;
        if (options.row_time > absl::ZeroDuration()) Clock::Real()->SleepFor(options.row_time);
        const double x = std::uniform_real_distribution<double>(0, 1)(*random);
        std::string text = absl::StrFormat("%.9f", x);
        if (options.labels) absl::StrAppendFormat(&text, "\t%.9f", kSlope * x + kIntercept);
        *row = {Tensor::Scalar(std::move(text))};
        return true;
      };
    };
    data::CsvOptions columns = {
        .defaults = {Tensor::Scalar(0.0f)}, .names = {"x"}, .field_delim = "\t"};
    if (options.labels) {
      columns.defaults.push_back(Tensor::Scalar(0.0f));
      columns.names.push_back("y");
    }
    const data::Dataset points =
        data::Dataset::FromGenerator(rows, {{DT_STRING, PartialShape::Scalar()}})
            .Map(data::DecodeCsv(columns))
            .Batch(options.batch_size);
    if (!options.labels) return Input(points, {.names = {"x"}});
    return Input(points, {.names = {"x", "y"}, .labels = {"y"}});
  };
}

InputFn NumberedPoints(int64_t rows, int64_t batch_size) {
  return [rows, batch_size] {
    std::vector<int64_t> ids;
    std::vector<float> x;
    for (int64_t id = 0; id < rows; ++id) {
      ids.push_back(id);
      x.push_back(static_cast<float>(id) / static_cast<float>(rows));
    }
    return Input(
        data::Dataset::FromTensorSlices({Tensor::Vector<int64_t>(ids), Tensor::Vector<float>(x)})
            .Batch(batch_size),
        {.names = {"id", "x"}});
  };
}

Status PrintPredictions(const Estimator& line, PointsOptions points) {
  points.labels = false;
  MR_ASSIGN_OR_RETURN(const auto predictions, line.Predict(Points(points)));
  for (Prediction row;;) {
    MR_ASSIGN_OR_RETURN(const bool more, predictions->Next(&row));
    if (!more) return absl::OkStatus();
    std::printf("%g\n", static_cast<double>(row.single().scalar<float>()));
  }
}

ServingInputReceiver UnrelatedReceiver(const Scope& scope) {
  return {.features = {{"x", Placeholder(scope.WithName("input_x"), DT_FLOAT, {-1, 1})}},
          .receivers = Placeholder(scope.WithName("output_tensor"), DT_FLOAT, {-1, 1})};
}

ServingInputReceiver PointReceiver(const Scope& scope) {
  const Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1, 1});
  return {.features = {{"x", x}}, .receivers = {{"x", x}}};
}

}  // namespace millrace
