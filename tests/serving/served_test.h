// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SERVING_SERVED_TEST_H_
#define MILLRACE_TESTS_SERVING_SERVED_TEST_H_

// What the tests of this folder have in common: a directory of their own with a base path "m" of
// the model "m", and clients of each front.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/serving/served_process.h"
#include "tests/serving/steady_load.h"

namespace millrace {

class ServedProcessTest : public ::testing::Test {
 protected:
  ServedProcessTest() : dir_(JoinPath(::testing::TempDir(), "served_" + RandomHexName())) {}
  // Processes are members of the tests' bodies: they are gone by now.
  ~ServedProcessTest() override { files()->RecursivelyDelete(dir_).IgnoreError(); }
  void SetUp() override { ASSERT_OK(files()->RecursivelyCreateDirectory(Path("m"))); }

  static FileSystem* files() { return FileSystem::Posix(); }
  std::string Path(const std::string& relative) const { return JoinPath(dir_, relative); }
  std::string Version(const std::string& name) const { return JoinPath(Path("m"), name); }
  std::string Version(int64_t version) const { return Version(absl::StrCat(version)); }

  // One model, looked at each second; versions that failed are not tried again.
  std::vector<std::string> Args(std::vector<std::string> more = {}) const {
    std::vector<std::string> args = {
        "--model_name=m", absl::StrCat("--model_base_path=", Path("m")),
        "--file_system_poll_wait_seconds=1", "--max_num_load_retries=0",
        "--load_retry_interval_micros=1000"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  // Small, different numbers, so that answers to others are noticed.
  static int NumberOf(int request) { return 1 + request % 1000; }
  // They ask for `scale`; 0: for any.
  static SteadyLoad::Client GrpcClient(const ServedProcess& server, float scale) {
    return [&server, scale](int i) { return Expect(scale, server.AskGrpc("m", NumberOf(i))); };
  }
  static SteadyLoad::Client RestClient(const ServedProcess& server, RestAsker::Api api,
                                       float scale) {
    return [asker = std::make_shared<RestAsker>(server.rest_port(), "m", api), scale](int i) {
      return Expect(scale, asker->Ask(NumberOf(i)));
    };
  }
  static Status Expect(float scale, const StatusOr<float>& got) {
    MR_RETURN_IF_ERROR(got.status());
    if (scale == 0 || *got == scale) return absl::OkStatus();
    return Internal("the version with scale ", scale, " must answer, got the one with ", *got);
  }

  const std::string dir_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_SERVING_SERVED_TEST_H_
