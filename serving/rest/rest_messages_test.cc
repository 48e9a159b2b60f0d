// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_messages.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/saver.pb.h"
#include "proto/tensor_shape.pb.h"

// covers: programs: status and metadata of a model have their fields' names and defaults

namespace millrace {
namespace {

// What TensorFlow Serving's metadata is made of: a shape has a list, a 64-bit number, a string and
// a boolean.
TEST(RestMessagesTest, NamesDefaultsAndBigIntegers) {
  tensorflow::TensorShapeProto shape;
  shape.add_dim()->set_size(-1);
  const StatusOr<std::string> text = StatusReply(shape);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "{\n \"dim\": [\n  {\n   \"size\": \"-1\",\n   \"name\": \"\"\n  }\n ],\n"
            " \"unknown_rank\": false\n}\n");
}

TEST(RestMessagesTest, MetadataIsOneValue) {
  tensorflow::SaverDef spec;
  spec.set_filename_tensor_name("a\"b");
  const StatusOr<std::string> text = MetadataReply(spec, tensorflow::TensorShapeProto());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->substr(0, 18), "{\n\"model_spec\":{\n ");
  const std::string end =
      "}\n,\n\"metadata\": {\"signature_def\": {\n \"dim\": [],\n \"unknown_rank\": "
      "false\n}\n}\n}\n";
  ASSERT_GE(text->size(), end.size());
  EXPECT_EQ(text->substr(text->size() - end.size()), end);
  const nlohmann::json value = nlohmann::json::parse(*text, nullptr, false);
  ASSERT_FALSE(value.is_discarded()) << *text;
  EXPECT_EQ(value["model_spec"]["filename_tensor_name"], "a\"b");
  EXPECT_EQ(value["metadata"]["signature_def"]["unknown_rank"], false);
}

}  // namespace
}  // namespace millrace
