// SPDX-License-Identifier: Apache-2.0
#include "core/histogram.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstddef>

#include "proto/summary.pb.h"

namespace millrace {
namespace {

constexpr double kFirst = 1e-12, kEnd = 1e20, kFactor = 1.1;
// A double's exponent and the first three bits of its fraction: eight cells between two powers of
// two, where about seven limits lie, so that a cell has at most two.
constexpr int kCellShift = 49;

uint64_t CellOf(double positive) { return std::bit_cast<uint64_t>(positive) >> kCellShift; }

// The positive limits, and where those of a cell begin.
struct Positive {
  std::vector<double> limits;
  uint64_t first_cell;
  std::vector<uint16_t> cells;  // how many limits lie below the cell

  Positive() {
    for (double limit = kFirst; limit < kEnd; limit *= kFactor) limits.push_back(limit);
    limits.push_back(DBL_MAX);
    first_cell = CellOf(kFirst);
    for (uint64_t cell = first_cell; cell <= CellOf(kEnd); ++cell) {
      const double begin = std::bit_cast<double>(cell << kCellShift);
      cells.push_back(static_cast<uint16_t>(std::lower_bound(limits.begin(), limits.end(), begin) -
                                            limits.begin()));
    }
  }

  // The place of a limit from which on those that are above `value`, a positive number, begin soon.
  size_t Near(double value) const {
    if (value < kFirst) return 0;
    return cells[static_cast<size_t>(CellOf(std::min(value, kEnd)) - first_cell)];
  }
  // How many limits are <= value; the last one, which ends the last bucket, does not count.
  size_t NumUpTo(double value) const {
    size_t i = Near(value);
    while (i + 1 < limits.size() && limits[i] <= value) ++i;
    return i;
  }
  // How many limits are < value.
  size_t NumBelow(double value) const {
    size_t i = Near(value);
    while (i < limits.size() && limits[i] < value) ++i;
    return i;
  }
};

const Positive& PositiveLimits() {
  static const Positive* limits = new Positive();
  return *limits;
}

}  // namespace

const std::vector<double>& Histogram::Limits() {
  static const std::vector<double>* limits = [] {
    const std::vector<double>& positive = PositiveLimits().limits;
    auto* all = new std::vector<double>(positive.rbegin(), positive.rend());
    for (double& limit : *all) limit = -limit;
    all->push_back(0);
    all->insert(all->end(), positive.begin(), positive.end());
    return all;
  }();
  return *limits;
}

Histogram::Histogram() : counts_(Limits().size(), 0), min_(DBL_MAX), max_(-DBL_MAX) {}

void Histogram::Add(double value) {
  const Positive& positive = PositiveLimits();
  const size_t zero = positive.limits.size();                            // the place of the limit 0
  const size_t bucket = value >= 0 ? zero + 1 + positive.NumUpTo(value)  //
                                   : zero - positive.NumBelow(-value);
  ++counts_[bucket];
  ++num_;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
  sum_ += value;
  sum_squares_ += value * value;
}

void Histogram::WriteTo(tensorflow::HistogramProto* proto) const {
  proto->Clear();
  proto->set_min(min_);
  proto->set_max(max_);
  proto->set_num(static_cast<double>(num_));
  proto->set_sum(sum_);
  proto->set_sum_squares(sum_squares_);
  for (size_t i = 0; i < counts_.size(); ++i) {
    const int64_t count = counts_[i];
    while (count == 0 && i + 1 < counts_.size() && counts_[i + 1] == 0) ++i;
    proto->add_bucket_limit(Limits()[i]);
    proto->add_bucket(static_cast<double>(count));
  }
}

}  // namespace millrace
