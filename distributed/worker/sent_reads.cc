// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/sent_reads.h"

#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "core/dcheck.h"

namespace millrace {
namespace {

// Words of a sample: what a dense update leaves as they are is rare.
constexpr size_t kSampleWords = 16;

// Of words that lie evenly over the bytes, the first and the last among them; there are
// kMinKeptBytes at least.
uint64_t SampleOf(absl::Span<const char> bytes) {
  uint64_t sample = 0;
  const size_t last = bytes.size() - sizeof(uint64_t);
  for (size_t i = 0; i < kSampleWords; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + last * i / (kSampleWords - 1), sizeof(word));
    sample = (sample ^ word) * 0x9e3779b97f4a7c15u;
    sample ^= sample >> 32;
  }
  return sample;
}

}  // namespace

bool SentReads::LooksEqual(const Tensor& value, Edge* edge) {
  const void* const place = value.raw_data();
  const uint64_t sample = SampleOf(value.bytes());
  const bool is_equal = edge->place.load(std::memory_order_relaxed) == place &&
                        edge->sample.load(std::memory_order_relaxed) == sample;
  edge->place.store(place, std::memory_order_relaxed);
  edge->sample.store(sample, std::memory_order_relaxed);
  return is_equal;
}

void SentReads::Rest(Edge* edge) {
  // What it sends next is not compared with what left long before.
  edge->place.store(nullptr, std::memory_order_relaxed);
  edge->looks.store(0, std::memory_order_relaxed);
  edge->rest.store(kRest, std::memory_order_relaxed);
}

SentReads::Choice SentReads::Choose(size_t index, const Tensor& value, KeptByPeer* table) {
  MR_DCHECK(index < edges_.size(), "a push has the edges of its graph");
  Edge& edge = edges_[index];
  const uint32_t rest = edge.rest.load(std::memory_order_relaxed);
  if (rest > 0) {
    edge.rest.store(rest - 1, std::memory_order_relaxed);
    return {};
  }
  const bool may_keep = KeptByPeer::MayKeep(value);
  if (!edge.is_kept.load(std::memory_order_relaxed)) {
    if (!may_keep) return {};
    if (!LooksEqual(value, &edge)) {
      const uint32_t looks = edge.looks.load(std::memory_order_relaxed) + 1;
      edge.looks.store(looks, std::memory_order_relaxed);
      if (looks >= kLooks) Rest(&edge);
      return {};
    }
  }
  MutexLock lock(&mu_);
  if (edge.entry != nullptr && edge.entry->is_of(table)) {
    if (edge.entry->Use(value)) {
      ++edge.saved;
      return {edge.entry, /*is_kept=*/true};
    }
    if (edge.entry->Is(value) && !edge.entry->is_lost()) return {};  // on its way
  }
  std::shared_ptr<KeptByPeer::Entry> gone = std::exchange(edge.entry, nullptr);
  edge.is_kept.store(false, std::memory_order_relaxed);
  const int64_t saved = std::exchange(edge.saved, 0);
  // Another link, or a step that failed, says nothing of the edge: it is looked at as a new one.
  if (gone != nullptr && (!gone->is_of(table) || gone->is_lost() || table->is_closed())) return {};
  const bool keeps = may_keep && (gone == nullptr || saved > 0);
  gone = nullptr;  // its room may be what the new one needs
  if (keeps) edge.entry = table->Keep(value);
  if (edge.entry == nullptr) {
    Rest(&edge);
    return {};
  }
  edge.is_kept.store(true, std::memory_order_relaxed);
  return {edge.entry, /*is_kept=*/false};
}

}  // namespace millrace
