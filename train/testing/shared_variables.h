// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TESTING_SHARED_VARIABLES_H_
#define MILLRACE_TRAIN_TESTING_SHARED_VARIABLES_H_

// SharedVariables: parameter servers for tests, without servers. While one lives, sessions of the
// target "cluster://" share the variables of one session in this process, as sessions of a cluster
// share those of the parameter servers; each has a graph of its own.
//
// At most one at a time; it outlives its sessions, except those of threads that were left behind.
// Thread-safety: all methods, from any thread.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "run/training_run.h"
#include "runtime/session.h"

namespace millrace {

inline constexpr char kSharedTarget[] = "cluster://";

class SharedVariables {
 public:
  SharedVariables();
  ~SharedVariables();

  // Afterwards no variable is initialised.
  Status Restart();
  // The session with the variables.
  std::shared_ptr<Session> variables() const;
  // The next sessions cannot be created, one for each status; OK entries succeed.
  void FailCreations(std::deque<Status> statuses);
  // The next Runs return these statuses, one each, instead of running; OK entries run.
  void FailRuns(std::deque<Status> statuses);

  int sessions_made() const;
  int sessions_closed() const;
  void AwaitClosed(int number) const;
  // Until this many sessions are destroyed, and no thread uses them any more.
  void AwaitDestroyed(int number) const;
  // The answers of the sessions' OtherTrainers, in this order; the last one stays.
  void SetOtherTrainers(std::deque<RunTrainers> trainers);
  // The runs for which sessions were opened, and the ends that were reported to them.
  std::vector<TrainingRun> runs() const;
  std::vector<RunEnd> ends() const;

  struct State;  // what the sessions see

 private:
  const std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TESTING_SHARED_VARIABLES_H_
