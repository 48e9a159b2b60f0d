// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FUZZ_FUZZ_H_
#define MILLRACE_TESTS_FUZZ_FUZZ_H_

// Decoders under a seeded mutator: whatever comes, each returns (a value or an error), and a tensor
// that it returns is bounded. What else a decoder takes meanwhile is not measured here.
//
// Every sixteenth input is a valid one, so that a test also sees what a decoder must take: one that
// refused everything would pass otherwise.
//
// The number of inputs is fixed, not the time. $MILLRACE_FUZZ_ROUNDS multiplies it (the targets
// *_ten_minutes_test), $MILLRACE_FUZZ_SEED begins elsewhere; a failure names its seed.
//
// Thread-safety: one thread at a time. Failure: fails the test.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/fuzz/mutator.h"

namespace millrace {

inline constexpr int kValidInputEach = 16;
// Far above what inputs of 64 KiB may lead to.
inline constexpr int64_t kMaxFuzzedTensorBytes = int64_t{64} << 20;

// Calls decode(input) for `n` inputs, more where the environment says so. Members of the corpus
// take turns as the valid ones.
void Fuzz(int n, std::vector<std::string> corpus,
          const std::function<void(const std::string&, Mutator*)>& decode);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FUZZ_FUZZ_H_
