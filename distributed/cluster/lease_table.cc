// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/lease_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/dcheck.h"

namespace millrace {

LeaseTable::LeaseTable(Clock* clock, Expired expired)
    : clock_(clock), expired_(std::move(expired)) {}

LeaseTable::~LeaseTable() { Stop(); }

std::shared_ptr<Lease> LeaseTable::Grant(const std::string& handle, absl::Duration time) {
  auto lease = std::make_shared<Lease>(clock_, time);
  MutexLock lock(&mu_);
  if (stopped_) return nullptr;
  entries_[handle] = Entry{lease};
  if (!thread_.joinable()) thread_ = std::thread([this] { Watch(); });
  changed_.SignalAll();
  return lease;
}

void LeaseTable::Drop(const std::string& handle) {
  MutexLock lock(&mu_);
  entries_.erase(handle);
}

void LeaseTable::Doubt(const std::string& handle, absl::Duration within) {
  MutexLock lock(&mu_);
  const auto it = entries_.find(handle);
  if (it == entries_.end()) return;
  Entry& entry = it->second;
  Lease* const lease = entry.lease.get();
  const absl::Time now = clock_->Now();
  const auto age = [&](double share) {
    if (now - lease->renewed() >= lease->time() * share) return;
    entry.renewed = std::min(entry.renewed, lease->renewed());
    lease->RenewedAgo(lease->time() * share);
  };
  if (within < lease->time() * 0.25) {
    age(0.75);
    entry.expires = std::min(entry.expires, now + within);
  } else {
    // It is overdue a twelfth of its time from now, and ends a quarter later.
    age(2.0 / 3);
  }
  changed_.SignalAll();
}

void LeaseTable::Stop() {
  std::thread thread;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    entries_.clear();
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void LeaseTable::Watch() {
  for (;;) {
    std::vector<std::pair<std::string, absl::Duration>> ended;
    {
      MutexLock lock(&mu_);
      if (stopped_) return;
      const absl::Time now = clock_->Now();
      absl::Time wake = absl::InfiniteFuture();
      for (auto it = entries_.begin(); it != entries_.end();) {
        Entry& entry = it->second;
        entry.lease->NotRenewedAfter(now);
        const absl::Time renewed = entry.lease->renewed();
        const absl::Duration time = entry.lease->time();
        if (const absl::Time overdue = renewed + time * 0.75; now < overdue) {
          entry.expires = absl::InfiniteFuture();
          if (renewed > now - time * 0.5) entry.renewed = absl::InfiniteFuture();
          wake = std::min(wake, overdue);
        } else if (entry.expires == absl::InfiniteFuture()) {
          entry.expires = now + time * 0.25;
        }
        MR_DCHECK(entry.expires == absl::InfiniteFuture() || now >= renewed + time * 0.75,
                  "a lease is about to expire only when it is overdue");
        if (now >= entry.expires) {
          ended.emplace_back(it->first, now - std::min(renewed, entry.renewed));
          it = entries_.erase(it);
        } else {
          wake = std::min(wake, entry.expires);
          ++it;
        }
      }
      if (ended.empty()) {
        clock_->WaitUntil(&changed_, &mu_, wake);
        continue;
      }
    }
    // Without the lock: the callback may ask for another lease.
    for (const auto& [handle, silent] : ended) {
      {
        MutexLock lock(&mu_);
        if (stopped_) return;
      }
      expired_(handle, silent);
    }
  }
}

}  // namespace millrace
