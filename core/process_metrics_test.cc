// SPDX-License-Identifier: Apache-2.0
#include "core/process_metrics.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/version.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(ProcessMetricsTest, ThePageHasTheProcessAndWhatWasAdded) {
  ProcessMetrics().AddCounter({"test_total", "Of this test.", {}})->Find({})->Add(3);
  const std::string page = ProcessMetrics().Page();
  EXPECT_TRUE(absl::StrContains(page, "\ntest_total 3\n")) << page;
  EXPECT_TRUE(absl::StrContains(
      page, absl::StrCat("\nmillrace_build_info{version=\"", kVersion, "\"} 1\n")))
      << page;
  for (const char* const name :
       {"millrace_process_resident_bytes", "millrace_process_cpu_seconds_total",
        "millrace_tensor_bytes_in_use", "millrace_tensor_peak_bytes_in_use",
        "millrace_tensor_bytes_cached"}) {
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("\n", name, " "))) << name << "\n" << page;
  }
  EXPECT_GT(ProcessResidentBytes(), 0);
  EXPECT_GT(ProcessCpuSeconds(), 0);
}

}  // namespace
}  // namespace millrace
