// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_HISTOGRAM_H_
#define MILLRACE_CORE_HISTOGRAM_H_

// Histogram: how many of many numbers lie where, in TensorFlow's buckets: what event files hold and
// TensorBoard draws.
//
// The limits of the buckets are fixed: 1e-12, multiplied by 1.1 again and again below 1e20, then
// the largest double; the same below zero, and zero. A value equal to a limit lies in the bucket
// above it.
//
// Thread-safety: thread-compatible. Failure: none; NaN and infinities must not be added (a caller
// that adds values of others asks first).

#include <cstdint>
#include <vector>

namespace tensorflow {
class HistogramProto;
}

namespace millrace {

class Histogram {
 public:
  Histogram();

  // Requires a finite value. About 5 ns.
  void Add(double value);
  int64_t num() const { return num_; }

  // Buckets that follow each other and are empty are written as one, with the limit of the last.
  void WriteTo(tensorflow::HistogramProto* proto) const;

  // All limits, ascending.
  static const std::vector<double>& Limits();

 private:
  std::vector<int64_t> counts_;  // of the bucket that ends at each limit
  int64_t num_ = 0;
  double min_, max_;
  double sum_ = 0, sum_squares_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_HISTOGRAM_H_
