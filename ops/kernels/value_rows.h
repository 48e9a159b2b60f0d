// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_VALUE_ROWS_H_
#define MILLRACE_OPS_KERNELS_VALUE_ROWS_H_

// ValueRows: what a table keeps for its keys: rows of one dtype and size, by place, in memory that
// grows. InParts: a look-up of many keys in parts.
//
// Thread-safety: thread-compatible.
// Failure: ResourceExhausted where memory is asked for; InvalidArgument for sizes beyond a
// tensor's.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/kernels/table_storage.h"
#include "ops/rules/elements.h"

namespace millrace {

class ValueRows {
 public:
  // `dtype`: one whose elements can be copied (ops/rules/elements.h).
  ValueRows(DType dtype, int64_t row_size) : dtype_(dtype), row_size_(row_size) {}

  // Memory for `rows`; a growing one doubles. What was set stays.
  Status Reserve(int64_t rows) {
    if (rows <= capacity_) return absl::OkStatus();
    const int64_t wanted = std::max(rows, 2 * capacity_);
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({wanted, row_size_}));
    MR_ASSIGN_OR_RETURN(Tensor grown, Tensor::Zeros(dtype_, shape));
    MR_RETURN_IF_ERROR(VisitElements(dtype_, [&]<typename E>() {
      E* const from = MutableElementsOf<E>(&rows_);
      std::move(from, from + capacity_ * row_size_, MutableElementsOf<E>(&grown));
    }));
    rows_ = std::move(grown);
    capacity_ = wanted;
    return absl::OkStatus();
  }
  // Row `place` gets row `i` of `values`.
  Status Set(int64_t place, const Tensor& values, int64_t i) {
    return VisitElements(dtype_, [&]<typename E>() {
      const E* const from = ElementsOf<E>(values) + i * row_size_;
      std::copy(from, from + row_size_, MutableElementsOf<E>(&rows_) + place * row_size_);
    });
  }
  Status Move(int64_t from, int64_t to) {
    return VisitElements(dtype_, [&]<typename E>() {
      E* const rows = MutableElementsOf<E>(&rows_);
      std::move(rows + from * row_size_, rows + (from + 1) * row_size_, rows + to * row_size_);
    });
  }
  // Row i of `out`, counted from row `begin` on, is row places[i], or `missing` where that is < 0.
  Status Gather(absl::Span<const int64_t> places, const Tensor& missing, int64_t begin,
                Tensor* out) const {
    return VisitElements(dtype_, [&]<typename E>() {
      const E* const rows = ElementsOf<E>(rows_);
      const E* const other = ElementsOf<E>(missing);
      E* to = MutableElementsOf<E>(out) + begin * row_size_;
      if (row_size_ == 1) {
        for (const int64_t place : places) *to++ = place < 0 ? *other : rows[place];
        return;
      }
      for (const int64_t place : places) {
        const E* const from = place < 0 ? other : rows + place * row_size_;
        to = std::copy(from, from + row_size_, to);
      }
    });
  }
  // The first `n` rows as they lie in memory.
  Status CopyTo(int64_t n, Tensor* out) const {
    return VisitElements(dtype_, [&]<typename E>() {
      const E* const from = ElementsOf<E>(rows_);
      std::copy(from, from + n * row_size_, MutableElementsOf<E>(out));
    });
  }
  // Bit by bit.
  bool Equal(int64_t place, const Tensor& values, int64_t i) const {
    bool equal = false;
    VisitElements(dtype_, [&]<typename E>() {
      const E* const a = ElementsOf<E>(rows_) + place * row_size_;
      const E* const b = ElementsOf<E>(values) + i * row_size_;
      if constexpr (std::is_trivially_copyable_v<E>) {
        equal = std::memcmp(a, b, static_cast<size_t>(row_size_) * sizeof(E)) == 0;
      } else if constexpr (std::is_same_v<E, std::string>) {
        equal = std::equal(a, a + row_size_, b);
      }
    }).IgnoreError();
    return equal;
  }
  // [at least so many as were reserved, row size].
  const Tensor& rows() const { return rows_; }

 private:
  DType dtype_;
  int64_t row_size_;
  Tensor rows_;
  int64_t capacity_ = 0;
};

// Keys whose places are found before their values are copied.
inline constexpr int64_t kFindBlock = 256;
// What looking one key up costs, for splitting large batches.
inline constexpr double kFindNs = 15;

// The first error of a loop's parts.
inline Status InParts(int64_t n, TableLoop loop,
                      absl::FunctionRef<Status(int64_t begin, int64_t end)> body) {
  Mutex mu;
  Status first;
  loop(n, kFindNs, [&](int64_t begin, int64_t end) {
    Status status = body(begin, end);
    if (status.ok()) return;
    MutexLock lock(&mu);
    first.Update(std::move(status));
  });
  return first;
}

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_VALUE_ROWS_H_
