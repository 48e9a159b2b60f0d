// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/peer_counts.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace millrace {
namespace {

constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

}  // namespace

void PeerCounter::AddSent(int64_t bytes, int64_t tensors, int64_t queued_ns) {
  bytes_sent_.fetch_add(bytes, kRelaxed);
  messages_sent_.fetch_add(1, kRelaxed);
  tensors_sent_.fetch_add(tensors, kRelaxed);
  queued_ns_.fetch_add(queued_ns, kRelaxed);
}

void PeerCounter::AddReceived(int64_t bytes, int64_t tensors) {
  bytes_received_.fetch_add(bytes, kRelaxed);
  messages_received_.fetch_add(1, kRelaxed);
  tensors_received_.fetch_add(tensors, kRelaxed);
}

PeerCounts PeerCounter::Read() const {
  return {.bytes_sent = bytes_sent_.load(kRelaxed),
          .messages_sent = messages_sent_.load(kRelaxed),
          .tensors_sent = tensors_sent_.load(kRelaxed),
          .queued_ns = queued_ns_.load(kRelaxed),
          .bytes_received = bytes_received_.load(kRelaxed),
          .messages_received = messages_received_.load(kRelaxed),
          .tensors_received = tensors_received_.load(kRelaxed)};
}

PeerCounters::PeerCounters(const std::vector<std::string>& tasks) {
  counters_[kOthers] = std::make_shared<PeerCounter>();
  for (const std::string& task : tasks) counters_[task] = std::make_shared<PeerCounter>();
}

std::shared_ptr<PeerCounter> PeerCounters::Find(absl::string_view task) const {
  auto found = counters_.find(task);
  if (found == counters_.end()) found = counters_.find(absl::string_view(kOthers));
  return found->second;
}

std::map<std::string, PeerCounts> PeerCounters::Read() const {
  std::map<std::string, PeerCounts> result;
  for (const auto& [task, counter] : counters_) {
    const PeerCounts counts = counter->Read();
    if (counts.messages_sent > 0 || counts.messages_received > 0) result[task] = counts;
  }
  return result;
}

std::string PeerCounters::ToString() const {
  std::string text;
  for (const auto& [task, counts] : Read()) {
    const absl::Duration queued =
        absl::Trunc(absl::Nanoseconds(counts.queued_ns), absl::Microseconds(1));
    absl::StrAppend(&text, text.empty() ? "" : "; ", "to ", task, " ", counts.tensors_sent,
                    " tensors in ", counts.messages_sent, " messages of ", counts.bytes_sent,
                    " bytes, which waited ", absl::FormatDuration(queued), ", from it ",
                    counts.tensors_received, " in ", counts.messages_received, " of ",
                    counts.bytes_received, " bytes");
  }
  return text;
}

}  // namespace millrace
