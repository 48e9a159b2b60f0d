// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_REQUEST_LOG_H_
#define MILLRACE_SERVING_MONITORING_REQUEST_LOG_H_

// RequestLog: some of the requests of each model, with their responses, in files of PredictionLog
// records (core/record.h): by ModelSettings::request_log, the LoggingConfig of TensorFlow Serving.
//
//   census.log-00000001, census.log-00000002, ...     for the prefix "/logs/census.log"
//
// A file that has max_file_bytes is followed by the next number; of a prefix the max_files highest
// numbers stay, those of earlier processes included: an old one goes once the new one could be
// written, so a full disk takes none away. What stands in a file may be run as warm-up
// requests (serving/warm_up.h): only requests that succeeded are logged.
//
//   request -> sampled -> queued -> flushed       counted OK, or by the code of the file's error
//                      -> dropped                 counted RESOURCE_EXHAUSTED: there is no room in
//                      the queue
//
// Files of max_open_files prefixes are open at a time: the one that was used least recently is
// closed, and goes on when it is asked for again.
//
// No request waits for a file. A process that is killed loses what is queued and may leave a torn
// record at the end of the last file, at which readers end; the next process begins a file of its
// own.
//
// Thread-safety: all methods, from any thread.
// Lifetime: the destructor stops it. It shares `versions`.
// Failure: Start: ResourceExhausted when the system gives no thread. An error of a file is in the
// log; the next record tries the next file.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/metrics.h"
#include "core/mutex.h"
#include "core/record.h"
#include "core/status.h"
#include "serving/model_versions.h"
#include "serving/request_observer.h"
#include "serving/served_model.h"

namespace millrace {

struct RequestLogOptions {
  int64_t max_file_bytes = int64_t{64} << 20;
  int max_files = 10;                           // of a prefix
  int64_t max_queue_bytes = int64_t{16} << 20;  // a larger record is never written
  int max_open_files = 100;
  FileSystem* file_system = FileSystem::Default();
  Clock* clock = Clock::Real();
};

// The files of a prefix, in the order in which they were begun; none: no directory, or none in it.
StatusOr<std::vector<std::string>> RequestLogFiles(FileSystem* file_system,
                                                   const std::string& prefix);

class RequestLog : public RequestObserver {
 public:
  // Asks `versions` for its models' settings, again after each new list. `counts`, by model_name
  // and status_code, must outlive it; null: nothing is counted.
  static StatusOr<std::shared_ptr<RequestLog>> Start(std::shared_ptr<const ModelVersions> versions,
                                                     MetricValues* counts,
                                                     RequestLogOptions options = {});
  ~RequestLog() override;

  void Began(const ServedModel&) override {}
  void Ended(const RequestRecord& record) override;

  // Until everything that was queued before is written and can be read.
  void Flush();
  // Writes what is queued and closes the files; later requests are not logged. Idempotent.
  void Stop();

 private:
  struct Queued {
    std::string model, prefix, bytes;
  };
  // The files of one prefix.
  struct Files {
    std::unique_ptr<RecordWriter> writer;  // null: none is open
    std::string path;                      // of the last one; "": nothing more is to be added
    std::string prefix;                    // of it
    bool is_new = false;                   // nothing of it is known to be on the disk
    int64_t bytes = 0;                     // of it
    uint64_t last_used = 0;
    std::vector<const Queued*> pending;  // written, but not counted: the flush may fail
  };
  using Settings = std::map<std::string, RequestLogSettings, std::less<>>;

  RequestLog(std::shared_ptr<const ModelVersions> versions, MetricValues* counts,
             const RequestLogOptions& options);

  std::shared_ptr<const Settings> CurrentSettings();
  void Count(const std::string& model, absl::StatusCode code);
  void Run();
  // After an error the record is not counted; else it is pending, or was counted.
  Status Write(const Queued& record);
  // Counts what is pending. An error is in the log, and ends the file.
  void Settle(const Status& status, Files* files);
  void CloseFile(Files* files);
  void CloseOneOfMany();
  // Goes on with a file that was closed; whether it can.
  bool Reopen(Files* files);
  Status OpenNext(const std::string& prefix, Files* files);
  // The files with numbers of a prefix, in their order.
  void DeleteOld(const std::string& prefix) const;

  const std::shared_ptr<const ModelVersions> versions_;
  MetricValues* const counts_;
  const RequestLogOptions options_;

  std::atomic<uint64_t> num_lists_{0};  // of settings_; released after it
  std::atomic<bool> logs_any_{false};   // relaxed: follows num_lists_
  Mutex settings_mu_;
  std::shared_ptr<const Settings> settings_ ABSL_GUARDED_BY(settings_mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queue_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // the thread has taken records out
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  std::map<std::string, Files> files_;  // of the thread, by prefix
  uint64_t num_writes_ = 0;             // of the thread
  LogThrottle error_log_{absl::Seconds(10)};
  Mutex join_mu_;
  std::thread thread_;  // joined under join_mu_
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_REQUEST_LOG_H_
