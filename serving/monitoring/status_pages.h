// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_STATUS_PAGES_H_
#define MILLRACE_SERVING_MONITORING_STATUS_PAGES_H_

// What a server says of itself to people and programs: all of it as JSON, and pages of HTML of at
// most 4 KB, without scripts.
//
// Names and errors are anybody's bytes: they come escaped, and cut.
//
// Thread-safety: pure functions. Failure: none.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "serving/model_versions.h"

namespace millrace {

struct ServerStatus {
  std::string build;
  absl::Duration uptime = absl::ZeroDuration();
  int64_t num_running = 0, num_waiting = 0;
  int64_t tensor_bytes = 0, resident_bytes = 0;
  std::vector<ModelStatus> models;
  // Requests that run, of a version.
  std::function<int64_t(absl::string_view model, int64_t version)> running_of;
};

inline constexpr size_t kMaxHtmlBytes = 4096;

// {"build": ..., "uptime_seconds": ..., "requests": {...}, "bytes": {...}, "models": [...]}
std::string StatusJson(const ServerStatus& status);
// A table of the model's versions; of many, the highest.
std::string ModelHtml(const ModelStatus& model, const ServerStatus& status);
// Links to the models' pages; of many, the first.
std::string ModelsHtml(const ServerStatus& status);

// "a<b" as a text of HTML, or as the value of an attribute in quotes.
std::string HtmlEscaped(absl::string_view text);
// As one part of a URL's path.
std::string PathEscaped(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_STATUS_PAGES_H_
