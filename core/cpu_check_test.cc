// SPDX-License-Identifier: Apache-2.0
#include "core/cpu_check.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#if defined(__x86_64__) && defined(__AVX2__)

// covers: programs: a CPU below what the program was compiled for gets one line and exit code 1

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string Missing(const CpuWords& words) {
  char text[256];
  const int count = MissingInstructions(words, text, sizeof(text));
  const std::string names = text;
  EXPECT_EQ(count, names.empty() ? 0 : 1 + std::count(names.begin(), names.end(), ','));
  return names;
}

// Words with every bit set: a CPU that has everything.
constexpr CpuWords kAll = {~0u, ~0u, ~0u, ~0u};

TEST(CpuCheckTest, ThisCpuLacksNothing) { EXPECT_EQ(Missing(ReadCpuWords()), ""); }

TEST(CpuCheckTest, EachMissingBitIsNamed) {
  EXPECT_EQ(Missing(kAll), "");
  struct Case {
    uint32_t CpuWords::*word;
    int bit;
    const char* name;
  };
  // Intel's manual, volume 2A, CPUID; AMD's volume 3, appendix D.
  const Case cases[] = {
      {&CpuWords::leaf1_ecx, 0, "SSE3"},    {&CpuWords::leaf1_ecx, 9, "SSSE3"},
      {&CpuWords::leaf1_ecx, 12, "FMA"},    {&CpuWords::leaf1_ecx, 13, "CMPXCHG16B"},
      {&CpuWords::leaf1_ecx, 19, "SSE4.1"}, {&CpuWords::leaf1_ecx, 20, "SSE4.2"},
      {&CpuWords::leaf1_ecx, 22, "MOVBE"},  {&CpuWords::leaf1_ecx, 23, "POPCNT"},
      {&CpuWords::leaf1_ecx, 28, "AVX"},    {&CpuWords::leaf1_ecx, 29, "F16C"},
      {&CpuWords::leaf7_ebx, 3, "BMI1"},    {&CpuWords::leaf7_ebx, 5, "AVX2"},
      {&CpuWords::leaf7_ebx, 8, "BMI2"},    {&CpuWords::extended1_ecx, 5, "LZCNT"}};
  for (const Case& c : cases) {
    CpuWords words = kAll;
    words.*c.word &= ~(1u << c.bit);
    EXPECT_EQ(Missing(words), c.name);
  }
}

TEST(CpuCheckTest, ASystemThatDoesNotSaveTheRegistersHasNoAvx) {
  CpuWords words = kAll;
  words.xcr0 = 0x3;  // x87 and SSE
  EXPECT_THAT(Missing(words), HasSubstr("AVX, F16C, FMA, AVX2"));
}

TEST(CpuCheckTest, ATextThatIsTooShortIsCutBetweenNames) {
  char text[10];
  EXPECT_GE(MissingInstructions(CpuWords(), text, sizeof(text)), 14);
  EXPECT_STREQ(text, "SSE3, AVX");
}

TEST(CpuCheckTest, AProgramOnAnOldCpuSaysSoAndExitsWithOne) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 2);
    setenv("MILLRACE_PRETEND_CPU", "x86-64", 1);
    execl("/proc/self/exe", "this_program", nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << text;
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(text, MatchesRegex("this_program: the CPU must have the instructions that this "
                                 "program was built with \\(x86-64-v[34]: .*\\), got one without "
                                 "SSE3, .*AVX2.*\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

}  // namespace
}  // namespace millrace
#endif
