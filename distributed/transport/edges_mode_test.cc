// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/edges_mode.h"

#include <cstdint>
#include <string>

#include "distributed/link/frame.h"
#include "gtest/gtest.h"
#include "proto/worker.pb.h"

namespace millrace {
namespace {

TEST(EdgesModeTest, BothFieldsTravelNextToTensorFlowsAndAreOffWithoutThem) {
  tensorflow::RunGraphRequest request;
  request.set_step_id(7);
  EXPECT_FALSE(IsPushed(request));
  SetPushed(&request);
  SetPushed(&request);
  tensorflow::RunGraphRequest read_request;
  ASSERT_TRUE(read_request.ParseFromString(request.SerializeAsString()));
  EXPECT_TRUE(IsPushed(read_request));
  EXPECT_EQ(read_request.step_id(), 7);

  tensorflow::RegisterGraphResponse response;
  response.set_graph_handle("g");
  EXPECT_FALSE(CanPush(response));
  SetCanPush(&response);
  tensorflow::RegisterGraphResponse read_response;
  ASSERT_TRUE(read_response.ParseFromString(response.SerializeAsString()));
  EXPECT_TRUE(CanPush(read_response));
  EXPECT_FALSE(IsPushed(read_response));
  EXPECT_EQ(read_response.graph_handle(), "g");
}

// covers: clusters: tasks of two releases, whose links have other versions, exchange tensors by
//   calls
TEST(EdgesModeTest, ATaskWithLinksOfAnotherVersionCannotPush) {
  for (const char version : {'\0', '\1', '\2', '\3'}) {
    tensorflow::RegisterGraphResponse response;
    // Number 1008, varint. 1 is also what the first release with links says.
    ASSERT_TRUE(response.ParseFromString(std::string("\x80\x3f") += version));
    EXPECT_EQ(CanPush(response), static_cast<uint32_t>(version) == kLinkVersion)
        << static_cast<int>(version);
  }
}

TEST(EdgesModeTest, AFieldOfAnotherTypeSaysNo) {
  tensorflow::RunGraphRequest request;
  // Number 1007, length-delimited, one byte.
  ASSERT_TRUE(request.ParseFromString(std::string("\xfa\x3e\x01\x01", 4)));
  EXPECT_FALSE(IsPushed(request));
}

}  // namespace
}  // namespace millrace
