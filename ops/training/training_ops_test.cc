// SPDX-License-Identifier: Apache-2.0
#include "ops/training/training_ops.h"

#include <cmath>
#include <memory>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/loops/training.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <typename T>
Tensor Scalar(double v) {
  return Tensor::Scalar<T>(static_cast<T>(v));
}

// Runs the reference form and the resource form of an update rule on variables of these values and
// gives the variables afterwards; both forms must agree.
std::vector<Tensor> Update(absl::string_view op, const std::vector<Tensor>& variables,
                           const std::vector<Tensor>& rest, std::vector<OpAttr> attrs = {}) {
  std::vector<std::vector<Tensor>> results;
  for (const bool resource : {false, true}) {
    OpTestDevice device;
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
