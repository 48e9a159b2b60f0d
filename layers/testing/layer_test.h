// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_TESTING_LAYER_TEST_H_
#define MILLRACE_LAYERS_TESTING_LAYER_TEST_H_

// What tests of layers use: a model that runs, its gradients, bad arguments as tables.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {

// A session with the scope's graph whose variables have their initial values.
inline StatusOr<std::unique_ptr<Session>> InitializedSession(const Scope& scope,
                                                             const SessionOptions& options = {}) {
  const Operation init = GlobalVariablesInitializer(scope);
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(auto session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  return session;
}

// The values of `fetches` from the initial values.
inline StatusOr<std::vector<Tensor>> RunInitialized(const Scope& scope,
                                                    const std::vector<Feed>& feeds,
                                                    const std::vector<FetchName>& fetches) {
  MR_ASSIGN_OR_RETURN(const auto session, InitializedSession(scope));
  return session->Run(feeds, fetches);
}

// Names of the collection's variables, in their order.
inline std::vector<std::string> NamesOf(const Scope& scope, const std::string& collection) {
  std::vector<std::string> names;
  for (const Variable& variable : VariablesOf(scope, collection)) names.push_back(variable.name);
  return names;
}

// The gradients of a weighted sum of y's elements with respect to each of `inputs` (placeholders
// and values of variables, which are fed) equal finite differences. All of dtype double; y's shape
// is known. On one thread they are the same.
inline void ExpectLayerGradientsMatch(const Scope& scope, const Output& y,
                                      const std::vector<std::pair<Output, Tensor>>& inputs,
                                      const std::vector<Feed>& more_feeds = {}) {
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const Shape shape, scope.shape(y).ToShape());
  ASSERT_OK_AND_ASSIGN(Tensor factors, Tensor::Allocate(DT_DOUBLE, shape));
  int64_t n = 0;
  for (double& factor : factors.mutable_flat<double>()) {
    factor = 0.5 + static_cast<double>(n++ * 7 % 5) / 3;
  }
  const Output loss = ReduceSum(scope, y * Const(scope, factors));
  std::vector<Output> xs;
  std::vector<Feed> feeds = more_feeds;
  const size_t first = feeds.size();
  for (const auto& [x, value] : inputs) {
    xs.push_back(x);
    feeds.emplace_back(x, value);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients, AddGradients(scope, {loss}, xs));
  std::vector<FetchName> fetches;
  for (size_t i = 0; i < gradients.size(); ++i) {
    ASSERT_TRUE(HasGradient(gradients[i])) << xs[i].name();
    fetches.emplace_back(DenseGradient(scope, gradients[i]));
  }
  ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, session->Run(feeds, fetches));
  // On one thread loops run another way.
  SessionOptions one_thread;
  one_thread.config.intra_op_parallelism_threads = 1;
  ASSERT_OK_AND_ASSIGN(const auto alone, InitializedSession(scope, one_thread));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> same, alone->Run(feeds, fetches));
  for (size_t i = 0; i < got.size(); ++i) ExpectTensorEqual(same[i], got[i]);
  const auto loss_with = [&](size_t i, size_t element, double value) {
    std::vector<Feed> changed = feeds;
    changed[first + i].value = *inputs[i].second.Clone();
    changed[first + i].value.mutable_flat<double>()[element] = value;
    const auto out = session->Run(changed, {loss});
    EXPECT_OK(out);
    return out.ok() ? (*out)[0].scalar<double>() : std::nan("");
  };
  constexpr double kStep = 1e-5;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const absl::Span<const double> values = inputs[i].second.raw<double>();
    for (size_t k = 0; k < values.size(); ++k) {
      const double numeric =
          (loss_with(i, k, values[k] + kStep) - loss_with(i, k, values[k] - kStep)) / (2 * kStep);
      EXPECT_NEAR(got[i].raw<double>()[k], numeric, 1e-6 * std::max(1.0, std::abs(numeric)))
          << xs[i].name() << " [" << k << "]";
    }
  }
}

// A wrong call and what its message has in it.
struct BadCall {
  std::function<Output(const Scope& scope)> build;
  std::string text;
};
// Each in a scope "m/" of its own: an InvalidArgument with the line of the call, and no output.
inline void ExpectBadCalls(const std::vector<BadCall>& calls) {
  for (const BadCall& call : calls) {
    Scope root;
    EXPECT_FALSE(call.build(root.WithSubScope("m")).valid()) << call.text;
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument, call.text);
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument, "_test.cc:");
  }
}

}  // namespace millrace

#endif  // MILLRACE_LAYERS_TESTING_LAYER_TEST_H_
