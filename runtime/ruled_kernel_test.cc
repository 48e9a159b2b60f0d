// SPDX-License-Identifier: Apache-2.0
// RuledKernel: when a rule is asked, and what its kernel gets of it.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/kernel.h"
#include "runtime/testing/op_test.h"

// covers: values: a step asks a rule once per shapes and int values that it reads; the kernel gets
//   what it planned for them; a shape that the rule leaves open is the kernel's to give

namespace millrace {
namespace {

std::atomic<int> rule_calls{0};

// Repeats the elements of a vector; input 1 says how often.
struct RepeatedRule {
  StatusOr<Planned<int64_t>> operator()(RuleContext* c) const {
    ++rule_calls;
    MR_ASSIGN_OR_RETURN(const PartialInts times, c->IntVector(1, "times"));
    const std::optional<int64_t> count = times.at(0);
    if (count.value_or(0) < 0) return InvalidArgument("times must be >= 0, got ", *count);
    MR_ASSIGN_OR_RETURN(const PartialShape x, c->InputWithRank(0, 1));
    if (!count || x.dim(0) < 0) return PartialShape::UnknownOfRank(1);
    return WithPlan(PartialShape::Make({x.dim(0) * *count}), *count);
  }
};
// Fills the output with what the rule has planned.
class RepeatedKernel : public RuledKernel<RepeatedRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    for (float& x : out->mutable_raw<float>()) x = static_cast<float>(ctx->plan(rule()));
    return absl::OkStatus();
  }
};

class RuledKernelTest : public ::testing::Test {
 protected:
  // The size of the output, and how often the rule was asked.
  std::pair<int64_t, int> Run(int64_t size, Tensor times) {
    const Shape shape = Shape::Vector(static_cast<size_t>(size));
    EdgeValue in[] = {*Tensor::Zeros(DT_FLOAT, shape), std::move(times)};
    EdgeValue out[1];
    const DType type = DT_FLOAT;
    const std::string name = "repeated";
    const KernelFrame frame{.step = &device_.step(),
                            .node_name = &name,
                            .inputs = in,
                            .outputs = out,
                            .output_types = &type,
                            .num_inputs = 2,
                            .num_outputs = 1};
    KernelContext context(&frame);
    const int before = rule_calls;
    const Status status = kernel_.Compute(&context);
    if (status.ok() && out[0].num_elements() > 0) {
      EXPECT_EQ(out[0].flat<float>()[0], static_cast<float>(in[1].ints()[0])) << "another plan";
    }
    return {status.ok() ? out[0].num_elements() : -1, rule_calls - before};
  }
  static Tensor Times(int32_t times) { return Tensor::Vector<int32_t>({times}); }

  OpTestDevice device_;
  RepeatedKernel kernel_;
};

using SizeAndCalls = std::pair<int64_t, int>;

TEST_F(RuledKernelTest, AsksTheRuleOncePerShapesAndValuesItReads) {
  EXPECT_EQ(Run(3, Times(2)), SizeAndCalls(6, 1));
  EXPECT_EQ(Run(3, Times(2)), SizeAndCalls(6, 0));
  EXPECT_EQ(Run(3, Times(4)), SizeAndCalls(12, 1));  // another value
  EXPECT_EQ(Run(5, Times(2)), SizeAndCalls(10, 1));  // another shape
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Run(3, Times(4)), SizeAndCalls(12, 0));
    EXPECT_EQ(Run(3, Times(2)), SizeAndCalls(6, 0));
    EXPECT_EQ(Run(5, Times(2)), SizeAndCalls(10, 0));
  }
}

TEST_F(RuledKernelTest, KeepsAFewAndAsksForTheRest) {
  for (int64_t size = 1; size <= 20; ++size) EXPECT_EQ(Run(size, Times(1)), SizeAndCalls(size, 1));
  EXPECT_EQ(Run(1, Times(1)), SizeAndCalls(1, 0));
  EXPECT_EQ(Run(20, Times(1)), SizeAndCalls(20, 1));
}

TEST_F(RuledKernelTest, WhatIsRefusedIsRefusedEachTime) {
  EXPECT_EQ(Run(3, Times(-1)), SizeAndCalls(-1, 1));
  EXPECT_EQ(Run(3, Times(-1)), SizeAndCalls(-1, 1));
  EXPECT_EQ(Run(3, Times(1)), SizeAndCalls(3, 1));
}

TEST_F(RuledKernelTest, LargeValuesAreNotKept) {
  const Tensor times = *Tensor::Zeros(DT_INT32, Shape::Vector(65));
  EXPECT_EQ(Run(3, times), SizeAndCalls(0, 1));
  EXPECT_EQ(Run(3, times), SizeAndCalls(0, 1));
}

TEST_F(RuledKernelTest, StepsAtOnceAgree) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const int64_t size = 1 + (i + t) % 7;
        if (Run(size, Times(2)).first != 2 * size) ++wrong;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

const OpRegistration kRepeated = OpSpec("_TestRepeated", "x: float, times: int32 -> y: float")
                                     .With(KernelFor<RepeatedKernel>())
                                     .NotDifferentiable();

TEST(KernelSpecTest, AnOpIsRegisteredWithItsKernelAndGetsTheKernelsRule) {
  const Tensor twice = Tensor::Vector<int32_t>({2});
  ExpectTensorEqual(
      RunOp1(OpCall("_TestRepeated").Input(TensorOf<float>({2}, {5, 6})).Input(twice)),
      TensorOf<float>({4}, {2, 2, 2, 2}));
  EXPECT_SHAPE("_TestRepeated", {}, {"[3]", twice}, "[6]");
  EXPECT_SHAPE("_TestRepeated", {}, {"[3]", "[1]"}, "[?]");
}

// --- A rule that leaves a shape to the kernel ----------------------------------------------------

struct OpenRule {
  Status operator()(RuleContext* c) const {
    c->set_output(0, PartialShape::UnknownOfRank(1));
    c->set_output(1, PartialShape::Scalar());
    return absl::OkStatus();
  }
};

template <int kWay>
Status RunOpen(KernelContext* ctx, const OpenRule&) {
  MR_RETURN_IF_ERROR(ctx->AllocateZeros(1).status());
  switch (kWay) {
    case 0:
      return ctx->AllocateOutput(0, Shape{2}).status();
    case 1:
      return ctx->AllocateOutput(0).status();
    case 2:
      return ctx->AllocateZeros(0).status();
    case 3:
      return ctx->ForwardInputOrAllocateOutput({0}, 0).status();
    default:
      return ctx->PassInput(0);
  }
}

template <int kWay>
OpSpec OpenSpec(const char* name) {
  return OpSpec(name, "x: float -> y: float, count: float")
      .With(RuledKernelFor<OpenRule>(RunOpen<kWay>))
      .NotDifferentiable();
}

const OpRegistration kOpen[] = {
    OpenSpec<0>("_TestShapeOfTheKernel"), OpenSpec<1>("_TestAllocateLeftOpen"),
    OpenSpec<2>("_TestZerosLeftOpen"), OpenSpec<3>("_TestForwardLeftOpen"),
    OpenSpec<4>("_TestPassLeftOpen")};

TEST(KernelSpecTest, AKernelThatGivesNoShapeWhereTheRuleKnowsNoneIsAnError) {
  // An empty input has as many elements as any empty shape.
  for (const Tensor& x : {TensorOf<float>({2}, {1, 2}), TensorOf<float>({0}, {})}) {
    for (const char* op : {"_TestAllocateLeftOpen", "_TestZerosLeftOpen", "_TestForwardLeftOpen",
                           "_TestPassLeftOpen"}) {
      ExpectOpError(OpCall(op).Input(x), absl::StatusCode::kInvalidArgument,
                    "output 0 must get its shape from the kernel, as the op's rule leaves it "
                    "unknown, got none; call AllocateOutput(0, shape)");
    }
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("_TestShapeOfTheKernel").Input(TensorOf<float>({1}, {1}))));
  EXPECT_EQ(out[0].shape(), Shape{2});
  ExpectTensorEqual(out[1], Tensor::Scalar(0.0f));
}

}  // namespace
}  // namespace millrace
