// SPDX-License-Identifier: Apache-2.0
#include "ops/math/segment.h"

#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Rows() { return TensorOf<float>({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}); }

OpCall Unsorted(const char* op, Tensor data, Tensor ids, int32_t n) {
  return OpCall(op).Input(std::move(data)).Input(std::move(ids)).Input(Int(n));
}
OpCall Sorted(const char* op, Tensor data, Tensor ids) {
  return OpCall(op).Input(std::move(data)).Input(std::move(ids));
}

TEST(UnsortedSegment, CombinesRowsOfOneId) {
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentSum", Rows(), Ints({2, 0, 2, -1}), 4)),
                    TensorOf<float>({4, 2}, {3, 4, 0, 0, 6, 8, 0, 0}));
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentProd", Rows(), Ints({1, 0, 1, -1}), 3)),
                    TensorOf<float>({3, 2}, {3, 4, 5, 12, 1, 1}));
  const float low = std::numeric_limits<float>::lowest(), high = std::numeric_limits<float>::max();
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentMax", Rows(), Ints({0, 0, 0, -1}), 2)),
                    TensorOf<float>({2, 2}, {5, 6, low, low}));
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentMin", Rows(), Ints({0, 0, 0, -1}), 2)),
                    TensorOf<float>({2, 2}, {1, 2, high, high}));
  // Ids of rank 2 name single elements.
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentSum", TensorOf<int32_t>({2, 2}, {1, 2, 3, 4}),
                                    TensorOf<int64_t>({2, 2}, {0, 1, 1, 0}), 2)),
                    Ints({5, 5}));
  ExpectTensorEqual(
      RunOp1(Unsorted("UnsortedSegmentSum", TensorOf<float>({0, 2}, {}), Ints({}), 1)),
      TensorOf<float>({1, 2}, {0, 0}));
}

TEST(UnsortedSegment, IntegersWrap) {
  const int32_t max = std::numeric_limits<int32_t>::max();
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentSum", Ints({max, 1}), Ints({0, 0}), 1)),
                    Ints({std::numeric_limits<int32_t>::min()}));
}

TEST(UnsortedSegment, SumsDoNotDependOnThreads) {
  std::vector<float> values(20000 * 16);
  std::vector<int32_t> ids(20000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 1);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7919 % 100);
  ASSERT_OK_AND_ASSIGN(const Tensor data, Tensor::FromValues<float>(ShapeOf({20000, 16}), values));
  OpTestDevice one(1), four(4);
  const auto call = [&] {
    return Unsorted("UnsortedSegmentSum", data, Tensor::Vector<int32_t>(ids), 100);
  };
  ExpectTensorEqual(RunOp1(call().On(&one)), RunOp1(call().On(&four)));
}

TEST(UnsortedSegment, RefusesIdsAndShapesThatDoNotFit) {
  ExpectOpError(Unsorted("UnsortedSegmentSum", Rows(), Ints({0, 1, 2, 4}), 4), kInvalid,
                "segment_ids[3] = 4 is out of range [0, 4)");
  ExpectOpError(Unsorted("UnsortedSegmentSum", Rows(), Ints({0, 1}), 4), kInvalid,
                "the shape of segment_ids must begin the shape of data [4,2], got [2]");
  ExpectOpError(Unsorted("UnsortedSegmentSum", Rows(), Ints({0, 0, 0, 0}), -1), kInvalid,
                "num_segments must be >= 0, got -1");
  EXPECT_SHAPE("UnsortedSegmentSum", {{"Tindices", DT_INT32}}, {"[?,3]", "[?]", Int(5)}, "[5,3]");
  EXPECT_SHAPE("UnsortedSegmentSum", {{"Tindices", DT_INT32}}, {"[4,3]", "[4]", "[]"}, "[?,3]");
  EXPECT_SHAPE("UnsortedSegmentSum", {{"Tindices", DT_INT32}}, {"<unknown>", "[4]", "[]"},
               "<unknown>");
}

TEST(Segment, CombinesNeighbours) {
  const Tensor ids = Ints({0, 0, 2, 2});
  ExpectTensorEqual(RunOp1(Sorted("SegmentSum", Rows(), ids)),
                    TensorOf<float>({3, 2}, {4, 6, 0, 0, 12, 14}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentMean", Rows(), ids)),
                    TensorOf<float>({3, 2}, {2, 3, 0, 0, 6, 7}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentProd", Rows(), ids)),
                    TensorOf<float>({3, 2}, {3, 8, 1, 1, 35, 48}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentMax", Rows(), ids)),
                    TensorOf<float>({3, 2}, {3, 4, 0, 0, 7, 8}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentMin", Rows(), ids)),
                    TensorOf<float>({3, 2}, {1, 2, 0, 0, 5, 6}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentSum", TensorOf<float>({0, 2}, {}), Ints({}))),
                    TensorOf<float>({0, 2}, {}));
  // As many segments as there may be, of rows without elements.
  const int64_t last = (int64_t{1} << 39) - 1;
  for (const char* op : {"SegmentMax", "SegmentMean"}) {
    const Tensor none =
        RunOp1(Sorted(op, TensorOf<float>({1, 0}, {}), TensorOf<int64_t>({1}, {last})));
    EXPECT_EQ(none.dim(0), last + 1);
  }
  ExpectOpError(Sorted("SegmentSum", Rows(), Ints({0, 2, 1, 3})), kInvalid,
                "segment ids are not increasing");
  ExpectOpError(Sorted("SegmentSum", Rows(), Ints({-1, 0, 0, 0})), kInvalid,
                "segment_ids[0] must be >= 0, got -1");
  ExpectOpError(Sorted("SegmentSum", Rows(), Ints({0, 0})), kInvalid,
                "segment_ids must have one element for each of the 4 rows of data, got 2");
  EXPECT_SHAPE("SegmentSum", {}, {"[4,?]", Ints({0, 0, 1, 5})}, "[6,?]");
  EXPECT_SHAPE("SegmentSum", {{"Tindices", DT_INT32}}, {"[4,3]", "[4]"}, "[?,3]");
}

// As TensorFlow's: sorted extrema begin at infinities, and a segment of one row is that row.
TEST(Segment, ExtremaKeepInfinitiesAndSingleNaNs) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const Tensor ids = Ints({0, 0, 1, 3});
  const Tensor max = RunOp1(Sorted("SegmentMax", TensorOf<float>({4}, {-inf, -inf, nan, 2}), ids));
  EXPECT_EQ(max.flat<float>()[0], -inf);
  EXPECT_TRUE(std::isnan(max.flat<float>()[1]));
  EXPECT_EQ(max.flat<float>()[2], 0);  // of no row
  EXPECT_EQ(max.flat<float>()[3], 2);
  const Tensor min = RunOp1(Sorted("SegmentMin", TensorOf<float>({4}, {inf, inf, inf, 2}), ids));
  ExpectTensorEqual(min, TensorOf<float>({4}, {inf, inf, 0, 2}));
  const Tensor narrow = RunOp1(
      Sorted("SegmentMax", Tensor::Vector<Half>({ToHalf(-inf), ToHalf(-inf)}), Ints({0, 0})));
  EXPECT_EQ(ToFloat(narrow.flat<Half>()[0]), -inf);
}

TEST(Segment, ComplexNumbersAreAddedAndMultiplied) {
  using C = std::complex<float>;
  const Tensor data = TensorOf<C>({3}, {C(1, 2), C(3, -1), C(0, 1)});
  const Tensor ids = Ints({0, 0, 1});
  ExpectTensorEqual(RunOp1(Sorted("SegmentSum", data, ids)), TensorOf<C>({2}, {C(4, 1), C(0, 1)}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentMean", data, ids)),
                    TensorOf<C>({2}, {C(2, 0.5f), C(0, 1)}));
  ExpectTensorEqual(RunOp1(Sorted("SegmentProd", data, ids)), TensorOf<C>({2}, {C(5, 5), C(0, 1)}));
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentSum", data, Ints({1, -1, 1}), 2)),
                    TensorOf<C>({2}, {C(0, 0), C(1, 3)}));
  ExpectTensorEqual(RunOp1(Unsorted("UnsortedSegmentProd", data, Ints({1, 1, -1}), 2)),
                    TensorOf<C>({2}, {C(1, 0), C(5, 5)}));
}

template <typename T>
Tensor Narrow(const Shape& shape, const std::vector<float>& values) {
  Tensor t = *Tensor::Allocate(DTypeOf<T>, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_same_v<T, Half>) {
      t.mutable_flat<T>()[i] = ToHalf(values[i]);
    } else {
      t.mutable_flat<T>()[i] = ToBfloat16(values[i]);
    }
  }
  return t;
}

template <typename T>
void ExpectNarrowSegments(float highest) {
  const Tensor rows = Narrow<T>(ShapeOf({4, 2}), {1, 2, 3, 4, 5, 6, 7, 8});
  const auto expect = [](const OpCall& call, const Shape& shape, const std::vector<float>& values) {
    ExpectTensorEqual(RunOp1(call), Narrow<T>(shape, values));
  };
  const Shape three = ShapeOf({3, 2}), two = ShapeOf({2, 2});
  const Tensor sorted = Ints({0, 0, 2, 2});
  expect(Sorted("SegmentSum", rows, sorted), three, {4, 6, 0, 0, 12, 14});
  expect(Sorted("SegmentMean", rows, sorted), three, {2, 3, 0, 0, 6, 7});
  expect(Sorted("SegmentProd", rows, sorted), three, {3, 8, 1, 1, 35, 48});
  expect(Sorted("SegmentMax", rows, sorted), three, {3, 4, 0, 0, 7, 8});
  expect(Sorted("SegmentMin", rows, sorted), three, {1, 2, 0, 0, 5, 6});
  const Tensor ids = Ints({0, 0, 0, -1});
  expect(Unsorted("UnsortedSegmentSum", rows, ids, 2), two, {9, 12, 0, 0});
  expect(Unsorted("UnsortedSegmentProd", rows, ids, 2), two, {15, 48, 1, 1});
  // Of an empty segment the lowest and highest numbers, not infinities.
  expect(Unsorted("UnsortedSegmentMax", rows, ids, 2), two, {5, 6, -highest, -highest});
  expect(Unsorted("UnsortedSegmentMin", rows, ids, 2), two, {1, 2, highest, highest});
  EXPECT_TRUE(std::isfinite(highest));
  // Computed in float, rounded once: 4096 ones do not stop at 256 or 2048.
  const Tensor ones = Narrow<T>(ShapeOf({4096}), std::vector<float>(4096, 1));
  const Tensor zeros = *Tensor::Zeros(DT_INT32, ShapeOf({4096}));
  expect(Sorted("SegmentSum", ones, zeros), ShapeOf({1}), {4096});
  expect(Sorted("SegmentMean", ones, zeros), ShapeOf({1}), {1});
  expect(Unsorted("UnsortedSegmentSum", ones, zeros, 1), ShapeOf({1}), {4096});
}

TEST(Segment, NarrowTypesAreComputedInFloat) {
  ExpectNarrowSegments<Half>(65504);
  ExpectNarrowSegments<Bfloat16>(ToFloat(Bfloat16{0x7f7f}));
}

TEST(SegmentGradients, OfHalfMatchFiniteDifferences) {
  const Tensor x = Narrow<Half>(ShapeOf({4, 2}), {1, -2, 3, 4, 5, -6, 7, 8});
  GradientCheckOptions options;
  options.eps = 0.25;
  ExpectGradientsMatch(
      BuildOutput([](const Scope& s, const std::vector<Output>& in) {
        return UnsortedSegmentSum(s, in[0], Const<int32_t>(s, {2, 0, 2, -1}), Const(s, 3));
      }),
      {x}, options);
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return SegmentSum(s, in[0], Const<int32_t>(s, {0, 0, 2, 2}));
                       }),
                       {x}, options);
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return SegmentMean(s, in[0], Const<int32_t>(s, {0, 0, 2, 2}));
                       }),
                       {x}, options);
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return SegmentMax(s, in[0], Const<int32_t>(s, {0, 0, 2, 2}));
                       }),
                       {x}, options);
}

TEST(SegmentGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({4, 2}, {1, -2, 3, 4, 5, -6, 7, 8});
  const auto unsorted_ids = [](const Scope& s) { return Const<int32_t>(s, {2, 0, 2, -1}); };
  const auto sorted_ids = [](const Scope& s) { return Const<int32_t>(s, {0, 0, 2, 2}); };
  const BuildOutput builds[] = {
      [=](const Scope& s, const std::vector<Output>& in) {
        return UnsortedSegmentSum(s, in[0], unsorted_ids(s), Const(s, 3));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return UnsortedSegmentSum(
            s, in[0], Const(s, TensorOf<int64_t>({4, 2}, {0, 1, 1, 1, 0, 2, -1, 2})), Const(s, 3));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return SegmentSum(s, in[0], sorted_ids(s));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return SegmentMean(s, in[0], sorted_ids(s));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return SegmentMax(s, in[0], sorted_ids(s));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return SegmentMin(s, in[0], sorted_ids(s));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return UnsortedSegmentMax(s, in[0], Const<int32_t>(s, {1, 0, 1, 0}), Const(s, 2));
      },
  };
  for (const BuildOutput& build : builds) ExpectGradientsMatch(build, {x});
  // One zero in a segment, two zeros, none.
  const Tensor zeros = TensorOf<double>({4, 2}, {0, 0, 3, 0, 5, -6, 7, 8});
  ExpectGradientsMatch(
      [=](const Scope& s, const std::vector<Output>& in) {
        return SegmentProd(s, in[0], sorted_ids(s));
      },
      {zeros});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return UnsortedSegmentProd(s, in[0], Const<int32_t>(s, {1, 1, -1, 0}), Const(s, 3));
      },
      {zeros});
}

}  // namespace
}  // namespace millrace
