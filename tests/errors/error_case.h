// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_ERRORS_ERROR_CASE_H_
#define MILLRACE_TESTS_ERRORS_ERROR_CASE_H_

// What every refusal of a bad input must have: the right code, a text that says where and what,
// exit code 1 for the program that returns it (trying again changes nothing), and no long wait.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "gtest/gtest.h"

namespace millrace {

// Beyond the deadline of the case itself.
inline constexpr absl::Duration kErrorGrace = absl::Seconds(2);

struct WantedError {
  absl::StatusCode code;
  // All of them are in the message.
  std::vector<std::string> texts;
};

inline void ExpectError(const Status& got, const WantedError& want) {
  EXPECT_EQ(got.code(), want.code) << got;
  for (const std::string& text : want.texts) {
    EXPECT_TRUE(absl::StrContains(got.message(), text)) << "no '" << text << "' in: " << got;
  }
  EXPECT_EQ(ExitCode(got), kExitError) << got;
}

// Fails the test when its scope lasts longer than `deadline` + kErrorGrace.
class ExpectSoon {
 public:
  explicit ExpectSoon(absl::Duration deadline = absl::ZeroDuration())
      : end_(absl::Now() + deadline + kErrorGrace) {}
  ~ExpectSoon() { EXPECT_LT(absl::Now(), end_) << "the error came too late"; }

 private:
  const absl::Time end_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_ERRORS_ERROR_CASE_H_
