// SPDX-License-Identifier: Apache-2.0
#include "core/thread_number.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace millrace::thread_number_internal {
namespace {

constexpr size_t kBits = 64;

// A bit for each number that a thread has. Relaxed: no memory hangs on a number.
constinit std::array<std::atomic<uint64_t>, kThreadNumbers / kBits> taken{};
constinit std::atomic<uint32_t> shared{0};  // a thread that finds none free takes the next; relaxed

// Gives the number back when its thread ends. Objects of the thread that are destroyed later go on
// with it.
struct Owner {
  int number = -1;
  ~Owner() {
    if (number < 0) return;
    const auto n = static_cast<size_t>(number);
    taken[n / kBits].fetch_and(~(uint64_t{1} << (n % kBits)), std::memory_order_relaxed);
  }
};
thread_local Owner owner;

}  // namespace

int Take() {
  for (size_t word = 0; word < taken.size(); ++word) {
    uint64_t bits = taken[word].load(std::memory_order_relaxed);
    while (bits != ~uint64_t{0}) {
      const int bit = std::countr_one(bits);
      if (taken[word].compare_exchange_weak(bits, bits | uint64_t{1} << bit,
                                            std::memory_order_relaxed)) {
        owner.number = number = static_cast<int>(word * kBits) + bit;
        return number;
      }
    }
  }
  number = static_cast<int>(shared.fetch_add(1, std::memory_order_relaxed) % kThreadNumbers);
  return number;
}

}  // namespace millrace::thread_number_internal
