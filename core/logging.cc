// SPDX-License-Identifier: Apache-2.0
#include "core/logging.h"

#include <glog/logging.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/utf8.h"

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

constexpr int kText = 0, kJson = 1;

int FormatOfEnvironment() {
  const char* const text = std::getenv("MILLRACE_LOG_FORMAT");
  return text != nullptr && absl::string_view(text) == "json" ? kJson : kText;
}

// Relaxed, as min_level.
std::atomic<int> format{kNotReadYet};

bool IsJson() {
  int known = format.load(std::memory_order_relaxed);
  if (known == kNotReadYet) {
    known = FormatOfEnvironment();
    format.store(known, std::memory_order_relaxed);
  }
  return known == kJson;
}

// What lines say of the process.
struct OfProcess {
  static OfProcess& Of() {
    static OfProcess* const of_process = new OfProcess;
    return *of_process;
  }
  Mutex mu;
  std::string task ABSL_GUARDED_BY(mu);
  std::string run ABSL_GUARDED_BY(mu);
};
std::atomic<int64_t> step_of_process{-1};  // relaxed: a figure

void AppendJsonText(absl::string_view text, std::string* line) {
  line->push_back('"');
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    const size_t length = Utf8Length(text);
    if (byte == '"' || byte == '\\') {
      line->push_back('\\');
      line->push_back(text[0]);
    } else if (byte == '\n') {
      line->append("\\n");
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppend(line, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else if (length == 0) {
      absl::StrAppend(line, "\\\\x", absl::Hex(byte, absl::kZeroPad2));
    } else {
      line->append(text.data(), length);
      text.remove_prefix(length);
      continue;
    }
    text.remove_prefix(1);
  }
  line->push_back('"');
}

void AppendField(const char* name, absl::string_view value, std::string* line) {
  absl::StrAppend(line, ",\"", name, "\":");
  AppendJsonText(value, line);
}

// One write: lines of several threads and processes stay whole.
void WriteJsonLine(LogLevel level, const std::source_location& where, absl::string_view text) {
  static constexpr const char* kLevels[] = {"INFO", "WARNING", "ERROR"};
  std::string line = absl::StrCat(
      "{\"time\":\"", absl::FormatTime("%E4Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone()),
      "\",\"level\":\"", kLevels[static_cast<int>(level)], "\"");
  OfProcess& process = OfProcess::Of();
  {
    MutexLock lock(&process.mu);
    if (!process.task.empty()) AppendField("task", process.task, &line);
    if (!process.run.empty()) AppendField("run", process.run, &line);
  }
  const int64_t step = step_of_process.load(std::memory_order_relaxed);
  if (step >= 0) absl::StrAppend(&line, ",\"step\":", step);
  absl::StrAppend(&line, ",\"thread\":", ::syscall(SYS_gettid));
  absl::string_view file = where.file_name();
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  AppendField("place", absl::StrCat(file, ":", where.line()), &line);
  AppendField("message", text, &line);
  line.append("}\n");
  absl::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody is left to tell
    rest.remove_prefix(static_cast<size_t>(written));
  }
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

void SetLogTask(absl::string_view task) {
  OfProcess& process = OfProcess::Of();
  MutexLock lock(&process.mu);
  if (process.task.empty()) process.task = std::string(task);
}

std::string LogTask() {
  OfProcess& process = OfProcess::Of();
  MutexLock lock(&process.mu);
  return process.task;
}

void SetLogRun(absl::string_view id) {
  OfProcess& process = OfProcess::Of();
  MutexLock lock(&process.mu);
  process.run = std::string(id);
}

void SetLogStep(int64_t step) { step_of_process.store(step, std::memory_order_relaxed); }

void WriteLog(LogLevel level, const std::source_location& where, absl::string_view text) {
  if (IsJson()) return WriteJsonLine(level, where, text);
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
