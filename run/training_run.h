// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_TRAINING_RUN_H_
#define MILLRACE_RUN_TRAINING_RUN_H_

// TrainingRun: what one logdir trains, and whose variables those on the parameter servers are.
//
// All tasks of a run are given one name (the logdir as text). Its chief makes the id, keeps it in
// the logdir and claims the run with it wherever its sessions reach; a parameter server keeps
// resources by id, so that no run ever sees those of another. A trainer that is not the chief asks
// the servers which id the run of its name has.
//
//   claimed -> ended      by EndRun (run/run_session.h): the chief says that training is over
//   ended   -> claimed    by a chief of the same id: the run is trained further
//   claimed -> claimed    by another chief of the same id: sessions of the older one are fenced
//
// The two ways in which a run refuses a session are payloads of a Status that travel
// (core/status_kind.h), so that a client knows them whatever the message says around them. Neither
// is worth a retry of the same call; both are FailedPrecondition.
//
// Thread-safety: plain data, and functions of their arguments.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

struct TrainingRun {
  // "" with an empty id: no run; resources are in the servers' default container.
  std::string name = "";
  // Letters and digits; "" when the servers are to be asked by name.
  std::string id = "";
  bool is_chief = false;
  // Of a chief: who it is, in words; other for every chief that there ever was, the same for all
  // sessions of one. "": this process.
  std::string chief = "";
  // Of a chief: grows with each that takes the logdir over; the largest is the newest. 0 when
  // nobody counts: then it is the one that came last.
  int64_t epoch = 0;

  bool empty() const { return name.empty() && id.empty(); }
};

// What was reached when a run ended. Of longer texts a Status keeps the first 512 bytes of the
// reason, and no checkpoint above 1024 bytes.
struct RunEnd {
  int64_t global_step = -1;     // -1: not known
  std::string checkpoint = "";  // the last one; "": none
  std::string reason = "";      // for people: "reached step 1000 of 1000"

  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};

// Tasks that train a run.
struct RunTrainers {
  std::vector<std::string> training = {};  // have a session of it open
  std::vector<std::string> ended = {};     // have had one, and have closed it, or its lease expired
};

// 32 hex digits, never the same twice.
std::string NewRunId();

// The longest that a server takes.
inline constexpr size_t kMaxRunNameBytes = 1024;
inline constexpr size_t kMaxRunIdBytes = 64;
inline constexpr size_t kMaxChiefBytes = 256;
// InvalidArgument for a name, id or chief that cannot be one, or a chief without an id.
Status CheckRun(const TrainingRun& run);

// FailedPrecondition: training of the run is over. `where`: who found that out ("Session", a task).
Status RunEndedError(absl::string_view where, const TrainingRun& run, const RunEnd& end);
// The end that a status tells of; nothing for every other status.
std::optional<RunEnd> RunEndOf(const Status& status);

// FailedPrecondition: another chief has taken the run over; `by` names it.
Status FencedError(absl::string_view where, const TrainingRun& run, absl::string_view by);
bool IsFenced(const Status& status);

// A run that may not be opened now: another one of its name, `by`, is trained. Unavailable.
Status BusyRunError(absl::string_view task, const TrainingRun& run, absl::string_view by);
bool TellsOfBusyRun(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_RUN_TRAINING_RUN_H_
