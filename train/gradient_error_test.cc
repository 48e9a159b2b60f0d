// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_error.h"

#include <complex>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/resource_handle.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/indices.h"
#include "ops/array/scalar_like.h"
#include "ops/array/tile.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/random/random.h"
#include "runtime/kernel.h"

// covers: graphs: a program compares the gradients of any graph with central differences: a wrong
//   one is named by its input, its element and both numbers; random outputs are refused

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using Inputs = std::vector<Output>;

// --- Ops of the test -----------------------------------------------------------------------------

// y = 2 x.
template <typename T>
Status RunTwice(KernelContext* ctx, const UnchangedShapeRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0));
  const absl::Span<const T> x = ctx->input(0).raw<T>();
  const absl::Span<T> to = y->mutable_raw<T>();
  for (size_t i = 0; i < x.size(); ++i) to[i] = x[i] + x[i];
  return absl::OkStatus();
}

OpSpec TwiceSpec(const std::string& name) {
  return OpSpec(name, "x: T -> y: T", "T: {float, double}")
      .With(RuledKernelsFor<UnchangedShapeRule, float, double>(
          "T", []<typename T> { return &RunTwice<T>; }));
}

// 3 dy below zero, and 2 dy, which is right, above.
Output WrongBelowZero(GradientContext* c) {
  const Scope& s = c->scope();
  const Output x = c->input(0);
  const Output off = Cast(s, Less(s, x, ScalarLike(s, x, 0)), x.dtype());
  return Mul(s, c->dense_grad(), Add(s, ScalarLike(s, x, 2), off));
}

// Forgets dy.
Output WithoutItsOwn(GradientContext* c) {
  const Scope& s = c->scope();
  return Add(s, Mul(s, c->input(0), ScalarLike(s, c->input(0), 0)), ScalarLike(s, c->input(0), 2));
}

// Of what is above zero alone: its shape shows in the step.
Output OfFewerElements(GradientContext* c) {
  const Scope& s = c->scope();
  const Output x = c->input(0);
  return GatherNd(s, c->dense_grad(), Where(s, Greater(s, x, ScalarLike(s, x, 0))));
}

// Right, where shapes are known.
StatusOr<Output> NeedsShapes(GradientContext* c) {
  const Scope& s = c->scope();
  if (!s.shape(c->input(0)).has_rank()) return Unimplemented("x must have a known rank, got none");
  return Mul(s, c->dense_grad(), ScalarLike(s, c->input(0), 2));
}

const OpRegistration kWrong = TwiceSpec("TestTwiceWrong").Gradient(WrongBelowZero);
const OpRegistration kForgets = TwiceSpec("TestTwiceForgets").Gradient(WithoutItsOwn);
const OpRegistration kFewer = TwiceSpec("TestTwiceFewer").Gradient(OfFewerElements);
const OpRegistration kNeeds = TwiceSpec("TestTwiceNeedsShapes").Gradient(NeedsShapes);
const OpRegistration kBlocks = TwiceSpec("TestTwiceBlocks").NotDifferentiable();
const OpRegistration kNothing = TwiceSpec("TestTwiceNothing");

OutputFunction Op(const std::string& name) {
  return [name](const Scope& s, const Inputs& in) -> Output { return BuildOp(s, name, {in[0]}); };
}

Tensor Square2x2() { return Tensor::Of<double>({{1, 2}, {-3, 4}}); }

// --- Right ones ----------------------------------------------------------------------------------

TEST(GradientError, IsSmallForRightGradients) {
  const std::vector<std::pair<const char*, OutputFunction>> functions = {
      {"the input itself", [](const Scope&, const Inputs& in) { return in[0]; }},
      {"of no scalar", [](const Scope& s, const Inputs& in) { return Square(s, in[0]); }},
      {"of a scalar",
       [](const Scope& s, const Inputs& in) { return ReduceSum(s, Tanh(s, in[0])); }},
      {"rows of a table",
       [](const Scope& s, const Inputs& in) {
         return Gather(s, in[0], Const<int32_t>(s, {1, 1, 0}));
       }},
      {"flat where it is flat", [](const Scope& s, const Inputs& in) {
         return Floor(s, Add(s, in[0], ScalarLike(s, in[0], 0.5)));
       }}};
  for (const auto& [what, build] : functions) {
    SCOPED_TRACE(what);
    ASSERT_OK_AND_ASSIGN(const double error, GradientError(build, {Square2x2()}));
    EXPECT_LT(error, 1e-8);
    EXPECT_OK(CheckGradients(build, {Square2x2()}));
  }
}

TEST(GradientError, ChecksSeveralInputsAndOutputs) {
  const OutputsFunction build = [](const Scope& s, const Inputs& in) {
    return std::vector<Output>{Square(s, in[0]), Mul(s, in[0], in[1])};
  };
  EXPECT_OK(CheckGradients(build, {Square2x2(), Tensor::Of<double>({{5, 6}, {7, 8}})}));
  // The second output alone is wrong.
  const OutputsFunction wrong = [](const Scope& s, const Inputs& in) {
    return std::vector<Output>{Square(s, in[0]), BuildOp(s, "TestTwiceWrong", {in[1]})};
  };
  EXPECT_STATUS(CheckGradients(wrong, {Square2x2(), Square2x2()}), kInvalid,
                "the gradient of inputs[1] at [1,0] must be");
}

TEST(GradientError, TakesFloatsAndComplexNumbersWithTheirOwnSteps) {
  const OutputFunction square = [](const Scope& s, const Inputs& in) { return Square(s, in[0]); };
  EXPECT_OK(CheckGradients(square, {Tensor::Of<float>({1, -2, 0.5f})}));
  EXPECT_OK(CheckGradients(square, {TensorOf<std::complex<float>>({2}, {{1, -2}, {0, 0.5f}})}));
  ASSERT_OK_AND_ASSIGN(
      const double error,
      GradientError(square, {TensorOf<std::complex<double>>({2}, {{1, -2}, {0, 0.5}})}));
  EXPECT_LT(error, 1e-8);
  // A narrow output of a wide input: with a step for doubles rounding alone would fail it.
  EXPECT_OK(CheckGradients(
      [](const Scope& s, const Inputs& in) { return Tanh(s, Cast(s, in[0], DT_FLOAT)); },
      {Square2x2()}));
}

TEST(GradientError, FeedsInputsOfOtherTypesAsTheyAre) {
  EXPECT_OK(CheckGradients([](const Scope& s, const Inputs& in) { return Tile(s, in[0], in[1]); },
                           {Square2x2(), Tensor::Of<int32_t>({2, 1})}));
}

TEST(GradientError, IsZeroForEmptyTensors) {
  for (const char* const op : {"TestTwiceWrong", "TestTwiceBlocks"}) {
    ASSERT_OK_AND_ASSIGN(const double error, GradientError(Op(op), {TensorOf<double>({0, 3}, {})}));
    EXPECT_EQ(error, 0);
  }
}

// --- Wrong ones ----------------------------------------------------------------------------------

// Of 2 w and 3 w, for any weight w of an absolute value above 1/3: |3 w - 2 w| / |3 w|.
TEST(GradientError, NamesTheElementOfAWrongGradientAndBothNumbers) {
  ASSERT_OK_AND_ASSIGN(const double error, GradientError(Op("TestTwiceWrong"), {Square2x2()}));
  EXPECT_NEAR(error, 1.0 / 3, 1e-8);
  const Status status = CheckGradients(Op("TestTwiceWrong"), {Square2x2()});
  EXPECT_EQ(status.code(), kInvalid);
  double central = 0, given = 0;
  int above = 0;
  ASSERT_EQ(std::sscanf(std::string(status.message()).c_str(),
                        "CheckGradients: the gradient of inputs[0] at [1,0] must be the central "
                        "difference, %lf, got %lf; %d of 4 numbers differ by more than 1e-06",
                        &central, &given, &above),
            3)
      << status;
  EXPECT_NEAR(given / central, 1.5, 1e-6);
  EXPECT_EQ(above, 1);
  // Where it is right.
  EXPECT_OK(CheckGradients(Op("TestTwiceWrong"), {Tensor::Of<double>({1, 2})}));
  EXPECT_OK(CheckGradients(Op("TestTwiceWrong"), {Square2x2()}, {.tolerance = 0.34}));
  EXPECT_STATUS(CheckGradients(Op("TestTwiceWrong"), {Tensor::Scalar(-1.0f)}), kInvalid,
                "the gradient of inputs[0] must be the central difference, ");
}

TEST(GradientError, FindsAGradientThatForgetsWhatComesBack) {
  EXPECT_STATUS(CheckGradients(Op("TestTwiceForgets"), {Square2x2()}), kInvalid,
                "4 of 4 numbers differ");
}

TEST(GradientError, CountsAMissingGradientAsZeroAndSaysWhyItIsMissing) {
  EXPECT_STATUS(CheckGradients(Op("TestTwiceBlocks"), {Square2x2()}), kInvalid,
                "got 0 (no gradient flows there: TestTwiceBlocks 'TestTwiceBlocks' on the way "
                "passes no gradient on); 4 of 4 numbers differ");
  EXPECT_STATUS(GradientError(Op("TestTwiceNothing"), {Square2x2()}), absl::StatusCode::kNotFound,
                "No gradient defined for operation 'TestTwiceNothing' (op type: TestTwiceNothing)");
}

TEST(GradientError, RefusesAGradientOfAnotherShape) {
  EXPECT_STATUS(GradientError(Op("TestTwiceFewer"), {Tensor::Of<double>({1, 2, -3, 4})}), kInvalid,
                "GradientError: the gradient of inputs[0] must be like the input, double [4], got "
                "double [3]");
}

TEST(GradientError, ChecksWithUnknownShapesToo) {
  EXPECT_STATUS(CheckGradients(Op("TestTwiceNeedsShapes"), {Square2x2()}),
                absl::StatusCode::kUnimplemented, "x must have a known rank, got none");
  EXPECT_STATUS(CheckGradients(Op("TestTwiceNeedsShapes"), {Square2x2()}),
                absl::StatusCode::kUnimplemented, ", with inputs of unknown shapes");
  EXPECT_OK(
      CheckGradients(Op("TestTwiceNeedsShapes"), {Square2x2()}, {.also_unknown_shapes = false}));
}

// The root of a number below 0 is NaN, the gradient at 0 infinite.
TEST(GradientError, IsInfiniteWhereANumberIsNotFinite) {
  const OutputFunction root = [](const Scope& s, const Inputs& in) { return Sqrt(s, in[0]); };
  const Tensor x = Tensor::Of<double>({1, 0, 4});
  ASSERT_OK_AND_ASSIGN(const double error, GradientError(root, {x}));
  EXPECT_EQ(error, kInfinity);
  const Status status = CheckGradients(root, {x}, {.tolerance = 1});
  EXPECT_STATUS(status, kInvalid, "the gradient of inputs[0] at [1] must be the central");
  EXPECT_STATUS(status, kInvalid, "1 of 3 numbers differ by more than 1, choose other inputs");
}

// --- What can not be checked ---------------------------------------------------------------------

TEST(GradientError, RefusesRandomOutputs) {
  const Status status = CheckGradients(
      [](const Scope& s, const Inputs& in) {
        return Mul(s, in[0], RandomUniform(s, Const<int32_t>(s, {2, 2}), DT_DOUBLE));
      },
      {Square2x2()});
  EXPECT_STATUS(status, kInvalid,
                "CheckGradients: output 0 at [0,0] must depend on the inputs alone, got ");
  EXPECT_STATUS(status, kInvalid, "random numbers can not be checked");
}

TEST(GradientError, RefusesShapesThatDependOnValues) {
  EXPECT_STATUS(
      GradientError(
          [](const Scope& s, const Inputs& in) {
            const Output positive = Greater(s, in[0], ScalarLike(s, in[0], 0));
            return GatherNd(s, in[0], Where(s, positive));
          },
          {Tensor::Of<double>({1, 1e-9})}),
      kInvalid,
      "inputs[0] at [1]: the shape of output 0 must not depend on the inputs' values, got "
      "[2] and, a step away, [1]");
}

TEST(GradientError, RefusesOutputsThatAreNotFinite) {
  const OutputFunction log = [](const Scope& s, const Inputs& in) { return Log(s, in[0]); };
  const struct {
    double x;
    absl::string_view message;
  } cases[] = {{-1, "nan"}, {kNan, "nan"}, {kInfinity, "inf"}, {0, "-inf"}};
  for (const auto& [x, message] : cases) {
    const Status status = CheckGradients(log, {Tensor::Of<double>({1, x})});
    EXPECT_STATUS(status, kInvalid, "CheckGradients: output 0 at [1] must be finite, got ");
    EXPECT_STATUS(status, kInvalid, message);
  }
}

TEST(GradientError, RefusesWrongArguments) {
  const OutputFunction square = [](const Scope& s, const Inputs& in) { return Square(s, in[0]); };
  const struct {
    OutputFunction build;
    std::vector<Tensor> inputs;
    GradientErrorOptions options;
    absl::string_view message;
  } cases[] = {
      {square, {Square2x2()}, {.step = -1}, "step must be a number >= 0, got -1"},
      {square, {Square2x2()}, {.tolerance = kNan}, "tolerance must be a number >= 0, got nan"},
      {square,
       {Square2x2()},
       {.constant_inputs = {1}},
       "constant_inputs must name inputs, of which there are 1, got 1"},
      {square,
       {Square2x2()},
       {.constant_inputs = {-1}},
       "constant_inputs must name inputs, of which there are 1, got -1"},
      {square, {Square2x2()}, {.constant_inputs = {0}}, "got none of 1"},
      {square,
       {Tensor::Of<int32_t>({1})},
       {},
       "inputs must have one of a floating or complex type that is no constant, got none of 1"},
      {square, {}, {}, "got none of 0"},
      {square, {Tensor()}, {}, "inputs[0] must have a value, got a tensor without one"},
      {square,
       {Tensor::Scalar(ResourceHandle())},
       {},
       "inputs[0] must be numbers, bools or strings, got resource"},
      {square,
       {Tensor::Scalar(1e30)},
       {},
       "inputs[0]: the step must be large enough to change 1e+30"},
      {[](const Scope& s, const Inputs& in) { return Cast(s, in[0], DT_INT32); },
       {Square2x2()},
       {},
       "output 0 must be of a floating or complex type, got int32"},
      {[](const Scope&, const Inputs&) { return Output(); },
       {Square2x2()},
       {},
       "output 0 must be an output of a node, got an invalid one"},
  };
  for (const auto& c : cases) {
    EXPECT_STATUS(GradientError(c.build, c.inputs, c.options), kInvalid, c.message);
    EXPECT_STATUS(CheckGradients(c.build, c.inputs, c.options), kInvalid, c.message);
  }
  EXPECT_STATUS(CheckGradients([](const Scope&, const Inputs&) { return Inputs(); }, {Square2x2()}),
                kInvalid, "the function must return an output, got none");
  // What building the graph says.
  EXPECT_STATUS(
      CheckGradients([](const Scope& s, const Inputs& in) { return Add(s, in[0], in[1]); },
                     {Tensor::Scalar(1.0), Tensor::Scalar(1.0f)}),
      kInvalid, "CheckGradients: ");
}

TEST(GradientError, LeavesOutInputsThatCountAsConstants) {
  EXPECT_OK(CheckGradients(
      [](const Scope& s, const Inputs& in) {
        const Output wrong = BuildOp(s, "TestTwiceWrong", {in[1]});
        return Mul(s, in[0], wrong);
      },
      {Square2x2(), Square2x2()}, {.constant_inputs = {1}}));
}

}  // namespace
}  // namespace millrace
