// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_MNIST_DIGITS_H_
#define MILLRACE_EXAMPLES_MNIST_DIGITS_H_

// Images of handwritten digits: MNIST's files, or digits that this program draws.
//
// Drawn digits need no download: strokes with random form, place, size, slant, width
// and noise, hard enough that a linear model stays below 90 % on them.
//
// Values; thread-compatible.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

inline constexpr int kDigitSide = 28;
inline constexpr int kDigitPixels = kDigitSide * kDigitSide;
inline constexpr int kDigitClasses = 10;

// Images with values in [0, 1], row by row, and their labels 0 ... 9.
struct Digits {
  std::vector<float> pixels;  // kDigitPixels per image
  std::vector<int32_t> labels;
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

struct DigitSets {
  Digits train;
  Digits test;
};

// `count` drawn digits. The same seed gives the same digits.
Digits DrawDigits(int64_t count, uint64_t seed);

// MNIST's four files (idx, also .gz) in a directory. NotFound names the missing file; DataLoss a
// file that is no idx file of the right sizes.
StatusOr<DigitSets> ReadDigits(const std::string& directory);

// What --data says: a directory, or "" for 10,000 drawn training and 1,000 drawn test digits.
StatusOr<DigitSets> LoadDigits(const std::string& directory, uint64_t seed);

struct DigitBatch {
  Tensor images;  // float [n, 784]
  Tensor labels;  // float [n, 10], one-hot
};

// Images [begin, begin + count) as tensors.
StatusOr<DigitBatch> MakeBatch(const Digits& digits, int64_t begin, int64_t count);

// Batches in random order, every image once per epoch; a batch may span two epochs.
class BatchIterator {
 public:
  BatchIterator(const Digits* digits, uint64_t seed);
  // `count` >= 1.
  StatusOr<DigitBatch> Next(int64_t count);

 private:
  const Digits* const digits_;  // outlives the iterator
  std::mt19937_64 random_;
  std::vector<int64_t> order_;
  size_t next_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_MNIST_DIGITS_H_
