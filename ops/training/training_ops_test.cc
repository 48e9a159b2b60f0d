// SPDX-License-Identifier: Apache-2.0
#include "ops/training/training_ops.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/loops/training.h"
#include "runtime/testing/op_test.h"

// covers: values: FTRL follows its equations, whole and by rows; senseless rates are refused
// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <typename T>
Tensor Scalar(double v) {
  return Tensor::Scalar<T>(static_cast<T>(v));
}

// Runs the reference form and the resource form of an update rule on variables of these values, the
// latter on two threads and on one, and gives the variables afterwards; all must agree.
std::vector<Tensor> Update(absl::string_view op, const std::vector<Tensor>& variables,
                           const std::vector<Tensor>& rest, std::vector<OpAttr> attrs = {}) {
  std::vector<std::vector<Tensor>> results;
  for (const int form : {0, 1, 2}) {
    const bool resource = form > 0;
    OpTestDevice device(form == 2 ? 1 : 2);
    const std::string name = resource ? absl::StrCat("Resource", op) : std::string(op);
    OpCall call(name);
    std::vector<std::shared_ptr<VariableStorage>> storages;
    for (size_t i = 0; i < variables.size(); ++i) {
      const Tensor value = variables[i].Clone().value();
      const std::string variable = absl::StrCat("v", i);
      if (resource) {
        const Tensor handle = device.VariableHandle(variable, value);
        storages.push_back(device.resources()->Lookup<VariableStorage>("", variable).value());
        call.Input(handle);
      } else {
        storages.push_back(TestVariable(variable, value));
        call.InputRef(storages.back());
      }
    }
    for (const Tensor& t : rest) call.Input(t);
    for (const OpAttr& attr : attrs) call.Attr(attr.name, attr.value);
    call.On(&device);
    const StatusOr<std::vector<Tensor>> out = RunOp(call);
    EXPECT_TRUE(out.ok()) << name << ": " << out.status();
    std::vector<Tensor> after;
    for (const auto& storage : storages) after.push_back(storage->Read().value());
    results.push_back(std::move(after));
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    EXPECT_TRUE(results[0][i] == results[1][i]) << op << " variable " << i;
    EXPECT_TRUE(results[0][i] == results[2][i]) << op << " variable " << i << " on one thread";
  }
  return results[0];
}

TEST(GradientDescent, MovesAgainstTheGradient) {
  const auto after = Update("ApplyGradientDescent", {TensorOf<float>({2, 1}, {1, 2})},
                            {Scalar<float>(0.5), TensorOf<float>({2, 1}, {4, -2})});
  ExpectTensorEqual(after[0], TensorOf<float>({2, 1}, {-1, 3}));
  const auto half = Update("ApplyGradientDescent", {TensorOf<Half>({1}, {ToHalf(1)})},
                           {Tensor::Scalar<Half>(ToHalf(0.5)), TensorOf<Half>({1}, {ToHalf(4)})});
  ExpectTensorEqual(half[0], TensorOf<Half>({1}, {ToHalf(-1)}));
  const auto none = Update("ApplyGradientDescent", {TensorOf<double>({0, 3}, {})},
                           {Scalar<double>(0.5), TensorOf<double>({0, 3}, {})});
  ExpectTensorEqual(none[0], TensorOf<double>({0, 3}, {}));
}

// The published equations (Kingma and Ba 2015, algorithm 1 in the order of section 2's last
// paragraph), computed in double by hand.
template <typename T>
void ExpectAdam(bool nesterov, double tolerance) {
  const double lr = 0.01, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  std::vector<double> var = {1, 2, -3}, m = {0, 0, 0}, v = {0, 0, 0};
  const std::vector<double> grad = {0.1, -0.2, 3};
  const auto tensor = [](const std::vector<double>& values) {
    std::vector<T> typed(values.begin(), values.end());
    return Tensor::Vector<T>(typed);
  };
  std::vector<Tensor> state = {tensor(var), tensor(m), tensor(v)};
  for (int t = 1; t <= 3; ++t) {
    const double power1 = std::pow(beta1, t), power2 = std::pow(beta2, t);
    const double step = lr * std::sqrt(1 - power2) / (1 - power1);
    for (size_t i = 0; i < 3; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * grad[i];
      v[i] = beta2 * v[i] + (1 - beta2) * grad[i] * grad[i];
      const double direction = nesterov ? beta1 * m[i] + (1 - beta1) * grad[i] : m[i];
      var[i] -= step * direction / (std::sqrt(v[i]) + epsilon);
    }
    state = Update("ApplyAdam", state,
                   {Scalar<T>(power1), Scalar<T>(power2), Scalar<T>(lr), Scalar<T>(beta1),
                    Scalar<T>(beta2), Scalar<T>(epsilon), tensor(grad)},
                   {{"use_nesterov", nesterov}});
    ExpectTensorNear(state[0], tensor(var), tolerance, 0);
    ExpectTensorNear(state[1], tensor(m), 100 * tolerance, 0);
    ExpectTensorNear(state[2], tensor(v), 100 * tolerance, 0);
  }
}

TEST(Adam, FollowsThePublishedEquations) {
  ExpectAdam<float>(false, 1e-6);
  ExpectAdam<float>(true, 1e-6);
  ExpectAdam<double>(false, 1e-13);
  ExpectAdam<double>(true, 1e-13);
}

TEST(Adagrad, DividesByTheRootOfTheSquares) {
  const std::vector<Tensor> state = {Tensor::Vector<double>({1, 2}),
                                     Tensor::Vector<double>({7, 0})};
  const std::vector<Tensor> rest = {Scalar<double>(0.5), Tensor::Vector<double>({3, -2})};
  const auto after = Update("ApplyAdagrad", state, rest);
  ExpectTensorEqual(after[1], Tensor::Vector<double>({16, 4}));
  ExpectTensorEqual(after[0], Tensor::Vector<double>({1 - 0.5 * 3 / 4, 2 + 0.5 * 2 / 2}));
  const auto kept =
      Update("ApplyAdagrad", {Tensor::Vector<double>({1, 2}), Tensor::Vector<double>({16, 4})},
             rest, {{"update_slots", false}});
  ExpectTensorEqual(kept[1], Tensor::Vector<double>({16, 4}));
  ExpectTensorEqual(kept[0], after[0]);
}

TEST(Momentum, KeepsAVelocity) {
  const std::vector<Tensor> state = {Tensor::Vector<double>({1}), Tensor::Vector<double>({4})};
  const std::vector<Tensor> rest = {Scalar<double>(0.5), Tensor::Vector<double>({3}),
                                    Scalar<double>(0.25)};
  const auto plain = Update("ApplyMomentum", state, rest);
  ExpectTensorEqual(plain[1], Tensor::Vector<double>({4}));  // 0.25 * 4 + 3
  ExpectTensorEqual(plain[0], Tensor::Vector<double>({-1}));
  const auto nesterov = Update("ApplyMomentum", state, rest, {{"use_nesterov", true}});
  ExpectTensorEqual(nesterov[0], Tensor::Vector<double>({1 - (0.5 * 3 + 0.5 * 0.25 * 4)}));
}

// Hinton's equations with TensorFlow's momentum, in double, over three steps.
template <typename T>
void ExpectRmsProp(bool centered, double tolerance) {
  const double lr = 0.01, rho = 0.9, momentum = 0.5, epsilon = 1e-3;
  std::vector<double> var = {1, 2, -3}, mg = {0, 0, 0}, ms = {1, 1, 1}, mom = {0, 0, 0};
  const std::vector<std::vector<double>> grads = {{0.1, -0.2, 3}, {0.3, 0, -1}, {-2, 0.5, 0.25}};
  const auto tensor = [](const std::vector<double>& values) {
    std::vector<T> typed(values.begin(), values.end());
    return Tensor::Vector<T>(typed);
  };
  std::vector<Tensor> state = {tensor(var), tensor(ms), tensor(mom)};
  if (centered) state.insert(state.begin() + 1, tensor(mg));
  for (const std::vector<double>& grad : grads) {
    for (size_t i = 0; i < 3; ++i) {
      ms[i] = rho * ms[i] + (1 - rho) * grad[i] * grad[i];
      mg[i] = rho * mg[i] + (1 - rho) * grad[i];
      const double square = centered ? ms[i] - mg[i] * mg[i] : ms[i];
      mom[i] = momentum * mom[i] + lr * grad[i] / std::sqrt(square + epsilon);
      var[i] -= mom[i];
    }
    state = Update(
        centered ? "ApplyCenteredRMSProp" : "ApplyRMSProp", state,
        {Scalar<T>(lr), Scalar<T>(rho), Scalar<T>(momentum), Scalar<T>(epsilon), tensor(grad)});
    const size_t first = centered ? 1 : 0;
    ExpectTensorNear(state[0], tensor(var), tolerance, 0);
    if (centered) ExpectTensorNear(state[1], tensor(mg), 100 * tolerance, 1e-7);
    ExpectTensorNear(state[first + 1], tensor(ms), 100 * tolerance, 0);
    ExpectTensorNear(state[first + 2], tensor(mom), 100 * tolerance, 1e-7);
  }
}

TEST(RmsProp, FollowsItsEquations) {
  ExpectRmsProp<float>(false, 1e-6);
  ExpectRmsProp<float>(true, 1e-6);
  ExpectRmsProp<double>(false, 1e-13);
  ExpectRmsProp<double>(true, 1e-13);
}

// What TensorFlow's own tests of its FtrlOptimizer expect: learning rate 3, accumulators that begin
// at 0.1, gradients [0.1, 0.2] and [0.01, 0.02] in each step.
TEST(Ftrl, GivesTensorFlowsPublishedValues) {
  struct Case {
    int steps;
    double start[2][2];
    double l1, l2, shrinkage;  // a shrinkage of -1: the form without it
    double expected[2][2];
  };
  const Case cases[] = {
      {3, {{0, 0}, {0, 0}}, 0, 0, -1, {{-2.60260963, -4.29698515}, {-0.28432083, -0.56694895}}},
      {3, {{1, 2}, {4, 3}}, 0, 0, -1, {{-2.55607247, -3.98729396}, {-0.28232238, -0.56096673}}},
      {10,
       {{1, 2}, {4, 3}},
       0.001,
       0,
       -1,
       {{-7.66718769, -10.91273689}, {-0.93460727, -1.86147261}}},
      {10,
       {{1, 2}, {4, 3}},
       0.001,
       2,
       -1,
       {{-0.24059935, -0.46829352}, {-0.02406147, -0.04830509}}},
      {10,
       {{1, 2}, {4, 3}},
       0.001,
       2,
       0.1,
       {{-0.22578995, -0.44345796}, {-0.14378493, -0.13229476}}},
  };
  const double gradients[2][2] = {{0.1, 0.2}, {0.01, 0.02}};
  for (const Case& c : cases) {
    for (const int which : {0, 1}) {
      const auto pair = [](const double* v) { return Tensor::Of<double>({v[0], v[1]}); };
      std::vector<Tensor> rest = {pair(gradients[which]), Scalar<double>(3), Scalar<double>(c.l1),
                                  Scalar<double>(c.l2)};
      if (c.shrinkage >= 0) rest.push_back(Scalar<double>(c.shrinkage));
      rest.push_back(Scalar<double>(-0.5));
      std::vector<Tensor> state = {pair(c.start[which]), Tensor::Of<double>({0.1, 0.1}),
                                   Tensor::Of<double>({0.0, 0.0})};
      for (int step = 0; step < c.steps; ++step) {
        state = Update(c.shrinkage >= 0 ? "ApplyFtrlV2" : "ApplyFtrl", state, rest);
      }
      ExpectTensorNear(state[0], pair(c.expected[which]), 1e-6, 1e-7);  // computed in float
    }
  }
}

// The equations, in double.
template <typename T>
void ExpectFtrl(double power, double tolerance) {
  const double lr = 0.25, l1 = 0.125, l2 = 0.5, shrinkage = 0.25;
  std::vector<double> var = {1, 2, -3, 0.5}, accum = {0.5, 0.25, 1, 2}, linear = {0, 1, -0.5, 0.1};
  const std::vector<double> grad = {0.125, -2, 3, 0};
  const auto tensor = [](const std::vector<double>& values) {
    std::vector<T> typed(values.begin(), values.end());
    return Tensor::Vector<T>(typed);
  };
  std::vector<Tensor> state = {tensor(var), tensor(accum), tensor(linear)};
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < var.size(); ++i) {
      const double more = accum[i] + grad[i] * grad[i];
      linear[i] += grad[i] + 2 * shrinkage * var[i] -
                   (std::pow(more, -power) - std::pow(accum[i], -power)) / lr * var[i];
      const double quadratic = std::pow(more, -power) / lr + 2 * l2;
      const double pull = linear[i] > 0 ? l1 : -l1;
      var[i] = std::fabs(linear[i]) > l1 ? (pull - linear[i]) / quadratic : 0;
      accum[i] = more;
    }
    state = Update("ApplyFtrlV2", state,
                   {tensor(grad), Scalar<T>(lr), Scalar<T>(l1), Scalar<T>(l2), Scalar<T>(shrinkage),
                    Scalar<T>(power)});
    ExpectTensorNear(state[0], tensor(var), tolerance, tolerance);
    ExpectTensorNear(state[1], tensor(accum), tolerance, tolerance);
    ExpectTensorNear(state[2], tensor(linear), tolerance, tolerance);
  }
}

TEST(Ftrl, FollowsItsEquations) {
  for (const double power : {-0.5, 0.0, -0.75, -1.0}) {
    ExpectFtrl<float>(power, 3e-6);
    ExpectFtrl<double>(power, 1e-13);
  }
}

TEST(Ftrl, RowsAreUpdatedAsWholeVariablesAre) {
  const Tensor var = TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor accum = TensorOf<float>({3, 2}, {1, 1, 7, 7, 1, 1}),
               zeros = TensorOf<float>({3, 2}, {0, 0, 0, 0, 0, 0});
  const std::vector<Tensor> rates = {Scalar<float>(0.5), Scalar<float>(0.125), Scalar<float>(1)};
  for (const float power : {-0.5f, -0.75f}) {
    std::vector<Tensor> dense = {TensorOf<float>({3, 2}, {0, 0, 3, -3, 0, 0})};
    std::vector<Tensor> sparse = {TensorOf<float>({1, 2}, {3, -3}), Tensor::Of<int64_t>({1})};
    for (std::vector<Tensor>* rest : {&dense, &sparse}) {
      rest->insert(rest->end(), rates.begin(), rates.end());
      rest->push_back(Tensor::Scalar(power));
    }
    const auto whole = Update("ApplyFtrl", {var, accum, zeros}, dense);
    const auto rows = Update("SparseApplyFtrl", {var, accum, zeros}, sparse);
    for (size_t i = 0; i < 3; ++i) {
      ExpectTensorEqual(rows[i].Rows(1, 2), whole[i].Rows(1, 2));
      const Tensor& before = i == 0 ? var : i == 1 ? accum : zeros;
      ExpectTensorEqual(rows[i].Rows(0, 1), before.Rows(0, 1));
      ExpectTensorEqual(rows[i].Rows(2, 3), before.Rows(2, 3));
    }
    for (std::vector<Tensor>* rest : {&dense, &sparse}) {
      rest->insert(rest->end() - 1, Scalar<float>(0.25));
    }
    const auto whole_v2 = Update("ApplyFtrlV2", {var, accum, zeros}, dense);
    const auto rows_v2 = Update("SparseApplyFtrlV2", {var, accum, zeros}, sparse);
    ExpectTensorEqual(rows_v2[0].Rows(1, 2), whole_v2[0].Rows(1, 2));
    EXPECT_FALSE(rows_v2[0].Rows(1, 2) == rows[0].Rows(1, 2));
  }
}

// Of any width, some of them twice: each has its own updates and no other's.
template <typename T>
void ExpectRowsOneByOne(int64_t width) {
  constexpr int64_t kRows = 1500;
  const Shape table = ShapeOf({kRows, width});
  std::vector<Tensor> state;
  for (const double value : {0.5, 0.25, -1.0}) {
    std::vector<T> values(static_cast<size_t>(table.num_elements()), static_cast<T>(value));
    state.push_back(*Tensor::FromValues<T>(table, values));
  }
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 150; ++i) rows.push_back(i * 37 % 1400);
  for (const int64_t row : {1024, 0, 1024, 5, 5, 5, 1499}) rows.push_back(row);
  std::vector<T> gradients;
  for (size_t i = 0; i < rows.size() * static_cast<size_t>(width); ++i) {
    gradients.push_back(static_cast<T>(static_cast<double>(i % 13) - 6.5));
  }
  const auto rates = [](std::vector<Tensor> rest) {
    for (const double rate : {0.5, 0.125, 1.0, -0.5}) rest.push_back(Scalar<T>(rate));
    return rest;
  };
  const auto count = static_cast<int64_t>(rows.size());
  const auto together = Update("SparseApplyFtrl", state,
                               rates({*Tensor::FromValues<T>(ShapeOf({count, width}), gradients),
                                      *Tensor::FromValues<int64_t>(ShapeOf({count}), rows)}));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = rows[static_cast<size_t>(i)];
    const T* const own = gradients.data() + i * width;
    std::vector<Tensor> parts;
    for (const Tensor& variable : state) parts.push_back(*variable.Rows(row, row + 1).Clone());
    const auto after = Update(
        "ApplyFtrl", parts,
        rates({*Tensor::FromValues<T>(ShapeOf({1, width}), std::vector<T>(own, own + width))}));
    for (size_t k = 0; k < state.size(); ++k) {
      std::copy_n(after[k].template raw<T>().data(), width,
                  state[k].template mutable_raw<T>().data() + row * width);
    }
  }
  for (size_t k = 0; k < state.size(); ++k) {
    SCOPED_TRACE(absl::StrCat("width ", width, ", variable ", k));
    ExpectTensorEqual(together[k], state[k]);
  }
}

TEST(Ftrl, RowsHaveTheirOwnUpdates) {
  for (const int64_t width : {1, 3, 8, 9}) ExpectRowsOneByOne<float>(width);
  ExpectRowsOneByOne<double>(1);
}

// Nothing has been learnt yet: 0 / 0 is not asked for.
TEST(Ftrl, ZeroGradientsLeaveZeros) {
  const Tensor zeros = TensorOf<float>({9}, {0, 0, 0, 0, 0, 0, 0, 0, 0});
  for (const Tensor& var :
       Update("ApplyFtrl", {zeros, zeros, zeros},
              {zeros, Scalar<float>(1), Scalar<float>(0), Scalar<float>(0), Scalar<float>(-0.5)})) {
    ExpectTensorEqual(var, zeros);
  }
}

TEST(Ftrl, RefusesRatesThatMakeNoSense) {
  const auto call = [](double lr, double l1, double l2, double shrinkage, double power) {
    const auto one = [](const char* name) {
      return TestVariable(name, Tensor::Vector<float>({1}));
    };
    return OpCall("ApplyFtrlV2")
        .InputRef(one("v"))
        .InputRef(one("a"))
        .InputRef(one("z"))
        .Input(Tensor::Vector<float>({1}))
        .Input(Scalar<float>(lr))
        .Input(Scalar<float>(l1))
        .Input(Scalar<float>(l2))
        .Input(Scalar<float>(shrinkage))
        .Input(Scalar<float>(power));
  };
  ExpectOpError(call(0, 0, 0, 0, -0.5), kInvalid, "lr must be > 0, got 0");
  ExpectOpError(call(std::nan(""), 0, 0, 0, -0.5), kInvalid, "lr must be > 0, got nan");
  ExpectOpError(call(1, -1, 0, 0, -0.5), kInvalid, "l1 must be >= 0, got -1");
  ExpectOpError(call(1, 0, -1, 0, -0.5), kInvalid, "l2 must be >= 0, got -1");
  ExpectOpError(call(1, 0, 0, -1, -0.5), kInvalid, "l2_shrinkage must be >= 0, got -1");
  ExpectOpError(call(1, 0, 0, 0, 0.5), kInvalid, "lr_power must be <= 0, got 0.5");
  EXPECT_SHAPE("SparseApplyFtrl", {},
               {"[5,2]", "[5,2]", "[5,2]", "[?,2]", "[3]", "[]", "[]", "[]", "[]"}, "[5,2]");
  EXPECT_SHAPE_ERROR("ApplyFtrl", {}, {"[2]", "[2]", "[2]", "[2]", "[]", "[1]", "[]", "[]"},
                     "rank 0");
}

// --- The less usual ones -------------------------------------------------------------------------

// One element: its variables, changed by a step with gradient g.
using Rule = std::function<void(std::vector<double>* v, double g)>;

// `op` follows the rule in three steps. `before`: inputs before the gradient, `after`: behind it.
template <typename T>
void ExpectRule(const char* op, size_t num_variables, const std::vector<double>& before,
                const std::vector<Tensor>& after, const Rule& rule, double tolerance,
                std::vector<OpAttr> attrs = {}) {
  SCOPED_TRACE(op);
  const std::vector<std::vector<double>> grads = {
      {0.125, -2, 3, 0}, {1, 0.5, -3, 0}, {-1, 4, 1, 2}};
  std::vector<std::vector<double>> elements;
  for (const double var : {1.0, 2.0, -3.0, 0.5}) {
    std::vector<double> variables = {var};
    for (size_t k = 1; k < num_variables; ++k) variables.push_back(0.25 * static_cast<double>(k));
    elements.push_back(variables);
  }
  const auto tensor = [](const std::vector<double>& values) {
    std::vector<T> typed(values.begin(), values.end());
    return Tensor::Vector<T>(typed);
  };
  const auto variable = [&](size_t k) {
    std::vector<double> values;
    for (const auto& element : elements) values.push_back(element[k]);
    return tensor(values);
  };
  std::vector<Tensor> state;
  for (size_t k = 0; k < num_variables; ++k) state.push_back(variable(k));
  for (const std::vector<double>& grad : grads) {
    std::vector<Tensor> rest;
    for (const double rate : before) rest.push_back(Scalar<T>(rate));
    rest.push_back(tensor(grad));
    rest.insert(rest.end(), after.begin(), after.end());
    state = Update(op, state, rest, attrs);
    for (size_t i = 0; i < elements.size(); ++i) rule(&elements[i], grad[i]);
    for (size_t k = 0; k < num_variables; ++k) {
      ExpectTensorNear(state[k], variable(k), tolerance, tolerance);
    }
  }
}

double SignOf(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
double Pulled(double p, double pull) { return SignOf(p) * std::max(std::fabs(p) - pull, 0.0); }

template <typename T>
void ExpectOtherRules(double tolerance) {
  ExpectRule<T>(
      "ApplyAdadelta", 3, {0.5, 0.75, 0.125}, {},
      [](std::vector<double>* v, double g) {
        double &x = (*v)[0], &a = (*v)[1], &b = (*v)[2];
        a = 0.75 * a + 0.25 * g * g;
        const double u = std::sqrt(b + 0.125) / std::sqrt(a + 0.125) * g;
        x -= 0.5 * u;
        b = 0.75 * b + 0.25 * u * u;
      },
      tolerance);
  ExpectRule<T>(
      "ApplyAdaMax", 3, {0.75, 0.5, 0.875, 0.625, 0.25}, {},
      [](std::vector<double>* v, double g) {
        double &x = (*v)[0], &m = (*v)[1], &u = (*v)[2];
        m = 0.875 * m + 0.125 * g;
        u = std::max(0.625 * u, std::fabs(g));
        x -= 0.5 / (1 - 0.75) * m / (u + 0.25);
      },
      tolerance);
  for (const bool update_slots : {true, false}) {
    ExpectRule<T>("ApplyAdagradV2", 2, {0.5, 0.25}, {},
                  [=](std::vector<double>* v, double g) {
                    if (update_slots) (*v)[1] += g * g;
                    (*v)[0] -= 0.5 * g / (std::sqrt((*v)[1]) + 0.25);
                  },
                  tolerance, {{"update_slots", update_slots}});
  }
  ExpectRule<T>(
      "ApplyAdagradDA", 3, {},
      {Scalar<T>(0.5), Scalar<T>(0.125), Scalar<T>(0.25), Tensor::Scalar<int64_t>(3)},
      [](std::vector<double>* v, double g) {
        (*v)[1] += g;
        (*v)[2] += g * g;
        (*v)[0] = -0.5 * Pulled((*v)[1], 3 * 0.125) / (0.25 * 3 * 0.5 + std::sqrt((*v)[2]));
      },
      tolerance);
  ExpectRule<T>(
      "ApplyProximalGradientDescent", 1, {0.5, 0.75, 0.25}, {},
      [](std::vector<double>* v, double g) {
        (*v)[0] = Pulled((*v)[0] - 0.5 * g, 0.5 * 0.75) / (1 + 0.5 * 0.25);
      },
      tolerance);
  ExpectRule<T>(
      "ApplyProximalAdagrad", 2, {0.5, 0.75, 0.25}, {},
      [](std::vector<double>* v, double g) {
        (*v)[1] += g * g;
        const double rate = 0.5 / std::sqrt((*v)[1]);
        (*v)[0] = Pulled((*v)[0] - rate * g, rate * 0.75) / (1 + rate * 0.25);
      },
      tolerance);
  for (const char* op : {"ApplyAddSign", "ApplyPowerSign"}) {
    const bool is_power = op == std::string("ApplyPowerSign");
    ExpectRule<T>(
        op, 2, {0.5, 0.75, 0.25, 0.875}, {},
        [=](std::vector<double>* v, double g) {
          (*v)[1] = 0.875 * (*v)[1] + 0.125 * g;
          const double s = 0.25 * SignOf(g) * SignOf((*v)[1]);
          (*v)[0] -= 0.5 * (is_power ? std::exp(0.75 * s) : 0.75 + s) * g;
        },
        tolerance);
  }
}

TEST(OtherOptimizers, FollowTheirEquations) {
  ExpectOtherRules<float>(2e-6);
  ExpectOtherRules<double>(1e-13);
}

// What TensorFlow's tests expect of one step of AdagradDA and of ten steps of the proximal ones.
TEST(OtherOptimizers, GiveTensorFlowsPublishedValues) {
  const auto doubles = [](double a, double b) { return Tensor::Of<double>({a, b}); };
  const Tensor grad = doubles(0.1, 0.2), zero = doubles(0, 0);
  const auto dual = Update("ApplyAdagradDA", {zero, zero, doubles(0.1, 0.1)},
                           {grad, Scalar<double>(3), Scalar<double>(0.001), Scalar<double>(2),
                            Tensor::Scalar<int64_t>(1)});
  ExpectTensorNear(dual[0], doubles(-0.046907, -0.093659), 1e-5, 1e-6);
  for (const bool l2 : {false, true}) {
    std::vector<Tensor> adagrad = {doubles(1, 2), doubles(0.1, 0.1)};
    std::vector<Tensor> descent = {doubles(1, 2)};
    const std::vector<Tensor> rest = {Scalar<double>(3), Scalar<double>(0.001),
                                      Scalar<double>(l2 ? 2 : 0), grad};
    for (int step = 0; step < 10; ++step) {
      adagrad = Update("ApplyProximalAdagrad", adagrad, rest);
      descent = Update("ApplyProximalGradientDescent", descent, rest);
    }
    if (l2) {
      ExpectTensorNear(adagrad[0], doubles(-0.0495, -0.0995), 1e-5, 1e-6);
      ExpectTensorNear(descent[0], doubles(-0.0495, -0.0995), 1e-5, 1e-6);
    } else {
      ExpectTensorNear(adagrad[0], doubles(-6.663634, -9.190331), 1e-5, 1e-6);
    }
  }
}

TEST(OtherOptimizers, UpdateRowsAsWholeVariables) {
  struct Case {
    const char* op;
    size_t num_variables;
    std::vector<Tensor> before, after;
  };
  const auto f = [](float v) { return Tensor::Scalar(v); };
  const Case cases[] = {
      {"Adadelta", 3, {f(0.5f), f(0.75f), f(0.125f)}, {}},
      {"AdagradV2", 2, {f(0.5f), f(0.25f)}, {}},
      {"AdagradDA", 3, {}, {f(0.5f), f(0.125f), f(0.25f), Tensor::Scalar<int64_t>(3)}},
      {"ProximalGradientDescent", 1, {f(0.5f), f(0.75f), f(0.25f)}, {}},
      {"ProximalAdagrad", 2, {f(0.5f), f(0.75f), f(0.25f)}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.op);
    const std::vector<Tensor> state(c.num_variables, TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
    std::vector<Tensor> dense = c.before, sparse = c.before;
    dense.push_back(TensorOf<float>({3, 2}, {0, 0, 3, -3, 0, 0}));
    sparse.push_back(TensorOf<float>({1, 2}, {3, -3}));
    sparse.push_back(Tensor::Of<int64_t>({1}));
    for (std::vector<Tensor>* rest : {&dense, &sparse}) {
      rest->insert(rest->end(), c.after.begin(), c.after.end());
    }
    const auto whole = Update(absl::StrCat("Apply", c.op), state, dense);
    const auto rows = Update(absl::StrCat("SparseApply", c.op), state, sparse);
    for (size_t k = 0; k < c.num_variables; ++k) {
      ExpectTensorEqual(rows[k].Rows(1, 2), whole[k].Rows(1, 2));
      ExpectTensorEqual(rows[k].Rows(0, 1), state[k].Rows(0, 1));
      ExpectTensorEqual(rows[k].Rows(2, 3), state[k].Rows(2, 3));
    }
  }
}

// On handles alone: accum = 0.5 accum - 0.25 g, by whole variables and by rows.
TEST(KerasMomentum, MovesByItsVelocity) {
  for (const bool nesterov : {false, true}) {
    for (const bool by_rows : {false, true}) {
      OpTestDevice device;
      const Tensor var = device.VariableHandle("v", TensorOf<float>({2, 1}, {1, 2}));
      const Tensor accum = device.VariableHandle("a", TensorOf<float>({2, 1}, {4, 8}));
      OpCall call(by_rows ? "ResourceSparseApplyKerasMomentum" : "ResourceApplyKerasMomentum");
      call.Input(var).Input(accum).Input(Scalar<float>(0.25));
      if (by_rows) {
        call.Input(TensorOf<float>({1, 1}, {4})).Input(Tensor::Of<int32_t>({1}));
      } else {
        call.Input(TensorOf<float>({2, 1}, {0, 4}));
      }
      call.Input(Scalar<float>(0.5)).Attr("use_nesterov", nesterov).On(&device);
      ASSERT_OK(RunOp(call).status());
      const auto value = [&](const char* name) {
        return *device.resources()->Lookup<VariableStorage>("", name).value()->Read();
      };
      EXPECT_EQ(value("a").Rows(1, 2).scalar<float>(), 3);  // 0.5 * 8 - 0.25 * 4
      EXPECT_EQ(value("v").Rows(1, 2).scalar<float>(), nesterov ? 2 + 0.5f * 3 - 1 : 2 + 3);
      const float first = by_rows ? 1 : nesterov ? 1 + 0.5f * 2 : 1 + 2;
      EXPECT_EQ(value("v").Rows(0, 1).scalar<float>(), first);
    }
  }
}

TEST(OtherOptimizers, RefuseBadInputs) {
  const auto variable = [](const char* name) {
    return TestVariable(name, Tensor::Vector<float>({1}));
  };
  const Tensor one = Tensor::Vector<float>({1});
  const auto dual = [&](const Tensor& step) {
    return OpCall("ApplyAdagradDA")
        .InputRef(variable("v"))
        .InputRef(variable("g"))
        .InputRef(variable("s"))
        .Input(one)
        .Input(Scalar<float>(1))
        .Input(Scalar<float>(0))
        .Input(Scalar<float>(0))
        .Input(step);
  };
  ExpectOpError(dual(Tensor::Of<int64_t>({1})), kInvalid,
                "global_step must be a scalar, got shape [1]");
  EXPECT_SHAPE_ERROR("SparseApplyAdagradDA", {{"Tindices", DT_INT64}},
                     {"[2,1]", "[2,1]", "[2,2]", "[1,1]", "[1]", "[]", "[]", "[]", "[]"},
                     "var and gradient_squared_accumulator do not have the same shape");
  ExpectOpError(OpCall("ApplyAddSign")
                    .InputRef(variable("v"))
                    .InputRef(variable("m"))
                    .Input(Scalar<float>(1))
                    .Input(Scalar<float>(1))
                    .Input(one)
                    .Input(Scalar<float>(1))
                    .Input(one),
                kInvalid, "sign_decay must be a scalar, got shape [1]");
}

TEST(SparseUpdates, TouchOnlyTheNamedRows) {
  const Tensor var = TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor accum = TensorOf<float>({3, 2}, {0, 0, 7, 7, 0, 0});
  const Tensor grad = TensorOf<float>({1, 2}, {3, -3});
  for (const bool locking : {false, true}) {
    const auto after =
        Update("SparseApplyAdagrad", {var, accum},
               {Scalar<float>(4), grad, Tensor::Vector<int32_t>({1})}, {{"use_locking", locking}});
    ExpectTensorEqual(after[0], TensorOf<float>({3, 2}, {1, 2, 0, 7, 5, 6}));
    ExpectTensorEqual(after[1], TensorOf<float>({3, 2}, {0, 0, 16, 16, 0, 0}));
  }
  const auto momentum =
      Update("SparseApplyMomentum", {var, accum},
             {Scalar<float>(1), grad, Tensor::Vector<int64_t>({1}), Scalar<float>(2)});
  ExpectTensorEqual(momentum[0], TensorOf<float>({3, 2}, {1, 2, 3 - 17, 4 - 11, 5, 6}));
  ExpectTensorEqual(momentum[1], TensorOf<float>({3, 2}, {0, 0, 17, 11, 0, 0}));
  // rho 0, epsilon 0: ms is the square, so that a step is lr * sign(grad).
  const std::vector<Tensor> rates = {Scalar<float>(2), Scalar<float>(0), Scalar<float>(0.5),
                                     Scalar<float>(0)};
  std::vector<Tensor> rest = rates;
  rest.insert(rest.end(), {grad, Tensor::Vector<int32_t>({1})});
  const auto rms = Update("SparseApplyRMSProp", {var, accum, accum}, rest);
  ExpectTensorEqual(rms[0], TensorOf<float>({3, 2}, {1, 2, 3 - 5.5f, 4 - 1.5f, 5, 6}));
  ExpectTensorEqual(rms[1], TensorOf<float>({3, 2}, {0, 0, 9, 9, 0, 0}));
  ExpectTensorEqual(rms[2], TensorOf<float>({3, 2}, {0, 0, 5.5f, 1.5f, 0, 0}));
  // rho 0 leaves no variance: epsilon alone.
  rest[3] = Scalar<float>(4);
  const auto centered = Update("SparseApplyCenteredRMSProp", {var, accum, accum, accum}, rest);
  ExpectTensorEqual(centered[0], TensorOf<float>({3, 2}, {1, 2, 3 - 6.5f, 4 - 0.5f, 5, 6}));
  ExpectTensorEqual(centered[1], TensorOf<float>({3, 2}, {0, 0, 3, -3, 0, 0}));
  ExpectTensorEqual(centered[2], TensorOf<float>({3, 2}, {0, 0, 9, 9, 0, 0}));
  ExpectTensorEqual(centered[3], TensorOf<float>({3, 2}, {0, 0, 6.5f, 0.5f, 0, 0}));
}

TEST(SparseUpdates, RepeatedIndicesAreAppliedInTurn) {
  const auto after = Update(
      "SparseApplyAdagrad", {TensorOf<double>({2, 1}, {1, 1}), TensorOf<double>({2, 1}, {0, 0})},
      {Scalar<double>(1), TensorOf<double>({2, 1}, {3, 4}), Tensor::Vector<int64_t>({1, 1})});
  ExpectTensorEqual(after[1], TensorOf<double>({2, 1}, {0, 25}));
  ExpectTensorNear(after[0], TensorOf<double>({2, 1}, {1, 1 - 3.0 / 3 - 4.0 / 5}), 1e-15, 0);
  const auto none =
      Update("SparseApplyAdagrad", {TensorOf<double>({1, 1}, {1}), TensorOf<double>({1, 1}, {0})},
             {Scalar<double>(1), TensorOf<double>({0, 1}, {}), Tensor::Vector<int64_t>({})});
  ExpectTensorEqual(none[0], TensorOf<double>({1, 1}, {1}));
}

// The rows of one table are spread over threads; repeated ones still come in their order.
TEST(SparseUpdates, AreTheSameForAnyNumberOfThreads) {
  constexpr int64_t kRows = 500, kColumns = 24, kIndices = 6000;
  Tensor grad = *Tensor::Allocate(DT_FLOAT, ShapeOf({kIndices, kColumns}));
  std::vector<int32_t> indices;
  for (int64_t i = 0; i < kIndices; ++i) {
    indices.push_back(static_cast<int32_t>(i * 7919 % kRows));
    for (int64_t c = 0; c < kColumns; ++c) {
      grad.mutable_flat<float>()[static_cast<size_t>(i * kColumns + c)] =
          static_cast<float>(i % 13 - 6) + static_cast<float>(c) / 10;
    }
  }
  Tensor accum = *Tensor::Zeros(DT_FLOAT, ShapeOf({kRows, kColumns}));
  for (float& a : accum.mutable_flat<float>()) a = 0.1f;
  std::vector<Tensor> results;
  for (const int threads : {1, 2, 4}) {
    for (const bool locking : {false, true}) {
      OpTestDevice device(threads);
      const Tensor var = device.VariableHandle("var", accum);
      const Tensor slot = device.VariableHandle("slot", accum);
      ASSERT_OK(RunOp(OpCall("ResourceSparseApplyAdagrad")
                          .Input(var)
                          .Input(slot)
                          .Input(Scalar<float>(0.1))
                          .Input(grad)
                          .Input(Tensor::Vector<int32_t>(indices))
                          .Attr("use_locking", locking)
                          .On(&device))
                    .status());
      results.push_back(*device.resources()->Lookup<VariableStorage>("", "var").value()->Read());
    }
  }
  for (const Tensor& result : results) EXPECT_TRUE(result == results[0]);
}

TEST(TrainingOps, RefuseBadInputs) {
  const auto var = [](std::initializer_list<float> values) {
    return TestVariable("v", Tensor::Vector<float>(values));
  };
  const Tensor lr = Scalar<float>(1);
  ExpectOpError(OpCall("ApplyGradientDescent")
                    .InputRef(var({1, 2}))
                    .Input(lr)
                    .Input(Tensor::Vector<float>({1, 2, 3})),
                kInvalid, "var and delta do not have the same shape [2] [3]");
  ExpectOpError(OpCall("ApplyGradientDescent")
                    .InputRef(var({1, 2}))
                    .Input(Tensor::Vector<float>({1}))
                    .Input(Tensor::Vector<float>({1, 2})),
                kInvalid, "alpha must be a scalar, got shape [1]");
  ExpectOpError(OpCall("ApplyAdagrad")
                    .InputRef(var({1, 2}))
                    .InputRef(var({1}))
                    .Input(lr)
                    .Input(Tensor::Vector<float>({1, 2})),
                kInvalid, "var and accum do not have the same shape [2] [1]");
  ExpectOpError(OpCall("ApplyMomentum")
                    .InputRef(var({1, 2}))
                    .InputRef(var({1, 2}))
                    .Input(lr)
                    .Input(Tensor::Vector<float>({1}))
                    .Input(lr),
                kInvalid, "var and grad do not have the same shape [2] [1]");
  const auto one = var({1});
  ExpectOpError(OpCall("ApplyAdagrad")
                    .InputRef(one)
                    .InputRef(one)
                    .Input(lr)
                    .Input(Tensor::Vector<float>({1})),
                kInvalid, "");
  // Rows.
  const auto rows = [&](const Tensor& grad, const Tensor& indices) {
    return OpCall("SparseApplyAdagrad")
        .InputRef(TestVariable("v", TensorOf<float>({2, 1}, {1, 2})))
        .InputRef(TestVariable("a", TensorOf<float>({2, 1}, {1, 2})))
        .Input(lr)
        .Input(grad)
        .Input(indices);
  };
  const Tensor grad = TensorOf<float>({1, 1}, {1});
  const auto index = [](int64_t v) { return Tensor::Vector<int64_t>({v}); };
  ExpectOpError(rows(grad, index(2)), kInvalid, "is not in [0, 2)");
  ExpectOpError(rows(grad, index(-1)), kInvalid, "is not in [0, 2)");
  ExpectOpError(rows(grad, Tensor::Vector<int64_t>({0, 1})), kInvalid,
                "grad must have one row for each of the indices");
  ExpectOpError(rows(grad, TensorOf<int64_t>({1, 1}, {0})), kInvalid,
                "indices must be one-dimensional, got shape [1,1]");
  ExpectOpError(rows(TensorOf<float>({1, 2}, {1, 2}), index(0)), kInvalid,
                "must match in all dimensions after the first, got [2,1] and [1,2]");
}

TEST(TrainingOps, UninitialisedSlotIsFailedPrecondition) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("v", Tensor::Vector<float>({1}));
  const Tensor slot = device.Handle<VariableStorage>(
      "slot", std::make_shared<VariableStorage>("slot", DT_FLOAT, PartialShape({1})));
  ExpectOpError(OpCall("ResourceApplyAdagrad")
                    .Input(handle)
                    .Input(slot)
                    .Input(Scalar<float>(1))
                    .Input(Tensor::Vector<float>({1}))
                    .On(&device),
                absl::StatusCode::kFailedPrecondition, "uninitialized value slot");
}

TEST(TrainingOps, InferAndCheckShapes) {
  EXPECT_SHAPE("ApplyGradientDescent", {}, {"[2,?]", "[]", "[?,3]"}, "[2,3]");
  EXPECT_SHAPE_ERROR("ApplyGradientDescent", {}, {"[2]", "[]", "[3]"},
                     "var and delta do not have the same shape [2] [3]");
  EXPECT_SHAPE_ERROR("ApplyGradientDescent", {}, {"[2]", "[1]", "[2]"}, "rank 0");
  EXPECT_SHAPE("ResourceApplyGradientDescent", {}, {{DT_FLOAT, "[2]"}, "[]", "[2]"}, "");
  EXPECT_SHAPE_ERROR("ResourceApplyGradientDescent", {}, {{DT_FLOAT, "[2]"}, "[]", "[3]"},
                     "var and delta do not have the same shape [2] [3]");
  EXPECT_SHAPE("SparseApplyAdagrad", {}, {"[5,2]", "[5,2]", "[]", "[?,2]", "[3]"}, "[5,2]");
  EXPECT_SHAPE_ERROR("SparseApplyAdagrad", {}, {"[5,2]", "[5,2]", "[]", "[4,2]", "[3]"},
                     "one row for each");
  EXPECT_SHAPE_ERROR("ResourceSparseApplyMomentum", {},
                     {{DT_FLOAT, "[5,2]"}, {DT_FLOAT, "[5,3]"}, "[]", "[3,2]", "[3]", "[]"},
                     "var and accum do not have the same shape [5,2] [5,3]");
}

// A reader's snapshot is untouched by an update, and a large update runs in several tasks.
TEST(TrainingOps, LargeUpdatesLeaveSnapshotsAlone) {
  std::vector<float> values(300000, 1);
  const auto variable = TestVariable("v", Tensor::Vector<float>(values));
  const Tensor snapshot = variable->Read().value();
  const Tensor after = RunOp1(OpCall("ApplyGradientDescent")
                                  .InputRef(variable)
                                  .Input(Scalar<float>(0.5))
                                  .Input(Tensor::Vector<float>(values)));
  for (size_t i = 0; i < values.size(); i += 4999) {
    ASSERT_EQ(snapshot.flat<float>()[i], 1);
    ASSERT_EQ(after.flat<float>()[i], 0.5f);
  }
}

}  // namespace
}  // namespace millrace
