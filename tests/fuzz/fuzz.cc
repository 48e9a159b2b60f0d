// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz.h"

#include <google/protobuf/stubs/logging.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

}  // namespace

void Fuzz(int n, std::vector<std::string> corpus,
          const std::function<void(const std::string&, Mutator*)>& decode) {
  const uint64_t seed = FromEnvironment("MILLRACE_FUZZ_SEED", 1);
  const uint64_t rounds = FromEnvironment("MILLRACE_FUZZ_ROUNDS", 1);
  google::protobuf::SetLogHandler(nullptr);  // it tells of each text that is no UTF-8
  for (uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("MILLRACE_FUZZ_SEED=", seed + round));
    Mutator mutator(seed + round, corpus);
    for (int i = 0; i < n; ++i) {
      const size_t turn = static_cast<size_t>(i / kValidInputEach) % corpus.size();
      decode(i % kValidInputEach == 0 ? corpus[turn] : mutator.Next(), &mutator);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace millrace
