// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FUZZ_MUTATOR_H_
#define MILLRACE_TESTS_FUZZ_MUTATOR_H_

// Mutator: bytes that are nearly right, for decoders of what strangers send and of files.
//
// Equal seeds and corpora give equal sequences on every machine.
//
// Thread-safety: one thread at a time. Failure: none.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace millrace {

class Mutator {
 public:
  // `corpus`: valid inputs, at least one.
  Mutator(uint64_t seed, std::vector<std::string> corpus);

  // One of the corpus after 1 to 8 changes: bits, bytes, lengths and varints at their extremes,
  // parts that are missing, repeated, moved, or taken from another member.
  std::string Next();
  // Below `n` > 0.
  uint64_t Below(uint64_t n) { return random_() % n; }

 private:
  void Change(std::string* bytes);

  std::mt19937_64 random_;
  const std::vector<std::string> corpus_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_FUZZ_MUTATOR_H_
