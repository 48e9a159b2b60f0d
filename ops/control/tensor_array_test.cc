// SPDX-License-Identifier: Apache-2.0
#include "ops/control/tensor_array.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "runtime/resource_manager.h"
#include "runtime/testing/op_test.h"

// covers: values: tensor arrays, tensor lists and stacks: read twice, written twice, out of range,
//   of another dtype, closed are refused in TensorFlow's words; what they hold ends with the step
//   or its last handle (buffers counted); sums of gradients do not depend on the order of writes

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t value) { return Tensor::Scalar(value); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Flow() { return Tensor::Scalar(0.0f); }

// A step: what its ops make lives as long.
class TensorArrayTest : public ::testing::Test {
 protected:
  OpCall ArrayCall(int32_t size, const TensorArrayAttrs& attrs = {}, DType dtype = DT_FLOAT) {
    return OpCall("TensorArrayV3")
        .Name("ta")
        .Input(Int(size))
        .Attr("dtype", dtype)
        .Attr("element_shape", attrs.element_shape)
        .Attr("dynamic_size", attrs.dynamic_size)
        .Attr("clear_after_read", attrs.clear_after_read)
        .Attr("identical_element_shapes", attrs.identical_element_shapes)
        .On(device_.get());
  }
  Tensor Array(int32_t size, const TensorArrayAttrs& attrs = {}, DType dtype = DT_FLOAT) {
    return RunOp1(ArrayCall(size, attrs, dtype));
  }
  OpCall Write(const Tensor& array, int32_t index, const Tensor& value) {
    return OpCall("TensorArrayWriteV3")
        .Name("writer")
        .Input(array)
        .Input(Int(index))
        .Input(value)
        .Input(Flow())
        .On(device_.get());
  }
  OpCall Read(const Tensor& array, int32_t index, DType dtype = DT_FLOAT) {
    return OpCall("TensorArrayReadV3")
        .Input(array)
        .Input(Int(index))
        .Input(Flow())
        .Attr("dtype", dtype)
        .On(device_.get());
  }
  OpCall Gather(const Tensor& array, const Tensor& indices, const PartialShape& element = {},
                DType dtype = DT_FLOAT) {
    return OpCall("TensorArrayGatherV3")
        .Input(array)
        .Input(indices)
        .Input(Flow())
        .Attr("dtype", dtype)
        .Attr("element_shape", element)
        .On(device_.get());
  }
  OpCall Scatter(const Tensor& array, const Tensor& indices, const Tensor& value) {
    return OpCall("TensorArrayScatterV3")
        .Input(array)
        .Input(indices)
        .Input(value)
        .Input(Flow())
        .On(device_.get());
  }
  OpCall Concat(const Tensor& array, const PartialShape& except0 = {}) {
    return OpCall("TensorArrayConcatV3")
        .Input(array)
        .Input(Flow())
        .Attr("dtype", DT_FLOAT)
        .Attr("element_shape_except0", except0)
        .On(device_.get());
  }
  OpCall Split(const Tensor& array, const Tensor& value, std::initializer_list<int64_t> lengths) {
    return OpCall("TensorArraySplitV3")
        .Input(array)
        .Input(value)
        .Input(Tensor::Vector<int64_t>(lengths))
        .Input(Flow())
        .On(device_.get());
  }
  OpCall Size(const Tensor& array) {
    return OpCall("TensorArraySizeV3").Input(array).Input(Flow()).On(device_.get());
  }
  OpCall Close(const Tensor& array) {
    return OpCall("TensorArrayCloseV3").Input(array).On(device_.get());
  }
  OpCall GradientCall(const Tensor& array, const std::string& source = "gradients") {
    return OpCall("TensorArrayGradV3")
        .Input(array)
        .Input(Flow())
        .Attr("source", source)
        .On(device_.get());
  }
  Tensor Gradient(const Tensor& array, const std::string& source = "gradients") {
    return RunOp1(GradientCall(array, source));
  }

  std::unique_ptr<OpTestDevice> device_ = std::make_unique<OpTestDevice>();
};

const Tensor kOne = TensorOf<float>({2}, {1, 2});
const Tensor kTwo = TensorOf<float>({2}, {3, 4});

TEST_F(TensorArrayTest, GivesWhatWasWritten) {
  const Tensor array = Array(2);
  ExpectTensorEqual(RunOp1(Write(array, 1, kTwo)), Flow());
  ExpectTensorEqual(RunOp1(Write(array, 0, kOne)), Flow());
  ExpectTensorEqual(RunOp1(Read(array, 0)), kOne);
  ExpectTensorEqual(RunOp1(Read(array, 1)), kTwo);
  ExpectTensorEqual(RunOp1(Size(array)), Int(2));
}

TEST_F(TensorArrayTest, HoldsEmptyAndNonNumericElements) {
  const Tensor empty = TensorOf<float>({0, 3}, {});
  const Tensor array = Array(1);
  ASSERT_OK(RunOp(Write(array, 0, empty)));
  ExpectTensorEqual(RunOp1(Read(array, 0)), empty);
  const Tensor words = Array(2, {}, DT_STRING);
  ASSERT_OK(RunOp(Scatter(words, Ints({1, 0}), TensorOf<std::string>({2}, {"a", "b"}))));
  ExpectTensorEqual(RunOp1(Gather(words, Ints({0, 1}), {}, DT_STRING)),
                    TensorOf<std::string>({2}, {"b", "a"}));
}

TEST_F(TensorArrayTest, GathersAndScattersRows) {
  const Tensor array = Array(3);
  ExpectTensorEqual(RunOp1(Scatter(array, Ints({2, 0}), TensorOf<float>({2, 2}, {1, 2, 3, 4}))),
                    Flow());
  ASSERT_OK(RunOp(Write(array, 1, TensorOf<float>({2}, {5, 6}))));
  ExpectTensorEqual(RunOp1(Gather(array, Ints({0, 1, 2}))),
                    TensorOf<float>({3, 2}, {3, 4, 5, 6, 1, 2}));
}

TEST_F(TensorArrayTest, GathersNothingWhereItKnowsTheShape) {
  ExpectTensorEqual(RunOp1(Gather(Array(0), Ints({}), {2})), TensorOf<float>({0, 2}, {}));
  ExpectOpError(Gather(Array(0), Ints({})), absl::StatusCode::kUnimplemented,
                "TensorArray has size zero, but element shape <unknown> is not fully defined.");
}

TEST_F(TensorArrayTest, SplitsAndConcatenates) {
  const Tensor array = Array(3);
  const Tensor rows = TensorOf<float>({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  ExpectTensorEqual(RunOp1(Split(array, rows, {1, 0, 3})), Flow());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Concat(array, {2})));
  ExpectTensorEqual(out[0], rows);
  ExpectTensorEqual(out[1], Tensor::Vector<int64_t>({1, 0, 3}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none, RunOp(Concat(Array(0), {2})));
  ExpectTensorEqual(none[0], TensorOf<float>({0, 2}, {}));
  ExpectTensorEqual(none[1], Tensor::Vector<int64_t>({}));
}

TEST_F(TensorArrayTest, GrowsWhereItsSizeIsDynamic) {
  const Tensor array = Array(1, {.dynamic_size = true});
  ASSERT_OK(RunOp(Write(array, 40, kOne)));
  ExpectTensorEqual(RunOp1(Size(array)), Int(41));
  const Tensor split = Array(0, {.dynamic_size = true});
  ASSERT_OK(RunOp(Split(split, kOne, {1, 1})));
  ExpectTensorEqual(RunOp1(Size(split)), Int(2));
  // Memory grows with elements, not with indices.
  ASSERT_OK(RunOp(Write(Array(0, {.dynamic_size = true}), 2147483646, kOne)));
}

TEST_F(TensorArrayTest, ReadsAgainWhereItKeepsWhatWasRead) {
  const Tensor array = Array(1, {.clear_after_read = false});
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  ExpectTensorEqual(RunOp1(Read(array, 0)), kOne);
  ExpectTensorEqual(RunOp1(Read(array, 0)), kOne);
}

TEST_F(TensorArrayTest, GivesZerosForWhatWasNotWrittenWhereItKnowsTheShape) {
  ExpectTensorEqual(RunOp1(Read(Array(1, {.element_shape = {2}}), 0)),
                    TensorOf<float>({2}, {0, 0}));
  const Tensor array = Array(2, {.identical_element_shapes = true});
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  ExpectTensorEqual(RunOp1(Gather(array, Ints({0, 1}))), TensorOf<float>({2, 2}, {1, 2, 0, 0}));
}

TEST_F(TensorArrayTest, RefusesWhatIsNotLegal) {
  const Tensor array = Array(2);
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  ExpectOpError(Write(array, 2, kOne), kInvalid,
                ": Tried to write to index 2 but array is not resizeable and size is: 2");
  ExpectOpError(Write(array, -1, kOne), kInvalid, ": Tried to write to index -1 but array is not");
  ExpectOpError(Write(Array(0, {.dynamic_size = true}), -1, kOne), kInvalid, "index -1");
  ExpectOpError(Write(array, 1, Int(1)), kInvalid,
                "TensorArray dtype is float but Op is trying to write dtype int32.");
  ExpectOpError(Write(array, 0, kOne), kInvalid,
                ": Could not write to TensorArray index 0 because it has already been written to.");
  ExpectOpError(Read(array, 2), kInvalid, "Tried to read from index 2 but array size is: 2");
  ExpectOpError(Read(array, -1), kInvalid, "Tried to read from index -1 but array size is: 2");
  ExpectOpError(Read(array, 1), kInvalid,
                ": Could not read from TensorArray index 1.  Furthermore, the element shape is not "
                "fully defined: <unknown>.  It is possible you are working with a resizeable "
                "TensorArray and stop_gradients is not allowing the gradients to be written.");
  ExpectOpError(Read(array, 0, DT_INT32), kInvalid,
                "TensorArray dtype is float but Op requested dtype int32.");
  ASSERT_OK(RunOp(Read(array, 0)));
  ExpectOpError(Read(array, 0), kInvalid,
                ": Could not read index 0 twice because it was cleared after a previous read "
                "(perhaps try setting clear_after_read = false?).");
  ExpectOpError(Write(array, 0, kOne), kInvalid,
                ": Could not write to TensorArray index 0 because it has already been read.");
  ExpectOpError(ArrayCall(-1), kInvalid, "Size should be >= 0, got -1.");
}

TEST_F(TensorArrayTest, SaysItsNameInErrors) {
  ExpectOpError(Write(Array(0), 0, kOne), kInvalid, "TensorArray ta_");
  const Tensor named = RunOp1(ArrayCall(0).Attr("tensor_array_name", "states"));
  ExpectOpError(Write(named, 0, kOne), kInvalid, "TensorArray states_");
}

TEST_F(TensorArrayTest, RefusesElementsOfOtherShapes) {
  ExpectOpError(Write(Array(2, {.element_shape = {3}}), 0, kOne), kInvalid,
                ": Could not write to TensorArray index 0 because the value shape is [2] which is "
                "incompatible with the TensorArray's inferred element shape: [3] (consider setting "
                "infer_shape=False).");
  const Tensor identical = Array(2, {.identical_element_shapes = true});
  ASSERT_OK(RunOp(Write(identical, 0, kOne)));
  ExpectOpError(Write(identical, 1, TensorOf<float>({1}, {1})), kInvalid,
                "inferred element shape: [2]");
  const Tensor mixed = Array(2, {.clear_after_read = false});
  ASSERT_OK(RunOp(Write(mixed, 0, TensorOf<float>({1, 2}, {1, 2}))));
  ASSERT_OK(RunOp(Write(mixed, 1, TensorOf<float>({1, 3}, {1, 2, 3}))));
  ExpectOpError(Gather(mixed, Ints({0, 1})), kInvalid,
                "TensorArray has inconsistent shapes.  Index 0 has shape: [1,2] but index 1 has "
                "shape: [1,3]");
  ExpectOpError(Concat(mixed), kInvalid,
                "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) shape: "
                "[2] but index 1 has (excepting dimension 0) shape: [3]");
  ExpectOpError(Concat(mixed, {3}), kInvalid, "TensorArray was passed element_shape_except0 [3]");
  const Tensor scalars = Array(1);
  ASSERT_OK(RunOp(Write(scalars, 0, Tensor::Scalar(1.0f))));
  ExpectOpError(Concat(scalars), kInvalid,
                "Concat saw a scalar shape at index 0 but requires at least vectors.  Did you mean "
                "to call pack?");
}

TEST_F(TensorArrayTest, RefusesWhatDoesNotFitItsSize) {
  const Tensor rows = TensorOf<float>({2, 1}, {1, 2});
  ExpectOpError(Scatter(Array(2), Ints({0, 2}), rows), kInvalid,
                "Max scatter index must be < array size (2 vs. 2)");
  ExpectOpError(Scatter(Array(2), Ints({0, -1}), rows), kInvalid, "Tried to write to index -1");
  ExpectOpError(Scatter(Array(2), Ints({0}), rows), kInvalid,
                "Expected len(indices) == values.shape[0], but saw: 1 vs. 2");
  ExpectOpError(Scatter(Array(2), Ints({0, 1}), Tensor::Scalar(1.0f)), kInvalid,
                "Input value for unpack must be at least a vector but received shape: []");
  ExpectOpError(Split(Array(3), rows, {1, 1}), kInvalid,
                "TensorArray's size is not equal to the size of lengths (3 vs. 2), and the "
                "TensorArray is not marked as dynamically resizeable");
  ExpectOpError(Split(Array(2), rows, {1, 2}), kInvalid,
                "Expected sum of lengths to be equal to values.shape[0]");
  ExpectOpError(Split(Array(2), rows, {3, -1}), kInvalid, "lengths[0] is 3 behind 0 rows");
  ExpectOpError(Split(Array(2), rows, {0, 1}), kInvalid, "but sum of lengths is 1");
}

TEST_F(TensorArrayTest, RefusesEverythingOnceItIsClosed) {
  const Tensor array = Array(2);
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  ASSERT_OK(RunOp(Close(array)));
  for (const OpCall& call :
       {Write(array, 1, kOne), Read(array, 0), Gather(array, Ints({0})), Concat(array), Size(array),
        GradientCall(array), Split(array, kOne, {1, 1}), Scatter(array, Ints({0, 1}), kOne)}) {
    ExpectOpError(call, kInvalid, " has already been closed.");
  }
}

TEST_F(TensorArrayTest, RefusesHandlesThatAreNone) {
  ExpectOpError(Read(device_->VariableHandle("v", kOne), 0), kInvalid,
                "must be a TensorArray, got a handle of a Var");
  ResourceHandle handle;
  handle.device = device_->device()->name;
  handle.hash_code = ResourceManager::TypeHash<VariableStorage>();
  ExpectOpError(Read(Tensor::Scalar(handle), 0), kInvalid, "must be a TensorArray");
}

TEST_F(TensorArrayTest, EndsWithItsStep) {
  const Tensor array = Array(1);
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  device_ = std::make_unique<OpTestDevice>();
  ExpectOpError(Read(array, 0), absl::StatusCode::kNotFound, "/TensorArray does not exist.");
}

TEST_F(TensorArrayTest, GivesItsMemoryBackWithItsHandleOrItsStep) {
  const Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{1 << 16});
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  {
    const Tensor array = Array(1);
    ASSERT_OK(RunOp(Write(array, 0, *large.Clone())));
    EXPECT_GT(DefaultAllocatorStats().bytes_in_use, before + (1 << 18) - 1);
  }
  EXPECT_LT(DefaultAllocatorStats().bytes_in_use, before + (1 << 17));
  const Tensor kept = Array(1);
  ASSERT_OK(RunOp(Write(kept, 0, *large.Clone())));
  device_ = std::make_unique<OpTestDevice>();
  EXPECT_LT(DefaultAllocatorStats().bytes_in_use, before + (1 << 17));
}

// --- Arrays of gradients -------------------------------------------------------------------------

TEST_F(TensorArrayTest, GradientsAddUpWhatIsWritten) {
  const Tensor array = Array(3, {.clear_after_read = false});
  ASSERT_OK(RunOp(Scatter(array, Ints({0, 1, 2}), TensorOf<float>({3, 1}, {1, 2, 3}))));
  const Tensor gradient = Gradient(array);
  ExpectTensorEqual(RunOp1(Size(gradient)), Int(3));
  ASSERT_OK(RunOp(Write(gradient, 1, TensorOf<float>({1}, {5}))));
  // The same array for the same source, another one for another.
  ASSERT_OK(RunOp(Write(Gradient(array), 1, TensorOf<float>({1}, {6}))));
  ASSERT_OK(RunOp(Write(Gradient(array, "gradients_1"), 1, TensorOf<float>({1}, {100}))));
  ASSERT_OK(RunOp(Write(gradient, 1, TensorOf<float>({1}, {0.5}))));
  ExpectOpError(
      Write(gradient, 1, kOne), kInvalid,
      ": Could not aggregate to TensorArray index 1 because the existing shape is [1] but "
      "the new input shape is [2].");
  // What nothing was written to is zeros of the forward element's shape.
  ExpectTensorEqual(RunOp1(Gather(gradient, Ints({0, 1, 2}))),
                    TensorOf<float>({3, 1}, {0, 11.5, 0}));
  ExpectOpError(Write(gradient, 1, TensorOf<float>({1}, {1})), kInvalid,
                "because it has already been read.");
}

TEST_F(TensorArrayTest, GradientsAreTheSameBitsInWhicheverOrderTheyCome) {
  // 1e8 + 1 - 1e8 depends on the order; that of the writers' names decides.
  const std::vector<std::pair<std::string, float>> parts = {{"a", 1e8f}, {"b", 1}, {"c", -1e8f}};
  for (const std::vector<size_t>& order : {std::vector<size_t>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    const Tensor array = Array(1);
    ASSERT_OK(RunOp(Write(array, 0, Tensor::Scalar(1.0f))));
    const Tensor gradient = Gradient(array);
    for (const size_t i : order) {
      ASSERT_OK(RunOp(Write(gradient, 0, Tensor::Scalar(parts[i].second)).Name(parts[i].first)));
    }
    ExpectTensorEqual(RunOp1(Read(gradient, 0)), Tensor::Scalar(1e8f + 1.0f - 1e8f));
  }
}

TEST_F(TensorArrayTest, GradientsOfSumsAreRefused) {
  const Tensor array = Array(1);
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  const Tensor gradient = Gradient(array);
  ASSERT_OK(RunOp(Write(gradient, 0, kOne)));
  ASSERT_OK(RunOp(Write(gradient, 0, kOne)));
  ExpectOpError(GradientCall(gradient), kInvalid,
                "Gradient calculation is impossible when multiple writes are performed to the same "
                "index.");
}

TEST_F(TensorArrayTest, GradientsMakeTheSizeFinal) {
  const Tensor array = Array(1, {.dynamic_size = true});
  ASSERT_OK(RunOp(Write(array, 1, kOne)));
  const Tensor gradient = Gradient(array);
  ExpectTensorEqual(RunOp1(Size(gradient)), Int(2));
  ExpectOpError(Write(array, 2, kOne), kInvalid, "array is not resizeable and size is: 2");
}

TEST_F(TensorArrayTest, GradientsMayHaveDimensionsBeforeTheElements) {
  const Tensor array = Array(1);
  ASSERT_OK(RunOp(Write(array, 0, kOne)));
  const auto with_shape = [&](const Tensor& shape) {
    return OpCall("TensorArrayGradWithShape")
        .Input(array)
        .Input(Flow())
        .Input(shape)
        .Attr("source", "jacobian")
        .On(device_.get());
  };
  const Tensor gradient = RunOp1(with_shape(Ints({3})));
  ExpectTensorEqual(RunOp1(Read(gradient, 0)), TensorOf<float>({3, 2}, {0, 0, 0, 0, 0, 0}));
  ExpectOpError(with_shape(Ints({-1})), kInvalid, "-1");
  ExpectOpError(with_shape(Int(3)), kInvalid, "shape_to_prepend");
}

TEST_F(TensorArrayTest, InfersWhatItCan) {
  const ShapeInput array(DT_FLOAT, "[2,?]");
  EXPECT_SHAPE("TensorArrayV3", {{"dtype", DT_FLOAT}}, {"[]"}, "[];[]");
  EXPECT_SHAPE("TensorArrayV2", {{"dtype", DT_FLOAT}}, {"[]"}, "[2]");
  EXPECT_SHAPE_ERROR("TensorArrayV3", {{"dtype", DT_FLOAT}}, {Int(-1)}, "Size should be >= 0");
  EXPECT_SHAPE("TensorArrayReadV3", {{"dtype", DT_FLOAT}}, {array, "[]", "[]"}, "[2,?]");
  EXPECT_SHAPE("TensorArrayReadV3", {{"dtype", DT_FLOAT}}, {"[]", "[]", "[]"}, "<unknown>");
  EXPECT_SHAPE_ERROR("TensorArrayReadV3", {{"dtype", DT_FLOAT}}, {"[]", "[1]", "[]"},
                     "index must have rank 0");
  EXPECT_SHAPE_ERROR("TensorArrayReadV3", {{"dtype", DT_FLOAT}}, {"[3]", "[]", "[]"},
                     "handle must be a scalar");
  EXPECT_SHAPE("TensorArrayWriteV3", {}, {array, "[]", "[2,3]", "[]"}, "[]");
  EXPECT_SHAPE_ERROR("TensorArrayWriteV3", {}, {array, "[]", "[3,3]", "[]"},
                     "the array's element shape [2,?], got shape [3,3]");
  EXPECT_SHAPE("TensorArrayGatherV3",
               {{"dtype", DT_FLOAT}, {"element_shape", PartialShape({-1, 4})}},
               {array, "[5]", "[]"}, "[5,2,4]");
  EXPECT_SHAPE_ERROR("TensorArrayScatterV3", {}, {array, "[2]", "[3,2,4]", "[]"},
                     "Expected len(indices) == values.shape[0], but saw: 2 vs. 3");
  EXPECT_SHAPE("TensorArrayConcatV3",
               {{"dtype", DT_FLOAT}, {"element_shape_except0", PartialShape({3})}}, {"[]", "[]"},
               "[?,3];[?]");
  EXPECT_SHAPE("TensorArrayGradWithShape", {{"source", std::string("g")}}, {array, "[]", Ints({3})},
               "[];[]");
}

// --- In graphs -----------------------------------------------------------------------------------

// The ops of one form: what each reads is what the one before it has written.
Output SquaresThroughArray(const Scope& s, const std::string& suffix, const Output& x,
                           const std::vector<std::string>& ways) {
  const Output size = Const(s, 2);
  Output flow = Const(s, 0.0f);
  const auto array = [&](const TensorArrayAttrs& attrs = {}) -> Output {
    if (suffix == "V3") return TensorArrayV3(s, size, x.dtype(), attrs).handle;
    return OldTensorArrayBuilder{suffix == "V2" ? "TensorArrayV2" : "TensorArray"}(
        s, size, x.dtype(), attrs);
  };
  const Output both = Const<int32_t>(s, {0, 1});
  const std::string op = "TensorArray";
  Output value = x;  // [2, 2]
  for (const std::string& way : ways) {
    const bool is_item = way == "item";
    const Output a = array({.clear_after_read = !is_item});
    if (is_item) {
      // Element 1 is read twice, element 0 never.
      const auto write = [&](int index, const Output& item, const Output& after) -> Output {
        return BuildOp(s, op + "Write" + suffix, {a, Const(s, index), item, after});
      };
      flow = write(1, Square(s, value), write(0, value, flow));
      const auto read = [&]() -> Output {
        return BuildOp(s, op + "Read" + suffix, {a, Const(s, 1), flow}, "dtype", x.dtype());
      };
      value = Mul(s, read(), read());
    } else if (way == "rows") {
      const Output after = BuildOp(s, op + "Scatter" + suffix, {a, both, value, flow});
      value = Square(s, BuildOp(s, op + "Gather" + suffix, {a, both, after}, "dtype", x.dtype()));
    } else if (way == "pack") {
      const Output after = BuildOp(s, op + "Unpack", {a, value, flow});
      value = Square(s, BuildOp(s, op + "Pack", {a, after}, "dtype", x.dtype()));
    } else {
      const Output lengths = Const<int64_t>(s, {0, 2});
      const Output after = BuildOp(s, op + "Split" + suffix, {a, value, lengths, flow});
      value = Square(s, BuildOp(s, op + "Concat" + suffix, {a, after}, "dtype", x.dtype()));
    }
  }
  return value;
}

TEST(TensorArrayGraph, GradientsMatchFiniteDifferencesInAllForms) {
  const Tensor x = TensorOf<double>({2, 2}, {0.5, -1.5, 2, 0.3});
  for (const std::string suffix : {"", "V2", "V3"}) {
    for (const std::vector<std::string>& ways :
         {std::vector<std::string>{"item"}, {"rows"}, {"split"}, {"rows", "split", "item"}}) {
      SCOPED_TRACE(suffix);
      ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                             return SquaresThroughArray(s, suffix, in[0], ways);
                           }),
                           {x});
    }
  }
  ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                         return SquaresThroughArray(s, "", in[0], {"pack"});
                       }),
                       {x});
}

TEST(TensorArrayGraph, GradientsOfGradientsMatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 2}, {0.5, -1.5, 2, 0.3});
  ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                         const Output y = SquaresThroughArray(s, "V3", in[0], {"rows"});
                         const auto g = AddGradients(s, {y}, {in[0]});
                         return g.ok() ? Square(s, std::get<Output>((*g)[0])) : Output();
                       }),
                       {x});
}

TEST(TensorArrayGraph, NamesAnArrayByStringsInOldForms) {
  for (const bool is_ref : {false, true}) {
    Scope s;
    const Output array =
        is_ref ? TensorArrayV1(s, Const(s, 1), DT_FLOAT) : TensorArrayV2(s, Const(s, 1), DT_FLOAT);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> names, EvaluateGraph(s, {}, {array}));
    EXPECT_EQ(names[0].flat<std::string>()[0], "_tensor_arrays");
    // Of another step.
    Scope other;
    const Output read = TensorArrayReadV2(other, Const(other, names[0]), Const(other, 0),
                                          Const(other, 0.0f), DT_FLOAT);
    EXPECT_STATUS(EvaluateGraph(other, {}, {read}), absl::StatusCode::kNotFound,
                  "Resource _tensor_arrays/TensorArray");
  }
  Scope s;
  const Output odd = TensorArrayReadV2(s, Const(s, TensorOf<std::string>({3}, {"a", "b", "c"})),
                                       Const(s, 0), Const(s, 0.0f), DT_FLOAT);
  EXPECT_STATUS(s.status(), kInvalid, "vector of two strings, got shape [3]");
  EXPECT_FALSE(odd.valid());
}

}  // namespace
}  // namespace millrace
