// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/link_version.h"

#include <string>

#include "distributed/link/frame.h"
#include "gtest/gtest.h"
#include "proto/worker.pb.h"

namespace millrace {
namespace {

TEST(LinkVersionTest, ItTravelsNextToTensorFlowsFieldsAndIsNoneWithoutTheField) {
  tensorflow::RegisterGraphResponse response;
  response.set_graph_handle("g");
  EXPECT_EQ(LinkVersionOf(response), 0u);
  SetLinkVersion(&response);
  SetLinkVersion(&response);
  tensorflow::RegisterGraphResponse read;
  ASSERT_TRUE(read.ParseFromString(response.SerializeAsString()));
  EXPECT_EQ(LinkVersionOf(read), kLinkVersion);
  EXPECT_EQ(read.graph_handle(), "g");
}

TEST(LinkVersionTest, AnotherReleaseSaysAnotherOne) {
  for (const char version : {'\0', '\1', '\2', '\3'}) {
    tensorflow::RegisterGraphResponse response;
    // Number 1008, varint.
    ASSERT_TRUE(response.ParseFromString(std::string("\x80\x3f") += version));
    EXPECT_EQ(LinkVersionOf(response), static_cast<unsigned char>(version));
  }
}

TEST(LinkVersionTest, AFieldOfAnotherTypeIsNone) {
  tensorflow::RegisterGraphResponse response;
  // Number 1008, length-delimited, one byte.
  ASSERT_TRUE(response.ParseFromString(std::string("\x82\x3f\x01\x01", 4)));
  EXPECT_EQ(LinkVersionOf(response), 0u);
}

}  // namespace
}  // namespace millrace
