// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_SERVER_METRICS_H_
#define MILLRACE_SERVING_MONITORING_SERVER_METRICS_H_

// ServerMetrics: what a model server counts: TensorFlow Serving's metrics by their names, labels
// and buckets, and those of ours, millrace_*, by version and signature.
//
// A request costs four clock readings and a few atomic operations: the cells of a version are kept
// with it (ServableNote), and are made at their first use. With the version go its series. Those of
// a model go when it is no longer listed and nothing of it is loaded. A client cannot make series:
// requests for models and signatures that are not there count under the name "".
//
// States (bytes, versions, the process) are read when a page is written.
//
// Thread-safety: all methods, from any thread; Watch before the first Page.
// Lifetime: notes may outlive it.
// Failure: none.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/metrics.h"
#include "core/status.h"
#include "serving/batching/batching_observer.h"
#include "serving/model_versions.h"
#include "serving/request_observer.h"
#include "serving/servable.h"
#include "serving/served_model.h"

namespace millrace {

class ServerMetrics : public RequestObserver {
 public:
  ServerMetrics();
  ~ServerMetrics() override;

  // Reads their states from now on. Does not keep them.
  void Watch(std::weak_ptr<const ModelVersions> versions);
  // Requests that wait to run, of one front; each is asked for each page.
  void AddWaiting(std::function<int64_t()> waiting);

  // Of a version that was loaded, to be kept with it.
  std::unique_ptr<ServableNote> NoteOf(const ServedModel& model, absl::Duration load_time);
  // A version ran its warm-up requests.
  void WarmedUp(const VersionToLoad& version, const Status& status, absl::Duration time,
                int64_t num_records);
  // A version was asked `count` logged requests, which ended with `code`.
  void Replayed(const std::string& model, absl::StatusCode code, int64_t count);
  // Of the pool of this name.
  std::shared_ptr<BatchingObserver> BatchingOf(const std::string& thread_pool_name);
  // By model_name and status_code.
  MetricValues* request_log_count() const;

  void Began(const ServedModel& served) override;
  void Ended(const RequestRecord& record) override;

  // Requests that run now: all, and by version.
  int64_t num_running() const;
  int64_t num_running(absl::string_view model, int64_t version) const;
  int64_t num_waiting() const;
  absl::Duration uptime() const;

  std::string Page() const;

 private:
  struct State;
  class VersionMetrics;
  const std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_SERVER_METRICS_H_
