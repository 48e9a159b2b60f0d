// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_LOGGING_H_
#define MILLRACE_CORE_LOGGING_H_

// Logging: one line per message on stderr, with severity, time, thread and place.
//
//   LogWarning("still waiting for ", task, " after ", seconds, " s");
//
// The arguments are those of absl::StrCat. MILLRACE_MIN_LOG_LEVEL (0 info, 1 warning, 2 error;
// default 0) is read once, at the first message; quieter messages cost one load. Nothing is
// written to files, no signal handler is installed and no message ends the process.
//
// MILLRACE_LOG_FORMAT, read with it: "text" (the default) or "json": a line is an object then,
//
//   {"time":"2026-11-28T09:30:01.123456Z","level":"WARNING","task":"/job:ps/task:0","run":"f3a9",
//    "step":1200,"thread":4711,"place":"server.cc:212","message":"still waiting for ..."}
//
// without what is not known. Bytes of a message that are no UTF-8 are written as \\xNN.
//
// Thread-safety: everything, from any thread. Works before InitLogging().

#include <atomic>
#include <cstdint>
#include <source_location>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace millrace {

class Clock;

enum class LogLevel : int { kInfo = 0, kWarning = 1, kError = 2 };

// Optional; call it at the start of main(). `argv0` names the program in messages of libraries.
void InitLogging(absl::string_view argv0);

// Whether a message of this level is written.
bool LogEnabled(LogLevel level);
// For tests: instead of MILLRACE_MIN_LOG_LEVEL, from now on.
void SetMinLogLevel(LogLevel level);

// What the lines of this process say of it, in JSON; "" and a negative step: nothing.
void SetLogTask(absl::string_view task);  // the first one counts: a process is one task
std::string LogTask();
void SetLogRun(absl::string_view id);
void SetLogStep(int64_t step);

void WriteLog(LogLevel level, const std::source_location& where, absl::string_view text);

// The first argument of a log function: remembers who called.
struct LogHead {
  template <typename T>
  LogHead(const T& value,  // NOLINT: implicit on purpose
          std::source_location where = std::source_location::current())
      : text(absl::StrCat(value)), where(where) {}
  std::string text;
  std::source_location where;
};

template <typename... Args>
void LogInfo(const LogHead& head, const Args&... args) {
  if (!LogEnabled(LogLevel::kInfo)) return;
  WriteLog(LogLevel::kInfo, head.where, absl::StrCat(head.text, args...));
}
template <typename... Args>
void LogWarning(const LogHead& head, const Args&... args) {
  if (!LogEnabled(LogLevel::kWarning)) return;
  WriteLog(LogLevel::kWarning, head.where, absl::StrCat(head.text, args...));
}
template <typename... Args>
void LogError(const LogHead& head, const Args&... args) {
  if (!LogEnabled(LogLevel::kError)) return;
  WriteLog(LogLevel::kError, head.where, absl::StrCat(head.text, args...));
}

// Says yes at most once per `period`, the first time at once or (with `wait_first`) only when a
// period has passed since the start: for "still waiting for ..." lines.
class LogThrottle {
 public:
  // `clock` (default: the real one) must outlive this object.
  explicit LogThrottle(absl::Duration period, bool wait_first = false, Clock* clock = nullptr);
  bool ShouldLog();

 private:
  Clock* const clock_;
  const int64_t period_ns_;
  std::atomic<int64_t> next_ns_;  // relaxed: orders nothing else
};

}  // namespace millrace

#endif  // MILLRACE_CORE_LOGGING_H_
