// SPDX-License-Identifier: Apache-2.0
#include "core/tensor_proto.h"

#include <complex>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/resource_handle.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "proto/tensor.pb.h"

namespace millrace {
namespace {

tensorflow::TensorProto Proto(const std::string& text) {
  tensorflow::TensorProto proto;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
  return proto;
}

std::string Dims(std::initializer_list<int64_t> dims) {
  std::string text = " tensor_shape {";
  for (const int64_t dim : dims) absl::StrAppend(&text, " dim { size: ", dim, " }");
  return text + " } ";
}

// A scalar without data is 0, false or "".
struct DecodeCase {
  std::string text;
  Tensor want;
};

std::vector<DecodeCase> DecodeCases() {
  using C64 = std::complex<float>;
  using C128 = std::complex<double>;
  return {
      // Raw content.
      {"dtype: DT_FLOAT" + Dims({2}) + R"(tensor_content: "\000\000\200?\000\000\000\300")",
       TensorOf<float>({2}, {1, -2})},
      {"dtype: DT_INT64" + Dims({1}) + R"(tensor_content: "\001\000\000\000\000\000\000\200")",
       TensorOf<int64_t>({1}, {std::numeric_limits<int64_t>::min() + 1})},
      {"dtype: DT_HALF" + Dims({2}) + R"(tensor_content: "\000<\000\300")",
       TensorOf<Half>({2}, {Half{0x3c00}, Half{0xc000}})},
      {"dtype: DT_BOOL" + Dims({3}) + R"(tensor_content: "\000\001\007")",
       TensorOf<bool>({3}, {false, true, true})},
      {"dtype: DT_QINT8" + Dims({2}) + R"(tensor_content: "\377\001")",
       TensorOf<QInt8>({2}, {QInt8{-1}, QInt8{1}})},
      {"dtype: DT_COMPLEX64" + Dims({}) + R"(tensor_content: "\000\000\200?\000\000\000\300")",
       TensorOf<C64>({}, {{1, -2}})},
      {"dtype: DT_STRING" + Dims({3}) + R"(tensor_content: "\002\000\001abc")",
       TensorOf<std::string>({3}, {"ab", "", "c"})},
      // Content wins over a list.
      {"dtype: DT_FLOAT" + Dims({}) + R"(float_val: 7 tensor_content: "\000\000\200?")",
       TensorOf<float>({}, {1})},
      // Complete lists, one of each type.
      {"dtype: DT_FLOAT" + Dims({2}) + "float_val: [1.5, -2]", TensorOf<float>({2}, {1.5, -2})},
      {"dtype: DT_DOUBLE" + Dims({1}) + "double_val: 1e300", TensorOf<double>({1}, {1e300})},
      {"dtype: DT_INT32" + Dims({2}) + "int_val: [-1, 7]", TensorOf<int32_t>({2}, {-1, 7})},
      {"dtype: DT_UINT8" + Dims({1}) + "int_val: 255", TensorOf<uint8_t>({1}, {255})},
      {"dtype: DT_INT16" + Dims({1}) + "int_val: -32768", TensorOf<int16_t>({1}, {-32768})},
      {"dtype: DT_INT8" + Dims({1}) + "int_val: -128", TensorOf<int8_t>({1}, {-128})},
      {"dtype: DT_UINT16" + Dims({1}) + "int_val: 65535", TensorOf<uint16_t>({1}, {65535})},
      {"dtype: DT_UINT32" + Dims({1}) + "uint32_val: 4294967295",
       TensorOf<uint32_t>({1}, {4294967295u})},
      {"dtype: DT_UINT64" + Dims({1}) + "uint64_val: 18446744073709551615",
       TensorOf<uint64_t>({1}, {std::numeric_limits<uint64_t>::max()})},
      {"dtype: DT_INT64" + Dims({1}) + "int64_val: -9223372036854775808",
       TensorOf<int64_t>({1}, {std::numeric_limits<int64_t>::min()})},
      {"dtype: DT_BOOL" + Dims({2}) + "bool_val: [true, false]",
       TensorOf<bool>({2}, {true, false})},
      {"dtype: DT_HALF" + Dims({1}) + "half_val: 15360", TensorOf<Half>({1}, {Half{0x3c00}})},
      {"dtype: DT_BFLOAT16" + Dims({1}) + "half_val: 49152",
       TensorOf<Bfloat16>({1}, {Bfloat16{0xc000}})},
      {"dtype: DT_QINT8" + Dims({1}) + "int_val: -3", TensorOf<QInt8>({1}, {QInt8{-3}})},
      {"dtype: DT_QUINT8" + Dims({1}) + "int_val: 200", TensorOf<QUInt8>({1}, {QUInt8{200}})},
      {"dtype: DT_QINT16" + Dims({1}) + "int_val: -300", TensorOf<QInt16>({1}, {QInt16{-300}})},
      {"dtype: DT_QUINT16" + Dims({1}) + "int_val: 60000",
       TensorOf<QUInt16>({1}, {QUInt16{60000}})},
      {"dtype: DT_QINT32" + Dims({1}) + "int_val: -70000", TensorOf<QInt32>({1}, {QInt32{-70000}})},
      {"dtype: DT_COMPLEX64" + Dims({2}) + "scomplex_val: [1, 2, 3, 4]",
       TensorOf<C64>({2}, {{1, 2}, {3, 4}})},
      {"dtype: DT_COMPLEX128" + Dims({1}) + "dcomplex_val: [1, 2]", TensorOf<C128>({1}, {{1, 2}})},
      {"dtype: DT_STRING" + Dims({2}) + R"(string_val: "a" string_val: "\000b")",
       TensorOf<std::string>({2}, {"a", std::string("\0b", 2)})},
      // The last value repeats; complex numbers repeat as pairs.
      {"dtype: DT_FLOAT" + Dims({2, 2}) + "float_val: [1, 2]",
       TensorOf<float>({2, 2}, {1, 2, 2, 2})},
      {"dtype: DT_COMPLEX64" + Dims({3}) + "scomplex_val: [1, 2, 3, 4]",
       TensorOf<C64>({3}, {{1, 2}, {3, 4}, {3, 4}})},
      {"dtype: DT_HALF" + Dims({3}) + "half_val: 15360",
       TensorOf<Half>({3}, {Half{0x3c00}, Half{0x3c00}, Half{0x3c00}})},
      {"dtype: DT_STRING" + Dims({3}) + R"(string_val: "a" string_val: "b")",
       TensorOf<std::string>({3}, {"a", "b", "b"})},
      {"dtype: DT_BOOL" + Dims({2}) + "bool_val: true", TensorOf<bool>({2}, {true, true})},
      // Nothing: zeros. Too many: the rest is ignored. The wrong list: as nothing.
      {"dtype: DT_FLOAT" + Dims({2}), TensorOf<float>({2}, {0, 0})},
      {"dtype: DT_STRING", TensorOf<std::string>({}, {""})},
      {"dtype: DT_COMPLEX128" + Dims({1}), TensorOf<C128>({1}, {{0, 0}})},
      {"dtype: DT_INT32" + Dims({1}) + "int_val: [1, 2, 3]", TensorOf<int32_t>({1}, {1})},
      {"dtype: DT_STRING" + Dims({1}) + R"(string_val: "a" string_val: "b")",
       TensorOf<std::string>({1}, {"a"})},
      {"dtype: DT_FLOAT" + Dims({1}) + "double_val: 3", TensorOf<float>({1}, {0})},
      // No elements: nothing is read.
      {"dtype: DT_FLOAT" + Dims({0, 3}) + R"(tensor_content: "abc" float_val: 1)",
       TensorOf<float>({0, 3}, {})},
      {"dtype: DT_STRING" + Dims({0}) + R"(tensor_content: "abc")", TensorOf<std::string>({0}, {})},
  };
}

TEST(TensorFromProtoTest, EveryEncodingIsRead) {
  for (const DecodeCase& c : DecodeCases()) {
    const tensorflow::TensorProto proto = Proto(c.text);
    EXPECT_OK(ValidateTensorProto(proto)) << c.text;
    const absl::StatusOr<Tensor> got = TensorFromProto(proto);
    ASSERT_OK(got) << c.text;
    ExpectTensorEqual(*got, c.want);
    // What we write reads back.
    tensorflow::TensorProto written;
    ASSERT_OK(TensorToProto(*got, &written)) << c.text;
    ASSERT_OK_AND_ASSIGN(const Tensor again, TensorFromProto(written));
    ExpectTensorEqual(again, c.want);
  }
}

TEST(TensorFromProtoTest, BadProtosAreRefusedWithTheReason) {
  const std::string huge = " tensor_shape { dim { size: 1099511627777 } } ";
  const struct {
    std::string text;
    const char* reason;
  } kCases[] = {
      {"", "dtype must be that of a value, got 0"},
      {"dtype: DT_FLOAT_REF", "dtype must be that of a value, got 101"},
      {"dtype: DT_FLOAT tensor_shape { unknown_rank: true }", "the rank must be known"},
      {"dtype: DT_FLOAT" + Dims({-1}), "dimension 0 must be >= 0, got -1"},
      {"dtype: DT_FLOAT" + huge + "float_val: 1", "must be at most 1099511627776"},
      {"dtype: DT_FLOAT" + Dims({0, int64_t{1} << 62, int64_t{1} << 62}), "must be at most"},
      {"dtype: DT_FLOAT" + Dims({2}) + R"(tensor_content: "abcdefg")",
       "tensor_content of float[2] must have 8 bytes, got 7"},
      {"dtype: DT_FLOAT" + Dims({2}) + R"(tensor_content: "abcdefghi")", "got 9"},
      {"dtype: DT_INT8" + Dims({int64_t{1} << 39}) + R"(tensor_content: "a")", "got 1"},
      {"dtype: DT_COMPLEX64" + Dims({1}) + "scomplex_val: [1, 2, 3]", "must be pairs, got 3"},
      {"dtype: DT_COMPLEX128" + Dims({1}) + "dcomplex_val: 1", "must be pairs, got 1"},
      {"dtype: DT_STRING" + Dims({3}) + R"(tensor_content: "\001a")",
       "must hold 3 string lengths, got 2 bytes"},
      {"dtype: DT_STRING" + Dims({int64_t{1} << 39}) + R"(tensor_content: "a")",
       "string lengths, got 1 bytes"},
      {"dtype: DT_STRING" + Dims({1}) + R"(tensor_content: "\002a")",
       "must hold 2 bytes of strings, got 1"},
      {"dtype: DT_STRING" + Dims({1}) + R"(tensor_content: "\001ab")",
       "must hold 1 bytes of strings, got 2"},
      {"dtype: DT_STRING" + Dims({1}) + R"(tensor_content: "\377")", "no varint32 for string 0"},
      {"dtype: DT_STRING" + Dims({1}) + R"(tensor_content: "\377\377\377\377\377\001")",
       "no varint32 for string 0"},
      {"dtype: DT_STRING" + Dims({2}) +
           R"(tensor_content: "\377\377\377\377\017\377\377\377\377\017")",
       "must hold 8589934590 bytes of strings, got 0"},
      {"dtype: DT_RESOURCE" + Dims({}) + R"(tensor_content: "a")", "no tensor_content, got 1"},
      {"dtype: DT_VARIANT" + Dims({}) + R"(tensor_content: "a")", "no tensor_content, got 1"},
      {"dtype: DT_VARIANT" + Dims({}) + R"(variant_val { tensors { dtype: DT_FLOAT )" + Dims({2}) +
           R"(tensor_content: "abc" } })",
       "tensor_content of float[2] must have 8 bytes, got 3"},
      {"dtype: DT_RESOURCE" + Dims({}) +
           "resource_handle_val { name: 'w' dtypes_and_shapes { shape { dim { size: -2 } } } }",
       "handle 'w': Shape [-2]: dimension 0 must be >= -1, got -2"},
  };
  for (const auto& c : kCases) {
    const tensorflow::TensorProto proto = Proto(c.text);
    EXPECT_STATUS(TensorFromProto(proto), absl::StatusCode::kInvalidArgument, c.reason);
    EXPECT_STATUS(ValidateTensorProto(proto), absl::StatusCode::kInvalidArgument,
                  "Cannot parse tensor from proto: ");
  }
  tensorflow::TensorProto proto;
  proto.set_dtype(static_cast<tensorflow::DataType>(77));
  EXPECT_STATUS(TensorFromProto(proto), absl::StatusCode::kInvalidArgument, "got 77");
}

// Gives small blocks only, so that a corrupted shape does not fill the memory.
class SmallAllocator : public Allocator {
 public:
  void* Allocate(size_t bytes) override {
    return bytes > (size_t{1} << 20) ? nullptr : DefaultAllocator()->Allocate(bytes);
  }
  void Deallocate(void* block, size_t bytes) override {
    DefaultAllocator()->Deallocate(block, bytes);
  }
};

TEST(TensorFromProtoTest, EveryFlippedByteIsReadOrRefusedAndValidationAgrees) {
  SmallAllocator allocator;
  int refused = 0, read = 0;
  for (const DecodeCase& c : DecodeCases()) {
    const std::string bytes = Proto(c.text).SerializeAsString();
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (const int flip : {0x01, 0x02, 0x08, 0x10, 0x40, 0x80, 0xff}) {
        std::string changed = bytes;
        changed[i] = static_cast<char>(changed[i] ^ flip);
        tensorflow::TensorProto proto;
        if (!proto.ParseFromString(changed)) continue;
        const absl::StatusOr<Tensor> got = TensorFromProto(proto, &allocator);
        EXPECT_EQ(ValidateTensorProto(proto).ok(), !absl::IsInvalidArgument(got.status()))
            << got.status();
        got.ok() ? ++read : ++refused;
        if (got.ok()) {
          EXPECT_FALSE(got->DebugString().empty());
        }
      }
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 100);
}

TEST(TensorFromProtoTest, AHugeSplatIsRefusedByTheAllocatorAndALegitimateOneIsRead) {
  EXPECT_STATUS(
      TensorFromProto(Proto("dtype: DT_DOUBLE" + Dims({int64_t{1} << 40}) + "double_val: 1")),
      absl::StatusCode::kResourceExhausted, "OOM");
  ASSERT_OK_AND_ASSIGN(
      const Tensor splat,
      TensorFromProto(Proto("dtype: DT_FLOAT" + Dims({1000, 1000}) + "float_val: 3")));
  EXPECT_EQ(splat.num_elements(), 1000000);
  for (const float value : splat.flat<float>()) ASSERT_EQ(value, 3);
}

TEST(TensorFromProtoTest, VariantsNestedBeyondTheBoundAreRefused) {
  tensorflow::TensorProto proto;
  tensorflow::TensorProto* inner = &proto;
  for (int depth = 0; depth < 1000; ++depth) {
    inner->set_dtype(tensorflow::DT_VARIANT);
    inner = inner->add_variant_val()->add_tensors();
  }
  EXPECT_STATUS(TensorFromProto(proto), absl::StatusCode::kInvalidArgument, "nested at most 32");

  Tensor nested = Tensor::Scalar<float>(1);
  for (int depth = 0; depth < 40; ++depth) {
    Variant variant;
    variant.type_name = "list";
    variant.tensors = {nested};
    nested = Tensor::Scalar<Variant>(variant);
  }
  EXPECT_STATUS(TensorToProto(nested, &proto), absl::StatusCode::kInvalidArgument,
                "nested at most 32");
}

TEST(TensorProtoTest, HandlesTravelWithoutTheirResource) {
  ResourceHandle handle;
  handle.device = "/job:ps/replica:0/task:0/device:CPU:0";
  handle.container = "localhost";
  handle.name = "w";
  handle.hash_code = 1234567890123456789u;
  handle.type_name = "VariableStorage";
  handle.dtypes = {DT_FLOAT};
  handle.shapes = {PartialShape({-1, 3})};
  const Tensor tensor = Tensor::Scalar<ResourceHandle>(handle);
  tensorflow::TensorProto proto;
  ASSERT_OK(TensorToProto(tensor, &proto));
  ASSERT_EQ(proto.resource_handle_val_size(), 1);
  EXPECT_EQ(proto.resource_handle_val(0).maybe_type_name(), "VariableStorage");
  ASSERT_OK_AND_ASSIGN(const Tensor back, TensorFromProto(proto));
  ExpectTensorEqual(back, tensor);
  EXPECT_EQ(back.scalar<ResourceHandle>().shapes[0].ToString(), "[?,3]");
}

TEST(TensorProtoTest, VariantsCarryTensorsAndAreNotRepeated) {
  Variant list;
  list.type_name = "tensorflow::TensorList";
  list.metadata = std::string("\0\1", 2);
  list.tensors = {TensorOf<float>({2}, {1, 2}), Tensor(), Tensor::Scalar("s")};
  const Tensor tensor = Tensor::Vector<Variant>({list, Variant()});
  tensorflow::TensorProto proto;
  ASSERT_OK(TensorToProto(tensor, &proto));
  ASSERT_OK_AND_ASSIGN(const Tensor back, TensorFromProto(proto));
  ExpectTensorEqual(back, tensor);

  proto.mutable_variant_val()->RemoveLast();
  ASSERT_OK_AND_ASSIGN(const Tensor shorter, TensorFromProto(proto));
  ExpectTensorEqual(shorter, tensor);

  Variant anonymous;
  anonymous.metadata = "x";
  EXPECT_STATUS(TensorToProto(Tensor::Scalar<Variant>(anonymous), &proto),
                absl::StatusCode::kUnimplemented, "type name");
}

TEST(TensorToProtoTest, WritesAsPythonDoes) {
  const struct {
    Tensor tensor;
    std::string text;
  } kCases[] = {
      // More than one element of these types: raw content.
      {TensorOf<float>({2}, {1, -2}),
       "dtype: DT_FLOAT" + Dims({2}) + R"(tensor_content: "\000\000\200?\000\000\000\300")"},
      {TensorOf<uint8_t>({1, 2}, {1, 255}),
       "dtype: DT_UINT8" + Dims({1, 2}) + R"(tensor_content: "\001\377")"},
      {TensorOf<uint32_t>({2}, {1, 2}),
       "dtype: DT_UINT32" + Dims({2}) + R"(tensor_content: "\001\000\000\000\002\000\000\000")"},
      {TensorOf<QInt8>({2}, {QInt8{1}, QInt8{-1}}),
       "dtype: DT_QINT8" + Dims({2}) + R"(tensor_content: "\001\377")"},
      // One element: the list.
      {TensorOf<float>({}, {0}), "dtype: DT_FLOAT" + Dims({}) + "float_val: 0"},
      {TensorOf<int8_t>({1, 1}, {-5}), "dtype: DT_INT8" + Dims({1, 1}) + "int_val: -5"},
      {TensorOf<int64_t>({1}, {7}), "dtype: DT_INT64" + Dims({1}) + "int64_val: 7"},
      {TensorOf<uint64_t>({}, {7}), "dtype: DT_UINT64" + Dims({}) + "uint64_val: 7"},
      // These always as lists.
      {TensorOf<bool>({2}, {true, false}),
       "dtype: DT_BOOL" + Dims({2}) + "bool_val: [true, false]"},
      {TensorOf<uint16_t>({2}, {1, 65535}), "dtype: DT_UINT16" + Dims({2}) + "int_val: [1, 65535]"},
      {TensorOf<Half>({2}, {Half{0x3c00}, Half{0xc000}}),
       "dtype: DT_HALF" + Dims({2}) + "half_val: [15360, 49152]"},
      {TensorOf<Bfloat16>({2}, {Bfloat16{0x3f80}, Bfloat16{0xc000}}),
       "dtype: DT_BFLOAT16" + Dims({2}) + "half_val: [16256, 49152]"},
      {TensorOf<std::complex<float>>({2}, {{1, 2}, {3, 4}}),
       "dtype: DT_COMPLEX64" + Dims({2}) + "scomplex_val: [1, 2, 3, 4]"},
      {TensorOf<std::string>({2}, {"a", "b"}),
       "dtype: DT_STRING" + Dims({2}) + R"(string_val: "a" string_val: "b")"},
      // No element: no data.
      {TensorOf<float>({0, 2}, {}), "dtype: DT_FLOAT" + Dims({0, 2})},
  };
  for (const auto& c : kCases) {
    tensorflow::TensorProto got;
    got.add_float_val(99);  // replaced
    ASSERT_OK(TensorToProto(c.tensor, &got));
    EXPECT_EQ(got.SerializeAsString(), Proto(c.text).SerializeAsString())
        << got.ShortDebugString() << "\nwant " << c.text;
  }
  tensorflow::TensorProto proto;
  EXPECT_STATUS(TensorToProto(Tensor(), &proto), absl::StatusCode::kInvalidArgument, "got none");
}

// As TensorFlow's AsProtoField and AsProtoTensorContent.
TEST(TensorToProtoTest, ServersWriteListsAloneOrContentAlone) {
  const struct {
    Tensor tensor;
    std::string list, content;
  } kCases[] = {
      {TensorOf<float>({2}, {1, -2}), "float_val: [1, -2]",
       R"(tensor_content: "\000\000\200?\000\000\000\300")"},
      {TensorOf<double>({1}, {1}), "double_val: 1",
       R"(tensor_content: "\000\000\000\000\000\000\360?")"},
      {TensorOf<int32_t>({2}, {1, -1}), "int_val: [1, -1]",
       R"(tensor_content: "\001\000\000\000\377\377\377\377")"},
      {TensorOf<uint8_t>({2}, {1, 255}), "int_val: [1, 255]", R"(tensor_content: "\001\377")"},
      {TensorOf<int8_t>({2}, {1, -1}), "int_val: [1, -1]", R"(tensor_content: "\001\377")"},
      {TensorOf<int16_t>({1}, {-2}), "int_val: -2", R"(tensor_content: "\376\377")"},
      {TensorOf<uint16_t>({1}, {65535}), "int_val: 65535", R"(tensor_content: "\377\377")"},
      {TensorOf<int64_t>({1}, {7}), "int64_val: 7",
       R"(tensor_content: "\007\000\000\000\000\000\000\000")"},
      {TensorOf<uint32_t>({1}, {7}), "uint32_val: 7", R"(tensor_content: "\007\000\000\000")"},
      {TensorOf<uint64_t>({1}, {7}), "uint64_val: 7",
       R"(tensor_content: "\007\000\000\000\000\000\000\000")"},
      {TensorOf<bool>({2}, {true, false}), "bool_val: [true, false]",
       R"(tensor_content: "\001\000")"},
      {TensorOf<Half>({1}, {Half{0x3c00}}), "half_val: 15360", R"(tensor_content: "\000<")"},
      {TensorOf<QInt8>({1}, {QInt8{-3}}), "int_val: -3", R"(tensor_content: "\375")"},
      {TensorOf<std::complex<float>>({1}, {{1, -2}}), "scomplex_val: [1, -2]",
       R"(tensor_content: "\000\000\200?\000\000\000\300")"},
      // Lengths first; one of 200 takes two bytes.
      {TensorOf<std::string>({2}, {"ab", ""}), R"(string_val: "ab" string_val: "")",
       R"(tensor_content: "\002\000ab")"},
      {TensorOf<std::string>({1}, {std::string(200, 'x')}),
       "string_val: '" + std::string(200, 'x') + "'",
       R"(tensor_content: "\310\001)" + std::string(200, 'x') + "\""},
      {TensorOf<float>({0, 2}, {}), "", ""},
  };
  for (const auto& c : kCases) {
    tensorflow::TensorProto header;
    header.set_dtype(static_cast<tensorflow::DataType>(c.tensor.dtype()));
    c.tensor.shape().ToProto(header.mutable_tensor_shape());
    for (const bool as_list : {true, false}) {
      tensorflow::TensorProto got, want = Proto(as_list ? c.list : c.content);
      got.add_float_val(99);  // replaced
      ASSERT_OK(as_list ? TensorToListedProto(c.tensor, &got)
                        : TensorToContentProto(c.tensor, &got));
      want.MergeFrom(header);
      EXPECT_EQ(got.SerializeAsString(), want.SerializeAsString())
          << got.ShortDebugString() << "\nwant " << want.ShortDebugString();
      ASSERT_OK_AND_ASSIGN(const Tensor read, TensorFromProto(got));
      ExpectTensorEqual(read, c.tensor);
    }
  }
  tensorflow::TensorProto proto;
  for (const auto& write : {TensorToListedProto, TensorToContentProto}) {
    EXPECT_STATUS(write(Tensor(), &proto), absl::StatusCode::kInvalidArgument, "got none");
  }
}

// Constants in graphs that TensorFlow wrote.
TEST(TensorProtoTest, ConstantsOfRealGraphsAreReadAndWrittenBack) {
  const struct {
    const char* path;
    int min_constants;
  } kCases[] = {{"graphs/lstm_frozen.pb", 5},
                {"graphs/fc_layers_frozen.pb", 2},
                {"graphs/multi_type_inputs_outputs.pb", 0}};
  for (const auto& c : kCases) {
    const std::string path = SharedDataPath(c.path);
    if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no " << c.path;
    std::ifstream file(path, std::ios::binary);
    tensorflow::GraphDef graph;
    ASSERT_TRUE(graph.ParseFromIstream(&file)) << path;
    int constants = 0;
    for (const tensorflow::NodeDef& node : graph.node()) {
      const auto value = node.attr().find("value");
      if (node.op() != "Const" || value == node.attr().end()) continue;
      ++constants;
      const absl::StatusOr<Tensor> tensor = TensorFromProto(value->second.tensor());
      ASSERT_OK(tensor) << node.name();
      EXPECT_EQ(static_cast<int>(tensor->dtype()),
                static_cast<int>(value->second.tensor().dtype()));
      tensorflow::TensorProto written;
      ASSERT_OK(TensorToProto(*tensor, &written));
      ASSERT_OK_AND_ASSIGN(const Tensor again, TensorFromProto(written));
      ExpectTensorEqual(again, *tensor);
    }
    EXPECT_GE(constants, c.min_constants) << path;
  }
}

}  // namespace
}  // namespace millrace
