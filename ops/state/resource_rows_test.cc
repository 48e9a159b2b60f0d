// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_rows.h"

#include <atomic>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/indices.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Table() { return TensorOf<float>({3, 2}, {0, 1, 10, 11, 20, 21}); }

Tensor Read(OpTestDevice* device, const Tensor& handle, DType dtype = DT_FLOAT) {
  return RunOp1(OpCall("ReadVariableOp").Input(handle).Attr("dtype", dtype).On(device));
}

TEST(ResourceGather, CopiesRows) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("table", Table());
  const auto gather = [&](Tensor indices) {
    return OpCall("ResourceGather")
        .Input(handle)
        .Input(std::move(indices))
        .Attr("dtype", DT_FLOAT)
        .On(&device);
  };
  ExpectTensorEqual(RunOp1(gather(Ints({2, 0, 2}))),
                    TensorOf<float>({3, 2}, {20, 21, 0, 1, 20, 21}));
  ExpectTensorEqual(RunOp1(gather(TensorOf<int64_t>({1, 1}, {1}))),
                    TensorOf<float>({1, 1, 2}, {10, 11}));
  ExpectTensorEqual(RunOp1(gather(Ints({}))), TensorOf<float>({0, 2}, {}));
  ExpectOpError(gather(Ints({0, 3})), kInvalid, "indices[1] = 3 is not in [0, 3)");
  ExpectOpError(gather(Ints({-1})), kInvalid, "indices[0] = -1 is not in [0, 3)");
  EXPECT_SHAPE("ResourceGather", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
               {ShapeInput(DT_FLOAT, "[3,2]"), "[?,4]"}, "[?,4,2]");
  EXPECT_SHAPE_ERROR("ResourceGather", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
                     {ShapeInput(DT_FLOAT, "[]"), "[?]"}, "rank >= 1");
}

TEST(ResourceGather, ManyRowsAreGatheredByManyThreads) {
  OpTestDevice device;
  std::vector<int64_t> values(1000), indices(20000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) * 7;
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i * 31 % 1000);
  const Tensor handle = device.VariableHandle("table", Tensor::Vector<int64_t>(values));
  const auto call = [&] {
    return OpCall("ResourceGather")
        .Input(handle)
        .Input(Tensor::Vector<int64_t>(indices))
        .Attr("dtype", DT_INT64)
        .On(&device);
  };
  const Tensor out = RunOp1(call());
  for (size_t i = 0; i < indices.size(); ++i) {
    ASSERT_EQ(out.flat<int64_t>()[i], indices[i] * 7);
  }
  indices[15000] = 1000;
  ExpectOpError(call(), kInvalid, "indices[15000] = 1000 is not in [0, 1000)");
}

TEST(ResourceGather, GradientTouchesOnlyGatheredRows) {
  Scope scope;
  const Variable v = MakeVariable(scope.WithName("table"), Const(scope, Table()));
  const Output rows = ResourceGather(scope, v.handle, Const<int32_t>(scope, {2, 0}), DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(scope, {rows}, {v.handle}));
  const IndexedSlices* slices = std::get_if<IndexedSlices>(&grads[0]);
  ASSERT_NE(slices, nullptr);
  EXPECT_EQ(scope.shape(slices->values).ToString(), "[2,2]");
  EXPECT_FALSE(slices->unique_indices);
}

// Two look-ups of the same rows: their gradients, joined, have rows twice.
TEST(ResourceGather, GradientKnowsThatRowsAreDifferent) {
  Scope scope;
  const Variable v = MakeVariable(scope.WithName("table"), Const(scope, Table()));
  const Output ids = Unique(scope, Const<int32_t>(scope, {2, 0, 2})).y;
  const Output once = ResourceGather(scope, v.handle, ids, DT_FLOAT);
  const Output again = ResourceGather(scope, v.handle, ids, DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> of_one, AddGradients(scope, {once}, {v.handle}));
  ASSERT_TRUE(std::holds_alternative<IndexedSlices>(of_one[0]));
  EXPECT_TRUE(std::get<IndexedSlices>(of_one[0]).unique_indices);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> of_two,
                       AddGradients(scope, {once, again}, {v.handle}));
  ASSERT_TRUE(std::holds_alternative<IndexedSlices>(of_two[0]));
  EXPECT_FALSE(std::get<IndexedSlices>(of_two[0]).unique_indices);
}

OpCall GatherInBatches(const Tensor& handle, const Tensor& indices, int64_t batch_dims, DType dtype,
                       OpTestDevice* device) {
  return OpCall("ResourceGather")
      .Input(handle)
      .Input(indices)
      .Attr("dtype", dtype)
      .Attr("batch_dims", batch_dims)
      .On(device);
}

TEST(ResourceGather, BatchDimensionsBelongTogether) {
  OpTestDevice device;
  // Batch b has rows 100 b, 100 b + 10, 100 b + 20.
  const Tensor handle = device.VariableHandle(
      "table", TensorOf<float>({2, 3, 2}, {0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121}));
  const Tensor indices = TensorOf<int32_t>({2, 2}, {2, 0, 1, 1});
  const Tensor rows = TensorOf<float>({2, 2, 2}, {20, 21, 0, 1, 110, 111, 110, 111});
  ExpectTensorEqual(RunOp1(GatherInBatches(handle, indices, 1, DT_FLOAT, &device)), rows);
  ExpectTensorEqual(RunOp1(GatherInBatches(handle, indices, -1, DT_FLOAT, &device)), rows);
  ExpectTensorEqual(
      RunOp1(GatherInBatches(handle, TensorOf<int64_t>({2}, {2, 1}), 1, DT_FLOAT, &device)),
      TensorOf<float>({2, 2}, {20, 21, 110, 111}));
  // Elements of rows: two batch dimensions.
  ExpectTensorEqual(RunOp1(GatherInBatches(handle, TensorOf<int32_t>({2, 3, 1}, {0, 1, 1, 1, 0, 0}),
                                           2, DT_FLOAT, &device)),
                    TensorOf<float>({2, 3, 1}, {0, 11, 21, 101, 110, 120}));
  ExpectTensorEqual(
      RunOp1(GatherInBatches(handle, TensorOf<int32_t>({2, 0}, {}), 1, DT_FLOAT, &device)),
      TensorOf<float>({2, 0, 2}, {}));
  const Tensor none = device.VariableHandle("none", TensorOf<float>({0, 3}, {}));
  ExpectTensorEqual(
      RunOp1(GatherInBatches(none, TensorOf<int32_t>({0, 4}, {}), 1, DT_FLOAT, &device)),
      TensorOf<float>({0, 4}, {}));
  const Tensor words =
      device.VariableHandle("words", TensorOf<std::string>({2, 2}, {"a", "b", "c", "d"}));
  ExpectTensorEqual(
      RunOp1(GatherInBatches(words, TensorOf<int32_t>({2, 1}, {1, 0}), 1, DT_STRING, &device)),
      TensorOf<std::string>({2, 1}, {"b", "c"}));
}

TEST(ResourceGather, RefusesBatchDimensionsThatDoNotFit) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("table", Table());
  const auto expect = [&](const Tensor& indices, int64_t batch_dims, const char* text) {
    ExpectOpError(GatherInBatches(handle, indices, batch_dims, DT_FLOAT, &device), kInvalid, text);
    EXPECT_SHAPE_ERROR("ResourceGather",
                       {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}, {"batch_dims", batch_dims}},
                       {ShapeInput(DT_FLOAT, "[3,2]"), indices.shape().ToString()}, text);
  };
  expect(Ints({0}), 2, "batch_dims must be in [-1, 1], got 2");
  expect(Ints({0}), -2, "batch_dims must be in [-1, 1], got -2");
  expect(Ints({0, 1}), 1,
         "the variable and indices must agree in batch dimension 0, got shapes [3,2] and [2]");
  expect(TensorOf<int32_t>({3, 2, 1}, {0, 0, 0, 0, 0, 0}), 2,
         "the variable must have rank > 2, the number of batch dimensions, got shape [3,2]");
  ExpectOpError(GatherInBatches(handle, Ints({0, 1, 2}), 1, DT_FLOAT, &device), kInvalid,
                "indices[2] = 2 is not in [0, 2)");
  EXPECT_SHAPE("ResourceGather",
               {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}, {"batch_dims", int64_t{1}}},
               {ShapeInput(DT_FLOAT, "[3,2,5]"), "[?,7]"}, "[3,7,5]");
  EXPECT_SHAPE("ResourceGather",
               {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}, {"batch_dims", int64_t{1}}},
               {ShapeInput(DT_FLOAT, "[3,2,5]"), "<unknown>"}, "<unknown>");
}

TEST(ResourceGather, GradientInBatchesMatchesFiniteDifferences) {
  for (const int64_t batch_dims : {1, -1}) {
    for (const Tensor& indices : {TensorOf<int32_t>({2, 2}, {2, 0, 1, 1}), Ints({2, 0})}) {
      if (batch_dims < 0 && indices.rank() == 1) continue;  // no batch dimension
      OpTestDevice device;
      GradientCheckOptions options;
      options.device = &device;
      ExpectGradientsMatch(
          BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
            return ResourceGather(s, in[0], Const(s, indices), DT_DOUBLE,
                                  {.batch_dims = batch_dims});
          }),
          {device.VariableHandle(
              "table", TensorOf<double>({2, 3, 2}, {1, -2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12}))},
          options);
    }
  }
}

TEST(ResourceGatherNd, PicksByCoordinates) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("table", Table());
  const auto gather = [&](const Tensor& variable, Tensor indices, DType dtype) {
    return OpCall("ResourceGatherNd")
        .Input(variable)
        .Input(std::move(indices))
        .Attr("dtype", dtype)
        .On(&device);
  };
  ExpectTensorEqual(RunOp1(gather(handle, TensorOf<int32_t>({2, 2}, {2, 1, 0, 0}), DT_FLOAT)),
                    TensorOf<float>({2}, {21, 0}));
  ExpectTensorEqual(RunOp1(gather(handle, TensorOf<int64_t>({1, 1}, {1}), DT_FLOAT)),
                    TensorOf<float>({1, 2}, {10, 11}));
  ExpectTensorEqual(RunOp1(gather(handle, TensorOf<int32_t>({1, 0}, {}), DT_FLOAT)),
                    TensorOf<float>({1, 3, 2}, {0, 1, 10, 11, 20, 21}));
  ExpectTensorEqual(RunOp1(gather(handle, TensorOf<int32_t>({0, 2}, {}), DT_FLOAT)),
                    TensorOf<float>({0}, {}));
  const Tensor words = device.VariableHandle("words", TensorOf<std::string>({2}, {"a", "b"}));
  ExpectTensorEqual(RunOp1(gather(words, TensorOf<int32_t>({2, 1}, {1, 1}), DT_STRING)),
                    TensorOf<std::string>({2}, {"b", "b"}));
  ExpectOpError(gather(handle, TensorOf<int32_t>({2, 2}, {0, 0, 2, 2}), DT_FLOAT), kInvalid,
                "indices[1] = [2,2] does not index into shape [3,2]");
  ExpectOpError(gather(handle, TensorOf<int32_t>({1, 3}, {0, 0, 0}), DT_FLOAT), kInvalid,
                "the last dimension of indices must be at most 2");
  ExpectOpError(gather(handle, TensorOf<int32_t>({1, 1}, {0}), DT_DOUBLE), kInvalid, "dtype");
  const auto storage = std::make_shared<VariableStorage>("empty", DT_FLOAT, PartialShape());
  ExpectOpError(gather(device.Handle<VariableStorage>("empty", storage),
                       TensorOf<int32_t>({1, 1}, {0}), DT_FLOAT),
                absl::StatusCode::kFailedPrecondition, "uninitialized");
  EXPECT_SHAPE("ResourceGatherNd", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
               {ShapeInput(DT_FLOAT, "[3,4,5]"), "[?,2]"}, "[?,5]");
  EXPECT_SHAPE("ResourceGatherNd", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
               {ShapeInput(DT_FLOAT, "<unknown>"), "[?,2]"}, "<unknown>");
  EXPECT_SHAPE_ERROR("ResourceGatherNd", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
                     {ShapeInput(DT_FLOAT, "[3]"), "[?,2]"},
                     "the last dimension of indices must be at most 1");
}

TEST(ResourceGatherNd, GradientsAreSlicesOfRowsOrMatchFiniteDifferences) {
  for (const Tensor& indices :
       {TensorOf<int32_t>({3, 1}, {2, 0, 2}), TensorOf<int32_t>({3, 2}, {2, 1, 0, 0, 2, 1})}) {
    OpTestDevice device;
    GradientCheckOptions options;
    options.device = &device;
    ExpectGradientsMatch(
        BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
          return ResourceGatherNd(s, in[0], Const(s, indices), DT_DOUBLE);
        }),
        {device.VariableHandle("table", TensorOf<double>({3, 2}, {1, -2, 3, 4, 5, -6}))}, options);
  }
  Scope scope;
  const Variable v = MakeVariable(scope.WithName("table"), Const(scope, Table()));
  const Output rows =
      ResourceGatherNd(scope, v.handle, Const(scope, TensorOf<int64_t>({2, 1}, {2, 0})), DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(scope, {rows}, {v.handle}));
  EXPECT_TRUE(std::holds_alternative<IndexedSlices>(grads[0]));
}

TEST(ResourceScatter, UpdatesRows) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("table", Table());
  const auto scatter = [&](const char* op, Tensor indices, Tensor updates) {
    return OpCall(op).Input(handle).Input(std::move(indices)).Input(std::move(updates)).On(&device);
  };
  ASSERT_OK(
      RunOp(scatter("ResourceScatterAdd", Ints({0, 0}), TensorOf<float>({2, 2}, {1, 2, 3, 4}))));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 10, 11, 20, 21}));
  ASSERT_OK(RunOp(scatter("ResourceScatterSub", Ints({1}), Tensor::Scalar<float>(10))));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 0, 1, 20, 21}));
  ASSERT_OK(RunOp(scatter("ResourceScatterUpdate", Ints({2}), TensorOf<float>({1, 2}, {5, 6}))));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 0, 1, 5, 6}));
  // A bad index changes nothing.
  ExpectOpError(scatter("ResourceScatterAdd", Ints({0, 9}), TensorOf<float>({2, 2}, {1, 2, 3, 4})),
                kInvalid, "indices[1] = 9 is not in [0, 3)");
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 0, 1, 5, 6}));
  ExpectOpError(scatter("ResourceScatterAdd", Ints({0}), TensorOf<float>({1, 3}, {1, 2, 3})),
                kInvalid,
                "updates must be a scalar or have the shape of indices followed by a row [1,2]");
}

// One thread gives the variable rows of 2 and of 64 columns in turn; gathers by few and by many
// indices and scatters go on meanwhile. All elements of a row are equal at any time.
TEST(ResourceRows, StayWholeWhileAnAssignChangesTheirLength) {
  constexpr int kRounds = 200;
  OpTestDevice device;
  const auto storage = std::make_shared<VariableStorage>("table", DT_FLOAT, PartialShape());
  const Tensor handle = device.Handle<VariableStorage>("table", storage);
  const auto value = [](int64_t columns) {
    return *Tensor::Zeros(DT_FLOAT, ShapeOf({100, columns}));
  };
  ASSERT_OK(storage->Assign(value(64), true));
  std::atomic<bool> over{false};  // release by the writer at its end, acquire by the others
  std::thread assigns([&] {
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_OK(storage->Assign(value(i % 2 == 0 ? 2 : 64), true));
    }
    over.store(true, std::memory_order_release);
  });
  std::thread scatters([&] {
    OpTestDevice own;
    while (!over.load(std::memory_order_acquire)) {
      EXPECT_OK(RunOp(OpCall("ResourceScatterAdd")
                          .Input(handle)
                          .Input(Ints({99, 1}))
                          .Input(Tensor::Scalar<float>(1))
                          .On(&own)));
      // Fits one of the two shapes only.
      const auto rows = RunOp(OpCall("ResourceScatterSub")
                                  .Input(handle)
                                  .Input(Ints({99}))
                                  .Input(*Tensor::Zeros(DT_FLOAT, ShapeOf({1, 64})))
                                  .On(&own));
      EXPECT_TRUE(rows.ok() || absl::IsInvalidArgument(rows.status())) << rows.status();
    }
  });
  const std::vector<int32_t> few = {99, 0, 1};
  std::vector<int32_t> many(5000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int32_t>(i * 7 % 100);
  while (!over.load(std::memory_order_acquire)) {
    for (const std::vector<int32_t>& indices : {few, many}) {
      const Tensor out = RunOp1(OpCall("ResourceGather")
                                    .Input(handle)
                                    .Input(Tensor::Vector<int32_t>(indices))
                                    .Attr("dtype", DT_FLOAT)
                                    .On(&device));
      EXPECT_EQ(out.rank(), 2);
      if (out.rank() != 2) continue;
      const size_t columns = static_cast<size_t>(out.dim(1));
      const absl::Span<const float> elements = out.flat<float>();
      int torn = 0;
      for (size_t i = 0; i < elements.size(); ++i) {
        torn += elements[i] != elements[i - i % columns];
      }
      EXPECT_EQ(torn, 0);
    }
  }
  assigns.join();
  scatters.join();
}

TEST(ResourceRows, OfStringsAreCopiedFromOneSnapshot) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("words", TensorOf<std::string>({2, 1}, {"a", "b"}));
  const auto gather = [&](Tensor indices) {
    return OpCall("ResourceGather")
        .Input(handle)
        .Input(std::move(indices))
        .Attr("dtype", DT_STRING)
        .On(&device);
  };
  ExpectTensorEqual(RunOp1(gather(Ints({1, 0, 1}))),
                    TensorOf<std::string>({3, 1}, {"b", "a", "b"}));
  ExpectOpError(gather(Ints({0, 2})), kInvalid, "indices[1] = 2 is not in [0, 2)");
}

}  // namespace
}  // namespace millrace
