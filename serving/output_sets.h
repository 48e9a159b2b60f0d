// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_OUTPUT_SETS_H_
#define MILLRACE_SERVING_OUTPUT_SETS_H_

// OutputSets: prepared steps for the tensors that requests choose themselves. So many are kept,
// those that were not asked for the longest go first; a step that is in use stays until its last
// user has gone, and is then forgotten by the runner.
//
// Thread-safety: all methods, from any thread. Nothing is compiled under the lock: two requests
// that ask for a new set at once both compile it, and one step is kept.
// Lifetime: destroy it before the session.
// Failure: as Session::Prepare; errors are not kept.

#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/session.h"
#include "serving/step_runner.h"

namespace millrace {

class OutputSets {
 public:
  // `runner`: of the steps; may be null.
  OutputSets(Session* session, int max_sets, std::shared_ptr<StepRunner> runner)
      : session_(session), max_sets_(max_sets), runner_(std::move(runner)) {}

  // By the names of tensors in the graph.
  StatusOr<std::shared_ptr<PreparedStep>> Find(const std::vector<std::string>& feeds,
                                               const std::vector<std::string>& fetches);
  int size() const;

 private:
  using Key = std::pair<std::vector<std::string>, std::vector<std::string>>;
  struct Entry {
    std::shared_ptr<PreparedStep> step;
    std::list<const Key*>::iterator age;
  };

  // Null: not there.
  std::shared_ptr<PreparedStep> Look(const Key& key);
  // Shared: the last owner tells the runner.
  std::shared_ptr<PreparedStep> Owned(std::unique_ptr<PreparedStep> step) const;

  Session* const session_;
  const int max_sets_;
  const std::shared_ptr<StepRunner> runner_;
  mutable Mutex mu_;
  std::map<Key, Entry> steps_ ABSL_GUARDED_BY(mu_);
  std::list<const Key*> ages_ ABSL_GUARDED_BY(mu_);  // keys of steps_, the last used in front
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_OUTPUT_SETS_H_
