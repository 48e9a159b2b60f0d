// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/host_list.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: Slurm's lists of hosts and tasks; each mistake in one is named with its place

namespace millrace {
namespace {

TEST(HostListTest, RangesNumbersAndPlainNamesComeInTheirOrder) {
  for (const auto& [text, hosts] : std::vector<std::pair<std::string, std::string>>{
           {"m", "m"},
           {"n[001-003,7],m", "n001 n002 n003 n7 m"},
           {"n[9-11]", "n9 n10 n11"},
           {"n[09-11]", "n09 n10 n11"},
           {"n[98-101]", "n98 n99 n100 n101"},
           {"n[3]", "n3"},
           {"n[5-5]", "n5"},
           {"n[3,1,2]", "n3 n1 n2"},
           {"r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"},
           {"gpu-[1-2].example.org,login_1", "gpu-1.example.org gpu-2.example.org login_1"},
           {"[1-2]", "1 2"},
           {"10.0.0.1,10.0.0.2", "10.0.0.1 10.0.0.2"}}) {
    ASSERT_OK_AND_ASSIGN(const auto expanded, ExpandHostList(text, "L"));
    EXPECT_EQ(absl::StrJoin(expanded, " "), hosts) << text;
  }
  ASSERT_OK_AND_ASSIGN(const auto many, ExpandHostList("n[1-65536]", "L"));
  EXPECT_EQ(many.size(), kMaxHosts);
  EXPECT_EQ(many.back(), "n65536");
}

TEST(HostListTest, MistakesAreNamedWithTheirPlace) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "L: a host's name must not be empty, got its end at byte 1, after ''"},
           {"a,,b", "a host's name must not be empty, got ',' at byte 3, after 'a,'"},
           {"a,", "a host's name must not be empty, got its end at byte 3, after 'a,'"},
           {"n[1-3",
            "'[' must be followed by ranges and ']', got its end at byte 6, after 'n[1-3'"},
           {"n1-3]", "']' must follow a '[', got ']' at byte 5, after 'n1-3'"},
           {"n[1-[2]]", "a range's end must be a number, got '[' at byte 5, after 'n[1-'"},
           {"n[1[2]]", "'[' must not be in another one, got '[' at byte 4, after 'n[1'"},
           {"n[]", "a range's begin must be a number, got ']' at byte 3, after 'n['"},
           {"n[1,,2]", "a range's begin must be a number, got ',' at byte 5, after 'n[1,'"},
           {"n[a-b]", "a range's begin must be a number, got 'a' at byte 3, after 'n['"},
           {"n[1-]", "a range's end must be a number, got ']' at byte 5, after 'n[1-'"},
           {"n[-3]", "a range's begin must be a number, got '-' at byte 3"},
           {"n[3-1]", "a range must not go down, got 3-1 at byte 3, after 'n['"},
           {"n[1 - 3]", "got ' ' at byte 4, after 'n[1'"},
           {"n[1-3] m",
            "a host's name must have letters, digits, '-', '.' and '_', got ' ' at "
            "byte 7, after 'n[1-3]'"},
           {"a;b", "got ';' at byte 2, after 'a'"},
           {"a/../b", "got '/' at byte 2"},
           {"a\n", "got '\\n' at byte 2"},
           {"n[1-3x3]", "'[' must be followed by ranges and ']', got 'x'"},
           {"n[1234567890]", "must have at most 9 digits, got '1234567890' at byte 3, after 'n['"},
           {"n[1-65537]", "there must be at most 65536 hosts, got 1-65537 at byte 3"},
           {"n[0-999999999]", "there must be at most 65536 hosts"},
           {"r[1-300]n[1-300]", "there must be at most 65536 hosts, got 300 * 300 at byte 1"},
           {"n[1-3],m,n2",
            "a host must be there once, got 'n2' again at byte 10, after "
            "'n[1-3],m,'"},
           {"n[1,1]", "a host must be there once, got 'n1' again at byte 1"},
           {std::string(300, 'a'), "a host's name must have at most 255 bytes"}}) {
    EXPECT_STATUS(ExpandHostList(text, "L"), absl::StatusCode::kInvalidArgument, message) << text;
  }
}

TEST(TaskCountsTest, CountsAreRepeated) {
  for (const auto& [text, counts] : std::vector<std::pair<std::string, std::string>>{
           {"1", "1"}, {"2(x3),1", "2 2 2 1"}, {"16(x1)", "16"}, {"1,2,3", "1 2 3"}}) {
    ASSERT_OK_AND_ASSIGN(const auto expanded, ExpandTaskCounts(text, "T"));
    EXPECT_EQ(absl::StrJoin(expanded, " "), counts) << text;
  }
}

TEST(TaskCountsTest, MistakesAreNamedWithTheirPlace) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "T: a number of tasks must be a number, got its end at byte 1, after ''"},
           {"2,", "a number of tasks must be a number, got its end at byte 3, after '2,'"},
           {"x", "a number of tasks must be a number, got 'x' at byte 1"},
           {"0", "a number of tasks must be in [1, 65536], got 0 at byte 1"},
           {"-1", "a number of tasks must be a number, got '-' at byte 1"},
           {"2(3)", "'(' must be followed by 'x', a number and ')', got '3' at byte 3, after '2('"},
           {"2(x)", "a number of hosts must be a number, got ')' at byte 4, after '2(x'"},
           {"2(x3", "'(x' and a number must be followed by ')', got its end at byte 5"},
           {"2(x0)", "a number of hosts must be in [1, 65536], got 0 at byte 4, after '2(x'"},
           {"1(x65536),1", "there must be at most 65536 hosts"},
           {"1(x999999999)", "a number of hosts must be in [1, 65536], got 999999999"},
           {"2(x3)1", "a number of tasks must be followed by ',', got '1' at byte 6"},
           {"2 (x3)", "a number of tasks must be followed by ',', got ' ' at byte 2"},
           {"1.5", "a number of tasks must be followed by ',', got '.' at byte 2"}}) {
    EXPECT_STATUS(ExpandTaskCounts(text, "T"), absl::StatusCode::kInvalidArgument, message) << text;
  }
}

}  // namespace
}  // namespace millrace
