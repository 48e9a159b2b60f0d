// SPDX-License-Identifier: Apache-2.0
#include "core/fail_point.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/mutex.h"

namespace millrace {
namespace {

enum class Action { kCrash, kError, kSleep };

struct Point {
  Action action = Action::kError;
  absl::StatusCode code = absl::StatusCode::kInternal;
  int64_t sleep_ms = 0;
  int64_t after = 0;
  int64_t times = std::numeric_limits<int64_t>::max();
  int64_t passes = 0;
};

using Points = std::map<std::string, Point, std::less<>>;

struct Registry {
  Mutex mu;
  bool environment_read ABSL_GUARDED_BY(mu) = false;
  Status environment_error ABSL_GUARDED_BY(mu);
  Points points ABSL_GUARDED_BY(mu);
  std::shared_ptr<const std::function<Status(absl::string_view)>> hook ABSL_GUARDED_BY(mu);

  void UpdateState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const bool idle = points.empty() && hook == nullptr && environment_error.ok();
    fail_point_internal::state.store(idle ? 0 : 1, std::memory_order_relaxed);
  }
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

constexpr const char* kCodeNames[] = {
    "ok",        "cancelled",      "unknown",           "invalid_argument",   "deadline_exceeded",
    "not_found", "already_exists", "permission_denied", "resource_exhausted", "failed_precondition",
    "aborted",   "out_of_range",   "unimplemented",     "internal",           "unavailable",
    "data_loss", "unauthenticated"};

bool ParseCode(absl::string_view text, absl::StatusCode* code) {
  int number = -1;
  if (!absl::SimpleAtoi(text, &number)) {
    for (int i = 0; i <= 16; ++i) {
      if (text == kCodeNames[i]) number = i;
    }
  }
  if (number < 1 || number > 16) return false;
  *code = static_cast<absl::StatusCode>(number);
  return true;
}

bool ParseCount(absl::string_view text, int64_t* count) {
  return absl::SimpleAtoi(text, count) && *count >= 0;
}

bool ParseOption(absl::string_view text, Point* point) {
  if (absl::ConsumePrefix(&text, "after=")) return ParseCount(text, &point->after);
  if (absl::ConsumePrefix(&text, "times=")) return ParseCount(text, &point->times);
  return false;
}

bool ParseAction(absl::string_view text, Point* point) {
  if (text == "crash") {
    point->action = Action::kCrash;
    return true;
  }
  if (absl::ConsumePrefix(&text, "error:")) {
    point->action = Action::kError;
    return ParseCode(text, &point->code);
  }
  if (absl::ConsumePrefix(&text, "sleep_ms:")) {
    point->action = Action::kSleep;
    return ParseCount(text, &point->sleep_ms);
  }
  return false;
}

StatusOr<Points> Parse(absl::string_view where, absl::string_view spec) {
  Points points;
  for (const absl::string_view entry : absl::StrSplit(spec, '|', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    Point point;
    bool first = true;
    bool good = !halves.first.empty();
    for (const absl::string_view part : absl::StrSplit(halves.second, ',')) {
      good = good && (first ? ParseAction(part, &point) : ParseOption(part, &point));
      first = false;
    }
    if (!good || first) {  // `first`: there was no '='
      return absl::InvalidArgumentError(
          absl::StrCat(where,
                       ": a fail point must be <name>=crash, <name>=error:<code> or "
                       "<name>=sleep_ms:<n>, with ,after=<n> and ,times=<n>, got '",
                       entry, "'"));
    }
    points[std::string(halves.first)] = point;
  }
  return points;
}

void ReadEnvironment(Registry* registry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mu) {
  if (registry->environment_read) return;
  registry->environment_read = true;
  const char* spec = std::getenv("MILLRACE_FAIL_POINTS");
  if (spec == nullptr) return;
  StatusOr<Points> points = Parse("MILLRACE_FAIL_POINTS", spec);
  if (points.ok()) {
    registry->points = *std::move(points);
  } else {
    registry->environment_error = points.status();
  }
}

}  // namespace

namespace fail_point_internal {

// 1 until the environment has been read.
std::atomic<int> state{1};

Status Pass(const char* name) {
  Registry& registry = TheRegistry();
  std::shared_ptr<const std::function<Status(absl::string_view)>> hook;
  Point hit;
  bool is_hit = false;
  {
    MutexLock lock(&registry.mu);
    ReadEnvironment(&registry);
    registry.UpdateState();
    if (!registry.environment_error.ok()) return registry.environment_error;
    hook = registry.hook;
    auto it = registry.points.find(absl::string_view(name));
    if (it != registry.points.end()) {
      const int64_t index = it->second.passes++;
      is_hit = index >= it->second.after && index - it->second.after < it->second.times;
      hit = it->second;
    }
  }
  if (hook != nullptr) MR_RETURN_IF_ERROR((*hook)(name));
  if (!is_hit) return absl::OkStatus();
  switch (hit.action) {
    case Action::kCrash:
      kill(getpid(), SIGKILL);
      for (;;) pause();
    case Action::kSleep:
      absl::SleepFor(absl::Milliseconds(hit.sleep_ms));
      return absl::OkStatus();
    case Action::kError:
      break;
  }
  return Status(hit.code, absl::StrCat("fail point '", name, "' is set to fail"));
}

}  // namespace fail_point_internal

Status SetFailPoints(absl::string_view spec) {
  MR_ASSIGN_OR_RETURN(Points points, Parse("SetFailPoints", spec));
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  registry.environment_read = true;
  registry.environment_error = absl::OkStatus();
  registry.points = std::move(points);
  registry.UpdateState();
  return absl::OkStatus();
}

int64_t FailPointPasses(absl::string_view name) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  auto it = registry.points.find(name);
  return it == registry.points.end() ? 0 : it->second.passes;
}

void SetFailPointHook(std::function<Status(absl::string_view name)> hook) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mu);
  ReadEnvironment(&registry);
  registry.hook =
      hook == nullptr
          ? nullptr
          : std::make_shared<const std::function<Status(absl::string_view)>>(std::move(hook));
  registry.UpdateState();
}

}  // namespace millrace
