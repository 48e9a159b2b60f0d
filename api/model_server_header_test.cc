// SPDX-License-Identifier: Apache-2.0
//
// What programs outside include that serve models themselves: first, so that it stands alone.

#include <millrace/model_server.h>

// Every header of protobuf defines it.
#ifdef GOOGLE_PROTOBUF_VERSION
constexpr bool kHasProtobuf = true;
#else
constexpr bool kHasProtobuf = false;
#endif

#include <millrace/millrace.h>
#include <millrace/proto/serving/predict.pb.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

// covers: outside: `#include <millrace/model_server.h>` serves a model within the program, by names
//   and by TensorFlow Serving's messages, knows no protobuf; linking `//:millrace` is enough

namespace millrace {
namespace {

TEST(ModelServerHeader, IsFreeOfProtobuf) { EXPECT_FALSE(kHasProtobuf); }

// As the README does.
TEST(ModelServerHeader, IsEnoughToServe) {
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
  const Output y = Mul(root.WithName("y"), x, Const(root, 3.0f));
  const StatusOr<std::unique_ptr<Session>> session = NewSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Extend(root).ok());
  const std::string base = ::testing::TempDir() + "/model_server_header_test";
  std::filesystem::remove_all(base);
  std::filesystem::create_directories(base);
  const std::vector<ServingSignature> signatures = {{.inputs = {{"x", x}}, .outputs = {{"y", y}}}};
  const Status exported = ExportModel(session->get(), root, signatures, base + "/7");
  ASSERT_TRUE(exported.ok()) << exported;

  const StatusOr<std::unique_ptr<LocalModelServer>> server =
      LocalModelServer::Start({.models = {{.name = "m", .base_path = base}}});
  ASSERT_TRUE(server.ok()) << server.status();
  const StatusOr<ModelPrediction> got = (*server)->Predict("m", {{"x", Tensor::Of({1.f, 2.f})}});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->version, 7);
  EXPECT_EQ(got->outputs.at("y").flat<float>()[1], 6);

  tensorflow::serving::PredictRequest request;
  request.mutable_model_spec()->set_name("m");
  tensorflow::TensorProto& proto = (*request.mutable_inputs())["x"];
  proto.set_dtype(tensorflow::DT_FLOAT);
  proto.mutable_tensor_shape()->add_dim()->set_size(1);
  proto.add_float_val(5);
  tensorflow::serving::PredictResponse response;
  const Status predicted = (*server)->Predict(request, &response);
  ASSERT_TRUE(predicted.ok()) << predicted;
  EXPECT_EQ(response.outputs().at("y").float_val(0), 15);
}

}  // namespace
}  // namespace millrace
