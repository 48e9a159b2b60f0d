// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/session_terms.h"

#include "core/exit_code.h"
#include "core/testing/tensor_testing.h"
#include "distributed/transport/transport.pb.h"
#include "gtest/gtest.h"
#include "net/status_payloads.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"
#include "run/run_end_limits.h"

// covers: clusters: session terms and run status travel next to TensorFlow's fields; malformed ones
//   are refused or left out

namespace millrace {
namespace {

using Request = tensorflow::CreateSessionRequest;

// As a peer gets it.
Request Travelled(const Request& request) {
  Request result;
  EXPECT_TRUE(result.ParseFromString(request.SerializeAsString()));
  return result;
}

TEST(SessionTermsTest, TermsTravelBesideTheFieldsOfARequest) {
  Request request;
  request.set_target("s");
  AddSessionTerms({.run = {.name = "/runs/a",
                           .id = "0123",
                           .is_chief = true,
                           .chief = "pid 7 on host",
                           .epoch = 5},
                   .lease = absl::Seconds(60)},
                  &request);
  const Request got = Travelled(request);
  EXPECT_EQ(got.target(), "s");
  ASSERT_OK_AND_ASSIGN(const SessionTerms terms, SessionTermsOf(got));
  EXPECT_EQ(terms.run.name, "/runs/a");
  EXPECT_EQ(terms.run.id, "0123");
  EXPECT_TRUE(terms.run.is_chief);
  EXPECT_EQ(terms.run.chief, "pid 7 on host");
  EXPECT_EQ(terms.run.epoch, 5);
  EXPECT_EQ(terms.lease, absl::Seconds(60));
}

TEST(SessionTermsTest, ARequestWithoutTermsIsOfNoRunAndNeverEndsByItself) {
  Request request;
  AddSessionTerms({}, &request);
  EXPECT_EQ(request.ByteSizeLong(), 0u);
  ASSERT_OK_AND_ASSIGN(const SessionTerms terms, SessionTermsOf(request));
  EXPECT_TRUE(terms.run.empty());
  EXPECT_EQ(terms.lease, absl::ZeroDuration());
}

TEST(SessionTermsTest, TheLastTermsAreTheRequestsTerms) {
  Request request;
  AddSessionTerms({.lease = absl::Seconds(60)}, &request);
  AddSessionTerms({.lease = absl::Seconds(30)}, &request);
  ASSERT_OK_AND_ASSIGN(const SessionTerms terms, SessionTermsOf(Travelled(request)));
  EXPECT_EQ(terms.lease, absl::Seconds(30));
}

TEST(SessionTermsTest, TermsThatCannotBeKeptAreRefused) {
  const auto with = [](const wire::SessionTerms& terms) {
    wire::SessionTermsField field;
    *field.mutable_terms() = terms;
    Request request;
    EXPECT_TRUE(request.ParseFromString(field.SerializeAsString()));
    return SessionTermsOf(request).status();
  };
  wire::SessionTerms terms;
  terms.mutable_run()->set_is_chief(true);
  EXPECT_STATUS(with(terms), absl::StatusCode::kInvalidArgument, "its chief must have an id");
  terms.mutable_run()->set_id(std::string(100, 'a'));
  EXPECT_STATUS(with(terms), absl::StatusCode::kInvalidArgument, "id must be at most 64");
  terms.Clear();
  terms.set_lease_in_ms(-1);
  EXPECT_STATUS(with(terms), absl::StatusCode::kInvalidArgument, "lease must be >= 0 ms, got -1");
  Request request;
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1002, "\xff\xff");
  EXPECT_STATUS(SessionTermsOf(request).status(), absl::StatusCode::kInvalidArgument,
                "must be a message, got 2 other bytes");
}

TEST(SessionTermsTest, ALeaseIsNeitherTooShortToKeepNorForEver) {
  const auto lease = [](int64_t ms) {
    wire::SessionTermsField field;
    field.mutable_terms()->set_lease_in_ms(ms);
    Request request;
    EXPECT_TRUE(request.ParseFromString(field.SerializeAsString()));
    const auto terms = SessionTermsOf(request);
    EXPECT_OK(terms);
    return terms.ok() ? terms->lease : absl::InfiniteDuration();
  };
  EXPECT_EQ(lease(1), absl::Milliseconds(100));
  EXPECT_EQ(lease(1500), absl::Milliseconds(1500));
  EXPECT_EQ(lease(int64_t{1} << 62), absl::Hours(24));
}

TEST(SessionTermsTest, AnEndOfAnotherProcessIsCutToItsBoundsBetweenCharacters) {
  wire::RunEnd message;
  const auto got = [&](const std::string& reason, size_t checkpoint_bytes) {
    message.set_reason(reason);
    message.set_checkpoint(std::string(checkpoint_bytes, 'c'));
    return FromWire(message);
  };
  const std::string longest(kMaxReasonBytes, 'r');
  EXPECT_EQ(got(longest, kMaxCheckpointBytes).reason, longest);
  EXPECT_EQ(got(longest, kMaxCheckpointBytes).checkpoint.size(), kMaxCheckpointBytes);
  EXPECT_EQ(got(longest + "r", kMaxCheckpointBytes + 1).reason, longest);
  EXPECT_EQ(got(longest, kMaxCheckpointBytes + 1).checkpoint, "");
  const std::string shorter = longest.substr(1);
  EXPECT_EQ(got(shorter + "\xc3\xa4", 0).reason, shorter);
}

TEST(SessionTermsTest, WhatAStatusSaysOfARunTravels) {
  const TrainingRun run = {.name = "/runs/a", .id = "0123"};
  const RunEnd end = {.global_step = 7, .checkpoint = "c-7", .reason = "done"};
  const Status ended = RunEndedError("Session", run, end);
  const Status bare(ended.code(), ended.message());
  EXPECT_EQ(RunEndOf(WithPayloads(bare, PayloadBytes(ended))), end);
  EXPECT_EQ(ExitCode(WithPayloads(bare, PayloadBytes(ended))), kExitOk);

  tensorflow::RunGraphResponse response, got;
  response.set_status_code(tensorflow::error::FAILED_PRECONDITION);
  AddPayloads(FencedError("ps", run, "another"), &response);
  ASSERT_TRUE(got.ParseFromString(response.SerializeAsString()));
  EXPECT_TRUE(IsFenced(WithPayloadsOf(bare, got)));
  EXPECT_EQ(got.status_code(), tensorflow::error::FAILED_PRECONDITION);
}

}  // namespace
}  // namespace millrace
