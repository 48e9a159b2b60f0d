// SPDX-License-Identifier: Apache-2.0
//
// Versions of a model swapped under the requests of clients of all fronts. $MILLRACE_SWAP_SECONDS
// asks for so many seconds of it, instead of a few swaps.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/get_model_status.pb.h"
#include "tests/serving/served_models.h"
#include "tests/serving/served_process.h"
#include "tests/serving/served_test.h"
#include "tests/serving/steady_load.h"

// covers: serving: while versions are swapped again and again, no request over gRPC, REST and /v2
//   fails, no client sees an older version after a newer one, and old versions end

namespace millrace {
namespace {

using ModelVersionStatus = tensorflow::serving::ModelVersionStatus;

constexpr int64_t kSwaps = 6;
// A float holds each whole number up to here exactly, also times the clients' numbers (1,001).
constexpr int64_t kMostVersions = (1 << 24) / 1001;

class SwapTest : public ServedProcessTest {
 protected:
  // Moved in whole, as good exporters do.
  void AddVersion(int64_t version) {
    const std::string made = Path("made");
    ASSERT_OK(ExportScaling(made, {.scale = static_cast<float>(version)}));
    ASSERT_OK(files()->RenameFile(made, Version(version)));
  }
  // Its answers never come from an older version.
  static SteadyLoad::Client Ascending(std::function<StatusOr<float>(int x)> ask) {
    return [ask = std::move(ask), newest = std::make_shared<float>(0)](int i) -> Status {
      MR_ASSIGN_OR_RETURN(const float scale, ask(NumberOf(i)));
      if (scale < *newest) {
        return Internal("version ", *newest, " or a newer one must answer, got ", scale);
      }
      *newest = scale;
      return absl::OkStatus();
    };
  }
  static SteadyLoad::Client OverRest(const ServedProcess& server, RestAsker::Api api) {
    const auto asker = std::make_shared<RestAsker>(server.rest_port(), "m", api);
    return Ascending([asker](int x) { return asker->Ask(x); });
  }
};

TEST_F(SwapTest, NoRequestFailsAndNoClientGoesBack) {
  absl::Duration wanted = absl::ZeroDuration();
  if (const char* const seconds = std::getenv("MILLRACE_SWAP_SECONDS"); seconds != nullptr) {
    int number = 0;
    ASSERT_TRUE(absl::SimpleAtoi(seconds, &number)) << seconds;
    wanted = absl::Seconds(number);
  }
  AddVersion(1);
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = Args()}));
  const ServedProcess& asked = *server;
  SteadyLoad load({Ascending([&](int x) { return asked.AskGrpc("m", x); }),
                   Ascending([&](int x) { return asked.AskGrpc("m", x); }),
                   OverRest(asked, RestAsker::Api::kRest), OverRest(asked, RestAsker::Api::kV2)});
  const absl::Time end = absl::Now() + wanted;
  int64_t version = 1;
  while (version <= kSwaps || absl::Now() < end) {
    ++version;
    ASSERT_LE(version, kMostVersions);
    SCOPED_TRACE(absl::StrCat("version ", version));
    AddVersion(version);
    ASSERT_TRUE(asked.AwaitState("m", version, ModelVersionStatus::AVAILABLE))
        << asked.process()->output();
    ASSERT_TRUE(asked.AwaitState("m", version - 1, ModelVersionStatus::END));
    // All of them, also from the new one.
    ASSERT_TRUE(load.AwaitMore(2)) << load.Stop();
    EXPECT_OK(Expect(static_cast<float>(version), asked.AskGrpc("m", 3)));
    ASSERT_OK(files()->RecursivelyDelete(Version(version - 1)));
  }
  EXPECT_OK(load.Stop());
  EXPECT_EQ(asked.AskGrpc("m", 3, version - 1).status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK_AND_ASSIGN(const int code, asked.Terminate());
  EXPECT_EQ(code, 0) << asked.process()->output();
  ::testing::Test::RecordProperty("swaps", static_cast<int>(version - 1));
  ::testing::Test::RecordProperty("answers", std::to_string(load.num_answers()));
}

}  // namespace
}  // namespace millrace
