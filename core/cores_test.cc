// SPDX-License-Identifier: Apache-2.0
#include "core/cores.h"

#include <sched.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// What QuotaOfCgroups says on a machine with these files.
std::optional<int> QuotaOn(const std::map<std::string, std::string>& files) {
  static int machines = 0;
  const std::string root =
      absl::StrCat(::testing::TempDir(), "/cores_test_", getpid(), "_", ++machines);
  for (const auto& [name, content] : files) {
    const std::filesystem::path path = root + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  const std::optional<int> quota = QuotaOfCgroups(root);
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
  return quota;
}

TEST(CoresTest, AQuotaIsTheLeastOfTheGroupAndThoseAboveIt) {
  const std::string groups = "/proc/self/cgroup", mount = "/sys/fs/cgroup";
  EXPECT_EQ(QuotaOn({}), std::nullopt);
  EXPECT_EQ(QuotaOn({{groups, "0::/a/b\n"}}), std::nullopt);
  EXPECT_EQ(QuotaOn({{groups, "0::/a/b\n"}, {mount + "/a/b/cpu.max", "max 100000\n"}}),
            std::nullopt);
  EXPECT_EQ(QuotaOn({{groups, "0::/a/b\n"}, {mount + "/a/b/cpu.max", "300000 100000\n"}}), 3);
  EXPECT_EQ(QuotaOn({{groups, "0::/a/b\n"},
                     {mount + "/a/b/cpu.max", "300000 100000\n"},
                     {mount + "/a/cpu.max", "200000 100000\n"}}),
            2);
  EXPECT_EQ(QuotaOn({{groups, "0::/a/b\n"},
                     {mount + "/a/b/cpu.max", "max 100000\n"},
                     {mount + "/a/c/cpu.max", "100000 100000\n"}}),
            std::nullopt);
  // A container: its group is the root that it sees.
  EXPECT_EQ(QuotaOn({{groups, "0::/\n"}, {mount + "/cpu.max", "400000 100000\n"}}), 4);
  EXPECT_EQ(QuotaOn({{groups, "0::/../outside\n"}, {mount + "/cpu.max", "400000 100000\n"}}), 4);
}

TEST(CoresTest, AQuotaOfVersionOneIsTheOneOfTheControllerCpu) {
  const std::string groups = "/proc/self/cgroup", cpu = "/sys/fs/cgroup/cpu";
  const std::string lines = "5:cpuset:/x\n4:cpu,cpuacct:/docker/a\n0::/y\n";
  EXPECT_EQ(QuotaOn({{groups, lines},
                     {cpu + "/docker/a/cpu.cfs_quota_us", "250000\n"},
                     {cpu + "/docker/a/cpu.cfs_period_us", "50000\n"}}),
            5);
  EXPECT_EQ(QuotaOn({{groups, lines},
                     {cpu + "/docker/a/cpu.cfs_quota_us", "-1\n"},
                     {cpu + "/docker/a/cpu.cfs_period_us", "50000\n"}}),
            std::nullopt);
  // A container that has another name for its group than the machine.
  EXPECT_EQ(QuotaOn({{groups, lines},
                     {cpu + "/cpu.cfs_quota_us", "100000\n"},
                     {cpu + "/cpu.cfs_period_us", "50000\n"}}),
            2);
  EXPECT_EQ(QuotaOn({{groups, lines},
                     {cpu + "/x/cpu.cfs_quota_us", "50000\n"},
                     {cpu + "/x/cpu.cfs_period_us", "50000\n"}}),
            std::nullopt);
}

TEST(CoresTest, PartsOfACoreCountAsOneAndNonsenseIsNoLimit) {
  const struct {
    const char* limit;
    std::optional<int> cores;
  } cases[] = {{"50000 100000", 1},
               {"1000 100000", 1},
               {"100001 100000", 2},
               {"150000 100000", 2},
               {"9223372036854775807 1", 2147483647},
               {"99999999999999999999 1", std::nullopt},
               {"0 100000", std::nullopt},
               {"-5 100000", std::nullopt},
               {"100000 0", std::nullopt},
               {"100000", std::nullopt},
               {"", std::nullopt},
               {"some 100000", std::nullopt},
               {"1 2 3", std::nullopt}};
  for (const auto& c : cases) {
    EXPECT_EQ(QuotaOn({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", c.limit}}),
              c.cores)
        << c.limit;
  }
  // Lines that are none.
  EXPECT_EQ(QuotaOn({{"/proc/self/cgroup", "\n:\n0:\n::\n0::"},
                     {"/sys/fs/cgroup/cpu.max", "200000 100000"}}),
            2);
}

TEST(CoresTest, AnAffinityMaskLimits) {
  EXPECT_GE(UsableCores(), 1);
  int on_one = 0;
  std::thread pinned([&on_one] {
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return;  // more cores than a set has
    size_t first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    if (sched_setaffinity(0, sizeof(mask), &mask) == 0) on_one = UsableCores();
  });
  pinned.join();
  if (on_one == 0) GTEST_SKIP() << "this system does not let a thread choose its core";
  EXPECT_EQ(on_one, 1);
}

TEST(CoresTest, TheVariableIsANumberOfThreadsOrRefused) {
  const struct {
    const char* text;
    std::optional<int> threads;
  } cases[] = {{nullptr, std::nullopt}, {"", std::nullopt}, {"0", 0}, {"1", 1}, {"1024", 1024}};
  for (const auto& c : cases) {
    ASSERT_OK_AND_ASSIGN(const std::optional<int> threads, NumThreadsFromText(c.text));
    EXPECT_EQ(threads, c.threads) << (c.text == nullptr ? "not set" : c.text);
  }
  for (const char* text : {"many", "-1", "1025", "2.5", "2x", "99999999999999999999", " "}) {
    EXPECT_STATUS(NumThreadsFromText(text), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("MILLRACE_NUM_THREADS must be an integer in [0, 1024], got '", text,
                               "'; 0 is as many threads as cores"));
  }
}

}  // namespace
}  // namespace millrace
