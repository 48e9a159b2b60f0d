// SPDX-License-Identifier: Apache-2.0
//
// What a task shows to those who watch it: health by gRPC, metrics on the page of its process.
#include "distributed/task_metrics.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/process_metrics.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/raw_client.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/two_servers.h"
#include "gtest/gtest.h"
#include "proto/health/health.pb.h"
#include "run/training_run.h"
#include "runtime/session.h"

// covers: clusters: each task answers gRPC health for itself, its role and its run, and says no
// from
//   the moment when it is told to end
// covers: clusters: a task's calls, sessions and exchanged bytes are on the page for Prometheus

namespace millrace {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";

// The status as text; the code of an error.
std::string HealthAt(const std::string& address, const std::string& name) {
  RawClient client(address);
  HealthCheckRequest request;
  request.set_service(name);
  HealthCheckResponse response;
  const grpc::Status status = client.Call(kCheck, request, &response);
  if (!status.ok()) return absl::StrCat("error ", status.error_code());
  return HealthCheckResponse::ServingStatus_Name(response.status());
}

// The value of a series; -1 when the page has none.
double Series(const std::string& name) {
  const std::string page = ProcessMetrics().Page();
  const size_t begin = page.find(absl::StrCat("\n", name, " "));
  if (begin == std::string::npos) return -1;
  const size_t value = begin + name.size() + 2;
  double number = -1;
  EXPECT_TRUE(absl::SimpleAtod(page.substr(value, page.find('\n', value) - value), &number));
  return number;
}

TEST(TaskHealthTest, ATaskAnswersForItselfItsRoleAndItsRun) {
  TwoServers servers;
  const std::string ps = servers.ps_address();
  for (const char* const name : {"", "ps", "/job:ps/task:0", "/job:ps/replica:0/task:0"}) {
    EXPECT_EQ(HealthAt(ps, name), "SERVING") << name;
  }
  for (const char* const name : {"worker", "/job:ps/task:1", "f3a9"}) {
    EXPECT_EQ(HealthAt(ps, name), absl::StrCat("error ", grpc::StatusCode::NOT_FOUND)) << name;
  }

  const SmallModel model = MakeSmallModel();
  SessionOptions options;
  options.target = absl::StrCat("grpc://", servers.worker_address());
  options.creation_timeout = absl::Seconds(60);
  options.run = {.name = "run", .id = "f3a9", .is_chief = true, .chief = "chief 1", .epoch = 1};
  auto session = NewSession(options);
  ASSERT_OK(session);
  ASSERT_OK((*session)->Extend(model.root));
  ASSERT_OK((*session)->Run({}, {}, {model.init}).status());
  EXPECT_EQ(HealthAt(ps, "f3a9"), "SERVING");
}

TEST(TaskHealthTest, ThePageHasTheTaskUntilItStops) {
  auto servers = std::make_unique<TwoServers>();
  const std::string ps = "task=\"/job:ps/replica:0/task:0\"";
  const std::string worker = "/job:worker/replica:0/task:0";
  EXPECT_EQ(Series(absl::StrCat("millrace_task_serving{", ps, "}")), 1);
  EXPECT_EQ(Series(absl::StrCat("millrace_steps_running{", ps, "}")), 0);
  EXPECT_OK(HealthOfTasks());
  {
    const SmallModel model = MakeSmallModel();
    const auto session = servers->NewSession(model.root);
    ASSERT_OK(session);
    ASSERT_OK((*session)->Run({}, {}, {model.init}).status());
    EXPECT_EQ(Series(absl::StrCat("millrace_sessions_open{", ps, ",master=\"", worker, "\"}")), 1);
    const std::string page = ProcessMetrics().Page();
    const size_t calls = page.find(absl::StrCat("\nmillrace_rpc_calls_total{", ps, ",method="));
    ASSERT_NE(calls, std::string::npos) << page;
    EXPECT_TRUE(absl::StrContains(page.substr(calls), "/CreateWorkerSession\"} ")) << page;
  }
  const std::string before = servers->ps_address();
  servers->ps().Stop();
  EXPECT_EQ(Series(absl::StrCat("millrace_task_serving{", ps, "}")), -1) << "it has gone";
  EXPECT_EQ(HealthAt(before, ""), absl::StrCat("error ", grpc::StatusCode::UNAVAILABLE));
}

}  // namespace
}  // namespace millrace
