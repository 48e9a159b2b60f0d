// SPDX-License-Identifier: Apache-2.0
#include "net/http/metrics_page.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"

// covers: clusters: a process serves its metrics and its health on the port that its environment
//   names, and trains on where it cannot

namespace millrace {
namespace {

RawHttpReply Get(int port, const std::string& path, const std::string& method = "GET") {
  RawHttpClient client(port);
  return client.Ask(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: a\r\n\r\n"));
}

TEST(MetricsPageTest, ShowsMetricsAndHealth) {
  std::atomic<bool> healthy{true};
  const auto page = MetricsPage::Start({.address = "0", .health = [&healthy]() -> Status {
                                          if (healthy.load()) return absl::OkStatus();
                                          return absl::UnavailableError("it is stopping");
                                        }});
  ASSERT_TRUE(page.ok()) << page.status();
  const int port = (*page)->port();
  const RawHttpReply metrics = Get(port, "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_TRUE(absl::StrContains(metrics.body, "\nmillrace_process_resident_bytes "))
      << metrics.body;
  EXPECT_EQ(Get(port, "/healthz").status, 200);
  EXPECT_EQ(Get(port, "/").status, 404);
  EXPECT_EQ(Get(port, "/metrics", "POST").status, 405);
  healthy = false;
  const RawHttpReply ill = Get(port, "/healthz");
  EXPECT_EQ(ill.status, 503);
  EXPECT_EQ(ill.body, "it is stopping\n");
}

TEST(MetricsPageTest, TakesTheFirstFreePortOfARange) {
  const auto first = MetricsPage::Start({.address = "127.0.0.1:0"});
  ASSERT_TRUE(first.ok()) << first.status();
  const int taken = (*first)->port();
  const auto alone = MetricsPage::Start({.address = absl::StrCat(taken)});
  EXPECT_EQ(alone.status().code(), absl::StatusCode::kFailedPrecondition) << alone.status();
  const auto next = MetricsPage::Start({.address = absl::StrCat(taken, "-", taken + 20)});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT((*next)->port(), taken);
  EXPECT_LE((*next)->port(), taken + 20);
}

TEST(MetricsPageTest, RefusesWhatIsNoAddress) {
  for (const char* const text :
       {"", "x", "70000", "-1", "9100-", "9101-9100", "0-5", ":9100", "localhost:", "1-70000"}) {
    const Status status = MetricsPage::Start({.address = text}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "[HOST:]FIRST-LAST, got '")) << status;
  }
}

TEST(MetricsPageTest, TheEnvironmentsPageIsOpenedOnce) {
  ::unsetenv("MILLRACE_METRICS_ADDRESS");
  EXPECT_EQ(StartMetricsPageOfEnvironment(nullptr), absl::OkStatus());
  EXPECT_EQ(MetricsPagePort(), 0);
  ::setenv("MILLRACE_METRICS_ADDRESS", "here", 1);
  EXPECT_EQ(StartMetricsPageOfEnvironment(nullptr).code(), absl::StatusCode::kInvalidArgument);
  ::setenv("MILLRACE_METRICS_ADDRESS", "0", 1);
  EXPECT_EQ(StartMetricsPageOfEnvironment(nullptr), absl::OkStatus());
  const int port = MetricsPagePort();
  EXPECT_GT(port, 0);
  EXPECT_EQ(StartMetricsPageOfEnvironment(nullptr), absl::OkStatus());
  EXPECT_EQ(MetricsPagePort(), port);
  EXPECT_EQ(Get(port, "/healthz").status, 200);
}

}  // namespace
}  // namespace millrace
