// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_ACCESS_LOG_H_
#define MILLRACE_SERVING_MONITORING_ACCESS_LOG_H_

// AccessLog: a line in the log for some of the requests.
//
//   request GRPC Predict model="census" version=3 signature="" status=OK latency_us=412 in=96
//   out=51 client="10.0.0.7:41022"
//
// Thread-safety: all methods, from any thread. Failure: none.

#include <string>

#include "serving/request_observer.h"
#include "serving/served_model.h"

namespace millrace {

class AccessLog : public RequestObserver {
 public:
  // Of each request with this probability.
  explicit AccessLog(double sampling_rate) : sampling_rate_(sampling_rate) {}

  void Began(const ServedModel&) override {}
  void Ended(const RequestRecord& record) override;

 private:
  const double sampling_rate_;
};

// One line without its end. Names in quotes, with escapes, cut to 200 bytes; "-": not known.
std::string AccessLine(const RequestRecord& record);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_ACCESS_LOG_H_
