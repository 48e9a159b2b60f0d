// SPDX-License-Identifier: Apache-2.0
#include "ops/testing/function_gradients.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/config.pb.h"
#include "runtime/session_config.h"

namespace millrace::testing {

using Outputs = std::vector<Output>;

SessionOptions CallsInlined(bool inlined) {
  SessionOptions options;
  if (inlined) return options;
  tensorflow::ConfigProto config;
  config.mutable_graph_options()->mutable_rewrite_options()->set_function_optimization(
      tensorflow::RewriterConfig::OFF);
  options.config = SessionConfigOf(config);
  return options;
}

Tensor D(std::initializer_list<double> values) { return Tensor::Vector<double>(values); }

Outputs GradientsOf(const Scope& s, const Outputs& ys, const Outputs& xs) {
  const auto gradients = AddGradients(s, ys, xs);
  EXPECT_OK(gradients.status());
  Outputs dense;
  if (!gradients.ok()) return dense;
  for (const Gradient& gradient : *gradients) dense.push_back(DenseGradient(s, gradient));
  EXPECT_OK(s.status());
  return dense;
}

void ExpectGradients(const std::function<Output(const Scope&, const Outputs&)>& build,
                     const std::vector<Tensor>& values, bool twice) {
  Scope s;
  Outputs xs;
  for (const Tensor& value : values) xs.push_back(Placeholder(s, DT_DOUBLE, value.shape()));
  const auto sum = [&](const Output& y) {
    return Sum(s, Reshape(s, y, Const<int32_t>(s, {-1})), Const(s, 0));
  };
  Outputs ys = {sum(build(s, xs))};
  std::vector<Outputs> gradients = {GradientsOf(s, ys, xs)};
  if (twice) {
    Outputs squares;
    for (const Output& g : gradients[0]) squares.push_back(sum(Square(s, g)));
    ys.push_back(AddN(s, squares));
    gradients.push_back(GradientsOf(s, {ys[1]}, xs));
  }
  ASSERT_OK(s.status());
  for (const bool inlined : {true, false}) {
    SCOPED_TRACE(inlined ? "inlined" : "called");
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
    ASSERT_OK(session->Extend(s));
    const auto run = [&](const std::vector<Tensor>& at, const Output& y) {
      std::vector<Feed> feeds;
      for (size_t i = 0; i < xs.size(); ++i) feeds.emplace_back(xs[i], at[i]);
      const auto out = session->Run(feeds, {y});
      EXPECT_OK(out.status());
      return out.ok() ? (*out)[0] : D({0});
    };
    for (size_t order = 0; order < ys.size(); ++order) {
      for (size_t i = 0; i < xs.size(); ++i) {
        const Tensor symbolic = run(values, gradients[order][i]);
        for (size_t k = 0; k < symbolic.flat<double>().size(); ++k) {
          double y[2];
          constexpr double kStep = 1e-5;
          for (const int side : {0, 1}) {
            std::vector<Tensor> moved = values;
            ASSERT_OK_AND_ASSIGN(moved[i], values[i].Clone());
            moved[i].mutable_flat<double>()[k] += side == 0 ? -kStep : kStep;
            y[side] = run(moved, ys[order]).flat<double>()[0];
          }
          const double numeric = (y[1] - y[0]) / (2 * kStep);
          EXPECT_NEAR(symbolic.flat<double>()[k], numeric, 1e-5 * std::max(1.0, std::abs(numeric)))
              << "order " << order + 1 << ", input " << i << ", component " << k;
        }
      }
    }
  }
}

}  // namespace millrace::testing
