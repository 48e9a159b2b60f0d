// SPDX-License-Identifier: Apache-2.0
#include "train/clip_gradients.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <variant>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "runtime/testing/op_test.h"
#include "train/gradient_descent.h"

// covers: variables: clipped gradients are TensorFlow's, those of 16 bits computed in float; slices
//   stay slices; a norm that is not finite gives NaN

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Gradients of four variables: dense, none, rows 1, 3, 1 of a table, dense. Their squares add up to
// 9 + 16 + (4 + 4 + 1 + 0 + 0 + 4) + 62 = 100.
struct ThreeGradients {
  Scope scope;
  std::vector<GradientAndVariable> gradients;
  ThreeGradients() {
    gradients.resize(4);
    gradients[0].gradient = Const<float>(scope.WithName("a"), {3, -4});
    gradients[2].gradient =
        IndexedSlices{Const(scope.WithName("rows"), TensorOf<float>({3, 2}, {2, -2, 1, 0, 0, 2})),
                      Const<int64_t>(scope, {1, 3, 1}), Const<int64_t>(scope, {4, 2})};
    gradients[3].gradient = Const(scope.WithName("c"), static_cast<float>(std::sqrt(62.0)));
  }
};

// The numbers of all gradients; those of slices are their values.
std::vector<Tensor> NumbersOf(const Scope& scope,
                              const std::vector<GradientAndVariable>& gradients) {
  std::vector<Output> fetches;
  for (const GradientAndVariable& pair : gradients) {
    if (const Output* dense = std::get_if<Output>(&pair.gradient)) fetches.push_back(*dense);
    if (const auto* slices = std::get_if<IndexedSlices>(&pair.gradient)) {
      fetches.push_back(slices->values);
    }
  }
  EXPECT_OK(scope.status());
  const StatusOr<std::vector<Tensor>> got = EvaluateGraph(scope, {}, fetches);
  EXPECT_OK(got.status());
  return got.ok() ? *got : std::vector<Tensor>(fetches.size());
}

void ExpectScaled(const Scope& scope, const std::vector<GradientAndVariable>& gradients,
                  const std::vector<float>& scales) {
  ASSERT_EQ(gradients.size(), 4u);
  EXPECT_FALSE(HasGradient(gradients[1].gradient));
  const auto* slices = std::get_if<IndexedSlices>(&gradients[2].gradient);
  ASSERT_NE(slices, nullptr) << "slices must stay slices";
  EXPECT_EQ(scope.shape(slices->values).ToString(), "[3,2]");
  EXPECT_TRUE(slices->indices.valid() && slices->dense_shape.valid());
  const std::vector<Tensor> got = NumbersOf(scope, gradients);
  ASSERT_EQ(got.size(), 3u);
  ExpectTensorNear(got[0], TensorOf<float>({2}, {3 * scales[0], -4 * scales[0]}), 1e-6, 0);
  const float s = scales[1];
  ExpectTensorNear(got[1], TensorOf<float>({3, 2}, {2 * s, -2 * s, s, 0, 0, 2 * s}), 1e-6, 0);
  ExpectTensorNear(got[2], Tensor::Scalar(std::sqrt(62.0f) * scales[2]), 1e-6, 0);
}

TEST(GlobalNorm, IsOfAllGradientsAndOfTheValuesOfSlices) {
  ThreeGradients g;
  const Output norm = GlobalNorm(g.scope, g.gradients);
  EXPECT_EQ(norm.name(), "global_norm/global_norm:0");
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(g.scope, {}, {norm}));
  ExpectTensorNear(got[0], Tensor::Scalar(10.0f), 1e-6, 0);
}

TEST(GlobalNorm, IsDoubleWhenOneOfThemIs) {
  Scope scope;
  std::vector<GradientAndVariable> gradients(3);
  gradients[0].gradient = Const<float>(scope, {3});
  gradients[1].gradient = Const<double>(scope, {4});
  gradients[2].gradient = Const<float>(scope, {12});
  const Output norm = GlobalNorm(scope, gradients);
  const auto clipped = ClipByGlobalNorm(scope, gradients, 1.3);
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {}, {norm}));
  ExpectTensorNear(got[0], Tensor::Scalar(13.0), 1e-12, 0);
  const std::vector<Tensor> numbers = NumbersOf(scope, clipped);
  ExpectTensorNear(numbers[0], Tensor::Vector<float>({0.3f}), 1e-6, 0);
  ExpectTensorNear(numbers[1], Tensor::Vector<double>({0.4}), 1e-6, 0);
}

TEST(ClipByGlobalNorm, ScalesAllByOneFactorAndOnlyDown) {
  for (const double clip_norm : {5.0, 10.0, 20.0}) {
    ThreeGradients g;
    const float scale = static_cast<float>(std::min(clip_norm / 10, 1.0));
    ExpectScaled(g.scope, ClipByGlobalNorm(g.scope, g.gradients, clip_norm), {scale, scale, scale});
  }
  ThreeGradients g;
  const Output norm = Const(g.scope, 40.0f), clip_norm = Const(g.scope, 10.0);
  ExpectScaled(g.scope, ClipByGlobalNorm(g.scope, g.gradients, clip_norm, norm),
               {0.25f, 0.25f, 0.25f});
}

TEST(ClipByGlobalNorm, OfANormThatIsNotFiniteIsNan) {
  for (const float bad : {kInf, -kInf, kNan, 1e30f}) {  // 1e30: its square overflows
    Scope scope;
    std::vector<GradientAndVariable> gradients(2);
    gradients[0].gradient = Const<float>(scope, {1, 0});
    gradients[1].gradient = Const<float>(scope, {bad});
    const std::vector<Tensor> got = NumbersOf(scope, ClipByGlobalNorm(scope, gradients, 1.0));
    ExpectTensorEqual(got[0], TensorOf<float>({2}, {kNan, kNan}));
    ExpectTensorEqual(got[1], TensorOf<float>({1}, {kNan}));
  }
}

TEST(ClipByGlobalNorm, LeavesZeros) {
  Scope scope;
  std::vector<GradientAndVariable> gradients(1);
  gradients[0].gradient = Const<float>(scope, {0, 0});
  const std::vector<Tensor> got = NumbersOf(scope, ClipByGlobalNorm(scope, gradients, 1.0));
  ExpectTensorEqual(got[0], TensorOf<float>({2}, {0, 0}));
}

TEST(ClipByGlobalNorm, PassesVariablesWithoutGradientsOn) {
  Scope scope;
  const std::vector<GradientAndVariable> none(2);
  EXPECT_EQ(ClipByGlobalNorm(scope, none, 1.0).size(), 2u);
  EXPECT_OK(scope.status());
  EXPECT_EQ(scope.graph()->num_nodes(), 0);
}

TEST(ClipByNorm, ScalesEachOnItsOwn) {
  ThreeGradients g;
  // Norms 5, sqrt(13), sqrt(62).
  ExpectScaled(g.scope, ClipByNorm(g.scope, g.gradients, 4.0), {0.8f, 1, 4 / std::sqrt(62.0f)});
}

TEST(ClipByNorm, OfATensorGoesAlongAxesAndHasAGradientAtZero) {
  Scope scope;
  const Output t = Const(scope, TensorOf<float>({2, 2}, {3, 4, 0, 0.5}));
  const Output clipped = ClipByNorm(scope, t, 1.0, {1});
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {}, {clipped}));
  ExpectTensorNear(got[0], TensorOf<float>({2, 2}, {0.6f, 0.8f, 0, 0.5f}), 1e-6, 0);
  const auto build = [](const Scope& s, const std::vector<Output>& x) {
    return ClipByNorm(s, x[0], 2.0);
  };
  ExpectGradientsMatch(build, {TensorOf<double>({3}, {3, -4, 1})});
  ExpectGradientsMatch(build, {TensorOf<double>({2}, {0, 0})});
}

TEST(ClipByAverageNorm, DividesTheNormByTheNumberOfElements) {
  Scope scope;
  std::vector<GradientAndVariable> gradients(2);
  gradients[0].gradient = Const<float>(scope, {3, 4, 0, 0, 0});  // average norm 1
  // Dense: [0, 0, 3, 4] with a repeated row.
  gradients[1].gradient = IndexedSlices{
      Const<float>(scope, {1, 4, 2}), Const<int64_t>(scope, {2, 3, 2}), Const<int64_t>(scope, {4})};
  const auto clipped = ClipByAverageNorm(scope, gradients, 0.5);
  const std::vector<Tensor> got = NumbersOf(scope, clipped);
  ExpectTensorNear(got[0], TensorOf<float>({5}, {1.5f, 2, 0, 0, 0}), 1e-6, 0);
  ExpectTensorNear(got[1], TensorOf<float>({4}, {0, 0, 1.2f, 1.6f}), 1e-6, 0);
  ExpectTensorNear(NumbersOf(scope, ClipByAverageNorm(scope, gradients, 2.0))[0],
                   TensorOf<float>({5}, {3, 4, 0, 0, 0}), 1e-6, 0);
}

TEST(ClipByAverageNorm, HasAGradientAtZero) {
  const auto build = [](const Scope& s, const std::vector<Output>& x) {
    return ClipByAverageNorm(s, x[0], 0.5);
  };
  ExpectGradientsMatch(build, {TensorOf<double>({3}, {3, -4, 1})});
  ExpectGradientsMatch(build, {TensorOf<double>({3}, {0.25, -0.5, 0})});
  ExpectGradientsMatch(build, {TensorOf<double>({2}, {0, 0})});
  Scope scope;
  const Output none = TestInput(scope, DT_FLOAT, {0, 2});
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {{none, TensorOf<float>({0, 2}, {})}},
                                                     {ClipByAverageNorm(scope, none, 1.0)}));
  ExpectTensorEqual(got[0], TensorOf<float>({0, 2}, {}));
}

// --- Numbers of 16 bits --------------------------------------------------------------------------

// n elements of `value`, and the first two of what becomes of them.
std::vector<float> ClippedOfMany(DType dtype, int64_t n, float value,
                                 const std::function<Output(const Scope&, const Output&)>& clip) {
  Scope scope;
  const Output t = Cast(scope, Fill(scope, Const<int64_t>(scope, {n}), Const(scope, value)), dtype);
  const Output clipped = clip(scope, t);
  EXPECT_EQ(clipped.dtype(), dtype);
  const Output wide = Cast(scope, clipped, DT_FLOAT);
  const StatusOr<std::vector<Tensor>> got =
      EvaluateGraph(scope, {}, {ReduceMin(scope, wide), ReduceMax(scope, wide)});
  EXPECT_OK(got.status());
  if (!got.ok()) return {};
  return {(*got)[0].scalar<float>(), (*got)[1].scalar<float>()};
}

void ExpectAll(const std::vector<float>& got, double want, double tolerance) {
  ASSERT_EQ(got.size(), 2u);
  EXPECT_NEAR(got[0], want, tolerance * want);
  EXPECT_NEAR(got[1], want, tolerance * want);
}

// The largest half is 65,504: the number of 100,000 elements and the sum of their squares are
// larger. bfloat16 has 8 digits: a sum of ones would stop at 256.
TEST(ClipGradients, OfSixteenBitsAreClippedInFloat) {
  constexpr int64_t kMany = 100000;
  const double root = std::sqrt(static_cast<double>(kMany));
  for (const auto& [dtype, tolerance] : {std::pair(DT_HALF, 1e-3), std::pair(DT_BFLOAT16, 8e-3)}) {
    SCOPED_TRACE(DTypeName(dtype));
    const auto by_global_norm = [](double clip_norm) {
      return [clip_norm](const Scope& s, const Output& t) {
        std::vector<GradientAndVariable> gradients(1);
        gradients[0].gradient = t;
        EXPECT_EQ(GlobalNorm(s, gradients).dtype(), DT_FLOAT);
        return std::get<Output>(ClipByGlobalNorm(s, gradients, clip_norm)[0].gradient);
      };
    };
    const auto by_norm = [](double clip_norm) {
      return [clip_norm](const Scope& s, const Output& t) { return ClipByNorm(s, t, clip_norm); };
    };
    const auto by_average = [](double clip_norm) {
      return [clip_norm](const Scope& s, const Output& t) {
        return ClipByAverageNorm(s, t, clip_norm);
      };
    };
    // A norm of 2 * root.
    ExpectAll(ClippedOfMany(dtype, kMany, 2, by_global_norm(root)), 1, tolerance);
    ExpectAll(ClippedOfMany(dtype, kMany, 2, by_global_norm(3 * root)), 2, tolerance);
    ExpectAll(ClippedOfMany(dtype, kMany, 2, by_norm(root)), 1, tolerance);
    ExpectAll(ClippedOfMany(dtype, kMany, 2, by_norm(3 * root)), 2, tolerance);
    ExpectAll(ClippedOfMany(dtype, kMany, 2, by_average(root / static_cast<double>(kMany))), 1,
              tolerance);
    ExpectAll(ClippedOfMany(dtype, kMany, 2, by_average(1)), 2, tolerance);
    // The factor is 1e-8, which half cannot represent.
    ExpectAll(ClippedOfMany(dtype, 4, 50000, by_global_norm(1e-3)), 5e-4, tolerance);
    ExpectAll(ClippedOfMany(dtype, 4, 50000, by_norm(1e-3)), 5e-4, tolerance);
  }
}

TEST(ClipByValue, LimitsEachElement) {
  ThreeGradients g;
  const std::vector<Tensor> got =
      NumbersOf(g.scope, ClipByValue(g.scope, g.gradients, -1.5, Const(g.scope, 2.5)));
  ExpectTensorEqual(got[0], TensorOf<float>({2}, {2.5f, -1.5f}));
  ExpectTensorEqual(got[1], TensorOf<float>({3, 2}, {2, -1.5f, 1, 0, 0, 2}));
  ExpectTensorEqual(got[2], Tensor::Scalar(2.5f));
}

// One line of a training program, and the same step by step: a dense and a sparse gradient.
TEST(MinimizeOptions, ClipBeforeTheyApply) {
  const auto train = [](const std::function<Operation(const Scope&, Output)>& minimize) {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 1}));
    const Variable table =
        MakeVariable(root.WithName("table"), Const(root, TensorOf<float>({3, 1}, {0, 0, 0})));
    const Output rows = ResourceGather(root, table.handle, Const<int64_t>(root, {2, 0}), DT_FLOAT);
    // Gradients: (3, 0) of w, 4 and 0 of the rows: a global norm of 5.
    const Output loss =
        Add(root, ReduceSum(root, Mul(root, w.value, Const<float>(root, {3, 0}))),
            ReduceSum(root, Mul(root, rows, Const(root, TensorOf<float>({2, 1}, {4, 0})))));
    const Operation step = minimize(root, loss);
    const Operation init = GlobalVariablesInitializer(root);
    EXPECT_OK(root.status());
    for (const auto& node : root.graph()->nodes()) {
      if (node != nullptr && node->op() == "ResourceApplyGradientDescent") {
        EXPECT_EQ(node->input(0).node->name(), "w") << "the table's gradient must stay sparse";
      }
    }
    auto session = NewSession();
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Extend(root));
    EXPECT_OK((*session)->Run({}, {}, {init}).status());
    EXPECT_OK((*session)->Run({}, {}, {step}).status());
    auto out = (*session)->Run({}, {w.value, table.value});
    EXPECT_OK(out.status());
    return *out;
  };
  const GradientDescentOptions rate = {.learning_rate = 1.0};
  const std::function<Operation(const Scope&, Output)> programs[] = {
      [&](const Scope& s, Output loss) {
        return GradientDescentOptimizer(rate).Minimize(s, loss, {.clip = ClipByGlobalNorm(1.0)});
      },
      [&](const Scope& s, Output loss) {
        GradientDescentOptimizer optimizer(rate);
        return optimizer.ApplyGradients(
            s, ClipByGlobalNorm(s, optimizer.ComputeGradients(s, loss), 1.0));
      }};
  for (const auto& program : programs) {
    const std::vector<Tensor> out = train(program);
    ExpectTensorNear(out[0], TensorOf<float>({2}, {1 - 0.6f, 1}), 1e-6, 0);
    ExpectTensorNear(out[1], TensorOf<float>({3, 1}, {0, 0, -0.8f}), 1e-6, 0);
  }
  const std::vector<Tensor> by_value = train([&](const Scope& s, Output loss) {
    return GradientDescentOptimizer(rate).Minimize(s, loss, {.clip = ClipByValue(-0.5, 0.5)});
  });
  ExpectTensorNear(by_value[1], TensorOf<float>({3, 1}, {0, 0, -0.5f}), 1e-6, 0);
  const std::vector<Tensor> by_norm = train([&](const Scope& s, Output loss) {
    return GradientDescentOptimizer(rate).Minimize(s, loss, {.clip = ClipByNorm(2.0)});
  });
  ExpectTensorNear(by_norm[0], TensorOf<float>({2}, {-1, 1}), 1e-6, 0);
  ExpectTensorNear(by_norm[1], TensorOf<float>({3, 1}, {0, 0, -2}), 1e-6, 0);
}

TEST(ClipGradients, BadArgumentsAreErrorsOfTheScope) {
  using Gradients = std::vector<GradientAndVariable>;
  struct Case {
    std::function<Gradients(const Scope& s, const Gradients& g)> clip;
    const char* text;
  };
  const auto in = [](const Scope& s, DType dtype, const PartialShape& shape) {
    return Placeholder(s.WithName("in"), dtype, shape);
  };
  const Case cases[] = {
      {[](const Scope& s, const Gradients& g) { return ClipByGlobalNorm(s, g, 0.0); },
       "ClipByGlobalNorm: clip_norm must be finite and > 0, got 0; built at "},
      {[](const Scope& s, const Gradients& g) { return ClipByGlobalNorm(s, g, kInf); },
       "ClipByGlobalNorm: clip_norm must be finite and > 0, got inf"},
      {[](const Scope& s, const Gradients& g) { return ClipByNorm(s, g, -1.0); },
       "ClipByNorm: clip_norm must be finite and > 0, got -1"},
      {[](const Scope& s, const Gradients& g) { return ClipByAverageNorm(s, g, kNan); },
       "ClipByAverageNorm: clip_norm must be finite and > 0, got nan"},
      {[](const Scope& s, const Gradients& g) { return ClipByValue(s, g, 2.0, 1.0); },
       "ClipByValue: low must be <= high, got 2 and 1"},
      {[](const Scope& s, const Gradients& g) { return ClipByValue(s, g, kNan, 1.0); },
       "ClipByValue: low must be <= high, got nan and 1"},
      {[&](const Scope& s, const Gradients& g) {
         return ClipByGlobalNorm(s, g, in(s, DT_FLOAT, {2}));
       },
       "ClipByGlobalNorm: clip_norm must be a scalar, got shape [2] of 'in:0'"},
      {[&](const Scope& s, const Gradients& g) { return ClipByNorm(s, g, in(s, DT_INT32, {})); },
       "ClipByNorm: clip_norm must be floating, got int32 from 'in:0'"},
      {[&](const Scope& s, const Gradients& g) {
         return ClipByGlobalNorm(s, g, 1.0, in(s, DT_FLOAT, {3}));
       },
       "ClipByGlobalNorm: use_norm must be a scalar, got shape [3] of 'in:0'"},
      {[&](const Scope& s, const Gradients& g) {
         return ClipByValue(s, g, in(s, DT_FLOAT, {3}), 1.0);
       },
       "ClipByValue: low must be a scalar, got shape [3] of 'in:0'"},
      {[](const Scope& s, const Gradients&) {
         GlobalNorm(s, Gradients(2));
         return Gradients();
       },
       "GlobalNorm: at least one variable must have a gradient, got none for 2 variable(s)"},
      {[](const Scope& s, const Gradients&) {
         ClipByNorm(s, Output(), 1.0);
         return Gradients();
       },
       "ClipByNorm: t must be a tensor of the graph, got an invalid Output"},
      {[&](const Scope& s, const Gradients&) {
         ClipByAverageNorm(s, in(s, DT_INT64, {2}), 1.0);
         return Gradients();
       },
       "ClipByAverageNorm: t must be floating, got int64 from 'in:0'"},
  };
  for (const Case& c : cases) {
    ThreeGradients g;
    EXPECT_TRUE(c.clip(g.scope, g.gradients).empty()) << c.text;
    EXPECT_STATUS(g.scope.status(), kInvalid, c.text);
  }
}

TEST(ClipGradients, AnErrorOfTheClipIsTheErrorOfMinimize) {
  Scope root;
  const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 1}));
  const Operation step = GradientDescentOptimizer().Minimize(root, ReduceSum(root, w.value),
                                                             {.clip = ClipByGlobalNorm(-1.0)});
  EXPECT_FALSE(step.valid());
  EXPECT_STATUS(root.status(), kInvalid, "ClipByGlobalNorm: clip_norm must be finite and > 0");
}

}  // namespace
}  // namespace millrace
