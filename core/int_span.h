// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_INT_SPAN_H_
#define MILLRACE_CORE_INT_SPAN_H_

// IntSpan: int32s or int64s that lie somewhere else, read in place, each as an int64.
//
//   for (const int64_t id : tensor.ints()) ...
//
// One piece of code for both types where elements are read once or twice. A loop that reads them
// over and over is a template on the type (VisitIndexType, ops/rules/index_type.h).
//
// A value, as absl::Span; what it points to outlives it.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace millrace {

class IntSpan {
 public:
  IntSpan(absl::Span<const int32_t> ints)  // NOLINT: converts as a span does
      : narrow_(ints.data()), size_(ints.size()) {}
  IntSpan(absl::Span<const int64_t> ints)  // NOLINT
      : wide_(ints.data()), size_(ints.size()) {}

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Requires i < size().
  int64_t operator[](size_t i) const { return narrow_ != nullptr ? narrow_[i] : wide_[i]; }
  // Elements from `begin` <= size() on, at most `count`.
  IntSpan subspan(size_t begin, size_t count = absl::Span<const int64_t>::npos) const {
    if (narrow_ != nullptr) return absl::MakeConstSpan(narrow_, size_).subspan(begin, count);
    return absl::MakeConstSpan(wide_, size_).subspan(begin, count);
  }
  std::vector<int64_t> ToVector() const {
    std::vector<int64_t> values(size_);
    for (size_t i = 0; i < size_; ++i) values[i] = (*this)[i];
    return values;
  }

  struct Iterator {
    int64_t operator*() const { return narrow != nullptr ? *narrow : *wide; }
    Iterator& operator++() {
      if (narrow != nullptr) {
        ++narrow;
      } else {
        ++wide;
      }
      return *this;
    }
    bool operator==(const Iterator&) const = default;

    const int32_t* narrow;
    const int64_t* wide;
  };
  Iterator begin() const { return {narrow_, wide_}; }
  Iterator end() const {
    return narrow_ != nullptr ? Iterator{narrow_ + size_, nullptr}
                              : Iterator{nullptr, wide_ + size_};
  }

 private:
  // One of them; both are null where there is nothing.
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
  size_t size_;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_INT_SPAN_H_
