// SPDX-License-Identifier: Apache-2.0
#include "graph/op_rule.h"

#include <memory>
#include <optional>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: values: an op's rule works on what is known of shapes and int values, whole or in part

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// What is known of one input.
struct Known : RuleContext::Source {
  const Tensor* ConstantInput(int) override { return constant ? &*constant : nullptr; }
  StatusOr<PartialShape> ShapeInput(int) override {
    return constant ? ShapeOfElements(*constant) : PartialShape();
  }
  std::optional<PartialValue> PartialInput(int) override { return partial; }
  std::optional<Tensor> constant;
  std::optional<PartialValue> partial;
};

// A context of one input and one output.
class OpRuleTest : public ::testing::Test {
 protected:
  RuleContext* Context(PartialShape shape) {
    input_ = std::move(shape);
    context_.emplace(absl::MakeConstSpan(&input_, 1), absl::MakeSpan(&output_, 1), &known_);
    return &*context_;
  }
  Known known_;
  PartialShape input_, output_;
  std::optional<RuleContext> context_;
};

TEST_F(OpRuleTest, AVectorIsKnownWholeInPartOrByItsLength) {
  known_.constant = Tensor::Vector<int32_t>({3, -1});
  ASSERT_OK_AND_ASSIGN(const PartialInts whole, Context({2})->IntVector(0, "v"));
  EXPECT_TRUE(whole.all_known());
  EXPECT_EQ(whole.values(), (std::vector<int64_t>{3, -1}));

  known_.constant.reset();
  known_.partial = PartialValue{/*is_scalar=*/false, {7, std::nullopt}};
  ASSERT_OK_AND_ASSIGN(const PartialInts part, Context({2})->IntVector(0, "v"));
  EXPECT_FALSE(part.all_known());
  EXPECT_EQ(part.size(), 2);
  EXPECT_EQ(part.at(0), 7);
  EXPECT_EQ(part.at(1), std::nullopt);

  known_.partial.reset();
  ASSERT_OK_AND_ASSIGN(const PartialInts length, Context({2})->IntVector(0, "v"));
  EXPECT_EQ(length.size(), 2);
  EXPECT_EQ(length.at(1), std::nullopt);

  ASSERT_OK_AND_ASSIGN(const PartialInts nothing, Context({-1})->IntVector(0, "v"));
  EXPECT_FALSE(nothing.has_size());
  EXPECT_EQ(nothing.at(5), std::nullopt);
}

TEST_F(OpRuleTest, AnEmptyVectorIsKnown) {
  known_.constant = Tensor::Vector<int64_t>({});
  ASSERT_OK_AND_ASSIGN(const PartialInts empty, Context({0})->IntVector(0, "v"));
  EXPECT_TRUE(empty.all_known());
  EXPECT_EQ(empty.size(), 0);
  known_.constant.reset();
  ASSERT_OK_AND_ASSIGN(const PartialInts by_length, Context({0})->IntVector(0, "v"));
  EXPECT_TRUE(by_length.all_known());
}

TEST_F(OpRuleTest, ALengthFromAnAttackIsNotAllocated) {
  ASSERT_OK_AND_ASSIGN(const PartialInts ints, Context({int64_t{1} << 30})->IntVector(0, "v"));
  EXPECT_FALSE(ints.has_size());
  EXPECT_STATUS(Context({int64_t{1} << 32})->IntVector(0, "v").status(), kInvalid,
                "v must have at most 2147483647 elements, got shape [4294967296]");
}

TEST_F(OpRuleTest, VectorsAndScalarsOfOtherRanksAreRefusedByName) {
  EXPECT_STATUS(Context({2, 3})->IntVector(0, "sizes").status(), kInvalid,
                "sizes must be a vector, got shape [2,3]");
  EXPECT_STATUS(Context(PartialShape::Scalar())->IntVector(0, "sizes").status(), kInvalid,
                "sizes must be a vector, got shape []");
  EXPECT_STATUS(Context({2, 3})->IntVector(0, "sizes", /*allow_scalar=*/true).status(), kInvalid,
                "sizes must be a scalar or a vector, got shape [2,3]");
  EXPECT_STATUS(Context({1})->IntScalar(0, "axis").status(), kInvalid,
                "axis must be a scalar, got shape [1]");
  EXPECT_STATUS(Context({2})->IntScalar(0, "axis", /*allow_single=*/true).status(), kInvalid,
                "axis must be a scalar, got shape [2]");
}

TEST_F(OpRuleTest, ASingleElementCountsAsAScalarWhereItAlwaysDid) {
  known_.constant = Tensor::Vector<int32_t>({4});
  ASSERT_OK_AND_ASSIGN(const std::optional<int64_t> axis,
                       Context({1})->IntScalar(0, "axis", /*allow_single=*/true));
  EXPECT_EQ(axis, 4);
  known_.constant.reset();
  ASSERT_OK_AND_ASSIGN(const std::optional<int64_t> unknown,
                       Context(PartialShape())->IntScalar(0, "axis"));
  EXPECT_EQ(unknown, std::nullopt);
}

TEST_F(OpRuleTest, RanksAreCheckedAndFilledIn) {
  EXPECT_STATUS(Context({2, 3})->InputWithRank(0, 1, "b").status(), kInvalid,
                "b must have rank 1, got shape [2,3]");
  EXPECT_STATUS(Context({2, 3})->InputWithRankAtLeast(0, 3).status(), kInvalid,
                "input 0 must have rank at least 3, got shape [2,3]");
  ASSERT_OK_AND_ASSIGN(const PartialShape filled, Context(PartialShape())->InputWithRank(0, 2));
  EXPECT_EQ(filled.ToString(), "[?,?]");
}

// Plans how often; a length that is not known has no plan.
struct PlanningRule {
  StatusOr<Planned<int64_t>> operator()(RuleContext* c) const {
    if (c->input(0).dim(0) < 0) return c->input(0);
    return WithPlan(PartialShape::Make({c->input(0).dim(0) * 2}), int64_t{2});
  }
};

TEST_F(OpRuleTest, WhatARulePlansIsKeptForWhoAsks) {
  std::shared_ptr<const void> plan;
  ASSERT_OK(ApplyRule(PlanningRule(), Context({5}), &plan));
  EXPECT_EQ(output_.ToString(), "[10]");
  EXPECT_EQ(*static_cast<const PlanOf<PlanningRule>*>(plan.get()), 2);
  ASSERT_OK(ApplyRule(PlanningRule(), Context({-1})));
  EXPECT_EQ(output_.ToString(), "[?]");
  EXPECT_STATUS(ApplyRule(PlanningRule(), Context({int64_t{1} << 40})), kInvalid,
                "the product of the dimensions must be at most");
}

struct DoubledRule {
  int64_t by = 0;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "by", &by); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    if (by < 0) return InvalidArgument("by must be >= 0, got ", by, " for ", c->input(0));
    return PartialShape::Make({c->input(0).dim(0) * by});
  }
};

TEST_F(OpRuleTest, TheShapeThatARuleReturnsIsThatOfOutput0) {
  DoubledRule rule;
  rule.by = 3;
  ASSERT_OK(ApplyRule(rule, Context({5})));
  EXPECT_EQ(output_.ToString(), "[15]");
  rule.by = -1;
  EXPECT_STATUS(ApplyRule(rule, Context({5})), kInvalid, "by must be >= 0, got -1 for [5]");
}

}  // namespace
}  // namespace millrace
