// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/hash_table.h"

#include <string>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: look-up tables have TensorFlow's values and types; a name shares a table, without
//   one it is its session's; a table that is not initialised is named

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Table(OpTestDevice* device, const char* op = "HashTableV2", DType value = DT_INT64) {
  return OpCall(op).On(device).Attr("key_dtype", DT_STRING).Attr("value_dtype", value);
}
const ResourceHandle& HandleOf(const Tensor& table) { return table.scalar<ResourceHandle>(); }

Tensor SizeOf(OpTestDevice* device, const Tensor& table) {
  return RunOp1(OpCall("LookupTableSizeV2").On(device).Input(table));
}
void Add(OpTestDevice* device, const Tensor& table, const std::string& key, int64_t value) {
  EXPECT_OK(RunOp(OpCall("LookupTableImportV2")
                      .On(device)
                      .Input(table)
                      .Input(Tensor::Vector<std::string>({key}))
                      .Input(Tensor::Vector<int64_t>({value}))));
}

TEST(HashTable, IsSharedByItsName) {
  OpTestDevice device;
  const auto shared = [&](const char* node) {
    return RunOp1(Table(&device).Name(node).Attr("shared_name", std::string("t")));
  };
  Add(&device, shared("a"), "key", 1);
  ExpectTensorEqual(SizeOf(&device, shared("b")), Tensor::Scalar<int64_t>(1));
  const Tensor elsewhere = RunOp1(
      Table(&device).Attr("shared_name", std::string("t")).Attr("container", std::string("c")));
  ExpectTensorEqual(SizeOf(&device, elsewhere), Tensor::Scalar<int64_t>(0));
}

TEST(HashTable, WithoutANameIsItsSessionsAlone) {
  OpTestDevice device;
  const auto in_session = [&](const char* session, bool use_node_name) {
    device.mutable_step()->session_handle = session;
    return RunOp1(Table(&device).Name("n").Attr("use_node_name_sharing", use_node_name));
  };
  Add(&device, in_session("s1", false), "key", 1);
  ExpectTensorEqual(SizeOf(&device, in_session("s2", false)), Tensor::Scalar<int64_t>(0));
  ExpectTensorEqual(SizeOf(&device, in_session("s1", false)), Tensor::Scalar<int64_t>(1));
  Add(&device, in_session("s1", true), "key", 1);
  ExpectTensorEqual(SizeOf(&device, in_session("s2", true)), Tensor::Scalar<int64_t>(1));

  // It goes with its session.
  EXPECT_EQ(device.resources()->DebugStrings().size(), 3u);
  device.resources()->TellSessionEnded("s1");
  EXPECT_EQ(device.resources()->DebugStrings().size(), 2u);
  device.resources()->TellSessionEnded("s2");
  EXPECT_EQ(device.resources()->DebugStrings().size(), 1u);
}

TEST(HashTable, OfOneNameMustAgree) {
  OpTestDevice device;
  const auto named = [&](const char* op, DType value = DT_INT64) {
    return Table(&device, op, value).Attr("shared_name", std::string("t"));
  };
  ASSERT_OK(RunOp(named("HashTableV2")).status());
  ExpectOpError(named("HashTableV2", DT_FLOAT), kInvalid,
                "Conflicting key/value dtypes string->float with string-int64 for table t");
  ExpectOpError(named("MutableHashTableV2"), kInvalid,
                "Shared table 't' is a HashTable of keys [] and values [], got MutableHashTable");
}

TEST(HashTable, TheOldFormGivesContainerAndName) {
  OpTestDevice device;
  const Tensor names = RunOp1(Table(&device, "HashTable")
                                  .Attr("shared_name", std::string("t"))
                                  .Attr("container", std::string("c")));
  ExpectTensorEqual(names, Tensor::Vector<std::string>({"c", "t"}));
}

TEST(HashTable, RefusesWhatItCannotBe) {
  OpTestDevice device;
  const auto dense = [&](const Tensor& empty, const Tensor& deleted) {
    return OpCall("MutableDenseHashTableV2")
        .On(&device)
        .Input(empty)
        .Input(deleted)
        .Attr("value_dtype", DT_FLOAT);
  };
  const Tensor a = Tensor::Scalar<int64_t>(-1), b = Tensor::Scalar<int64_t>(-2);
  ExpectOpError(dense(a, a), kInvalid, "Empty and deleted keys must differ");
  ExpectOpError(dense(a, Tensor::Vector<int64_t>({1})), kInvalid,
                "deleted_key must have the shape of empty_key");
  ExpectOpError(dense(Tensor::Vector<int64_t>({}), Tensor::Vector<int64_t>({})), kInvalid,
                "Empty key must be a scalar or a vector, got shape [0]");
  for (const int64_t buckets : {int64_t{0}, int64_t{2}, int64_t{12}, int64_t{-8}}) {
    ExpectOpError(dense(a, b).Attr("initial_num_buckets", buckets), kInvalid,
                  "Number of buckets must be at least 4 and a power of 2");
  }
  ExpectOpError(dense(a, b).Attr("initial_num_buckets", int64_t{1} << 62),
                absl::StatusCode::kResourceExhausted,
                "initial_num_buckets must take at most 1073741824 bytes");
  for (const float factor : {0.f, 1.f, -1.f}) {
    ExpectOpError(dense(a, b).Attr("max_load_factor", factor), kInvalid,
                  "max_load_factor must be between 0 and 1");
  }
  ExpectOpError(dense(a, b).Attr("value_shape", PartialShape({2, 2})), kInvalid,
                "Empty value must be a scalar or a vector, got shape [2,2]");
  ExpectOpError(Table(&device, "MutableHashTableOfTensorsV2"), kInvalid,
                "Default value must be a vector, got shape []");
  ExpectOpError(
      Table(&device, "MutableHashTableOfTensorsV2").Attr("value_shape", PartialShape({-1})),
      kInvalid, "value_shape must be fully defined, got [?]");
  ExpectOpError(Table(&device, "HashTableV2", DT_COMPLEX64), absl::StatusCode::kUnimplemented,
                "HashTableV2");
}

TEST(HashTable, HandlesAreScalarsThatKnowTheirValues) {
  OpTestDevice device;
  const Tensor handle = RunOp1(Table(&device, "MutableHashTableOfTensorsV2", DT_FLOAT)
                                   .Attr("value_shape", PartialShape({3})));
  EXPECT_EQ(HandleOf(handle).dtypes, std::vector<DType>{DT_FLOAT});
  EXPECT_EQ(HandleOf(handle).shapes, std::vector<PartialShape>{PartialShape({3})});
  EXPECT_SHAPE("HashTableV2", {}, {}, "[]");
  EXPECT_SHAPE("HashTable", {}, {}, "[2]");
  EXPECT_SHAPE("MutableDenseHashTableV2", {}, {"[2]", "<unknown>"}, "[]");
  EXPECT_SHAPE_ERROR("MutableDenseHashTableV2", {}, {"[2,2]", "[2,2]"},
                     "empty_key must be a scalar or a vector, got shape [2,2]");
}

}  // namespace
}  // namespace millrace
