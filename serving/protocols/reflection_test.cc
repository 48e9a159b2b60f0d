// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/health/health.pb.h"
#include "proto/inference/grpc_service.pb.h"
#include "proto/reflection/v1.pb.h"
#include "proto/reflection/v1alpha.pb.h"
#include "proto/serving/predict.pb.h"

// covers: serving: what reflection answers builds each offered service in an empty pool, imports
//   and all, and shows nothing else

namespace millrace {
namespace {

namespace wire = grpc::reflection::v1;
using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::FileDescriptorProto;

const std::vector<std::string>& Services() {
  static const auto& services = *new std::vector<std::string>{
      "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
      "grpc.reflection.v1alpha.ServerReflection", "inference.GRPCInferenceService",
      "tensorflow.serving.PredictionService"};
  return services;
}

class ReflectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Named, so that the schemas are linked.
    for (const Descriptor* message :
         {grpc::health::v1::HealthCheckRequest::descriptor(),
          grpc::reflection::v1alpha::ServerReflectionRequest::descriptor(),
          inference::ModelInferRequest::descriptor(),
          tensorflow::serving::PredictRequest::descriptor()}) {
      ASSERT_NE(message, nullptr);
    }
    auto schemas = OfferedSchemas::Make(DescriptorPool::generated_pool(), Services());
    ASSERT_OK(schemas);
    schemas_ = *std::move(schemas);
  }
  wire::ServerReflectionResponse Ask(const wire::ServerReflectionRequest& request) {
    wire::ServerReflectionResponse response;
    schemas_->Answer(request, sent_.get(), &response);
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }
  static wire::ServerReflectionRequest OfSymbol(const std::string& name) {
    wire::ServerReflectionRequest request;
    request.set_file_containing_symbol(name);
    return request;
  }

  std::shared_ptr<const OfferedSchemas> schemas_;
  std::shared_ptr<OfferedSchemas::Sent> sent_ = OfferedSchemas::NothingSent();
};

TEST_F(ReflectionTest, ListsItsServices) {
  wire::ServerReflectionRequest request;
  request.set_list_services("*");
  std::vector<std::string> listed;
  const auto response = Ask(request);
  for (const auto& service : response.list_services_response().service()) {
    listed.push_back(service.name());
  }
  EXPECT_EQ(listed, Services());
}

TEST_F(ReflectionTest, AnswersBuildEachServiceInAnEmptyPool) {
  for (const std::string& service : Services()) {
    SCOPED_TRACE(service);
    sent_ = OfferedSchemas::NothingSent();
    const auto response = Ask(OfSymbol(service));
    std::map<std::string, FileDescriptorProto> files;
    std::string first;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(bytes));
      if (first.empty()) first = file.name();
      EXPECT_TRUE(files.emplace(file.name(), file).second) << file.name() << " comes twice";
    }
    DescriptorPool pool;
    // Imports first; a file whose import did not come stays unbuilt.
    for (bool progress = true; progress;) {
      progress = false;
      for (const auto& [name, file] : files) {
        if (pool.FindFileByName(name) != nullptr) continue;
        bool all = true;
        for (const std::string& import : file.dependency()) {
          all &= pool.FindFileByName(import) != nullptr;
        }
        if (all) progress |= pool.BuildFile(file) != nullptr;
      }
    }
    for (const auto& [name, file] : files) EXPECT_NE(pool.FindFileByName(name), nullptr) << name;
    const auto* const built = pool.FindServiceByName(service);
    ASSERT_NE(built, nullptr);
    EXPECT_EQ(built->file()->name(), first);
    EXPECT_GT(built->method_count(), 0);
  }
}

TEST_F(ReflectionTest, ACallGetsAFileOnceUnlessItAsksForIt) {
  const auto number = [&] {
    return Ask(OfSymbol("tensorflow.serving.PredictionService"))
        .file_descriptor_response()
        .file_descriptor_proto_size();
  };
  EXPECT_GT(number(), 1);
  EXPECT_EQ(number(), 1);
}

TEST_F(ReflectionTest, FindsFilesBySymbolsAndNames) {
  wire::ServerReflectionRequest request;
  for (const char* symbol :
       {"tensorflow.TensorProto", "inference.ModelInferRequest.InferInputTensor",
        "grpc.health.v1.Health.Watch"}) {
    EXPECT_TRUE(Ask(OfSymbol(symbol)).has_file_descriptor_response()) << symbol;
  }
  request.set_file_by_filename("proto/health/health.proto");
  EXPECT_TRUE(Ask(request).has_file_descriptor_response());
  request.set_all_extension_numbers_of_type("inference.ModelInferRequest");
  const auto numbers = Ask(request);
  EXPECT_EQ(numbers.all_extension_numbers_response().base_type_name(),
            "inference.ModelInferRequest");
  EXPECT_EQ(numbers.all_extension_numbers_response().extension_number_size(), 0);
}

TEST_F(ReflectionTest, WhatIsNotOfferedIsNotFound) {
  std::vector<wire::ServerReflectionRequest> asked;
  // In the program's pool, and no part of the services.
  asked.push_back(OfSymbol("google.protobuf.FileDescriptorProto"));
  asked.push_back(OfSymbol(""));
  asked.push_back(OfSymbol("no.such.Symbol"));
  asked.emplace_back().set_file_by_filename("google/protobuf/descriptor.proto");
  asked.emplace_back().set_file_by_filename("../../etc/passwd");
  asked.emplace_back().set_all_extension_numbers_of_type("google.protobuf.MessageOptions");
  asked.emplace_back().mutable_file_containing_extension()->set_containing_type(
      "inference.ModelInferRequest");
  asked.emplace_back().mutable_file_containing_extension()->set_containing_type("none");
  for (const auto& request : asked) {
    const auto response = Ask(request);
    EXPECT_EQ(response.error_response().error_code(), 5) << request.DebugString();
    EXPECT_NE(response.error_response().error_message(), "") << request.DebugString();
  }
  // gRPC's INVALID_ARGUMENT.
  EXPECT_EQ(Ask(wire::ServerReflectionRequest()).error_response().error_code(), 3);
  EXPECT_STATUS(OfferedSchemas::Make(DescriptorPool::generated_pool(), {"no.Service"}).status(),
                absl::StatusCode::kNotFound, "no.Service");
}

// v1alpha is answered by the code of v1.
TEST_F(ReflectionTest, BothVersionsHaveTheSameFields) {
  const auto fields = [](const Descriptor* message) {
    std::set<std::string> lines;
    const auto* const file = message->file();
    for (int m = 0; m < file->message_type_count(); ++m) {
      const Descriptor* const type = file->message_type(m);
      for (int i = 0; i < type->field_count(); ++i) {
        const auto* const field = type->field(i);
        lines.insert(absl::StrCat(type->name(), " ", field->number(), " ", field->name(), " ",
                                  field->type_name(), field->is_repeated() ? " repeated" : ""));
      }
    }
    return lines;
  };
  EXPECT_EQ(fields(wire::ServerReflectionRequest::descriptor()),
            fields(grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()));
}

}  // namespace
}  // namespace millrace
