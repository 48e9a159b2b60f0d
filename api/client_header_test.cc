// SPDX-License-Identifier: Apache-2.0
//
// What programs outside include that ask model servers: first, so that it stands alone.

#include <millrace/client.h>

// Every header of protobuf defines it.
#ifdef GOOGLE_PROTOBUF_VERSION
constexpr bool kHasProtobuf = true;
#else
constexpr bool kHasProtobuf = false;
#endif

#include "gtest/gtest.h"

// covers: outside: `#include <millrace/client.h>` asks model servers, knows no protobuf; linking
//   `//:millrace` is enough

namespace millrace {
namespace {

TEST(ClientHeader, IsFreeOfProtobuf) { EXPECT_FALSE(kHasProtobuf); }

TEST(ClientHeader, IsEnoughToAsk) {
  const StatusOr<std::unique_ptr<ModelClient>> client =
      ModelClient::Connect("unix:/nobody/listens/here",
                           {.credentials = std::make_shared<Credentials>(), .max_retries = 0});
  ASSERT_TRUE(client.ok()) << client.status();
  const StatusOr<ModelPrediction> got = (*client)->Predict("m", {{"x", Tensor::Of({1.f, 2.f})}});
  EXPECT_EQ(got.status().code(), absl::StatusCode::kUnavailable) << got.status();
}

}  // namespace
}  // namespace millrace
