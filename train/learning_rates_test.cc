// SPDX-License-Identifier: Apache-2.0
#include "train/learning_rates.h"

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/testing/op_test.h"

// covers: variables: learning rates follow their closed forms at every step, also beyond 2^24; a
//   stair or a restart comes at its very step

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
const double kNan = std::numeric_limits<double>::quiet_NaN();

using Build =
    std::function<Output(const Scope&, const NumberOrOutput& learning_rate, Output global_step)>;

// Around the ends of periods of 100 steps, beyond 2^24 (where float no longer tells steps apart)
// and beyond int32.
const std::vector<int64_t> kSteps = {0,   1,   37,   99,       100,      101,        150,
                                     199, 200, 201,  299,      300,      301,        700,
                                     701, 999, 1000, 16777217, 16777300, 3000000000, 3000000050};

// The schedule at each of the steps is what `closed_form` says for a learning rate of 1, times the
// learning rate: a number, and a fed tensor.
void ExpectSchedule(const Build& build, const std::function<double(double step)>& closed_form,
                    double end = 0) {
  Scope scope;
  const Output step = TestInput(scope, DT_INT64, PartialShape::Scalar());
  const Output float_step = TestInput(scope, DT_DOUBLE, PartialShape::Scalar());
  const Output rate = TestInput(scope, DT_DOUBLE, PartialShape::Scalar());
  const Output of_number = build(scope, 0.125, step);
  const Output of_output = build(scope, rate, float_step);
  ASSERT_OK(scope.status());
  EXPECT_EQ(of_number.dtype(), DT_FLOAT);
  EXPECT_EQ(scope.shape(of_number).ToString(), "[]");
  EXPECT_EQ(of_output.dtype(), DT_DOUBLE);
  for (const int64_t s : kSteps) {
    SCOPED_TRACE(s);
    ASSERT_OK_AND_ASSIGN(const auto got,
                         EvaluateGraph(scope,
                                       {{step, Tensor::Scalar(s)},
                                        {float_step, Tensor::Scalar(static_cast<double>(s))},
                                        {rate, Tensor::Scalar(2.0)}},
                                       {of_number, of_output}));
    const double part = closed_form(static_cast<double>(s));
    const auto at = [&](double learning_rate) { return end + (learning_rate - end) * part; };
    EXPECT_NEAR(got[0].scalar<float>(), at(0.125), 1e-6 * at(0.125) + 1e-30);
    EXPECT_NEAR(got[1].scalar<double>(), at(2), 1e-9 * at(2) + 1e-30);
  }
}

TEST(ExponentialDecay, FollowsItsClosedForm) {
  ExpectSchedule(
      [](const Scope& s, const NumberOrOutput& rate, Output step) {
        return ExponentialDecay(s, rate, step, {.decay_steps = 100, .decay_rate = 0.96});
      },
      [](double s) { return std::pow(0.96, s / 100); });
}

TEST(ExponentialDecay, StaysBetweenTwoStairs) {
  for (const int64_t steps : {100, 3}) {
    ExpectSchedule(
        [&](const Scope& s, const NumberOrOutput& rate, Output step) {
          return ExponentialDecay(
              s, rate, step, {.decay_steps = steps, .decay_rate = 0.999999, .staircase = true});
        },
        [&](double s) {
          return std::pow(0.999999, static_cast<double>(static_cast<int64_t>(s) / steps));
        });
  }
}

TEST(NaturalExpDecay, FollowsItsClosedForm) {
  for (const bool staircase : {false, true}) {
    ExpectSchedule(
        [&](const Scope& s, const NumberOrOutput& rate, Output step) {
          return NaturalExpDecay(s, rate, step,
                                 {.decay_steps = 100, .decay_rate = 0.5, .staircase = staircase});
        },
        [&](double s) { return std::exp(-0.5 * (staircase ? std::floor(s / 100) : s / 100)); });
  }
}

TEST(InverseTimeDecay, FollowsItsClosedForm) {
  for (const bool staircase : {false, true}) {
    ExpectSchedule(
        [&](const Scope& s, const NumberOrOutput& rate, Output step) {
          return InverseTimeDecay(s, rate, step,
                                  {.decay_steps = 100, .decay_rate = 0.5, .staircase = staircase});
        },
        [&](double s) { return 1 / (1 + 0.5 * (staircase ? std::floor(s / 100) : s / 100)); });
  }
}

TEST(PolynomialDecay, EndsAtTheEndLearningRate) {
  for (const double power : {1.0, 2.0, 0.5}) {
    ExpectSchedule(
        [&](const Scope& s, const NumberOrOutput& rate, Output step) {
          return PolynomialDecay(s, rate, step,
                                 {.decay_steps = 200, .end_learning_rate = 0.01, .power = power});
        },
        [&](double s) { return std::pow(1 - std::min(s, 200.0) / 200, power); }, 0.01);
  }
}

TEST(PolynomialDecay, CyclesOverTwiceThreeTimesAsManySteps) {
  ExpectSchedule(
      [](const Scope& s, const NumberOrOutput& rate, Output step) {
        return PolynomialDecay(
            s, rate, step,
            {.decay_steps = 100, .end_learning_rate = 0.01, .power = 2, .cycle = true});
      },
      [](double s) {
        const double cycles = s == 0 ? 1 : std::ceil(s / 100);
        return std::pow(1 - s / (100 * cycles), 2);
      },
      0.01);
}

double Cosine(double f) { return (1 + std::cos(std::numbers::pi * f)) / 2; }

TEST(CosineDecay, FollowsItsClosedForm) {
  for (const double alpha : {0.0, 0.25}) {
    ExpectSchedule(
        [&](const Scope& s, const NumberOrOutput& rate, Output step) {
          return CosineDecay(s, rate, step, {.decay_steps = 200, .alpha = alpha});
        },
        [&](double s) { return (1 - alpha) * Cosine(std::min(s, 200.0) / 200) + alpha; });
  }
}

TEST(CosineDecayRestarts, BeginAgainAtTheVeryStep) {
  for (const double t_mul : {1.0, 1.5, 2.0, 3.0, 10.0}) {
    for (const double m_mul : {1.0, 0.5}) {
      SCOPED_TRACE(absl::StrCat(t_mul, " ", m_mul));
      ExpectSchedule(
          [&](const Scope& s, const NumberOrOutput& rate, Output step) {
            return CosineDecayRestarts(
                s, rate, step,
                {.first_decay_steps = 100, .t_mul = t_mul, .m_mul = m_mul, .alpha = 0.1});
          },
          [&](double s) {
            // Period by period; all of the same length are counted at once.
            double length = 100, height = 1;
            if (t_mul == 1) {
              height = std::pow(m_mul, std::floor(s / 100));
              s = std::fmod(s, 100);
            }
            while (s >= length) {
              s -= length;
              length *= t_mul;
              height *= m_mul;
            }
            return 0.9 * height * Cosine(s / length) + 0.1;
          });
    }
  }
}

// The first step of each of the first periods, where logarithms round up or down.
TEST(CosineDecayRestarts, AreExactAtEveryBegin) {
  for (const int64_t t_mul : {2, 3, 5, 7, 10}) {
    Scope scope;
    const Output step = TestInput(scope, DT_INT64, PartialShape::Scalar());
    const Output rate = CosineDecayRestarts(
        scope, 1.0, step, {.first_decay_steps = 10, .t_mul = static_cast<double>(t_mul)});
    ASSERT_OK(scope.status());
    int64_t begin = 0, length = 10;
    while (begin < 1'000'000'000) {
      SCOPED_TRACE(absl::StrCat(t_mul, " ", begin));
      const auto at = [&](int64_t s) {
        const auto got = EvaluateGraph(scope, {{step, Tensor::Scalar(s)}}, {rate});
        EXPECT_OK(got.status());
        return got.ok() ? (*got)[0].scalar<float>() : -1;
      };
      EXPECT_FLOAT_EQ(at(begin), 1);
      begin += length;
      EXPECT_LT(at(begin - 1), 0.03);
      length *= t_mul;
    }
  }
}

TEST(LinearCosineDecay, FollowsItsClosedForm) {
  for (const double periods : {0.5, 2.0}) {
    ExpectSchedule(
        [&](const Scope& s, const NumberOrOutput& rate, Output step) {
          return LinearCosineDecay(
              s, rate, step,
              {.decay_steps = 200, .num_periods = periods, .alpha = 0.1, .beta = 0.01});
        },
        [&](double s) {
          const double f = std::min(s, 200.0) / 200;
          return (0.1 + 1 - f) * Cosine(2 * periods * f) + 0.01;
        });
  }
}

TEST(LinearWarmup, RisesToTheLearningRate) {
  ExpectSchedule(
      [](const Scope& s, const NumberOrOutput& rate, Output step) {
        return LinearWarmup(s, rate, step, {.warmup_steps = 150, .start = 0.2});
      },
      [](double s) { return 0.2 + 0.8 * std::min(s, 150.0) / 150; });
}

TEST(LinearWarmup, GoesAroundAnotherSchedule) {
  Scope scope;
  const Output step = TestInput(scope, DT_INT64, PartialShape::Scalar());
  const Output decay = ExponentialDecay(scope, 0.5, step, {.decay_steps = 10, .decay_rate = 0.5});
  const Output rate = LinearWarmup(scope, decay, step, {.warmup_steps = 20});
  ASSERT_OK_AND_ASSIGN(const auto got,
                       EvaluateGraph(scope, {{step, Tensor::Scalar(int64_t{10})}}, {rate}));
  EXPECT_FLOAT_EQ(got[0].scalar<float>(), 0.5f * 0.5f * 0.5f);
}

TEST(PiecewiseConstant, ChangesAfterEachBoundary) {
  for (const DType dtype : {DT_INT64, DT_INT32}) {
    Scope scope;
    const Output step = TestInput(scope, dtype, PartialShape::Scalar());
    const Output rate =
        PiecewiseConstant(scope, step, {100, 200, 5'000'000'000}, {1, 0.5, 0.25, 0.125});
    ASSERT_OK(scope.status());
    EXPECT_EQ(rate.dtype(), DT_FLOAT);
    EXPECT_EQ(rate.name(), "PiecewiseConstant:0");
    const std::pair<int64_t, float> cases[] = {{0, 1},
                                               {100, 1},
                                               {101, 0.5f},
                                               {200, 0.5f},
                                               {201, 0.25f},
                                               {2'000'000'000, 0.25f},
                                               {5'000'000'000, 0.25f},
                                               {5'000'000'001, 0.125f}};
    for (const auto& [s, want] : cases) {
      if (dtype == DT_INT32 && s > std::numeric_limits<int32_t>::max()) continue;
      const Tensor fed =
          dtype == DT_INT64 ? Tensor::Scalar(s) : Tensor::Scalar(static_cast<int32_t>(s));
      ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {{step, fed}}, {rate}));
      EXPECT_EQ(got[0].scalar<float>(), want) << s;
    }
  }
}

TEST(LearningRates, HaveTensorFlowsNames) {
  Scope scope;
  const Output step = TestInput(scope, DT_INT64, PartialShape::Scalar());
  const DecayAttrs decay = {.decay_steps = 1, .decay_rate = 1};
  EXPECT_EQ(ExponentialDecay(scope, 1.0, step, decay).name(), "ExponentialDecay:0");
  EXPECT_EQ(NaturalExpDecay(scope, 1.0, step, decay).name(), "NaturalExpDecay:0");
  EXPECT_EQ(InverseTimeDecay(scope, 1.0, step, decay).name(), "InverseTimeDecay:0");
  EXPECT_EQ(PolynomialDecay(scope, 1.0, step, {.decay_steps = 1}).name(), "PolynomialDecay:0");
  EXPECT_EQ(CosineDecay(scope, 1.0, step, {.decay_steps = 1}).name(), "CosineDecay:0");
  EXPECT_EQ(CosineDecayRestarts(scope, 1.0, step, {.first_decay_steps = 1}).name(), "SGDRDecay:0");
  EXPECT_EQ(LinearCosineDecay(scope, 1.0, step, {.decay_steps = 1}).name(), "LinearCosineDecay:0");
  EXPECT_EQ(LinearWarmup(scope, 1.0, step, {.warmup_steps = 1}).name(), "LinearWarmup:0");
  EXPECT_EQ(ExponentialDecay(scope, 1.0, step, decay).name(), "ExponentialDecay_1:0");
  const Scope inner = scope.WithSubScope("model");
  EXPECT_EQ(ExponentialDecay(inner.WithName("rate"), 1.0, step, decay).name(), "model/rate:0");
  EXPECT_NE(scope.graph()->FindNode("model/rate/learning_rate"), nullptr);
  EXPECT_OK(scope.status());
}

// A second schedule of the same name gets a scope of its own, which holds all its nodes.
TEST(LearningRates, StandInAScopeOfTheirOwn) {
  using Schedule = std::function<Output(const Scope& s, Output step)>;
  const DecayAttrs decay = {.decay_steps = 10, .decay_rate = 0.5};
  const Schedule schedules[] = {
      [&](const Scope& s, Output step) { return ExponentialDecay(s, 1.0, step, decay); },
      [&](const Scope& s, Output step) { return NaturalExpDecay(s, 1.0, step, decay); },
      [&](const Scope& s, Output step) { return InverseTimeDecay(s, 1.0, step, decay); },
      [](const Scope& s, Output step) {
        return PiecewiseConstant(s, step, {1}, {1, 2});
      },
      [](const Scope& s, Output step) {
        return PolynomialDecay(s, 1.0, step, {.decay_steps = 10, .cycle = true});
      },
      [](const Scope& s, Output step) { return CosineDecay(s, 1.0, step, {.decay_steps = 10}); },
      [](const Scope& s, Output step) {
        return CosineDecayRestarts(s, 1.0, step, {.first_decay_steps = 10});
      },
      [](const Scope& s, Output step) {
        return LinearCosineDecay(s, 1.0, step, {.decay_steps = 10});
      },
      [](const Scope& s, Output step) { return LinearWarmup(s, 1.0, step, {.warmup_steps = 10}); },
  };
  const auto names = [](const Scope& scope, int first) {
    std::vector<std::string> result;
    for (const auto& node : scope.graph()->nodes()) {
      if (node != nullptr && node->id() >= first) result.push_back(node->name());
    }
    return result;
  };
  for (const Schedule& schedule : schedules) {
    Scope scope;
    const Output step = TestInput(scope, DT_INT32, PartialShape::Scalar());
    const std::string first = schedule(scope, step).op().name();
    const std::vector<std::string> own = names(scope, step.node()->id() + 1);
    const int next = scope.graph()->num_nodes();
    const std::string second = schedule(scope, step).op().name();
    EXPECT_EQ(second, first + "_1");
    const std::vector<std::string> others = names(scope, next);
    ASSERT_EQ(others.size(), own.size());
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_EQ(others[i], second + own[i].substr(first.size()));
    }
    const Scope inner = scope.WithSubScope("model");
    EXPECT_EQ(schedule(inner.WithName("rate"), step).name(), "model/rate:0");
    EXPECT_EQ(schedule(inner.WithName("rate"), step).name(), "model/rate_1:0");
    EXPECT_EQ(schedule(inner.WithName(inner.UniqueName("rate") + "/"), step).name(),
              "model/rate_2:0");
    EXPECT_EQ((2 * schedule(inner, step)).name(), "model/mul:0");
    EXPECT_OK(scope.status());
  }
}

// The largest int64 step.
TEST(LearningRates, StayNumbersAtTheEndOfTime) {
  Scope scope;
  const Output step = TestInput(scope, DT_INT64, PartialShape::Scalar());
  const DecayAttrs decay = {.decay_steps = 1, .decay_rate = 0.5};
  const DecayAttrs stairs = {.decay_steps = 3, .decay_rate = 0.5, .staircase = true};
  const std::vector<Output> rates = {
      ExponentialDecay(scope, 1.0, step, decay),
      ExponentialDecay(scope, 1.0, step, stairs),
      NaturalExpDecay(scope, 1.0, step, decay),
      InverseTimeDecay(scope, 1.0, step, decay),
      PiecewiseConstant(scope, step, {1, std::numeric_limits<int64_t>::max() - 1}, {0, 0, 0.5}),
      PolynomialDecay(scope, 1.0, step, {.decay_steps = 7}),
      PolynomialDecay(scope, 1.0, step, {.decay_steps = 7, .power = 0.5, .cycle = true}),
      CosineDecay(scope, 1.0, step, {.decay_steps = 7}),
      CosineDecayRestarts(scope, 1.0, step, {.first_decay_steps = 7}),
      CosineDecayRestarts(scope, 1.0, step, {.first_decay_steps = 7, .t_mul = 1, .m_mul = 0.5}),
      LinearCosineDecay(scope, 1.0, step, {.decay_steps = 7}),
      LinearWarmup(scope, 1.0, step, {.warmup_steps = 7})};
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(
      const auto got,
      EvaluateGraph(scope, {{step, Tensor::Scalar(std::numeric_limits<int64_t>::max())}}, rates));
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_GE(got[i].scalar<float>(), 0) << rates[i].name();
    EXPECT_LE(got[i].scalar<float>(), 1) << rates[i].name();
  }
  EXPECT_EQ(got[4].scalar<float>(), 0.5f);
  EXPECT_EQ(got.back().scalar<float>(), 1);
}

TEST(LearningRates, BadArgumentsAreErrorsOfTheScope) {
  Scope other;
  const Output foreign = Placeholder(other.WithName("far"), DT_FLOAT);
  struct Case {
    std::function<Output(const Scope& s, Output step)> build;
    const char* text;
  };
  const auto in = [](const Scope& s, DType dtype, const PartialShape& shape) {
    return Placeholder(s.WithName("in"), dtype, shape);
  };
  const DecayAttrs good = {.decay_steps = 10, .decay_rate = 0.5};
  const Case cases[] = {
      {[](const Scope& s, Output step) {
         return ExponentialDecay(s, 1.0, step, {.decay_rate = 1});
       },
       "ExponentialDecay: decay_steps must be > 0, got 0; built at "},
      {[](const Scope& s, Output step) {
         return NaturalExpDecay(s, 1.0, step, {.decay_steps = -3});
       },
       "NaturalExpDecay: decay_steps must be > 0, got -3"},
      {[](const Scope& s, Output step) { return InverseTimeDecay(s, 1.0, step, {}); },
       "InverseTimeDecay: decay_steps must be > 0, got 0"},
      {[](const Scope& s, Output step) { return PolynomialDecay(s, 1.0, step, {}); },
       "PolynomialDecay: decay_steps must be > 0, got 0"},
      {[](const Scope& s, Output step) { return CosineDecay(s, 1.0, step, {}); },
       "CosineDecay: decay_steps must be > 0, got 0"},
      {[](const Scope& s, Output step) { return CosineDecayRestarts(s, 1.0, step, {}); },
       "CosineDecayRestarts: first_decay_steps must be > 0, got 0"},
      {[](const Scope& s, Output step) { return LinearCosineDecay(s, 1.0, step, {}); },
       "LinearCosineDecay: decay_steps must be > 0, got 0"},
      {[](const Scope& s, Output step) { return LinearWarmup(s, 1.0, step, {}); },
       "LinearWarmup: warmup_steps must be > 0, got 0"},
      {[](const Scope& s, Output step) {
         return ExponentialDecay(s, 1.0, step, {.decay_steps = 10});
       },
       "ExponentialDecay: decay_rate must be > 0, got nan"},
      {[](const Scope& s, Output step) {
         return NaturalExpDecay(s, 1.0, step, {.decay_steps = 10, .decay_rate = -1});
       },
       "NaturalExpDecay: decay_rate must be finite and >= 0, got -1"},
      {[](const Scope& s, Output step) {
         return PolynomialDecay(s, 1.0, step, {.decay_steps = 10, .power = kNan});
       },
       "power must be finite and >= 0, got nan"},
      {[](const Scope& s, Output step) {
         return CosineDecayRestarts(s, 1.0, step, {.first_decay_steps = 10, .t_mul = 0.5});
       },
       "t_mul must be finite and >= 1, got 0.5"},
      {[](const Scope& s, Output step) {
         return CosineDecay(s, 1.0, step, {.decay_steps = 10, .alpha = kNan});
       },
       "alpha must be finite, got nan"},
      {[](const Scope& s, Output step) {
         return LinearWarmup(s, 1.0, step, {.warmup_steps = 10, .start = 2});
       },
       "start must be in [0, 1], got 2"},
      {[&](const Scope& s, Output step) { return ExponentialDecay(s, kNan, step, good); },
       "ExponentialDecay: learning_rate must be finite, got nan"},
      {[&](const Scope& s, Output step) {
         return ExponentialDecay(s, in(s, DT_INT32, {}), step, good);
       },
       "ExponentialDecay: learning_rate must be floating, got int32 from 'in:0'"},
      {[&](const Scope& s, Output step) {
         return ExponentialDecay(s, in(s, DT_FLOAT, {2}), step, good);
       },
       "ExponentialDecay: learning_rate must be a scalar, got shape [2] of 'in:0'"},
      {[&](const Scope& s, Output step) { return ExponentialDecay(s, Output(), step, good); },
       "learning_rate must be a number or a tensor of the graph, got an invalid Output"},
      {[&](const Scope& s, Output step) { return ExponentialDecay(s, foreign, step, good); },
       "learning_rate must be a number or a tensor of the same graph, got 'far:0' of another"},
      {[&](const Scope& s, Output) { return ExponentialDecay(s, 1.0, Output(), good); },
       "ExponentialDecay: global_step must be a tensor of the graph, got an invalid Output"},
      {[&](const Scope& s, Output) { return ExponentialDecay(s, 1.0, foreign, good); },
       "global_step must be of the same graph, got 'far:0' of another"},
      {[&](const Scope& s, Output) { return ExponentialDecay(s, 1.0, in(s, DT_STRING, {}), good); },
       "global_step must be a number, got string from 'in:0'"},
      {[&](const Scope& s, Output) { return ExponentialDecay(s, 1.0, in(s, DT_INT64, {1}), good); },
       "global_step must be a scalar, got shape [1] of 'in:0'"},
      {[&](const Scope& s, Output) {
         return PiecewiseConstant(s, in(s, DT_FLOAT, {}), {1}, {1, 2});
       },
       "PiecewiseConstant: global_step must be int32 or int64, got float from 'in:0'"},
      {[](const Scope& s, Output step) { return PiecewiseConstant(s, step, {}, {1}); },
       "PiecewiseConstant: there must be boundaries, got none"},
      {[](const Scope& s, Output step) {
         return PiecewiseConstant(s, step, {1, 2}, {1, 2});
       },
       "there must be one value more than boundaries, got 2 values for 2 boundaries"},
      {[](const Scope& s, Output step) {
         return PiecewiseConstant(s, step, {2, 2}, {1, 2, 3});
       },
       "boundaries must increase, got 2 after 2"},
      {[](const Scope& s, Output step) {
         return PiecewiseConstant(s, step, {2}, {1, kNan});
       },
       "values must be finite, got nan"},
  };
  for (const Case& c : cases) {
    Scope scope;
    EXPECT_FALSE(c.build(scope, TestInput(scope, DT_INT64, PartialShape::Scalar())).valid())
        << c.text;
    EXPECT_STATUS(scope.status(), kInvalid, c.text);
  }
}

}  // namespace
}  // namespace millrace
