// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_METRICS_PAGE_H_
#define MILLRACE_NET_HTTP_METRICS_PAGE_H_

// Metrics page: a port of this process for those who watch it, where the environment asks for one.
//
//   MILLRACE_METRICS_ADDRESS=9100            127.0.0.1:9100
//   MILLRACE_METRICS_ADDRESS=0.0.0.0:9100    of all interfaces
//   MILLRACE_METRICS_ADDRESS=9100-9131       the first of these ports that is free: for tasks that
//                                            share a machine and an environment
//   MILLRACE_METRICS_ADDRESS=0               any free port; the log says which
//
//   GET /metrics    ProcessMetrics() as Prometheus' text
//   GET /healthz    200 "ok" while the process is healthy, else 503 with the reason: for probes
//   that
//                   show no token
//
// It asks for no token and shows no values of the model but the loss. One thread serves it, and
// runs nothing else; a client that does not read is dropped.
//
// Thread-safety: all functions, from any thread.

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

class MetricsPage {
 public:
  struct Options {
    std::string address;  // as in MILLRACE_METRICS_ADDRESS
    // Why the process is not healthy; OK: it is. Null: it is as long as it answers.
    std::function<Status()> health = nullptr;
  };
  virtual ~MetricsPage() = default;
  // InvalidArgument for an address that is none; FailedPrecondition when no port of it is free.
  static StatusOr<std::unique_ptr<MetricsPage>> Start(Options options);
  virtual int port() const = 0;
};

// The page that the environment asks for, once per process: later calls, and calls without the
// variable, do nothing. It stays until the process ends. What is wrong with the variable is the
// result; a page that cannot be opened is a line of the log: training goes on without it.
Status StartMetricsPageOfEnvironment(std::function<Status()> health);
// Of that page; 0: there is none.
int MetricsPagePort();

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_METRICS_PAGE_H_
