// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_SESSION_TERMS_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_SESSION_TERMS_H_

// SessionTerms: for which run a session is opened, and how long it lives when nobody renews it.
//
// A master gives them to its workers as a field of a message of ours (proto/worker_control.proto).
// A client gives them to a master next to the fields of TensorFlow's CreateSessionRequest, with a
// number that TensorFlow will never use; others skip it. A session of a peer that knows no terms is
// of no run and ends when it is deleted.
//
// Thread-safety: functions of their arguments. Failure: InvalidArgument for terms that cannot be
// kept; what a peer sends is bounded before it is used.

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "google/protobuf/message.h"
#include "run/training_run.h"

namespace millrace {

namespace wire {
class RunEnd;
class SessionTerms;
class TrainingRun;
}  // namespace wire

struct SessionTerms {
  TrainingRun run = {};
  // ZeroDuration: the session lives until it is deleted, or must go for other idle ones
  // (ServerLimits::max_idle_sessions).
  absl::Duration lease = absl::ZeroDuration();
};

// Adds nothing for terms that say nothing.
void AddSessionTerms(const SessionTerms& terms, google::protobuf::Message* message);
StatusOr<SessionTerms> SessionTermsOf(const google::protobuf::Message& message);

// The terms as they are kept: a lease that is too short or too long is cut. InvalidArgument,
// beginning with `where`, for those that cannot be kept.
StatusOr<SessionTerms> KeptTerms(absl::string_view where, SessionTerms terms);

void ToWire(const SessionTerms& terms, wire::SessionTerms* message);
SessionTerms FromWire(const wire::SessionTerms& message);
void ToWire(const TrainingRun& run, wire::TrainingRun* message);
void ToWire(const RunEnd& end, wire::RunEnd* message);
TrainingRun FromWire(const wire::TrainingRun& message);
// Cut to the bounds of a RunEnd (run/run_end_limits.h).
RunEnd FromWire(const wire::RunEnd& message);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_SESSION_TERMS_H_
