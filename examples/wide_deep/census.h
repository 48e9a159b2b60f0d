// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_WIDE_DEEP_CENSUS_H_
#define MILLRACE_EXAMPLES_WIDE_DEEP_CENSUS_H_

// People of the UCI Census Income data ("Adult"), or drawn ones, as numbers that a model takes:
// does somebody earn more than 50,000 a year?
//
// Drawn people need no file: their columns are random and a rule with noise decides the label, so
// a model can learn it.
//
// Values; thread-compatible. Failure: DataLoss for a line that has not the file's 15 columns.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

inline constexpr int64_t kNumbers = 5;     // age, education, capital gain and loss, hours a week
inline constexpr int64_t kCategories = 8;  // workclass, education, ..., native country
inline constexpr int64_t kCrosses = 2;     // education x occupation, age x education x occupation
inline constexpr int64_t kCategoryIds = 100;  // hash buckets of one category
inline constexpr int64_t kCrossIds = 1000;    // and of one cross

struct Census {
  std::vector<float> numbers;       // kNumbers per person, about in [0, 1]
  std::vector<int64_t> categories;  // kCategories, in [0, kCategories * kCategoryIds)
  std::vector<int64_t> crosses;     // kCrosses, in [0, kCrosses * kCrossIds)
  std::vector<float> labels;        // 0 or 1
  int64_t size() const { return static_cast<int64_t>(labels.size()); }
};

// A .csv file as UCI has it.
StatusOr<Census> ReadCensus(const std::string& path);
Census DrawCensus(int64_t count, uint64_t seed);

struct CensusBatch {
  Tensor numbers;     // float [n, kNumbers]
  Tensor categories;  // int64 [n, kCategories]
  Tensor crosses;     // int64 [n, kCrosses]
  Tensor labels;      // float [n, 1]
};
// The people of these indices.
StatusOr<CensusBatch> MakeBatch(const Census& census, const std::vector<size_t>& people);
// Some at random.
StatusOr<CensusBatch> RandomBatch(const Census& census, size_t count, std::mt19937_64* random);

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_WIDE_DEEP_CENSUS_H_
