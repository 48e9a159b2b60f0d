// SPDX-License-Identifier: Apache-2.0
#include "core/logging.h"

#include <glog/logging.h>

#include <cstdlib>
#include <limits>

#include "absl/strings/numbers.h"
#include "core/clock.h"

namespace millrace {
namespace {

constexpr int kNotReadYet = -1;
// Relaxed: both writers of a first value write the same one.
std::atomic<int> min_level{kNotReadYet};

int LevelOfEnvironment() {
  int level = 0;
  const char* text = std::getenv("MILLRACE_MIN_LOG_LEVEL");
  if (text == nullptr || !absl::SimpleAtoi(text, &level) || level < 0) level = 0;
  return level;
}

int MinLevel() {
  int level = min_level.load(std::memory_order_relaxed);
  if (ABSL_PREDICT_TRUE(level != kNotReadYet)) return level;
  level = LevelOfEnvironment();
  int expected = kNotReadYet;
  min_level.compare_exchange_strong(expected, level, std::memory_order_relaxed);
  return min_level.load(std::memory_order_relaxed);
}

// glog keeps the pointer to the name. The first name wins.
void StartLibrary(absl::string_view argv0) {
  static const bool started = [argv0] {
    static const std::string* const name = new std::string(argv0);
    FLAGS_logtostderr = true;
    FLAGS_timestamp_in_logfile_name = false;
    FLAGS_minloglevel = 0;  // the level is ours
    if (!google::IsGoogleLoggingInitialized()) google::InitGoogleLogging(name->c_str());
    return true;
  }();
  static_cast<void>(started);
}

}  // namespace

void InitLogging(absl::string_view argv0) {
  StartLibrary(argv0);
  MinLevel();
}

bool LogEnabled(LogLevel level) { return static_cast<int>(level) >= MinLevel(); }

void SetMinLogLevel(LogLevel level) {
  min_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

void WriteLog(LogLevel level, const std::source_location& where, absl::string_view text) {
  StartLibrary("millrace");
  const google::LogSeverity severity = level == LogLevel::kInfo      ? google::GLOG_INFO
                                       : level == LogLevel::kWarning ? google::GLOG_WARNING
                                                                     : google::GLOG_ERROR;
  google::LogMessage message(where.file_name(), static_cast<int>(where.line()), severity);
  message.stream().write(text.data(), static_cast<std::streamsize>(text.size()));
}

LogThrottle::LogThrottle(absl::Duration period, bool wait_first, Clock* clock)
    : clock_(clock != nullptr ? clock : Clock::Real()),
      period_ns_(absl::ToInt64Nanoseconds(period)),
      next_ns_(wait_first ? absl::ToUnixNanos(clock_->Now()) + period_ns_
                          : std::numeric_limits<int64_t>::min()) {}

bool LogThrottle::ShouldLog() {
  const int64_t now = absl::ToUnixNanos(clock_->Now());
  int64_t next = next_ns_.load(std::memory_order_relaxed);
  return now >= next &&
         next_ns_.compare_exchange_strong(next, now + period_ns_, std::memory_order_relaxed);
}

}  // namespace millrace
