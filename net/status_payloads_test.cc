// SPDX-License-Identifier: Apache-2.0
#include "net/status_payloads.h"

#include <string>

#include "absl/strings/cord.h"
#include "core/exit_code.h"
#include "core/refusal.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/status_payloads.pb.h"
#include "proto/worker.pb.h"

// covers: clusters: session terms and run status travel next to TensorFlow's fields; malformed ones
//   are refused or left out

namespace millrace {
namespace {

TEST(StatusPayloadsTest, ARefusalTravels) {
  const Status refused = AsRefusal(absl::UnavailableError("it speaks no TLS"));
  const Status heard = WithPayloads(absl::UnavailableError("it"), PayloadBytes(refused));
  EXPECT_TRUE(IsRefusal(heard));
  EXPECT_EQ(ExitCode(heard), kExitError);
}

TEST(StatusPayloadsTest, ARefusalTravelsNextToTheFieldsOfAMessage) {
  tensorflow::RunGraphResponse response, got;
  response.set_status_code(tensorflow::error::UNAVAILABLE);
  AddPayloads(AsRefusal(absl::UnavailableError("it speaks no TLS")), &response);
  ASSERT_TRUE(got.ParseFromString(response.SerializeAsString()));
  EXPECT_TRUE(IsRefusal(WithPayloadsOf(absl::UnavailableError("it"), got)));
  EXPECT_EQ(got.status_code(), tensorflow::error::UNAVAILABLE);
}

TEST(StatusPayloadsTest, OtherPayloadsAndNonsenseDoNotTravel) {
  Status status = FailedPrecondition("x");
  EXPECT_EQ(PayloadBytes(status), "");
  status.SetPayload("exit_code", absl::Cord("1"));
  EXPECT_EQ(PayloadBytes(status), "");
  status.SetPayload("millrace.run/large", absl::Cord(std::string(4000, 'x')));
  EXPECT_EQ(PayloadBytes(status), "");
  EXPECT_EQ(WithPayloads(FailedPrecondition("x"), "\xff\xff\xff"), FailedPrecondition("x"));
  wire::StatusPayloads foreign;
  foreign.add_payload()->set_type("exit_code");
  EXPECT_EQ(WithPayloads(FailedPrecondition("x"), foreign.SerializeAsString()),
            FailedPrecondition("x"));
  EXPECT_OK(WithPayloads(absl::OkStatus(), PayloadBytes(AsRefusal(absl::UnavailableError("a")))));
}

}  // namespace
}  // namespace millrace
