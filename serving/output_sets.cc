// SPDX-License-Identifier: Apache-2.0
#include "serving/output_sets.h"

#include <utility>

namespace millrace {

StatusOr<std::shared_ptr<PreparedStep>> OutputSets::Find(const std::vector<std::string>& feeds,
                                                         const std::vector<std::string>& fetches) {
  Key key(feeds, fetches);
  if (std::shared_ptr<PreparedStep> step = Look(key); step != nullptr) return step;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<PreparedStep> prepared,
                      session_->Prepare({.feeds = feeds, .fetches = fetches}));
  const std::shared_ptr<PreparedStep> step = Owned(std::move(prepared));
  std::vector<std::shared_ptr<PreparedStep>> dropped;  // goes without the lock
  MutexLock lock(&mu_);
  const auto [entry, is_new] = steps_.try_emplace(std::move(key));
  if (!is_new && entry->second.step != nullptr) return entry->second.step;
  ages_.push_front(&entry->first);  // where memory ends here, the next Find goes on
  entry->second = {step, ages_.begin()};
  while (static_cast<int>(ages_.size()) > max_sets_) {
    const auto oldest = steps_.find(*ages_.back());
    ages_.pop_back();
    dropped.push_back(std::move(oldest->second.step));
    steps_.erase(oldest);
  }
  return step;
}

std::shared_ptr<PreparedStep> OutputSets::Owned(std::unique_ptr<PreparedStep> step) const {
  if (runner_ == nullptr) return step;
  struct Forgetting {
    std::shared_ptr<StepRunner> runner;
    void operator()(PreparedStep* owned) const {
      runner->Forget(owned);
      delete owned;
    }
  };
  // Where memory ends for what counts the owners, it calls the deleter.
  return std::shared_ptr<PreparedStep>(step.release(), Forgetting{runner_});
}

int OutputSets::size() const {
  MutexLock lock(&mu_);
  return static_cast<int>(steps_.size());
}

std::shared_ptr<PreparedStep> OutputSets::Look(const Key& key) {
  MutexLock lock(&mu_);
  const auto found = steps_.find(key);
  if (found == steps_.end() || found->second.step == nullptr) return nullptr;
  ages_.splice(ages_.begin(), ages_, found->second.age);
  return found->second.step;
}

}  // namespace millrace
