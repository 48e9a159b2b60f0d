// SPDX-License-Identifier: Apache-2.0
#include "core/tensor.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/resource_handle.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

// covers: accidents: no accessor of a tensor reads other bytes, for every pair of element type and
//   dtype; wrong indices and numbers of elements are refused by name
// covers: accidents: writing to a tensor that was fed or fetched changes no variable and no
//   constant
// covers: steps: an edge's value fits into one cache line

namespace millrace {
namespace {

// An allocator that has no memory.
class NoMemoryAllocator : public Allocator {
 public:
  void* Allocate(size_t) override { return nullptr; }
  void Deallocate(void*, size_t) override {}
};

TEST(TensorTest, EveryDTypeAllocatesAlignedAndZeroed) {
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    for (const Shape& shape : {Shape(), ShapeOf({3, 5}), ShapeOf({2, 0})}) {
      ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Zeros(dtype, shape));
      EXPECT_EQ(tensor.dtype(), dtype);
      EXPECT_EQ(tensor.shape(), shape);
      EXPECT_TRUE(tensor.has_value());
      EXPECT_EQ(tensor.raw_data() == nullptr, shape.num_elements() == 0) << DTypeName(dtype);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw_data()) % Allocator::kAlignment, 0u);
      EXPECT_EQ(tensor.bytes().size(),
                static_cast<size_t>(shape.num_elements()) * DTypeSize(dtype));
      for (const char byte : tensor.bytes()) ASSERT_EQ(byte, 0);
      ASSERT_OK_AND_ASSIGN(const Tensor copy, tensor.Clone());
      EXPECT_TRUE(copy == tensor) << DTypeName(dtype);
      EXPECT_FALSE(copy.SharesBufferWith(tensor));
      EXPECT_FALSE(tensor.DebugString().empty());
    }
  }
}

TEST(TensorTest, IntsOfEitherTypeAreReadInPlace) {
  const std::vector<int64_t> values = {7, -1, 3};
  for (const Tensor& t : {Tensor::Vector<int32_t>({7, -1, 3}), Tensor::Vector<int64_t>(values)}) {
    const IntSpan ints = t.ints();
    EXPECT_EQ(ints.ToVector(), values);
    EXPECT_EQ(ints[1], -1);
    EXPECT_EQ(ints.subspan(1).ToVector(), (std::vector<int64_t>{-1, 3}));
    EXPECT_EQ(ints.subspan(1, 1).ToVector(), std::vector<int64_t>{-1});
    EXPECT_EQ(ints.subspan(0, 9).size(), 3u);
    int64_t sum = 0;
    for (const int64_t value : ints) sum += value;
    EXPECT_EQ(sum, 9);
  }
  for (const Tensor& t : {Tensor::Vector<int32_t>({}), Tensor::Vector<int64_t>({})}) {
    EXPECT_TRUE(t.ints().empty());
    for (const int64_t value : t.ints()) ADD_FAILURE() << value;
  }
}

TEST(TensorTest, TypesThatAreNoValueAreRefused) {
  for (const DType dtype : {DT_INVALID, DT_FLOAT_REF, RefOf(DT_STRING)}) {
    EXPECT_STATUS(Tensor::Allocate(dtype, Shape()), absl::StatusCode::kInvalidArgument,
                  "got " + DTypeName(dtype));
  }
}

TEST(TensorTest, NoMemoryIsResourceExhausted) {
  NoMemoryAllocator none;
  for (const DType dtype : {DT_FLOAT, DT_STRING, DT_RESOURCE, DT_VARIANT}) {
    EXPECT_STATUS(Tensor::Allocate(dtype, ShapeOf({2, 3}), &none),
                  absl::StatusCode::kResourceExhausted, "shape[2,3]");
    EXPECT_OK(Tensor::Allocate(dtype, ShapeOf({0}), &none));
  }
  EXPECT_STATUS(Tensor::Allocate(DT_COMPLEX128, ShapeOf({Shape::kMaxElements})),
                absl::StatusCode::kResourceExhausted, "OOM");
  EXPECT_STATUS(Tensor::Allocate(DT_VARIANT, ShapeOf({Shape::kMaxElements})),
                absl::StatusCode::kResourceExhausted, "OOM");
  EXPECT_STATUS(TensorOf<float>({2}, {1, 2}).Clone(&none), absl::StatusCode::kResourceExhausted,
                "OOM");
}

TEST(TensorTest, ADefaultTensorIsNoValue) {
  const Tensor none;
  EXPECT_FALSE(none.has_value());
  EXPECT_EQ(none.TotalBytes(), 0);
  EXPECT_TRUE(none.bytes().empty());
  EXPECT_FALSE(none.BufferIsUnique());
  EXPECT_TRUE(none == Tensor());
  EXPECT_FALSE(none == TensorOf<float>({}, {0}));
  ASSERT_OK_AND_ASSIGN(const Tensor copy, none.Clone());
  EXPECT_FALSE(copy.has_value());
  EXPECT_STATUS(none.Reshaped(Shape()), absl::StatusCode::kInvalidArgument, "got 0");
  EXPECT_EQ(none.DebugString(), "<no value>");
}

TEST(TensorTest, ValuesAreCopiedAndTheirNumberIsChecked) {
  const Tensor t = TensorOf<int32_t>({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(t.flat<int32_t>()[2], 3);
  EXPECT_EQ(t.TotalBytes(), 16);
  EXPECT_EQ(Tensor::Scalar<double>(2.5).scalar<double>(), 2.5);
  EXPECT_EQ(Tensor::Scalar("text").scalar<std::string>(), "text");
  EXPECT_EQ(Tensor::Vector<int64_t>({5, 6}), TensorOf<int64_t>({2}, {5, 6}));
  EXPECT_EQ(Tensor::Vector<bool>({true, false}).flat<bool>().size(), 2u);
  const std::vector<float> values = {1, 2, 3};
  EXPECT_STATUS(Tensor::FromValues<float>(ShapeOf({2, 2}), values),
                absl::StatusCode::kInvalidArgument, "shape [2,2] needs 4 values, got 3");
}

TEST(TensorTest, CopiesShareTheBufferUntilTheyGo) {
  Tensor a = TensorOf<float>({2}, {1, 2});
  EXPECT_TRUE(a.BufferIsUnique());
  {
    const Tensor b = a;
    EXPECT_TRUE(b.SharesBufferWith(a));
    EXPECT_FALSE(a.BufferIsUnique());
  }
  EXPECT_TRUE(a.BufferIsUnique());
  ASSERT_OK_AND_ASSIGN(Tensor c, a.Clone());
  c.mutable_flat<float>()[0] = 9;
  EXPECT_EQ(a.flat<float>()[0], 1);
  const Tensor d = std::move(a);
  EXPECT_TRUE(d.BufferIsUnique());
  // Two empty tensors have no buffer to share.
  EXPECT_FALSE(TensorOf<float>({0}, {}).SharesBufferWith(TensorOf<float>({0}, {})));
}

TEST(TensorTest, ReshapedSharesElementsAndChecksTheirNumber) {
  const Tensor t = TensorOf<int32_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  ASSERT_OK_AND_ASSIGN(const Tensor r, t.Reshaped(ShapeOf({3, 1, 2})));
  EXPECT_TRUE(r.SharesBufferWith(t));
  EXPECT_EQ(r.flat<int32_t>()[5], 6);
  EXPECT_STATUS(t.Reshaped(ShapeOf({4})), absl::StatusCode::kInvalidArgument,
                "shape [4] has 4 elements and must have as many as the tensor, got 6");
  EXPECT_OK(TensorOf<float>({0, 3}, {}).Reshaped(ShapeOf({7, 0})));
}

TEST(TensorTest, RowsShareTheBufferOfNumbersAndObjects) {
  const Tensor t = TensorOf<int16_t>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor rows = t.Rows(1, 3);
  EXPECT_TRUE(rows.SharesBufferWith(t));
  ExpectTensorEqual(rows, TensorOf<int16_t>({2, 2}, {3, 4, 5, 6}));
  ExpectTensorEqual(rows.Rows(1, 2), TensorOf<int16_t>({1, 2}, {5, 6}));
  ExpectTensorEqual(t.Rows(2, 2), TensorOf<int16_t>({0, 2}, {}));
  ASSERT_OK_AND_ASSIGN(const Tensor copy, rows.Clone());
  ExpectTensorEqual(copy, rows);

  Tensor last;
  {
    const Tensor strings = TensorOf<std::string>({3}, {"a", std::string(100, 'b'), "c"});
    last = strings.Rows(1, 3);
  }
  ExpectTensorEqual(last, TensorOf<std::string>({2}, {std::string(100, 'b'), "c"}));
  ExpectTensorEqual(TensorOf<float>({0, 2}, {}).Rows(0, 0), TensorOf<float>({0, 2}, {}));
}

// Calls f with a null pointer of each element type.
template <typename F>
void ForEachElementType(F f) {
  const auto each = [&]<typename... Ts>(std::tuple<Ts...>*) {
    (f(static_cast<Ts*>(nullptr)), ...);
  };
  each(static_cast<std::tuple<float, double, int32_t, uint8_t, int16_t, int8_t, std::string,
                              std::complex<float>, int64_t, bool, QInt8, QUInt8, QInt32, Bfloat16,
                              QInt16, QUInt16, uint16_t, std::complex<double>, Half, ResourceHandle,
                              Variant, uint32_t, uint64_t>*>(nullptr));
}

TEST(TensorTest, NoPairOfTypesReadsOtherBytes) {
  int num_types = 0;
  ForEachElementType([&]<typename T>(T*) {
    ++num_types;
    for (int number = 1; number <= kNumDTypes; ++number) {
      const DType dtype = static_cast<DType>(number);
      ASSERT_OK_AND_ASSIGN(Tensor one, Tensor::Zeros(dtype, Shape()));
      if (dtype == DTypeOf<T>) {
        ASSERT_OK_AND_ASSIGN(const auto values, one.values<T>());
        EXPECT_EQ(values.data(), one.raw_data());
        EXPECT_OK(one.value<T>());
        EXPECT_EQ(&one.scalar<T>(), one.raw_data());
        EXPECT_EQ(one.flat<T>().data(), one.raw_data());
        continue;
      }
      const std::string rule =
          absl::StrCat("<", DTypeName(DTypeOf<T>), ">() must be asked of a ", DTypeName(DTypeOf<T>),
                       " tensor, got ", DTypeName(dtype), " of shape []");
      EXPECT_STATUS(one.values<T>(), absl::StatusCode::kInvalidArgument, "values" + rule);
      EXPECT_STATUS(one.value<T>(), absl::StatusCode::kInvalidArgument, "value" + rule);
    }
  });
  EXPECT_EQ(num_types, kNumDTypes);
}

using TensorDeathTest = ::testing::Test;

TEST(TensorDeathTest, EveryAccessorRefusesAnotherType) {
  Tensor ints = Tensor::Of<int32_t>({{1, 2}, {3, 4}});
  const std::string rule = "<float>.. must be asked of a float tensor, got int32 of shape .2,2.";
  EXPECT_DEATH(ints.flat<float>(), "flat" + rule);
  EXPECT_DEATH(ints.mutable_flat<float>(), "mutable_flat" + rule);
  EXPECT_DEATH(ints.scalar<float>(), "scalar" + rule);
  EXPECT_DEATH(ints.at<float>(0, 0), "at" + rule);
  EXPECT_DEATH(ints.rows<float>(), "rows" + rule);
  EXPECT_DEATH(Tensor().flat<float>(), "got no value");
}

TEST(TensorDeathTest, AWrongReadNamesItsLine) {
  Tensor ints = Tensor::Of<int32_t>({{1, 2}, {3, 4}});
  const std::string line = "; read at .*tensor_test.cc:";
  EXPECT_DEATH(ints.flat<float>(), "got int32 of shape .2,2." + line);
  EXPECT_DEATH(ints.mutable_flat<float>(), "got int32 of shape .2,2." + line);
  EXPECT_DEATH(ints.scalar<float>(), "got int32 of shape .2,2." + line);
  EXPECT_DEATH(ints.scalar<int32_t>(), "got shape .2,2." + line);
  EXPECT_DEATH(ints.rows<float>(), "got int32 of shape .2,2." + line);
}

TEST(TensorDeathTest, WrongNumbersOfElementsAndIndicesAreRefused) {
  const Tensor x = Tensor::Of({{1.0f, 2.0f}, {3.0f, 4.0f}});
  EXPECT_DEATH(x.scalar<float>(),
               "scalar.. must be asked of a tensor of one element, got shape .2,2.");
  EXPECT_STATUS(x.value<float>(), absl::StatusCode::kInvalidArgument,
                "value() must be asked of a tensor of one element, got shape [2,2]");
  EXPECT_DEATH(x.at<float>(1), "one index per dimension of shape .2,2., got 1");
  EXPECT_DEATH(x.at<float>(0, 2), "index 1 of at.. must be in .0, 2., got 2");
  EXPECT_DEATH(x.at<float>(-1, 0), "index 0 of at.. must be in .0, 2., got -1");
  const Tensor scalar = Tensor::Scalar(1.0f);
  EXPECT_DEATH(scalar.rows<float>(), "rank >= 1, got a scalar");
  EXPECT_DEATH(x.rows<float>()[2], "the row of rows.. must be in .0, 2., got 2");
  EXPECT_DEATH(Tensor::Of({{1, 2}, {3}}),
               "row 1 must be as long as row 0, which has 2 elements, got 1");
  EXPECT_DEATH((Shape{2, -1}), "dimension 1 must be >= 0, got -1");
}

TEST(TensorTest, LiteralsHaveTheShapeOfTheirBraces) {
  ExpectTensorEqual(Tensor::Of({1.5f, 2.5f}), TensorOf<float>({2}, {1.5f, 2.5f}));
  ExpectTensorEqual(Tensor::Of<int64_t>({{1}, {2}}), TensorOf<int64_t>({2, 1}, {1, 2}));
  ExpectTensorEqual(Tensor::Of<double>({{{1, 2}, {3, 4}, {5, 6}}}),
                    TensorOf<double>({1, 3, 2}, {1, 2, 3, 4, 5, 6}));
  ExpectTensorEqual(Tensor::Of({{"a", "b"}}), TensorOf<std::string>({1, 2}, {"a", "b"}));
  ExpectTensorEqual(Tensor::Of({true, false}), TensorOf<bool>({2}, {true, false}));
  ExpectTensorEqual(Tensor::Of<Half>({1.5}), TensorOf<Half>({1}, {ToHalf(1.5f)}));
  EXPECT_EQ((Shape{2, 0, 3}), ShapeOf({2, 0, 3}));
}

TEST(TensorTest, ElementsAreReadByIndexAndByRow) {
  const Tensor x = Tensor::Of<int32_t>({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(x.at<int32_t>(1, 2), 6);
  EXPECT_EQ(Tensor::Scalar(7.0f).at<float>(), 7.0f);
  std::vector<int32_t> sums;
  for (const absl::Span<const int32_t> row : x.rows<int32_t>()) sums.push_back(row[0] + row[2]);
  EXPECT_EQ(sums, (std::vector<int32_t>{4, 10}));
  EXPECT_EQ(x.rows<int32_t>().size(), 2);
  EXPECT_EQ(x.rows<int32_t>()[1][0], 4);
  ASSERT_OK_AND_ASSIGN(const Tensor none, Tensor::Zeros(DT_FLOAT, Shape{0, 3}));
  for (const auto row : none.rows<float>()) ADD_FAILURE() << row.size();
}

TEST(TensorTest, WritingToWhatOthersHoldCopiesItBefore) {
  const Tensor held = Tensor::Of({{"a", "b"}, {"c", "d"}});
  Tensor x = held;
  Tensor row = held.Rows(1, 2);
  const void* const before = x.raw_data();
  x.mutable_flat<std::string>()[0] = "x";
  row.mutable_flat<std::string>()[0] = "y";
  ExpectTensorEqual(held, Tensor::Of({{"a", "b"}, {"c", "d"}}));
  ExpectTensorEqual(x, Tensor::Of({{"x", "b"}, {"c", "d"}}));
  ExpectTensorEqual(row, Tensor::Of({{"y", "d"}}));
  EXPECT_NE(x.raw_data(), before);
  const void* const own = x.raw_data();
  x.mutable_flat<std::string>()[1] = "z";
  EXPECT_EQ(x.raw_data(), own) << "what nobody else holds is written in place";
  ASSERT_OK_AND_ASSIGN(Tensor none, Tensor::Zeros(DT_FLOAT, Shape{0}));
  EXPECT_TRUE(none.mutable_flat<float>().empty());
}

TEST(TensorTest, ReadOnlyMemoryIsNeverWritten) {
  alignas(64) const float memory[2] = {1, 2};
  ASSERT_OK_AND_ASSIGN(
      Tensor x,
      Tensor::FromBuffer(DT_FLOAT, ShapeOf({2}), Buffer::ReadOnly(memory, sizeof(memory), {}), 0));
  EXPECT_EQ(x.raw_data(), memory);
  EXPECT_FALSE(x.BufferIsUnique()) << "no kernel takes it for an output of its own";
  x.mutable_flat<float>()[0] = 5;
  EXPECT_EQ(memory[0], 1);
  ExpectTensorEqual(x, Tensor::Vector<float>({5, 2}));
}

TEST(TensorTest, ForeignMemoryIsCheckedForSizeAndAlignment) {
  alignas(64) char memory[64] = {};
  int releases = 0;
  const auto buffer = [&] {
    return Buffer::External(memory, sizeof(memory), [&releases] { ++releases; });
  };
  reinterpret_cast<float*>(memory)[2] = 7;
  {
    ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::FromBuffer(DT_FLOAT, ShapeOf({2}), buffer(), 8));
    ExpectTensorEqual(t, TensorOf<float>({2}, {7, 0}));
  }
  EXPECT_EQ(releases, 1);
  EXPECT_OK(Tensor::FromBuffer(DT_FLOAT, ShapeOf({16}), buffer(), 0));
  EXPECT_OK(Tensor::FromBuffer(DT_COMPLEX128, ShapeOf({1}), buffer(), 8));
  EXPECT_OK(Tensor::FromBuffer(DT_FLOAT, ShapeOf({0}), BufferRef(), 0));
  const struct {
    DType dtype;
    int64_t size;
    size_t offset;
    const char* message;
  } kCases[] = {
      {DT_FLOAT, 17, 0, "needs 68 bytes at offset 0 of its buffer, got a buffer of 64"},
      {DT_FLOAT, 16, 4, "needs 64 bytes at offset 4"},
      {DT_FLOAT, 1, 65, "at offset 65"},
      {DT_FLOAT, 1, SIZE_MAX, "at offset"},
      {DT_FLOAT, Shape::kMaxElements, 0, "got a buffer of 64"},
      {DT_FLOAT, 1, 2, "aligned to 4 bytes"},
      {DT_DOUBLE, 1, 4, "aligned to 8 bytes"},
      {DT_STRING, 1, 0, "fixed size, got string"},
      {DT_FLOAT_REF, 1, 0, "fixed size, got float_ref"},
      {DT_INVALID, 1, 0, "fixed size"},
  };
  for (const auto& c : kCases) {
    EXPECT_STATUS(Tensor::FromBuffer(c.dtype, ShapeOf({c.size}), buffer(), c.offset),
                  absl::StatusCode::kInvalidArgument, c.message);
  }
  EXPECT_STATUS(Tensor::FromBuffer(DT_FLOAT, Shape(), BufferRef(), 0),
                absl::StatusCode::kInvalidArgument, "got a buffer of 0");
  memory[3] = 2;
  EXPECT_STATUS(Tensor::FromBuffer(DT_BOOL, ShapeOf({8}), buffer(), 0),
                absl::StatusCode::kInvalidArgument, "a bool must be 0 or 1, got 2 at element 3");
}

TEST(TensorTest, EqualityKnowsNanAndSignedZero) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(TensorOf<float>({3}, {nan, 0.0f, 1}), TensorOf<float>({3}, {nan, -0.0f, 1}));
  EXPECT_NE(TensorOf<float>({1}, {nan}), TensorOf<float>({1}, {1}));
  EXPECT_NE(TensorOf<float>({1}, {1}), TensorOf<double>({1}, {1}));
  EXPECT_NE(TensorOf<float>({1}, {1}), TensorOf<float>({}, {1}));
  EXPECT_EQ(TensorOf<Half>({1}, {Half{0}}), TensorOf<Half>({1}, {Half{0x8000}}));
  EXPECT_NE(TensorOf<Half>({1}, {Half{1}}), TensorOf<Half>({1}, {Half{2}}));
  using Complex = std::complex<float>;
  EXPECT_EQ(TensorOf<Complex>({1}, {{nan, 0.0f}}), TensorOf<Complex>({1}, {{nan, -0.0f}}));
  EXPECT_NE(TensorOf<Complex>({1}, {{1, 2}}), TensorOf<Complex>({1}, {{1, 3}}));
  EXPECT_NE(TensorOf<std::string>({1}, {"a"}), TensorOf<std::string>({1}, {"b"}));
}

class Counter : public Resource {
 public:
  std::string DebugString() const override { return "Counter"; }
};

TEST(TensorTest, HandlesAndVariantsLiveAndDieWithTheirTensor) {
  auto resource = std::make_shared<Counter>();
  {
    ResourceHandle handle;
    handle.name = "w";
    handle.resource = resource;
    const Tensor t = Tensor::Scalar<ResourceHandle>(handle);
    ASSERT_OK_AND_ASSIGN(const Tensor copy, t.Clone());
    EXPECT_EQ(copy, t);
    EXPECT_EQ(copy.scalar<ResourceHandle>().resource.get(), resource.get());
    EXPECT_GT(resource.use_count(), 2);

    Variant list;
    list.type_name = "list";
    list.tensors = {t, Tensor::Scalar<float>(1)};
    const Tensor v = Tensor::Scalar<Variant>(list);
    list.tensors[1] = Tensor::Scalar<float>(2);
    EXPECT_NE(v, Tensor::Scalar<Variant>(list));
    EXPECT_GT(v.TotalBytes(), static_cast<int64_t>(sizeof(Variant)));
  }
  EXPECT_EQ(resource.use_count(), 1);
}

TEST(TensorTest, DebugStringShowsTheFirstElements) {
  EXPECT_EQ(TensorOf<float>({2, 3}, {1, 2.5, 3, 4, 5, 6}).DebugString(),
            "float[2,3]: 1 2.5 3 4 5 6");
  EXPECT_EQ(TensorOf<int8_t>({3}, {-1, 2, 3}).DebugString(2), "int8[3]: -1 2 ...");
  EXPECT_EQ(TensorOf<bool>({}, {true}).DebugString(), "bool[]: true");
  EXPECT_EQ(TensorOf<std::string>({1}, {"a\"\x01"}).DebugString(), "string[1]: \"a\\\"\\x01\"");
  EXPECT_EQ(TensorOf<std::complex<double>>({1}, {{1, -2}}).DebugString(), "complex128[1]: (1,-2)");
  EXPECT_EQ(TensorOf<Bfloat16>({1}, {Bfloat16{0x3f80}}).DebugString(), "bfloat16[1]: 1");
  EXPECT_EQ(TensorOf<QUInt8>({1}, {QUInt8{200}}).DebugString(), "quint8[1]: 200");
  EXPECT_EQ(TensorOf<float>({0}, {}).DebugString(), "float[0]:");
}

// The faces that other tests trust must themselves be able to fail.
TEST(TensorTestingTest, DifferencesFailTheTest) {
  static const float kNan = std::numeric_limits<float>::quiet_NaN();
  static const float kInf = std::numeric_limits<float>::infinity();
  ExpectTensorNear(TensorOf<float>({3}, {1.0005f, kNan, kInf}),
                   TensorOf<float>({3}, {1, kNan, kInf}), 1e-3, 0);
  EXPECT_NONFATAL_FAILURE(ExpectTensorEqual(TensorOf<int32_t>({2, 2}, {1, 2, 3, 4}),
                                            TensorOf<int32_t>({2, 2}, {1, 2, 0, 4})),
                          "first difference at [1,0]");
  EXPECT_NONFATAL_FAILURE(
      ExpectTensorEqual(TensorOf<int32_t>({1}, {1}), TensorOf<int64_t>({1}, {1})), "int64[1]");
  EXPECT_NONFATAL_FAILURE(
      ExpectTensorNear(TensorOf<float>({2}, {1, 2.1f}), TensorOf<float>({2}, {1, 2}), 0.01, 0.01),
      "at [1]: got 2.1, want 2");
  EXPECT_NONFATAL_FAILURE(
      ExpectTensorNear(TensorOf<float>({}, {kNan}), TensorOf<float>({}, {1}), 1, 1e9), "want 1");
  EXPECT_NONFATAL_FAILURE(
      ExpectTensorNear(TensorOf<float>({}, {1}), TensorOf<float>({}, {kInf}), 1, 1e9), "want inf");
  EXPECT_NONFATAL_FAILURE(
      ExpectTensorNear(TensorOf<float>({}, {kInf}), TensorOf<float>({}, {-kInf}), 1, 1e9),
      "want -inf");
  EXPECT_NONFATAL_FAILURE(TensorOf<float>({2}, {1}), "needs 2 values, got 1");
  EXPECT_NONFATAL_FAILURE(ShapeOf({-1}), "ShapeOf");
  EXPECT_NONFATAL_FAILURE(EXPECT_OK(absl::AbortedError("why")), "why");
  EXPECT_NONFATAL_FAILURE(
      EXPECT_STATUS(absl::AbortedError("why"), absl::StatusCode::kAborted, "because"), "because");
  EXPECT_NONFATAL_FAILURE(EXPECT_STATUS(absl::OkStatus(), absl::StatusCode::kAborted, ""),
                          "ABORTED");
}

}  // namespace
}  // namespace millrace
