// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_REPLAY_REQUESTS_H_
#define MILLRACE_SERVING_MONITORING_REPLAY_REQUESTS_H_

// ReplayRequests: the last logged requests of a model (request_log.h), run once more on a version
// that is not available yet: what users ask now warms it up, and nobody has to export requests.
//
//   const ReplayedRequests done = ReplayRequests(*model, "/logs/census.log", {.max_requests =
//   100});
//
// They run in the order in which they were logged, by this thread, and are neither counted as
// requests nor logged again. Records of other models with the same prefix are passed over. What a
// running process has queued and not written yet is not among them.
//
// It never fails a load: a record that cannot be read, or whose request fails (the signature may
// have changed), is counted, and the first error kept. Such a request may have failed its clients
// otherwise; here it has no client.
//
// A signature that changes state (a counter, a table, a file) does so once more for each request
// that is run again: models with such signatures are better without.
//
// Bounds: max_requests records and max_bytes of them are kept at a time; files are read from the
// newest to the oldest, no more of them than are needed. A record of more than max_bytes is passed
// over.
//
// Thread-safety: any thread, also while the log is written.
// Failure: none; what ended early says so in first_error.

#include <cstdint>
#include <map>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "serving/served_model.h"
#include "serving/step_bounds.h"

namespace millrace {

struct ReplayOptions {
  int64_t max_requests = 100;
  int64_t max_bytes = int64_t{64} << 20;
  // When they are over, no further request is run.
  StepBounds bounds = {};
  FileSystem* file_system = FileSystem::Default();
};

struct ReplayedRequests {
  std::map<absl::StatusCode, int64_t> by_code;  // of those that were run
  int64_t num_unreadable = 0;                   // files and records
  Status first_error;                           // of either kind

  int64_t num_run() const;
};

// `prefix` as RequestLogSettings has it; "": nothing.
ReplayedRequests ReplayRequests(const ServedModel& model, const std::string& prefix,
                                const ReplayOptions& options);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_REPLAY_REQUESTS_H_
