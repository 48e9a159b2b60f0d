// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/click_problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/dense.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/losses.h"
#include "ops/ops.h"
#include "tests/scaling/seeded_random.h"

namespace millrace::scaling {
namespace {

constexpr int64_t kFields = 8, kDimension = 8, kHidden = 16;
// Of the hidden model: log odds have a deviation of about 1.9, half of it from pairs of fields.
constexpr double kOwnTaste = 0.8, kSharedTaste = 1.5;

struct ClickLog {
  std::vector<int32_t> ids;  // kFields for each example, in [0, rows)
  std::vector<float> clicks;
  std::vector<float> log_odds;  // without the constant
};

// A number in [-1, 1) that an id and a purpose decide.
double Taste(int32_t id, uint64_t purpose) {
  const uint64_t bits = Mixed(Mixed(purpose) + static_cast<uint64_t>(id));
  return static_cast<double>(bits >> 11) * 0x1.0p-52 - 1;
}

double LogOdds(const int32_t* ids) {
  double own = 0, shared = 0;
  for (int64_t field = 0; field < kFields; ++field) own += Taste(ids[field], 1);
  for (int64_t field = 0; field < kFields; field += 2) {
    const int32_t a = ids[field], b = ids[field + 1];
    shared += Taste(a, 2) * Taste(b, 2) + Taste(a, 3) * Taste(b, 3);
  }
  return kOwnTaste * own + kSharedTaste * shared;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Ids and log odds.
ClickLog Shown(const ClickLogOptions& options, int64_t count, std::mt19937_64* random) {
  ClickLog log;
  const auto ids_of_field = static_cast<int32_t>(options.rows / kFields);
  // The inverse of the continuous distribution with density x^-s on [1, n + 1), cut to whole
  // numbers: close to Zipf's law.
  const double e = 1 - options.exponent, top = std::pow(ids_of_field + 1.0, e);
  for (int64_t i = 0; i < count; ++i) {
    for (int32_t field = 0; field < kFields; ++field) {
      const double x = std::pow(1 + Uniform(random) * (top - 1), 1 / e);
      const int32_t id = std::clamp(static_cast<int32_t>(x) - 1, 0, ids_of_field - 1);
      log.ids.push_back(field * ids_of_field + id);
    }
    log.log_odds.push_back(static_cast<float>(LogOdds(&log.ids[log.ids.size() - kFields])));
  }
  return log;
}

// The constant with which clicks are as frequent as they should be.
double ConstantOf(const ClickLog& log, double click_rate) {
  double low = -20, high = 20;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    double sum = 0;
    for (const float odds : log.log_odds) sum += Sigmoid(static_cast<double>(odds) + middle);
    (sum < click_rate * static_cast<double>(log.log_odds.size()) ? low : high) = middle;
  }
  return (low + high) / 2;
}

void DrawClicks(double constant, std::mt19937_64* random, ClickLog* log) {
  for (const float odds : log->log_odds) {
    const bool clicked = Uniform(random) < Sigmoid(static_cast<double>(odds) + constant);
    log->clicks.push_back(clicked ? 1.0f : 0.0f);
  }
}

StatusOr<ExampleBatch> BatchOf(const ClickLog& log, const std::vector<size_t>& examples) {
  const auto count = static_cast<int64_t>(examples.size());
  MR_ASSIGN_OR_RETURN(const Shape rows, Shape::Make({count, kFields}));
  MR_ASSIGN_OR_RETURN(const Shape column, Shape::Make({count, 1}));
  MR_ASSIGN_OR_RETURN(Tensor ids, Tensor::Allocate(DT_INT64, rows));
  MR_ASSIGN_OR_RETURN(Tensor clicks, Tensor::Allocate(DT_FLOAT, column));
  int64_t* id = ids.mutable_flat<int64_t>().data();
  float* click = clicks.mutable_flat<float>().data();
  for (const size_t example : examples) {
    const auto from = log.ids.begin() + static_cast<ptrdiff_t>(example) * kFields;
    id = std::copy(from, from + kFields, id);
    *click++ = log.clicks[example];
  }
  return ExampleBatch{std::move(ids), std::move(clicks)};
}

class ClickProblem : public Problem {
 public:
  ClickProblem(int64_t rows, ClickLog log, ExampleBatch held_out)
      : rows_(rows), log_(std::move(log)), held_out_(std::move(held_out)) {}

  int64_t num_train() const override { return static_cast<int64_t>(log_.clicks.size()); }
  StatusOr<ExampleBatch> Train(const std::vector<size_t>& examples) const override {
    return BatchOf(log_, examples);
  }
  const ExampleBatch& held_out() const override { return held_out_; }

  ModelNodes Build(const Scope& scope) const override {
    const Output ids = Placeholder(scope.WithName("ids"), DT_INT64, {-1, kFields});
    const Output clicks = Placeholder(scope.WithName("clicks"), DT_FLOAT, {-1, 1});
    const Output weights =
        Embedding(scope.WithName("weights"), ids, rows_, 1, {.initializer = ZerosInitializer()});
    const Output embedded = Embedding(scope.WithName("embedded"), ids, rows_, kDimension);
    const Output hidden =
        Dense(scope.WithName("hidden"), Flatten(scope, embedded), kHidden, {.activation = Relu});
    const Output logit = ReduceSum(scope, weights, {1}) + Dense(scope.WithName("logit"), hidden, 1);
    return {
        .inputs = {ids, clicks}, .logit = logit, .loss = SigmoidCrossEntropy(scope, clicks, logit)};
  }

 private:
  const int64_t rows_;
  const ClickLog log_;
  const ExampleBatch held_out_;
};

}  // namespace

StatusOr<std::unique_ptr<Problem>> MakeClickProblem(const ClickLogOptions& options) {
  constexpr int64_t kMost = 100'000'000;
  for (const auto& [name, value, least] :
       {std::tuple<const char*, int64_t, int64_t>{"rows", options.rows, kFields},
        {"train", options.train, 1},
        {"held_out", options.held_out, 1}}) {
    if (value < least || value > kMost) {
      return InvalidArgument("clicks: ", name, " must be in [", least, ", ", kMost, "], got ",
                             value);
    }
  }
  if (!(options.exponent > 0 && options.exponent != 1 && options.exponent <= 10)) {
    return InvalidArgument("clicks: exponent must be in (0, 10] and not 1, got ", options.exponent);
  }
  if (!(options.click_rate > 0 && options.click_rate < 1)) {
    return InvalidArgument("clicks: click_rate must be in (0, 1), got ", options.click_rate);
  }
  std::mt19937_64 random = RandomOf(options.seed, 0xc11c5);
  ClickLog test = Shown(options, options.held_out, &random);
  ClickLog log = Shown(options, options.train, &random);
  // The constant is that of the hidden model, which the examples to judge by share.
  const double constant = ConstantOf(log, options.click_rate);
  DrawClicks(constant, &random, &log);
  DrawClicks(constant, &random, &test);
  std::vector<size_t> all(test.clicks.size());
  std::iota(all.begin(), all.end(), size_t{0});
  MR_ASSIGN_OR_RETURN(ExampleBatch held_out, BatchOf(test, all));
  return std::make_unique<ClickProblem>(options.rows, std::move(log), std::move(held_out));
}

}  // namespace millrace::scaling
