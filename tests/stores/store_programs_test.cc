// SPDX-License-Identifier: Apache-2.0
//
// Programs whose files are in a store: they are linked to it, and end as with files of this
// machine.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "net/testing/test_certificates.h"
#include "stores/s3_file_system.h"
#include "stores/s3_service.h"
#include "stores/testing/fake_s3.h"
#include "tests/cluster/process.h"

// covers: outside: an Estimator trains, evaluates, exports and predicts with its directory in a
//   store, also when the store fails now and then; no object stands for a directory

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class StoreProgramsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(store_, FakeS3::Start()); }

  // The exit code; the output in `output`.
  int Run(const std::string& program, std::vector<std::string> args, std::string fail_points = "") {
    ProcessOptions options{.program = program, .args = std::move(args)};
    options.env = {{"AWS_ENDPOINT_URL", store_->endpoint()},
                   {"AWS_ACCESS_KEY_ID", "AKIAFAKE"},
                   {"AWS_SECRET_ACCESS_KEY", secret_},
                   {"MILLRACE_FAIL_POINTS", std::move(fail_points)}};
    StatusOr<std::unique_ptr<Process>> process = Process::Start(options);
    EXPECT_OK(process);
    if (!process.ok()) return -1;
    const StatusOr<int> code = (*process)->WaitForExit(absl::Seconds(100));
    EXPECT_OK(code);
    output_ = (*process)->output();
    return code.value_or(-1);
  }
  int Train(const std::string& directory, const std::string& fail_points = "") {
    return Run("examples/linreg/linreg", {"--model_dir=s3://bucket/" + directory}, fail_points);
  }
  std::vector<std::string> Keys() { return store_->Control()["keys"]; }

  std::unique_ptr<FakeS3> store_;
  std::string secret_ = "fake-secret";
  std::string output_;
};

TEST_F(StoreProgramsTest, EstimatorHasItsDirectoryInAStore) {
  ASSERT_EQ(Train("job"), 0) << output_;
  const std::vector<std::string> keys = Keys();
  EXPECT_THAT(keys, Contains("job/checkpoint"));
  EXPECT_THAT(keys, Contains("job/model.ckpt-10.index"));
  EXPECT_THAT(keys, Contains(HasSubstr("/saved_model.pb")));
  for (const std::string& key : keys) {
    EXPECT_FALSE(absl::EndsWith(key, "/")) << key;
    EXPECT_FALSE(absl::StrContains(key, ".tmp") || absl::StrContains(key, ".tempstate")) << key;
  }
  EXPECT_TRUE(store_->Control()["uploads"].empty());

  EXPECT_EQ(Run("tools/inspect_checkpoint", {"s3://bucket/job"}), 0);
  EXPECT_THAT(output_, HasSubstr("s3://bucket/job/model.ckpt-10: 9 tensors"));
  const auto events = std::find_if(keys.begin(), keys.end(), [](const std::string& key) {
    return absl::StartsWith(key, "job/events.");
  });
  ASSERT_NE(events, keys.end());
  EXPECT_EQ(Run("tools/inspect_events", {"s3://bucket/" + *events}), 0);
  EXPECT_THAT(output_, HasSubstr("loss"));
}

TEST_F(StoreProgramsTest, StoreThatFailsNowAndThenIsNoticedByNobody) {
  const std::vector<std::string> kinds = {"503", "SlowDown", "reset", "RequestTimeout", "500"};
  std::vector<std::string> faults;
  for (int i = 0; i < 20; ++i) {
    faults.push_back(absl::StrCat(R"({"kind": ")", kinds[static_cast<size_t>(i) % kinds.size()],
                                  R"(", "after": )", 8 * i, "}"));
  }
  faults.push_back(R"({"kind": "lost", "method": "PUT", "after": 3, "times": 2})");
  faults.push_back(R"({"kind": "cut", "method": "GET", "after": 3, "times": 2})");
  store_->Control(absl::StrCat(R"({"page": 3, "faults": [)", absl::StrJoin(faults, ","), "]}"));
  ASSERT_EQ(Train("job"), 0) << output_;
  EXPECT_THAT(Keys(), Contains("job/model.ckpt-10.index"));
  EXPECT_TRUE(store_->Control()["uploads"].empty());
}

TEST_F(StoreProgramsTest, TrainerKilledBetweenTheFilesOfACheckpointGoesOnFromTheOneBefore) {
  EXPECT_EQ(Train("job", "saver/before_index=crash,after=3"), 128 + 9) << output_;
  EXPECT_THAT(Keys(), Contains("job/model.ckpt-0.index"));
  EXPECT_THAT(Keys(), Not(Contains("job/model.ckpt-10.index")));
  EXPECT_EQ(Run("tools/inspect_checkpoint", {"s3://bucket/job"}), 0);
  EXPECT_THAT(output_, HasSubstr("model.ckpt-0: 9 tensors"));
  ASSERT_EQ(Train("job"), 0) << output_;
  EXPECT_THAT(Keys(), Contains("job/model.ckpt-10.index"));
}

TEST_F(StoreProgramsTest, WrongKeysAreOneSentence) {
  secret_ = "wrong";
  EXPECT_EQ(Run("tools/inspect_checkpoint", {"s3://bucket/job"}), 1);
  EXPECT_THAT(output_, HasSubstr("SignatureDoesNotMatch; check AWS_SECRET_ACCESS_KEY"));
  EXPECT_NE(Train("job"), 0);
  EXPECT_THAT(output_, HasSubstr("SignatureDoesNotMatch; check AWS_SECRET_ACCESS_KEY"));
}

TEST(StoreTlsTest, CertificateMustBeFromAKnownAuthority) {
  TestAuthority authority(::testing::TempDir(), absl::StrCat("s3", RandomHexName()));
  const TestCertificate own = authority.Sign("store", "IP:127.0.0.1");
  ASSERT_OK_AND_ASSIGN(const auto store, FakeS3::Start({.certificate_file = own.certificate_file,
                                                        .key_file = own.key_file,
                                                        .ca_file = authority.ca_file()}));
  S3Options options = store->Options();
  S3FileSystem known(options);
  EXPECT_OK(WriteFileAtomically(&known, "s3://bucket/a", "bytes"));
  EXPECT_EQ(ReadFileToString(&known, "s3://bucket/a").value_or("none"), "bytes");
  options.http.ca_file = "";
  S3FileSystem unknown(options);
  EXPECT_STATUS(ReadFileToString(&unknown, "s3://bucket/a"), absl::StatusCode::kFailedPrecondition,
                "its certificate must hold");
}

}  // namespace
}  // namespace millrace
