// SPDX-License-Identifier: Apache-2.0
//
// The wire contract with probes and with clients of other protocols, read a second time: the table
// below was written from their schemas, not from ours, and is compared with the generated
// descriptors in both directions.
//
// A field's line is `number type name`, `*` behind the type of a repeated one.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "proto/health/health.pb.h"
#include "proto/inference/grpc_service.pb.h"
#include "proto/reflection/v1.pb.h"
#include "proto/reflection/v1alpha.pb.h"

// covers: serving: every message, field, number and method of gRPC's health and reflection and of
//   the Open Inference Protocol

namespace millrace {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;

constexpr absl::string_view kHealth = R"(
HealthCheckRequest 1 string service
HealthCheckResponse 1 enum status
rpc Check HealthCheckRequest HealthCheckResponse
rpc Watch HealthCheckRequest *HealthCheckResponse
)";

constexpr absl::string_view kReflection = R"(
ServerReflectionRequest 1 string host
ServerReflectionRequest 3 string file_by_filename
ServerReflectionRequest 4 string file_containing_symbol
ServerReflectionRequest 5 message file_containing_extension
ServerReflectionRequest 6 string all_extension_numbers_of_type
ServerReflectionRequest 7 string list_services
ExtensionRequest 1 string containing_type
ExtensionRequest 2 int32 extension_number
ServerReflectionResponse 1 string valid_host
ServerReflectionResponse 2 message original_request
ServerReflectionResponse 4 message file_descriptor_response
ServerReflectionResponse 5 message all_extension_numbers_response
ServerReflectionResponse 6 message list_services_response
ServerReflectionResponse 7 message error_response
FileDescriptorResponse 1 bytes* file_descriptor_proto
ExtensionNumberResponse 1 string base_type_name
ExtensionNumberResponse 2 int32* extension_number
ListServiceResponse 1 message* service
ServiceResponse 1 string name
ErrorResponse 1 int32 error_code
ErrorResponse 2 string error_message
rpc ServerReflectionInfo *ServerReflectionRequest *ServerReflectionResponse
)";

constexpr absl::string_view kInference = R"(
ServerLiveResponse 1 bool live
ServerReadyResponse 1 bool ready
ModelReadyRequest 1 string name
ModelReadyRequest 2 string version
ModelReadyResponse 1 bool ready
ServerMetadataResponse 1 string name
ServerMetadataResponse 2 string version
ServerMetadataResponse 3 string* extensions
ModelMetadataRequest 1 string name
ModelMetadataRequest 2 string version
ModelMetadataResponse 1 string name
ModelMetadataResponse 2 string* versions
ModelMetadataResponse 3 string platform
ModelMetadataResponse 4 message* inputs
ModelMetadataResponse 5 message* outputs
ModelMetadataResponse.TensorMetadata 1 string name
ModelMetadataResponse.TensorMetadata 2 string datatype
ModelMetadataResponse.TensorMetadata 3 int64* shape
InferParameter 1 bool bool_param
InferParameter 2 int64 int64_param
InferParameter 3 string string_param
InferParameter 4 double double_param
InferParameter 5 uint64 uint64_param
InferTensorContents 1 bool* bool_contents
InferTensorContents 2 int32* int_contents
InferTensorContents 3 int64* int64_contents
InferTensorContents 4 uint32* uint_contents
InferTensorContents 5 uint64* uint64_contents
InferTensorContents 6 float* fp32_contents
InferTensorContents 7 double* fp64_contents
InferTensorContents 8 bytes* bytes_contents
ModelInferRequest 1 string model_name
ModelInferRequest 2 string model_version
ModelInferRequest 3 string id
ModelInferRequest 4 message* parameters
ModelInferRequest 5 message* inputs
ModelInferRequest 6 message* outputs
ModelInferRequest 7 bytes* raw_input_contents
ModelInferRequest.InferInputTensor 1 string name
ModelInferRequest.InferInputTensor 2 string datatype
ModelInferRequest.InferInputTensor 3 int64* shape
ModelInferRequest.InferInputTensor 4 message* parameters
ModelInferRequest.InferInputTensor 5 message contents
ModelInferRequest.InferRequestedOutputTensor 1 string name
ModelInferRequest.InferRequestedOutputTensor 2 message* parameters
ModelInferResponse 1 string model_name
ModelInferResponse 2 string model_version
ModelInferResponse 3 string id
ModelInferResponse 4 message* parameters
ModelInferResponse 5 message* outputs
ModelInferResponse 6 bytes* raw_output_contents
ModelInferResponse.InferOutputTensor 1 string name
ModelInferResponse.InferOutputTensor 2 string datatype
ModelInferResponse.InferOutputTensor 3 int64* shape
ModelInferResponse.InferOutputTensor 4 message* parameters
ModelInferResponse.InferOutputTensor 5 message contents
rpc ServerLive ServerLiveRequest ServerLiveResponse
rpc ServerReady ServerReadyRequest ServerReadyResponse
rpc ModelReady ModelReadyRequest ModelReadyResponse
rpc ServerMetadata ServerMetadataRequest ServerMetadataResponse
rpc ModelMetadata ModelMetadataRequest ModelMetadataResponse
rpc ModelInfer ModelInferRequest ModelInferResponse
)";

void AddMessage(const Descriptor* message, std::set<std::string>* lines) {
  if (message->options().map_entry()) return;
  const std::string& package = message->file()->package();
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* const field = message->field(i);
    lines->insert(absl::StrCat(message->full_name().substr(package.size() + 1), " ",
                               field->number(), " ", field->type_name(),
                               field->is_repeated() ? "* " : " ", field->name()));
  }
  for (int i = 0; i < message->nested_type_count(); ++i) AddMessage(message->nested_type(i), lines);
}

void ExpectFile(const FileDescriptor* file, absl::string_view package, absl::string_view service,
                absl::string_view table) {
  SCOPED_TRACE(std::string(package));
  EXPECT_EQ(file->package(), package);
  EXPECT_EQ(file->syntax(), FileDescriptor::SYNTAX_PROTO3);
  std::set<std::string> lines;
  for (int i = 0; i < file->message_type_count(); ++i) AddMessage(file->message_type(i), &lines);
  ASSERT_EQ(file->service_count(), 1);
  EXPECT_EQ(file->service(0)->name(), service);
  for (int i = 0; i < file->service(0)->method_count(); ++i) {
    const auto* const method = file->service(0)->method(i);
    lines.insert(absl::StrCat("rpc ", method->name(), method->client_streaming() ? " *" : " ",
                              method->input_type()->name(), method->server_streaming() ? " *" : " ",
                              method->output_type()->name()));
  }
  std::set<std::string> expected;
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    expected.emplace(line);
  }
  EXPECT_EQ(lines, expected);
}

TEST(ProtocolDescriptors, FieldsAndMethodsAreThoseOfTheProtocols) {
  ExpectFile(grpc::health::v1::HealthCheckRequest::descriptor()->file(), "grpc.health.v1", "Health",
             kHealth);
  ExpectFile(grpc::reflection::v1::ServerReflectionRequest::descriptor()->file(),
             "grpc.reflection.v1", "ServerReflection", kReflection);
  ExpectFile(grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()->file(),
             "grpc.reflection.v1alpha", "ServerReflection", kReflection);
  ExpectFile(inference::ModelInferRequest::descriptor()->file(), "inference",
             "GRPCInferenceService", kInference);
}

TEST(ProtocolDescriptors, HealthHasItsNumbers) {
  using grpc::health::v1::HealthCheckResponse;
  EXPECT_EQ(HealthCheckResponse::ServingStatus_descriptor()->value_count(), 4);
  EXPECT_EQ(static_cast<int>(HealthCheckResponse::UNKNOWN), 0);
  EXPECT_EQ(static_cast<int>(HealthCheckResponse::SERVING), 1);
  EXPECT_EQ(static_cast<int>(HealthCheckResponse::NOT_SERVING), 2);
  EXPECT_EQ(static_cast<int>(HealthCheckResponse::SERVICE_UNKNOWN), 3);
}

}  // namespace
}  // namespace millrace
