// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_SAMPLING_H_
#define MILLRACE_SERVING_MONITORING_SAMPLING_H_

// IsSampled: which of many requests are looked at.
//
// Thread-safety: any thread; each has its own sequence. Failure: none.

#include <cstdint>

#include "core/random_bits.h"

namespace millrace {

// True with probability `rate`; of 0 and less never, of 1 and more always. A few nanoseconds.
inline bool IsSampled(double rate) {
  if (!(rate > 0)) return false;
  if (rate >= 1) return true;
  // Vigna's splitmix64: enough for a sample.
  static thread_local uint64_t state = RandomUint64();
  uint64_t bits = state += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1p-53 < rate;
}

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_SAMPLING_H_
