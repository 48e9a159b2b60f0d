// SPDX-License-Identifier: Apache-2.0
#include "core/random_bits.h"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Relaxed: each draw is one fetch_add, nothing else is ordered by them.
std::atomic<bool> seeded{false};
std::atomic<uint64_t> counter{0};

// SplitMix64: a bijection that spreads a counter over all bits.
uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint64_t NextOfCounter() {
  constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
  return Mixed(counter.fetch_add(kGolden, std::memory_order_relaxed) + kGolden);
}

uint64_t SystemBits() {
  uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) == static_cast<ssize_t>(sizeof(bits))) return bits;
  // A kernel that refuses (a sandbox): time and process still tell processes apart.
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return NextOfCounter() ^
         Mixed(static_cast<uint64_t>(now.tv_nsec) ^ (static_cast<uint64_t>(now.tv_sec) << 30) ^
               (static_cast<uint64_t>(getpid()) << 48));
}

}  // namespace

uint64_t RandomUint64() {
  for (;;) {
    const uint64_t bits = seeded.load(std::memory_order_relaxed) ? NextOfCounter() : SystemBits();
    if (bits != 0) return bits;
  }
}

std::string RandomHexName() { return absl::StrCat(absl::Hex(RandomUint64(), absl::kZeroPad16)); }

ScopedRandomSeed::ScopedRandomSeed(uint64_t seed) {
  counter.store(seed, std::memory_order_relaxed);
  seeded.store(true, std::memory_order_relaxed);
}

ScopedRandomSeed::~ScopedRandomSeed() { seeded.store(false, std::memory_order_relaxed); }

}  // namespace millrace
