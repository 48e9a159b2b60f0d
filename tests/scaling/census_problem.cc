// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/census_problem.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/dense.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/losses.h"
#include "ops/ops.h"

namespace millrace::scaling {
namespace {

constexpr int64_t kDimension = 8, kHidden = 32;

ExampleBatch InOrder(CensusBatch batch) {
  return {std::move(batch.numbers), std::move(batch.categories), std::move(batch.crosses),
          std::move(batch.labels)};
}

class CensusProblem : public Problem {
 public:
  CensusProblem(Census people, ExampleBatch held_out)
      : people_(std::move(people)), held_out_(std::move(held_out)) {}

  int64_t num_train() const override { return people_.size(); }
  StatusOr<ExampleBatch> Train(const std::vector<size_t>& examples) const override {
    MR_ASSIGN_OR_RETURN(CensusBatch batch, MakeBatch(people_, examples));
    return InOrder(std::move(batch));
  }
  const ExampleBatch& held_out() const override { return held_out_; }

  ModelNodes Build(const Scope& scope) const override {
    const Output numbers = Placeholder(scope.WithName("numbers"), DT_FLOAT, {-1, kNumbers});
    const Output ids = Placeholder(scope.WithName("categories"), DT_INT64, {-1, kCategories});
    const Output crosses = Placeholder(scope.WithName("crosses"), DT_INT64, {-1, kCrosses});
    const Output labels = Placeholder(scope.WithName("labels"), DT_FLOAT, {-1, 1});
    // A weight per category and per cross, added up for each person.
    const auto weights = [&](const char* name, const Output& of, int64_t num_ids) {
      return ReduceSum(
          scope,
          Embedding(scope.WithName(name), of, num_ids, 1, {.initializer = ZerosInitializer()}),
          {1});
    };
    const Output wide = weights("wide/categories", ids, kCategories * kCategoryIds) +
                        weights("wide/crosses", crosses, kCrosses * kCrossIds);
    const Output embedded =
        Embedding(scope.WithName("deep"), ids, kCategories * kCategoryIds, kDimension,
                  {.initializer = TruncatedNormalInitializer({.stddev = 0.1})});
    const Output deep =
        ConcatV2(scope, {numbers, Flatten(scope, embedded)}, Const(scope, int32_t{1}));
    const Output hidden = Dense(scope.WithName("hidden"), deep, kHidden, {.activation = Relu});
    const Output logit = wide + Dense(scope.WithName("logit"), hidden, 1);
    return {.inputs = {numbers, ids, crosses, labels},
            .logit = logit,
            .loss = SigmoidCrossEntropy(scope, labels, logit)};
  }

 private:
  const Census people_;
  const ExampleBatch held_out_;
};

}  // namespace

StatusOr<std::unique_ptr<Problem>> MakeCensusProblem(Census people, const Census& test,
                                                     size_t held_out) {
  std::vector<size_t> judges(std::min(held_out, test.labels.size()));
  if (judges.empty() || people.size() == 0) {
    return InvalidArgument("census: there must be people to train on and people to judge by, got ",
                           people.size(), " and ", judges.size());
  }
  std::iota(judges.begin(), judges.end(), size_t{0});
  MR_ASSIGN_OR_RETURN(CensusBatch batch, MakeBatch(test, judges));
  return std::make_unique<CensusProblem>(std::move(people), InOrder(std::move(batch)));
}

}  // namespace millrace::scaling
