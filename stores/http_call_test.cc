// SPDX-License-Identifier: Apache-2.0
#include "stores/http_call.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "stores/testing/fake_s3.h"

// covers: outside: calls of a store are repeated with waits that double up to a bound

namespace millrace {
namespace {

// Time that passes while somebody sleeps, and only then.
class SleptClock : public Clock {
 public:
  absl::Time Now() override { return now_; }
  bool WaitUntil(CondVar*, Mutex*, absl::Time) override { return true; }
  void SleepFor(absl::Duration duration) override {
    sleeps_.push_back(duration);
    now_ += duration;
  }
  const std::vector<absl::Duration>& sleeps() const { return sleeps_; }

 private:
  absl::Time now_ = absl::Now();
  std::vector<absl::Duration> sleeps_;
};

class HttpCallTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(server_, FakeS3::Start()); }
  // A request that the fake answers with 403 for want of a signature, after its faults.
  StatusOr<HttpResponse> Get(HttpCaller* caller) {
    return caller->Call({.url = server_->endpoint() + "/bucket/a"});
  }
  HttpOptions Options() {
    HttpOptions options;
    options.clock = &clock_;
    options.max_attempts = 6;
    options.first_backoff = absl::Seconds(1);
    options.max_backoff = absl::Seconds(4);
    return options;
  }

  SleptClock clock_;
  std::unique_ptr<FakeS3> server_;
};

TEST_F(HttpCallTest, AnyAnswerIsAResponse) {
  HttpCaller caller(Options());
  ASSERT_OK_AND_ASSIGN(const HttpResponse response, Get(&caller));
  EXPECT_EQ(response.status, 403);
  EXPECT_EQ(response.attempts, 1);
  EXPECT_EQ(response.header("content-type"), "application/xml");
  EXPECT_EQ(response.header("none"), "");
  EXPECT_NE(response.body.find("AccessDenied"), std::string::npos);
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpCallTest, WaitsDoubleUpToTheBound) {
  HttpCaller caller(Options());
  // Also where `again` alone says so.
  int asked = 0;
  ASSERT_OK_AND_ASSIGN(const HttpResponse response,
                       caller.Call(
                           [&]() -> StatusOr<HttpRequest> {
                             return HttpRequest{.url = server_->endpoint() + "/bucket/a"};
                           },
                           [&](const HttpResponse& answer) {
                             ++asked;
                             return answer.status == 403;
                           }));
  EXPECT_EQ(response.attempts, 6);
  EXPECT_EQ(asked, 5);
  const std::vector<int> most = {1, 2, 4, 4, 4};
  ASSERT_EQ(clock_.sleeps().size(), most.size());
  for (size_t i = 0; i < most.size(); ++i) {
    EXPECT_LE(clock_.sleeps()[i], absl::Seconds(most[i]));
    EXPECT_GE(clock_.sleeps()[i], absl::ZeroDuration());
  }
}

TEST_F(HttpCallTest, NoServerIsUnavailableAfterAllAttempts) {
  HttpCaller caller(Options());
  EXPECT_STATUS(caller.Call({.url = "127.0.0.1:1/x?secret"}), absl::StatusCode::kUnavailable,
                "127.0.0.1:1': GET must get an");
  EXPECT_EQ(clock_.sleeps().size(), 5u);
}

TEST_F(HttpCallTest, LongAnswerIsRefusedAtOnce) {
  HttpCaller caller(Options());
  EXPECT_STATUS(caller.Call({.url = server_->endpoint() + "/bucket/a", .max_body_bytes = 10}),
                absl::StatusCode::kResourceExhausted, "at most 10 bytes");
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpCallTest, OtherSchemesAndWrongUrlsAreNotRepeated) {
  HttpCaller caller(Options());
  EXPECT_STATUS(caller.Call({.url = "file:///etc/passwd"}), absl::StatusCode::kUnavailable, "GET");
  EXPECT_STATUS(caller.Call({.url = "http://a b/"}), absl::StatusCode::kUnavailable, "GET");
  EXPECT_TRUE(clock_.sleeps().empty());
}

}  // namespace
}  // namespace millrace
