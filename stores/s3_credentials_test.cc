// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_credentials.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "stores/http_call.h"
#include "stores/testing/fake_s3.h"

// covers: outside: keys of a store come from the environment, a file, a container or an instance,
//   and are renewed before they end

namespace millrace {
namespace {

using Variables = std::map<std::string, std::string>;

std::unique_ptr<S3Credentials> From(Variables variables, Clock* clock = Clock::Real()) {
  HttpOptions http;
  http.clock = clock;
  http.first_backoff = absl::Milliseconds(1);
  if (variables.count("AWS_EC2_METADATA_SERVICE_ENDPOINT") == 0) {
    variables["AWS_EC2_METADATA_DISABLED"] = "true";
  }
  return std::make_unique<S3Credentials>(
      [variables = std::move(variables)](const char* name) -> std::string {
        const auto found = variables.find(name);
        return found == variables.end() ? "" : found->second;
      },
      http);
}

std::string Written(absl::string_view text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/keys", RandomHexName());
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
  return path;
}

constexpr char kFile[] =
    "# a comment\n[default]\naws_access_key_id = A\naws_secret_access_key=B==\n\n[other]\n"
    "AWS_ACCESS_KEY_ID=C\naws_secret_access_key=D\naws_session_token = E\n[half]\n"
    "aws_access_key_id=F\n";

TEST(S3CredentialsTest, EnvironmentComesFirst) {
  const std::string file = Written(kFile);
  ASSERT_OK_AND_ASSIGN(const S3Keys keys, From({{"AWS_ACCESS_KEY_ID", "X"},
                                                {"AWS_SECRET_ACCESS_KEY", "Y"},
                                                {"AWS_SESSION_TOKEN", "Z"},
                                                {"AWS_SHARED_CREDENTIALS_FILE", file}})
                                              ->Keys());
  EXPECT_EQ(keys.access_key_id, "X");
  EXPECT_EQ(keys.secret_access_key, "Y");
  EXPECT_EQ(keys.session_token, "Z");
  EXPECT_STATUS(From({{"AWS_SECRET_ACCESS_KEY", "Y"}})->Keys(),
                absl::StatusCode::kFailedPrecondition, "the second alone");
}

TEST(S3CredentialsTest, FileHasProfiles) {
  const std::string file = Written(kFile);
  ASSERT_OK_AND_ASSIGN(S3Keys keys, From({{"AWS_SHARED_CREDENTIALS_FILE", file}})->Keys());
  EXPECT_EQ(keys.access_key_id, "A");
  EXPECT_EQ(keys.secret_access_key, "B==");
  ASSERT_OK_AND_ASSIGN(
      keys, From({{"AWS_SHARED_CREDENTIALS_FILE", file}, {"AWS_PROFILE", "other"}})->Keys());
  EXPECT_EQ(keys.access_key_id, "C");
  EXPECT_EQ(keys.session_token, "E");
  for (const char* const profile : {"half", "none"}) {
    EXPECT_STATUS(From({{"AWS_SHARED_CREDENTIALS_FILE", file}, {"AWS_PROFILE", profile}})->Keys(),
                  absl::StatusCode::kFailedPrecondition, absl::StrCat("profile '", profile, "'"));
  }
  EXPECT_STATUS(From({{"AWS_SHARED_CREDENTIALS_FILE", file + "no"}})->Keys(),
                absl::StatusCode::kFailedPrecondition, "credentials");
  EXPECT_STATUS(From({{"HOME", ::testing::TempDir() + "/none"}})->Keys(),
                absl::StatusCode::kPermissionDenied, "got none");
}

TEST(S3CredentialsTest, ContainerIsAskedWithItsToken) {
  ASSERT_OK_AND_ASSIGN(const auto server, FakeS3::Start());
  const std::string url = server->endpoint() + "/container";
  ASSERT_OK_AND_ASSIGN(const S3Keys keys, From({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url},
                                                {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "a-word"}})
                                              ->Keys());
  EXPECT_EQ(keys.access_key_id, "AKIAFAKE");
  EXPECT_EQ(keys.session_token, "session-1");
  ASSERT_OK(From({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url},
                  {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Written("a-word\n")}})
                ->Keys());
  EXPECT_STATUS(From({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", url}})->Keys(),
                absl::StatusCode::kPermissionDenied, "an answer 401");
}

TEST(S3CredentialsTest, InstanceIsAskedAgainBeforeItsKeysEnd) {
  ASSERT_OK_AND_ASSIGN(const auto server, FakeS3::Start());
  server->Control(R"({"keys_end_in": 3600})");
  FakeClock clock(absl::Now());
  const auto credentials =
      From({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server->endpoint() + "/"}}, &clock);
  const auto token = [&] { return credentials->Keys().value_or(S3Keys()).session_token; };
  EXPECT_EQ(token(), "session-1");
  EXPECT_EQ(token(), "session-1");
  clock.Advance(absl::Minutes(50));
  EXPECT_EQ(token(), "session-1");
  clock.Advance(absl::Minutes(6));  // less than five are left
  EXPECT_EQ(token(), "session-2");
  EXPECT_EQ(server->Control()["credential_calls"], 2);
}

TEST(S3CredentialsTest, OldKeysAreUsedWhileTheyLast) {
  ASSERT_OK_AND_ASSIGN(auto server, FakeS3::Start());
  server->Control(R"({"keys_end_in": 3600})");
  class NoSleep : public FakeClock {
   public:
    using FakeClock::FakeClock;
    void SleepFor(absl::Duration) override {}
  } clock(absl::Now());
  const auto credentials =
      From({{"AWS_EC2_METADATA_SERVICE_ENDPOINT", server->endpoint()}}, &clock);
  EXPECT_OK(credentials->Keys());
  server.reset();
  clock.Advance(absl::Minutes(57));
  EXPECT_OK(credentials->Keys());
  clock.Advance(absl::Minutes(4));
  EXPECT_STATUS(credentials->Keys(), absl::StatusCode::kPermissionDenied, "got none (Server");
}

}  // namespace
}  // namespace millrace
