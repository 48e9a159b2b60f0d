// SPDX-License-Identifier: Apache-2.0
#include "net/tensor_coding.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/allocator.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"
#include "proto/worker.pb.h"

namespace millrace {
namespace {

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The bytes as a network may deliver them: in pieces of `piece` bytes.
grpc::ByteBuffer InPieces(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += piece) {
    slices.emplace_back(bytes.data() + i, std::min(piece, bytes.size() - i));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

Tensor Ramp(int64_t n) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, *Shape::Make({n}));
  for (int64_t i = 0; i < n; ++i) t.mutable_flat<float>()[static_cast<size_t>(i)] = float(i);
  return t;
}

std::vector<Tensor> Samples() {
  return {Tensor::Scalar(3.5f),
          Tensor::Scalar(true),
          Tensor::Scalar("text"),
          Tensor::Vector<std::string>({"a", std::string("b\0c", 3), ""}),
          TensorOf<int64_t>({2, 3}, {1, -2, 3, -4, 5, -6}),
          TensorOf<double>({1, 2}, {0.1, 1e300}),
          TensorOf<Half>({2}, {Half{0x3c00}, Half{0xc000}}),
          *Tensor::Zeros(DT_INT32, *Shape::Make({0, 4})),
          *Tensor::Zeros(DT_STRING, *Shape::Make({0})),
          Ramp(300),
          Ramp(100'000)};
}

StatusOr<grpc::ByteBuffer> RunGraphBytes(const std::vector<Tensor>& tensors) {
  tensorflow::RunGraphRequest request;
  request.set_step_id(77);
  request.set_graph_handle("handle");
  MessageWriter writer;
  writer.AddMessage(request);
  for (size_t i = 0; i < tensors.size(); ++i) {
    MR_RETURN_IF_ERROR(writer.AddNamedTensor(3, "t" + std::to_string(i), tensors[i]));
  }
  return writer.Finish();
}

TEST(TensorCodingTest, WritesTheBytesThatProtobufReads) {
  const std::vector<Tensor> tensors = Samples();
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, RunGraphBytes(tensors));
  tensorflow::RunGraphRequest request;
  ASSERT_TRUE(request.ParseFromString(Bytes(buffer)));
  EXPECT_EQ(request.step_id(), 77);
  ASSERT_EQ(request.send_size(), static_cast<int>(tensors.size()));
  for (int i = 0; i < request.send_size(); ++i) {
    EXPECT_EQ(request.send(i).name(), "t" + std::to_string(i));
    ASSERT_OK_AND_ASSIGN(const Tensor read, TensorFromProto(request.send(i).tensor()));
    ExpectTensorEqual(read, tensors[static_cast<size_t>(i)]);
  }
}

// Shapes have no protobuf object here.
TEST(TensorCodingTest, TensorsOfAnyShapeTakeTheBytesOfProtobuf) {
  const std::vector<std::vector<int64_t>> shapes = {
      {}, {1}, {127}, {128}, {0}, {3, 0, 5}, {1, 2, 3, 4, 5, 6}, {int64_t{1} << 35, 0}};
  for (const std::vector<int64_t>& dims : shapes) {
    ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make(dims));
    SCOPED_TRACE(shape.ToString());
    ASSERT_OK_AND_ASSIGN(const Tensor tensor, Tensor::Zeros(DT_INT16, shape));
    tensorflow::NamedTensorProto named;
    named.set_name("x");
    tensorflow::TensorProto* const proto = named.mutable_tensor();
    proto->set_dtype(tensorflow::DT_INT16);
    shape.ToProto(proto->mutable_tensor_shape());
    proto->set_tensor_content(std::string(tensor.bytes().data(), tensor.bytes().size()));
    tensorflow::RunGraphRequest request;
    *request.add_send() = named;
    tensorflow::RecvTensorResponse response;
    *response.mutable_tensor() = *proto;

    MessageWriter writer;
    ASSERT_OK(writer.AddNamedTensor(3, "x", tensor));
    EXPECT_EQ(writer.num_bytes(), static_cast<int64_t>(request.ByteSizeLong()));
    ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer sent, writer.Finish());
    EXPECT_EQ(Bytes(sent), request.SerializeAsString());
    ASSERT_OK(writer.AddTensor(1, tensor));
    ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer answer, writer.Finish());
    EXPECT_EQ(Bytes(answer), response.SerializeAsString());

    for (const size_t piece : {size_t{1}, size_t{1000}}) {
      std::vector<DecodedTensor> read;
      ASSERT_OK(DecodeMessage("m", InPieces(Bytes(sent), piece), 3, TensorField::kNamedOrIndexed,
                              &read, nullptr));
      ASSERT_EQ(read.size(), 1u);
      EXPECT_EQ(read[0].name, "x");
      EXPECT_EQ(read[0].value.dtype(), DT_INT16);
      EXPECT_EQ(read[0].value.shape(), shape);
    }
  }
}

TEST(TensorCodingTest, ShapesOfOthersAreReadAsProtobufReadsThem) {
  // An int16 tensor of `elements`.
  const auto tensor_of = [](const std::string& shape, int elements) {
    std::string tensor = std::string("\x08\x05\x12") + static_cast<char>(shape.size()) + shape;
    if (elements > 0) {
      tensor += std::string("\x22") + static_cast<char>(2 * elements);
      tensor += std::string(static_cast<size_t>(2 * elements), 'x');
    }
    return std::string("\x0a") + static_cast<char>(tensor.size()) + tensor;
  };
  std::string many_dims;
  for (int i = 0; i < 40; ++i) many_dims += std::string("\x12\x00", 2);
  struct Case {
    const char* what;
    std::string shape;
    int elements;
    const char* result;  // a shape, or what the error says
  };
  const Case cases[] = {
      {"a dimension with a name",
       std::string("\x12\x05\x08\x02\x12\x01"
                   "a",
                   7),
       2, "[2]"},
      {"a size that comes twice", std::string("\x12\x04\x08\x02\x08\x03", 6), 3, "[3]"},
      {"a size that is left out", std::string("\x12\x00", 2), 0, "[0]"},
      {"a number longer than it must be", std::string("\x12\x03\x08\x82\x00", 5), 2, "[2]"},
      {"a field of others", std::string("\x12\x02\x08\x02\x28\x01", 6), 2, "[2]"},
      {"an unknown rank", std::string("\x18\x01", 2), 1, "the rank must be known"},
      {"a dimension below zero",
       std::string("\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13), 1,
       "dimension 0 must be >= 0, got -1"},
      {"a dimension longer than its shape", std::string("\x12\x05\x08\x02", 4), 1,
       "a shape that is none"},
      {"a size without an end", std::string("\x12\x02\x08\x80", 4), 1, "a shape that is none"},
      {"a size as a double", std::string("\x12\x09\x09\x00\x00\x00\x00\x00\x00\x00\x00", 11), 0,
       "[0]"},
      {"forty dimensions", many_dims, 0,
       "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    for (const size_t piece : {size_t{1}, size_t{1000}}) {
      std::vector<DecodedTensor> read;
      const Status status = DecodeMessage("m", InPieces(tensor_of(c.shape, c.elements), piece), 1,
                                          TensorField::kTensor, &read, nullptr);
      if (c.result[0] == '[') {
        ASSERT_OK(status);
        ASSERT_EQ(read.size(), 1u);
        EXPECT_EQ(read[0].value.shape().ToString(), c.result);
      } else {
        EXPECT_STATUS(status, absl::StatusCode::kInvalidArgument, c.result);
      }
    }
  }
}

TEST(TensorCodingTest, AShapeOfTooHighARankIsRefused) {
  tensorflow::RecvTensorResponse response;
  response.mutable_tensor()->set_dtype(tensorflow::DT_INT16);
  for (int i = 0; i < 255; ++i) {
    response.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(1);
  }
  response.mutable_tensor()->set_tensor_content("ab");
  std::vector<DecodedTensor> read;
  EXPECT_STATUS(DecodeMessage("m", InPieces(response.SerializeAsString(), 64), 1,
                              TensorField::kTensor, &read, nullptr),
                absl::StatusCode::kInvalidArgument, "Shape: the rank must be at most 254, got 255");
}

TEST(TensorCodingTest, ReadsTheBytesThatProtobufWritesInPiecesOfAnySize) {
  const std::vector<Tensor> tensors = Samples();
  tensorflow::RunGraphResponse response;
  response.set_status_error_message("all well");
  for (const Tensor& tensor : tensors) {
    tensorflow::NamedTensorProto* const named = response.add_recv();
    named->set_name("x");
    ASSERT_OK(TensorToProto(tensor, named->mutable_tensor()));
  }
  const std::string bytes = response.SerializeAsString();
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    tensorflow::RunGraphResponse rest;
    std::vector<DecodedTensor> read;
    ASSERT_OK(DecodeMessage("RunGraphResponse", InPieces(bytes, piece), 1,
                            TensorField::kNamedOrIndexed, &read, &rest));
    EXPECT_EQ(rest.status_error_message(), "all well");
    EXPECT_EQ(rest.recv_size(), 0);
    ASSERT_EQ(read.size(), tensors.size());
    for (size_t i = 0; i < read.size(); ++i) ExpectTensorEqual(read[i].value, tensors[i]);
  }
}

TEST(TensorCodingTest, TypedListsWithARepeatedLastValueAreRead) {
  tensorflow::RecvTensorResponse response;
  response.mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
  response.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(3);
  response.mutable_tensor()->add_float_val(1);
  response.mutable_tensor()->add_float_val(2);
  response.set_is_dead(false);
  std::vector<DecodedTensor> read;
  tensorflow::RecvTensorResponse rest;
  ASSERT_OK(DecodeMessage("m", InPieces(response.SerializeAsString(), 3), 1, TensorField::kTensor,
                          &read, &rest));
  ASSERT_EQ(read.size(), 1u);
  ExpectTensorEqual(read[0].value, TensorOf<float>({3}, {1, 2, 2}));
}

// The entries of a map are { 1: key, 2: value }, as NamedTensorProto.
TEST(TensorCodingTest, ListedTensorsAreTheBytesOfProtobufsLists) {
  std::vector<Tensor> tensors = Samples();
  tensors.push_back(TensorOf<bool>({3}, {true, false, true}));
  tensors.push_back(TensorOf<std::complex<float>>({2}, {{1, 2}, {3, 4}}));
  tensors.push_back(TensorOf<std::complex<double>>({1}, {{1, 2}}));
  for (const Tensor& tensor : tensors) {
    SCOPED_TRACE(DTypeName(tensor.dtype()));
    tensorflow::NamedTensorProto expected;
    expected.set_name("x");
    ASSERT_OK(TensorToListedProto(tensor, expected.mutable_tensor()));
    MessageWriter writer;
    ASSERT_OK(writer.AddNamedTensor(1, "x", tensor, TensorForm::kListed));
    ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, writer.Finish());
    tensorflow::RunGraphResponse entries;
    entries.add_recv()->Swap(&expected);
    EXPECT_EQ(Bytes(buffer), entries.SerializeAsString());
    // And back, from pieces of any size.
    for (const size_t piece : {size_t{7}, size_t{1} << 20}) {
      std::vector<DecodedTensor> read;
      ASSERT_OK(DecodeMessage("m", InPieces(Bytes(buffer), piece), 1, TensorField::kNamedOrIndexed,
                              &read, nullptr));
      ASSERT_EQ(read.size(), 1u);
      EXPECT_EQ(read[0].name, "x");
      ExpectTensorEqual(read[0].value, tensor);
    }
  }
}

TEST(TensorCodingTest, ListsOfFloatsTravelWithoutAProtobufObject) {
  for (const Tensor& tensor : {Ramp(100'000), TensorOf<double>({2}, {1, 2}),
                               TensorOf<std::complex<float>>({1}, {{1, 2}})}) {
    const TensorCodingCounters before = GetTensorCodingCounters();
    MessageWriter writer;
    ASSERT_OK(writer.AddNamedTensor(1, "x", tensor, TensorForm::kListed));
    ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, writer.Finish());
    std::vector<DecodedTensor> read;
    ASSERT_OK(DecodeMessage("m", InPieces(Bytes(buffer), 8192), 1, TensorField::kNamedOrIndexed,
                            &read, nullptr));
    const TensorCodingCounters after = GetTensorCodingCounters();
    EXPECT_EQ(after.through_proto, before.through_proto);
    EXPECT_EQ(after.received_copied - before.received_copied,
              static_cast<int64_t>(tensor.bytes().size()));
  }
}

TEST(TensorCodingTest, StringsAreContentWhereAllAre) {
  const Tensor words = Tensor::Vector<std::string>({"a", "bc"});
  MessageWriter writer;
  ASSERT_OK(writer.AddNamedTensor(1, "x", words, TensorForm::kAllContent));
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, writer.Finish());
  tensorflow::RunGraphResponse entries;
  ASSERT_TRUE(entries.ParseFromString(Bytes(buffer)));
  EXPECT_EQ(entries.recv(0).tensor().tensor_content(), std::string("\x01\x02"
                                                                   "abc"));
}

// Two lists are one for protobuf; the last element of a short one repeats.
TEST(TensorCodingTest, ListsInPartsAreReadAsProtobufReadsThem) {
  tensorflow::TensorProto head, first, second;
  head.set_dtype(tensorflow::DT_FLOAT);
  head.mutable_tensor_shape()->add_dim()->set_size(3);
  first.add_float_val(1);
  second.add_float_val(2);
  const std::string tensor =
      head.SerializeAsString() + first.SerializeAsString() + second.SerializeAsString();
  tensorflow::RecvTensorResponse response;
  ASSERT_TRUE(response.mutable_tensor()->ParseFromString(tensor));
  std::string bytes = "\x0a";
  bytes += static_cast<char>(tensor.size());
  bytes += tensor;
  ASSERT_TRUE(tensorflow::RecvTensorResponse().ParseFromString(bytes));
  std::vector<DecodedTensor> read;
  ASSERT_OK(DecodeMessage("m", InPieces(bytes, 3), 1, TensorField::kTensor, &read, nullptr));
  ASSERT_EQ(read.size(), 1u);
  ExpectTensorEqual(read[0].value, TensorOf<float>({3}, {1, 2, 2}));
}

TEST(TensorCodingTest, IndexedTensorsKeepIndexAndDeath) {
  MessageWriter writer;
  ASSERT_OK(writer.AddIndexedTensor(1, 300, Tensor::Scalar(1.5f), false));
  ASSERT_OK(writer.AddIndexedTensor(1, 0, Tensor(), true));
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, writer.Finish());
  EXPECT_EQ(writer.num_bytes(), 0);
  std::vector<DecodedTensor> read;
  ASSERT_OK(DecodeMessage("m", buffer, 1, TensorField::kNamedOrIndexed, &read, nullptr));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].index, 300u);
  EXPECT_FALSE(read[0].is_dead);
  EXPECT_EQ(read[1].index, 0u);
  EXPECT_TRUE(read[1].is_dead);
  EXPECT_FALSE(read[1].value.has_value());
}

TEST(TensorCodingTest, LargeTensorsAreSentByReferenceAndCopiedOnceOnReceipt) {
  const Tensor tensor = Ramp(1 << 20);
  const TensorCodingCounters before = GetTensorCodingCounters();
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, RunGraphBytes({tensor}));
  EXPECT_FALSE(tensor.BufferIsUnique());  // the message holds it
  const TensorCodingCounters sent = GetTensorCodingCounters();
  EXPECT_EQ(sent.sent_by_reference - before.sent_by_reference, tensor.TotalBytes());
  EXPECT_EQ(sent.sent_copied - before.sent_copied, 0);

  const grpc::ByteBuffer arrived = InPieces(Bytes(buffer), 16384);
  tensorflow::RunGraphRequest rest;
  std::vector<DecodedTensor> read;
  ASSERT_OK(DecodeMessage("m", arrived, 3, TensorField::kNamedOrIndexed, &read, &rest));
  ExpectTensorEqual(read[0].value, tensor);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(read[0].value.raw_data()) % Allocator::kAlignment, 0u);
  const TensorCodingCounters received = GetTensorCodingCounters();
  EXPECT_EQ(received.received_copied - sent.received_copied, tensor.TotalBytes());
  EXPECT_EQ(received.through_proto - before.through_proto, 0);
}

TEST(TensorCodingTest, AlignedContiguousBytesAreTakenWithoutACopy) {
  const Tensor tensor = Ramp(1 << 16);
  MessageWriter writer;
  ASSERT_OK(writer.AddTensor(1, tensor));
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer, writer.Finish());
  // As written: the elements are a slice of their own, at the tensor's own address.
  const TensorCodingCounters before = GetTensorCodingCounters();
  std::vector<DecodedTensor> read;
  ASSERT_OK(DecodeMessage("m", buffer, 1, TensorField::kTensor, &read, nullptr));
  EXPECT_EQ(read[0].value.raw_data(), tensor.raw_data());
  const TensorCodingCounters after = GetTensorCodingCounters();
  EXPECT_EQ(after.received_in_place - before.received_in_place, tensor.TotalBytes());
  EXPECT_EQ(after.received_copied - before.received_copied, 0);
}

TEST(TensorCodingTest, EveryTruncationIsAnErrorOrAShorterMessage) {
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer,
                       RunGraphBytes({Ramp(10), Tensor::Scalar("s")}));
  const std::string bytes = Bytes(buffer);
  int errors = 0;
  for (size_t n = 0; n < bytes.size(); ++n) {
    tensorflow::RunGraphRequest rest;
    std::vector<DecodedTensor> read;
    const Status status = DecodeMessage("m", InPieces(bytes.substr(0, n), 5), 3,
                                        TensorField::kNamedOrIndexed, &read, &rest);
    if (!status.ok()) ++errors;
    EXPECT_LT(read.size(), 2u);
  }
  // Only the ends of whole fields are legal messages.
  EXPECT_GT(errors, static_cast<int>(bytes.size()) - 8);
}

TEST(TensorCodingTest, EveryFlippedByteIsReadOrRefused) {
  ASSERT_OK_AND_ASSIGN(const grpc::ByteBuffer buffer,
                       RunGraphBytes({Ramp(10), Tensor::Scalar("s")}));
  const std::string bytes = Bytes(buffer);
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      tensorflow::RunGraphRequest rest;
      std::vector<DecodedTensor> read;
      const Status status =
          DecodeMessage("m", InPieces(changed, 64), 3, TensorField::kNamedOrIndexed, &read, &rest);
      // Tensors must not be larger than the message.
      int64_t elements = 0;
      for (const DecodedTensor& t : read)
        elements += t.value.has_value() ? t.value.num_elements() : 0;
      EXPECT_LE(elements, 20) << "byte " << i << ": " << status;
    }
  }
}

TEST(TensorCodingTest, AnyByteButZeroIsTrueAndBecomesOne) {
  for (const int64_t n : {int64_t{4}, int64_t{1} << 17}) {
    tensorflow::TensorProto proto;
    proto.set_dtype(tensorflow::DT_BOOL);
    proto.mutable_tensor_shape()->add_dim()->set_size(n);
    std::string content(static_cast<size_t>(n), '\0');
    content[1] = '\2';
    content[3] = '\xff';
    proto.set_tensor_content(content);
    tensorflow::RecvTensorResponse response;
    *response.mutable_tensor() = proto;
    std::vector<DecodedTensor> read;
    tensorflow::RecvTensorResponse rest;
    const std::string bytes = response.SerializeAsString();
    ASSERT_OK(
        DecodeMessage("m", InPieces(bytes, bytes.size()), 1, TensorField::kTensor, &read, &rest));
    ASSERT_EQ(read[0].value.num_elements(), n);
    EXPECT_EQ(std::string(static_cast<const char*>(read[0].value.raw_data()), 4),
              std::string("\0\1\0\1", 4));
  }
}

TEST(TensorCodingTest, WireTextIsWhatProtobufTakesAndKeepsWhatItCan) {
  struct Case {
    std::string text, wire;
  };
  const Case cases[] = {
      {"plain [2,?]\n", "plain [2,?]\n"},
      {"Gr\u00fc\u00dfe \u20ac \U0001F600", "Gr\u00fc\u00dfe \u20ac \U0001F600"},
      {"a\xff"
       "b\x80",
       "a\\xffb\\x80"},
      {"cut \xe2\x82", "cut \\xe2\\x82"},
      {"too long \xc0\xaf", "too long \\xc0\\xaf"},
      {"too long \xe0\x80\xaf", "too long \\xe0\\x80\\xaf"},
      {"surrogate \xed\xa0\x80", "surrogate \\xed\\xa0\\x80"},
      {"beyond \xf4\x90\x80\x80", "beyond \\xf4\\x90\\x80\\x80"},
      {"", ""},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(WireText(c.text), c.wire);
    tensorflow::RunGraphResponse response, read;
    response.set_status_error_message(WireText(c.text));
    EXPECT_TRUE(read.ParseFromString(response.SerializeAsString())) << c.wire;
  }
}

TEST(TensorCodingTest, SizesThatTheMessageDoesNotHaveAreRefusedBeforeAllocation) {
  struct Case {
    const char* what;
    std::string bytes;
    const char* message;
  };
  const auto with_tensor = [](const std::string& tensor) {
    return std::string("\x0a") + static_cast<char>(tensor.size()) + tensor;
  };
  // dtype float, shape [1000000], content of 4 bytes.
  std::string shape;
  {
    tensorflow::TensorProto proto;
    proto.set_dtype(tensorflow::DT_FLOAT);
    proto.mutable_tensor_shape()->add_dim()->set_size(1'000'000);
    proto.set_tensor_content("1234");
    shape = proto.SerializeAsString();
  }
  const Case cases[] = {
      {"content too short", with_tensor(shape), "4 bytes for a tensor float[1000000] of 4000000"},
      {"field longer than message", std::string("\x0a\x7f\x08\x01", 4), "an end within a tensor"},
      {"content longer than field", with_tensor(std::string("\x08\x01\x22\x7f", 4)), "longer"},
      {"unknown dtype", with_tensor(std::string("\x08\x63\x22\x01z", 5)), ""},
  };
  for (const Case& c : cases) {
    std::vector<DecodedTensor> read;
    EXPECT_STATUS(
        DecodeMessage("m", InPieces(c.bytes, 100), 1, TensorField::kTensor, &read, nullptr),
        absl::StatusCode::kInvalidArgument, c.message)
        << c.what;
  }
}

// covers: serving: raw contents of an inference request are copied once
TEST(TensorCoding, FieldsOfBytesStayWhereTheyWereReceived) {
  // Field 7 twice among others, over slices that cut through it; small slices hold their bytes.
  const std::string large(100'000, 'x');
  tensorflow::NodeDef others;
  others.set_name("name");
  others.set_op("op");
  std::string wire = others.SerializeAsString().substr(0, 6);  // the name: tag, length, 4 bytes
  wire += absl::StrCat(std::string("\x3a\x02", 2), "ab");
  wire += others.SerializeAsString().substr(6);
  std::string length;
  for (uint64_t n = large.size(); n > 0; n >>= 7) {
    length += static_cast<char>((n & 0x7f) | (n > 0x7f ? 0x80 : 0));
  }
  wire += absl::StrCat("\x3a", length, large);
  const size_t cut = wire.size() / 2;
  const grpc::Slice parts[] = {grpc::Slice(wire.substr(0, 9)), grpc::Slice(wire.substr(9, cut - 9)),
                               grpc::Slice(wire.substr(cut))};
  const grpc::ByteBuffer buffer(parts, 3);
  std::vector<grpc::Slice> slices;
  std::vector<ReceivedBytes> fields;
  tensorflow::NodeDef read;
  ASSERT_OK(DecodeMessageAround("a test", buffer, 7, &slices, &fields, &read));
  EXPECT_EQ(read.SerializeAsString(), others.SerializeAsString());
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(absl::StrJoin(fields[0].pieces, ""), "ab");
  EXPECT_EQ(fields[0].pieces.size(), 2u);
  EXPECT_EQ(fields[1].size, large.size());
  EXPECT_EQ(absl::StrJoin(fields[1].pieces, ""), large);
  ASSERT_EQ(fields[1].pieces.size(), 2u);
  EXPECT_EQ(fields[1].pieces[1].data(), reinterpret_cast<const char*>(slices[2].begin()));
  // Cut off.
  for (const size_t end : {size_t{3}, size_t{7}, size_t{9}, wire.size() - 1}) {
    const grpc::Slice part(wire.substr(0, end));
    slices.clear();
    fields.clear();
    EXPECT_STATUS(
        DecodeMessageAround("a test", grpc::ByteBuffer(&part, 1), 7, &slices, &fields, &read),
        absl::StatusCode::kInvalidArgument, "a test");
  }
}

}  // namespace
}  // namespace millrace
