// SPDX-License-Identifier: Apache-2.0
#include "core/shape.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/tensor_shape.pb.h"

namespace millrace {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

PartialShape Partial(absl::string_view text) {
  absl::StatusOr<PartialShape> shape = PartialShape::Parse(text);
  EXPECT_OK(shape) << text;
  return shape.value_or(PartialShape());
}

TEST(ShapeTest, CountsElementsAndPrints) {
  const struct {
    std::vector<int64_t> dims;
    int64_t num_elements;
    const char* text;
  } kCases[] = {
      {{}, 1, "[]"},
      {{7}, 7, "[7]"},
      {{2, 3}, 6, "[2,3]"},
      {{2, 0, 3}, 0, "[2,0,3]"},
      {{int64_t{1} << 40}, int64_t{1} << 40, "[1099511627776]"},
  };
  for (const auto& c : kCases) {
    ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make(c.dims));
    EXPECT_EQ(shape.num_elements(), c.num_elements) << c.text;
    EXPECT_EQ(shape.rank(), static_cast<int>(c.dims.size()));
    EXPECT_EQ(shape.ToString(), c.text);
  }
  EXPECT_EQ(Shape().num_elements(), 1);
  EXPECT_EQ(Shape::Vector(5), ShapeOf({5}));
}

TEST(ShapeTest, SizesThatOverflowAreRefusedAlsoBesideAZero) {
  const struct {
    std::vector<int64_t> dims;
    const char* message;
  } kCases[] = {
      {{-1}, "Shape [?]: dimension 0 must be >= 0, got -1"},
      {{2, -3}, "Shape [2,-3]: dimension 1 must be >= 0, got -3"},
      {{std::numeric_limits<int64_t>::min()}, "dimension 0 must be >= 0"},
      {{(int64_t{1} << 40) + 1}, "must be at most 1099511627776, got more at dimension 0"},
      {{kMax, kMax}, "got more at dimension 0"},
      {{int64_t{1} << 20, int64_t{1} << 21}, "got more at dimension 1"},
      {{0, int64_t{1} << 62, int64_t{1} << 62}, "got more at dimension 1"},
      {{int64_t{1} << 32, int64_t{1} << 32, 0}, "got more at dimension 1"},
      {std::vector<int64_t>(255, 1), "the rank must be at most 254, got 255"},
  };
  for (const auto& c : kCases) {
    EXPECT_STATUS(Shape::Make(c.dims), absl::StatusCode::kInvalidArgument, c.message);
  }
  EXPECT_OK(Shape::Make(std::vector<int64_t>(254, 1)));
}

TEST(ShapeTest, PartsAndVariationsKeepTheCount) {
  const Shape shape = ShapeOf({2, 3, 4, 0});
  EXPECT_EQ(shape.NumElements(0, 3), 24);
  EXPECT_EQ(shape.NumElements(1, 1), 1);
  EXPECT_EQ(shape.Slice(1, 3), ShapeOf({3, 4}));
  EXPECT_EQ(shape.Slice(1, 3).num_elements(), 12);
  EXPECT_EQ(shape.WithoutDim(3).num_elements(), 24);
  EXPECT_EQ(shape.WithoutDim(0), ShapeOf({3, 4, 0}));
  EXPECT_EQ(shape.WithInsertedOne(0), ShapeOf({1, 2, 3, 4, 0}));
  EXPECT_EQ(shape.WithInsertedOne(4), ShapeOf({2, 3, 4, 0, 1}));
}

TEST(ShapeTest, ProtosReadBackAndUnknownPartsAreRefused) {
  tensorflow::TensorShapeProto proto;
  ShapeOf({2, 0}).ToProto(&proto);
  EXPECT_EQ(proto.dim(0).size(), 2);
  EXPECT_EQ(proto.dim(1).size(), 0);
  ASSERT_OK_AND_ASSIGN(const Shape back, Shape::FromProto(proto));
  EXPECT_EQ(back, ShapeOf({2, 0}));

  proto.mutable_dim(0)->set_size(-1);
  EXPECT_STATUS(Shape::FromProto(proto), absl::StatusCode::kInvalidArgument, "got -1");
  ASSERT_OK_AND_ASSIGN(const PartialShape partial, PartialShape::FromProto(proto));
  EXPECT_EQ(partial, Partial("[?,0]"));
  proto.mutable_dim(0)->set_size(-2);
  EXPECT_STATUS(PartialShape::FromProto(proto), absl::StatusCode::kInvalidArgument, "got -2");

  proto.set_unknown_rank(true);
  EXPECT_STATUS(PartialShape::FromProto(proto), absl::StatusCode::kInvalidArgument,
                "without dimensions");
  proto.Clear();
  proto.set_unknown_rank(true);
  EXPECT_STATUS(Shape::FromProto(proto), absl::StatusCode::kInvalidArgument, "rank");
  ASSERT_OK_AND_ASSIGN(const PartialShape unknown, PartialShape::FromProto(proto));
  EXPECT_FALSE(unknown.has_rank());

  proto.Clear();
  for (int i = 0; i < 300; ++i) proto.add_dim()->set_size(1);
  EXPECT_STATUS(Shape::FromProto(proto), absl::StatusCode::kInvalidArgument, "got 300");
  EXPECT_STATUS(PartialShape::FromProto(proto), absl::StatusCode::kInvalidArgument, "got 300");
}

TEST(PartialShapeTest, TextReadsBack) {
  for (const char* text : {"<unknown>", "[]", "[?]", "[?,3]", "[2,3]", "[0,?,?]"}) {
    EXPECT_EQ(Partial(text).ToString(), text);
    tensorflow::TensorShapeProto proto;
    Partial(text).ToProto(&proto);
    ASSERT_OK_AND_ASSIGN(const PartialShape back, PartialShape::FromProto(proto));
    EXPECT_EQ(back, Partial(text));
  }
  EXPECT_EQ(Partial(" [ 2 , ? ] "), PartialShape({2, -1}));
  for (const char* text : {"", "[", "]", "2,3", "[2,]", "[,2]", "[-1]", "[-2]", "[x]", "[2 3]",
                           "unknown", "[9999999999999]", "[99999999999999999999]"}) {
    EXPECT_STATUS(PartialShape::Parse(text), absl::StatusCode::kInvalidArgument, "Shape");
  }
}

TEST(PartialShapeTest, BadLiteralsAreInvalidInsteadOfFatal) {
  EXPECT_TRUE(PartialShape({-1, 784}).valid());
  const PartialShape bad[] = {{-2}, {kMax, kMax}};
  for (const PartialShape& shape : bad) {
    EXPECT_FALSE(shape.valid());
    EXPECT_FALSE(shape.IsFullyDefined());
    EXPECT_EQ(shape.num_elements(), -1);
    EXPECT_STATUS(shape.ToShape(), absl::StatusCode::kInvalidArgument, "Shape [");
  }
}

TEST(PartialShapeTest, OnlyFullyDefinedShapesBecomeShapes) {
  ASSERT_OK_AND_ASSIGN(const Shape shape, Partial("[2,3]").ToShape());
  EXPECT_EQ(shape, ShapeOf({2, 3}));
  EXPECT_EQ(Partial("[2,3]").num_elements(), 6);
  EXPECT_EQ(PartialShape(shape), Partial("[2,3]"));
  EXPECT_STATUS(Partial("[2,?]").ToShape(), absl::StatusCode::kInvalidArgument, "got [2,?]");
  EXPECT_STATUS(Partial("<unknown>").ToShape(), absl::StatusCode::kInvalidArgument, "<unknown>");
  EXPECT_EQ(PartialShape::UnknownOfRank(2), Partial("[?,?]"));
  EXPECT_EQ(PartialShape::Scalar(), Partial("[]"));
}

TEST(PartialShapeTest, MergesWhatIsKnownInEither) {
  const struct {
    const char *a, *b, *merged;  // merged null: they contradict
  } kCases[] = {
      {"<unknown>", "[2,?]", "[2,?]"}, {"[2,?]", "[?,3]", "[2,3]"}, {"[?]", "[?]", "[?]"},
      {"[2]", "[3]", nullptr},         {"[2]", "[2,?]", nullptr},   {"[]", "[]", "[]"},
      {"[0,?]", "[?,4]", "[0,4]"},     {"[2,5]", "[?,3]", nullptr},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<PartialShape> ab = Partial(c.a).MergeWith(Partial(c.b));
    const absl::StatusOr<PartialShape> ba = Partial(c.b).MergeWith(Partial(c.a));
    EXPECT_EQ(Partial(c.a).IsCompatibleWith(Partial(c.b)), c.merged != nullptr) << c.a << c.b;
    if (c.merged == nullptr) {
      EXPECT_STATUS(ab, absl::StatusCode::kInvalidArgument, "must be equal");
      EXPECT_STATUS(ba, absl::StatusCode::kInvalidArgument, "must be equal");
    } else {
      ASSERT_OK(ab);
      ASSERT_OK(ba);
      EXPECT_EQ(ab->ToString(), c.merged);
      EXPECT_EQ(ba->ToString(), c.merged);
    }
  }
  EXPECT_TRUE(Partial("[?,3]").IsCompatibleWith(ShapeOf({2, 3})));
  EXPECT_FALSE(Partial("[?,3]").IsCompatibleWith(ShapeOf({2, 4})));
  EXPECT_FALSE(Partial("[?,3]").IsCompatibleWith(ShapeOf({3})));
  // Two halves that are legal alone and too large together.
  EXPECT_STATUS(PartialShape({int64_t{1} << 30, -1}).MergeWith({-1, int64_t{1} << 30}),
                absl::StatusCode::kInvalidArgument, "at most");
}

TEST(BroadcastTest, FollowsNumPysRule) {
  const struct {
    const char *a, *b, *result;  // result null: incompatible
  } kCases[] = {
      {"[]", "[2,3]", "[2,3]"},    {"[3]", "[2,3]", "[2,3]"},
      {"[2,1]", "[1,3]", "[2,3]"}, {"[8,1,6,1]", "[7,1,5]", "[8,7,6,5]"},
      {"[0]", "[1]", "[0]"},       {"[2]", "[3]", nullptr},
      {"[0]", "[2]", nullptr},     {"[2,1]", "[8,4,3]", nullptr},
      {"[?]", "[3]", "[3]"},       {"[?]", "[1]", "[?]"},
      {"[?]", "[0]", "[0]"},       {"[?,2]", "[?,1]", "[?,2]"},
      {"[?]", "[4,1]", "[4,?]"},   {"<unknown>", "[3]", "<unknown>"},
  };
  for (const auto& c : kCases) {
    for (const bool swapped : {false, true}) {
      const PartialShape a = Partial(swapped ? c.b : c.a), b = Partial(swapped ? c.a : c.b);
      const absl::StatusOr<PartialShape> result = BroadcastShape(a, b);
      if (c.result == nullptr) {
        EXPECT_STATUS(result, absl::StatusCode::kInvalidArgument,
                      "Incompatible shapes: " + a.ToString() + " vs. " + b.ToString());
      } else {
        ASSERT_OK(result);
        EXPECT_EQ(result->ToString(), c.result) << c.a << " " << c.b;
      }
      if (a.IsFullyDefined() && b.IsFullyDefined()) {
        const absl::StatusOr<Shape> full = BroadcastShape(*a.ToShape(), *b.ToShape());
        ASSERT_EQ(full.ok(), c.result != nullptr) << c.a << " " << c.b;
        if (full.ok()) {
          EXPECT_EQ(full->ToString(), c.result);
        }
      }
    }
  }
  EXPECT_STATUS(BroadcastShape(ShapeOf({1 << 30, 1}), ShapeOf({1, 1 << 30})),
                absl::StatusCode::kInvalidArgument, "at most");
}

TEST(AxisTest, CountsFromTheEndWhenNegative) {
  EXPECT_EQ(ResolveAxis(0, 3).value_or(-9), 0);
  EXPECT_EQ(ResolveAxis(2, 3).value_or(-9), 2);
  EXPECT_EQ(ResolveAxis(-1, 3).value_or(-9), 2);
  EXPECT_EQ(ResolveAxis(-3, 3).value_or(-9), 0);
  for (const int64_t axis : {int64_t{3}, int64_t{-4}, kMax, std::numeric_limits<int64_t>::min()}) {
    EXPECT_STATUS(ResolveAxis(axis, 3), absl::StatusCode::kInvalidArgument, "axis must be in");
  }
  EXPECT_STATUS(ResolveAxis(0, 0), absl::StatusCode::kInvalidArgument, "got 0");
}

TEST(CheckedProductTest, RefusesMoreThanAShapeMayHold) {
  EXPECT_EQ(CheckedProduct(int64_t{1} << 20, int64_t{1} << 20).value_or(-1), int64_t{1} << 40);
  EXPECT_EQ(CheckedProduct(0, kMax).value_or(-1), 0);
  EXPECT_STATUS(CheckedProduct((int64_t{1} << 20) + 1, int64_t{1} << 20),
                absl::StatusCode::kInvalidArgument, "at most");
  EXPECT_STATUS(CheckedProduct(kMax, kMax), absl::StatusCode::kInvalidArgument, "at most");
}

}  // namespace
}  // namespace millrace
