// SPDX-License-Identifier: Apache-2.0
//
// Memory of the server's process (RSS) after loads and unloads, and after many requests.
// $MILLRACE_MEMORY_ROUNDS multiplies both.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/predict.pb.h"
#include "tests/cluster/process_state.h"
#include "tests/serving/served_models.h"
#include "tests/serving/served_process.h"
#include "tests/serving/served_test.h"

// covers: serving: after a model of 50 MB was loaded and unloaded again and again the process is at
//   most 16 MiB larger, after many mixed requests at most 8 MiB

namespace millrace {
namespace {

using ModelVersionStatus = tensorflow::serving::ModelVersionStatus;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLargeFloats = 50 * kMiB / 4;
constexpr int kLoads = 3;
constexpr int kRequests = 1'000;

int Rounds() {
  const char* const text = std::getenv("MILLRACE_MEMORY_ROUNDS");
  int rounds = 1;
  return text != nullptr && absl::SimpleAtoi(text, &rounds) ? std::max(rounds, 1) : 1;
}

class MemoryTest : public ServedProcessTest {
 protected:
  void SetUp() override {
    ServedProcessTest::SetUp();
    ASSERT_OK(ExportScaling(Version(1)));
  }
  // One request of each kind, good and bad.
  static void AskAll(const ServedProcess& server, int i, RestAsker* rest, RestAsker* v2) {
    const int x = NumberOf(i);
    EXPECT_OK(Expect(1, server.AskGrpc("m", x)));
    EXPECT_OK(Expect(1, rest->Ask(x)));
    EXPECT_OK(Expect(1, v2->Ask(x)));
    tensorflow::serving::PredictRequest request = ScalingRequest("m", x);
    request.add_output_filter("y");
    tensorflow::serving::PredictResponse response;
    EXPECT_OK(server.Predict(request, &response));
    // Names that are never asked for again.
    request.set_output_filter(0, absl::StrCat("output ", i));
    EXPECT_FALSE(server.Predict(request, &response).ok());
    request = ScalingRequest(absl::StrCat("model ", i), x);
    EXPECT_FALSE(server.Predict(request, &response).ok());
    request = ScalingRequest("m", x);
    request.mutable_model_spec()->set_signature_name(absl::StrCat("signature ", i));
    EXPECT_FALSE(server.Predict(request, &response).ok());
    EXPECT_EQ(server.Rest("POST", absl::StrCat("/v1/models/m", i, ":predict"), "{}").status, 404);
    EXPECT_EQ(server.Rest("POST", "/v2/models/m/infer", "{\"inputs\": [").status, 400);
  }
};

TEST_F(MemoryTest, AnUnloadedModelLeavesNothing) {
  ASSERT_OK(ExportScaling(Path("large"), {.scale = 2, .ballast = kLargeFloats}));
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = Args()}));
  EXPECT_OK(Expect(1, server->AskGrpc("m", 3)));
  const pid_t pid = server->process()->pid();
  const int64_t base = RssBytes(pid);
  ASSERT_GT(base, 0);
  int64_t loaded = 0;
  for (int i = 0; i < kLoads * Rounds(); ++i) {
    ASSERT_OK(files()->RenameFile(Path("large"), Version(2)));
    ASSERT_TRUE(server->AwaitState("m", 2, ModelVersionStatus::AVAILABLE));
    ASSERT_TRUE(server->AwaitState("m", 1, ModelVersionStatus::END));
    EXPECT_OK(Expect(2, server->AskGrpc("m", 3)));
    loaded = std::max(loaded, RssBytes(pid));
    ASSERT_OK(files()->RenameFile(Version(2), Path("large")));
    ASSERT_TRUE(server->AwaitState("m", 1, ModelVersionStatus::AVAILABLE));
    ASSERT_TRUE(server->AwaitState("m", 2, ModelVersionStatus::END));
    EXPECT_OK(Expect(1, server->AskGrpc("m", 3)));
  }
  // Otherwise the test would prove nothing.
  EXPECT_GE(loaded, base + 40 * kMiB);
  EXPECT_LE(RssBytes(pid), base + 16 * kMiB);
}

TEST_F(MemoryTest, RequestsLeaveNothing) {
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = Args()}));
  RestAsker rest(server->rest_port(), "m", RestAsker::Api::kRest);
  RestAsker v2(server->rest_port(), "m", RestAsker::Api::kV2);
  // Threads, pools and caches that come with the first ones.
  int i = 0;
  for (; i < kRequests / 2; ++i) AskAll(*server, i, &rest, &v2);
  const pid_t pid = server->process()->pid();
  const int64_t base = RssBytes(pid);
  ASSERT_GT(base, 0);
  const int64_t end = i + int64_t{kRequests} * Rounds();
  for (; i < end; ++i) AskAll(*server, i, &rest, &v2);
  EXPECT_LE(RssBytes(pid), base + 8 * kMiB);
}

}  // namespace
}  // namespace millrace
