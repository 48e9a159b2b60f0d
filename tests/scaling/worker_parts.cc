// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/worker_parts.h"

#include <numeric>
#include <utility>

#include "tests/scaling/seeded_random.h"

namespace millrace::scaling {
namespace {

constexpr uint64_t kDeal = 1, kOrder = 2;

}  // namespace

StatusOr<WorkerParts> WorkerParts::Make(int64_t num_examples, int64_t workers, uint64_t seed) {
  if (workers < 1 || num_examples < workers) {
    return InvalidArgument("WorkerParts: workers must be in [1, ", num_examples,
                           "], the number of examples, got ", workers);
  }
  std::vector<size_t> all(static_cast<size_t>(num_examples));
  std::iota(all.begin(), all.end(), size_t{0});
  std::mt19937_64 random = RandomOf(seed, kDeal);
  Shuffle(&all, &random);
  WorkerParts result;
  result.parts_.resize(static_cast<size_t>(workers));
  for (size_t i = 0; i < all.size(); ++i) {
    result.parts_[i % result.parts_.size()].examples.push_back(all[i]);
  }
  for (size_t worker = 0; worker < result.parts_.size(); ++worker) {
    result.parts_[worker].random = RandomOf(seed, kOrder, worker);
  }
  return result;
}

std::vector<size_t> WorkerParts::Next(size_t worker, int64_t batch) {
  Part& part = parts_[worker];
  std::vector<size_t> examples;
  while (static_cast<int64_t>(examples.size()) < batch) {
    if (part.next == part.examples.size()) {
      Shuffle(&part.examples, &part.random);
      part.next = 0;
    }
    examples.push_back(part.examples[part.next++]);
  }
  return examples;
}

}  // namespace millrace::scaling
