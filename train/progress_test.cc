// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>

// covers: training: the progress line shows the staleness

namespace millrace {
namespace {

// What `use` writes through a Progress with these options.
template <typename F>
std::string Written(ProgressOptions options, F use) {
  char* text = nullptr;
  size_t size = 0;
  FILE* file = open_memstream(&text, &size);
  options.output = file;
  {
    Progress progress(options);
    use(progress);
  }
  std::fclose(file);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(ProgressTest, FormatTellsStepLossRateAndTimeLeft) {
  EXPECT_EQ(Progress::Format(120, 1000, 3.21, 15.25),
            "step 120/1000  loss 3.21  15.2 steps/s  0:58 left");
  EXPECT_EQ(Progress::Format(0, 1000, 2.5, 0), "step 0/1000  loss 2.5");
  EXPECT_EQ(Progress::Format(120, 1000, 3.21, 15.25, 12.4),
            "step 120/1000  loss 3.21  staleness 12  15.2 steps/s  0:58 left");
  EXPECT_EQ(Progress::Format(0, 1000, 2.5, 0, 0.4), "step 0/1000  loss 2.5");
  EXPECT_EQ(Progress::Format(0, 8000, 1, 1), "step 0/8000  loss 1  1.0 steps/s  2:13:20 left");
}

TEST(ProgressTest, ATimeIsAsAClockShowsIt) {
  EXPECT_EQ(ClockText(0), "0:00");
  EXPECT_EQ(ClockText(58.4), "0:58");
  EXPECT_EQ(ClockText(59.6), "1:00");
  EXPECT_EQ(ClockText(3599), "59:59");
  EXPECT_EQ(ClockText(3723), "1:02:03");
  EXPECT_EQ(ClockText(-5), "0:00");
  EXPECT_EQ(ClockText(1e300), "277777:46:40");
}

TEST(ProgressTest, WhatIsNotKnownIsLeftOut) {
  EXPECT_EQ(Progress::Format(120, 0, 3.21, 15.25), "step 120  loss 3.21  15.2 steps/s");
  EXPECT_EQ(Progress::Format(120, 1000, std::nullopt, 0), "step 120/1000");
  FakeClock clock;
  ProgressOptions options;
  options.clock = &clock;
  options.style = ProgressOptions::Style::kPlain;
  const std::string text = Written(options, [&](Progress& progress) {
    for (int64_t step = 0; step <= 5; ++step) {
      progress.Update(step, std::nullopt);
      clock.Advance(absl::Milliseconds(500));
    }
  });
  EXPECT_EQ(text, "step 0\nstep 4  2.0 steps/s\n");
}

TEST(ProgressTest, PlainOutputIsWholeLinesAtItsPeriod) {
  FakeClock clock;
  ProgressOptions options;
  options.last_step = 10;
  options.clock = &clock;
  options.style = ProgressOptions::Style::kPlain;
  const std::string text = Written(options, [&](Progress& progress) {
    for (int64_t step = 0; step <= 10; ++step) {
      progress.Update(step, 1.0);
      clock.Advance(absl::Milliseconds(500));
    }
  });
  EXPECT_EQ(text,
            "step 0/10  loss 1\n"
            "step 4/10  loss 1  2.0 steps/s  0:03 left\n"
            "step 8/10  loss 1  2.0 steps/s  0:01 left\n"
            "step 10/10  loss 1  2.0 steps/s  0:00 left\n");
}

TEST(ProgressTest, TerminalLineIsRewrittenAndEnded) {
  FakeClock clock;
  ProgressOptions options;
  options.last_step = 10;
  options.clock = &clock;
  options.style = ProgressOptions::Style::kTerminal;
  const std::string text = Written(options, [&](Progress& progress) {
    progress.Update(0, 1.25);
    clock.Advance(absl::Seconds(1));
    progress.Update(10, 1);
  });
  EXPECT_EQ(text, "\rstep 0/10  loss 1.25\rstep 10/10  loss 1  10.0 steps/s  0:00 left\n");
}

TEST(ProgressTest, ALauncherDecidesByTheEnvironment) {
  struct Case {
    const char* variable;
    const char* text;
  };
  // A memory stream is no terminal.
  for (const Case& c : {Case{"live", "\rstep 0/10  loss 1\n"}, Case{"plain", "step 0/10  loss 1\n"},
                        Case{"", "step 0/10  loss 1\n"}}) {
    setenv("MILLRACE_PROGRESS", c.variable, 1);
    ProgressOptions options;
    options.last_step = 10;
    EXPECT_EQ(Written(options, [](Progress& progress) { progress.Update(0, 1); }), c.text);
    unsetenv("MILLRACE_PROGRESS");
  }
  // An explicit style is not overruled.
  setenv("MILLRACE_PROGRESS", "live", 1);
  ProgressOptions options;
  options.last_step = 10;
  options.style = ProgressOptions::Style::kPlain;
  EXPECT_EQ(Written(options, [](Progress& progress) { progress.Update(0, 1); }),
            "step 0/10  loss 1\n");
  unsetenv("MILLRACE_PROGRESS");
}

}  // namespace
}  // namespace millrace
