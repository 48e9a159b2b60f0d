// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_RUN_TIMES_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_RUN_TIMES_H_

// The four times of a traced RUN and its END, from which a master learns how far a task's clock is
// from its own, as NTP does:
//
//   master  asked                answered        begun - asked    = way there + ahead
//   worker         begun   ended                 ended - answered = ahead - way back
//
// They are fields of their own in the report of a part, TensorFlow's RunGraphResponse. The worker
// adds its two, the master that receives the report the other two.
//
// Thread-safety: functions of their arguments. Failure: no exchange when one of the four is missing
// (a worker in this process, or a step that is not traced) or when they cannot be times of one run.

#include <cstdint>
#include <optional>

#include "google/protobuf/message.h"

namespace millrace {

// Nanoseconds since the epoch: `asked` and `answered` by the caller's clock, the others by the
// worker's.
struct ClockExchange {
  int64_t asked_ns = 0;
  int64_t begun_ns = 0;
  int64_t ended_ns = 0;
  int64_t answered_ns = 0;
};

// Whether a time that another task told can be one: sums and differences of two do not overflow.
bool IsTraceTime(int64_t ns);

// By the worker, last: the time to write the report is the worker's.
void AddWorkerTimes(int64_t begun_ns, int64_t ended_ns, google::protobuf::Message* response);
// By the receiver of `response`.
void AddCallerTimes(int64_t asked_ns, int64_t answered_ns, google::protobuf::Message* response);
std::optional<ClockExchange> ClockExchangeOf(const google::protobuf::Message& response);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_RUN_TIMES_H_
