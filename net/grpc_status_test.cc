// SPDX-License-Identifier: Apache-2.0
#include "net/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/refusal.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/not_sent.h"

namespace millrace {
namespace {

constexpr char kAddress[] = "ps0:2222";

TEST(GrpcStatusTest, CodesAndTextsArriveAsTheyWereSent) {
  EXPECT_OK(FromGrpcStatus(kAddress, ToGrpcStatus(absl::OkStatus()), false));
  for (int code = 1; code <= 16; ++code) {
    const Status sent(static_cast<absl::StatusCode>(code), "a text");
    if (absl::IsUnavailable(sent)) continue;  // below
    EXPECT_EQ(FromGrpcStatus(kAddress, ToGrpcStatus(sent), false), sent);
  }
}

TEST(GrpcStatusTest, PayloadsTravelAndKeepATaskFromBeingCalledUnreachable) {
  const Status sent = AsRefusal(absl::UnavailableError("worker 1 speaks no TLS"));
  const Status heard = FromGrpcStatus(kAddress, ToGrpcStatus(sent), false);
  EXPECT_TRUE(IsRefusal(heard));
  EXPECT_EQ(heard.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(heard.message(), sent.message());
}

TEST(GrpcStatusTest, WhatGrpcItselfSaysIsExplained) {
  const struct {
    grpc::StatusCode code;
    std::string text;
    bool cancelled_here;
    absl::StatusCode heard;
    std::string message;
  } cases[] = {
      {grpc::StatusCode::UNAVAILABLE, "connection refused", false, absl::StatusCode::kUnavailable,
       "Task at ps0:2222 must be reachable, got: connection refused"},
      // A connection that ends under a call.
      {grpc::StatusCode::UNKNOWN, "Stream removed", false, absl::StatusCode::kUnavailable,
       "Task at ps0:2222 must be reachable, got: Stream removed"},
      {grpc::StatusCode::UNKNOWN, "Stream removed by hand", false, absl::StatusCode::kUnknown,
       "Stream removed by hand"},
      // A server that goes away; not one that says why, nor a call that this side has cancelled.
      {grpc::StatusCode::CANCELLED, "", false, absl::StatusCode::kUnavailable,
       "Task at ps0:2222 must be reachable, got: "},
      {grpc::StatusCode::CANCELLED, "CANCELLED", false, absl::StatusCode::kUnavailable,
       "Task at ps0:2222 must be reachable, got: CANCELLED"},
      {grpc::StatusCode::CANCELLED, "the step was aborted", false, absl::StatusCode::kCancelled,
       "the step was aborted"},
      {grpc::StatusCode::CANCELLED, "CANCELLED", true, absl::StatusCode::kCancelled, "CANCELLED"},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 8)", false,
       absl::StatusCode::kResourceExhausted,
       "Task at ps0:2222: a request must be at most ServerLimits::max_message_bytes there, got: "
       "Received message larger than max (9 vs. 8)"},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory", false,
       absl::StatusCode::kResourceExhausted, "out of memory"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(static_cast<int>(c.code), " ", c.text));
    const Status heard = FromGrpcStatus(kAddress, grpc::Status(c.code, c.text), c.cancelled_here);
    EXPECT_EQ(heard.code(), c.heard);
    EXPECT_EQ(heard.message(), c.message);
  }
}

TEST(GrpcStatusTest, ACallThatHadNoConnectionIsMarked) {
  const auto heard = [](grpc::StatusCode code, const std::string& text) {
    return FromGrpcStatus(kAddress, grpc::Status(code, text), false);
  };
  EXPECT_TRUE(WasNotSent(heard(grpc::StatusCode::UNAVAILABLE,
                               "failed to connect to all addresses; last error: refused")));
  EXPECT_TRUE(WasNotSent(heard(grpc::StatusCode::UNAVAILABLE, "DNS resolution failed for ps0")));
  EXPECT_FALSE(WasNotSent(heard(grpc::StatusCode::UNAVAILABLE, "Socket closed")));
  EXPECT_FALSE(
      WasNotSent(heard(grpc::StatusCode::DEADLINE_EXCEEDED, "failed to connect to all addresses")));
  // What another task says of a third one has been sent.
  const Status relayed = AsRefusal(absl::UnavailableError("failed to connect to all addresses"));
  EXPECT_FALSE(WasNotSent(FromGrpcStatus(kAddress, ToGrpcStatus(relayed), false)));
  EXPECT_FALSE(WasNotSent(FromGrpcStatus(
      kAddress, ToGrpcStatus(AsNotSent(absl::UnavailableError("of a third one"))), false)));
}

// gRPC writes 'x' as it is, and each byte of the others as three.
TEST(GrpcStatusTest, ATextIsCutByTheLengthThatGrpcWrites) {
  const struct {
    char byte;
    size_t fits;
  } cases[] = {{'x', kMaxStatusMessage}, {'%', 1024}, {'\n', 1024}, {'\xc3', 1024}};
  for (const auto& c : cases) {
    SCOPED_TRACE(static_cast<int>(c.byte));
    const std::string whole(c.fits, c.byte);
    EXPECT_EQ(ToGrpcStatus(absl::InternalError(whole)).error_message(), whole);
    EXPECT_EQ(ToGrpcStatus(absl::InternalError(whole + c.byte)).error_message(),
              whole + " ... [truncated]");
  }
}

}  // namespace
}  // namespace millrace
