// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/batch_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/logging.h"
#include "core/shape.h"

namespace millrace {
namespace {

// Ragged rows may not grow by more than this factor together, beyond this size: one long row next
// to a thousand short ones would take gigabytes.
constexpr int64_t kMaxRaggedGrowth = 8;
constexpr int64_t kFreeRaggedElements = int64_t{1} << 22;

using Dims = absl::InlinedVector<int64_t, 4>;

// Elements from one tensor into another one of the same dtype.
void CopyElements(const Tensor& from, int64_t begin, int64_t n, Tensor* to, int64_t at) {
  if (n == 0) return;
  if (from.dtype() == DT_STRING) {
    const std::string* const in = from.raw<std::string>().data() + begin;
    std::copy(in, in + n, to->mutable_raw<std::string>().data() + at);
    return;
  }
  const size_t size = DTypeSize(from.dtype());
  std::memcpy(static_cast<char*>(to->mutable_raw_data()) + static_cast<size_t>(at) * size,
              static_cast<const char*>(from.raw_data()) + static_cast<size_t>(begin) * size,
              static_cast<size_t>(n) * size);
}

// The elements of `from` at their places in the larger rows of `to`, from its row `row` on. What
// lies between is left as it is.
void CopyIntoLargerRows(const Tensor& from, Tensor* to, int64_t row) {
  const int rank = from.rank();
  // How far the next index of each dimension is in `to`.
  Dims strides(static_cast<size_t>(rank), 1);
  for (int i = rank - 2; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = strides[static_cast<size_t>(i) + 1] * to->dim(i + 1);
  }
  const int64_t run = from.dim(rank - 1);
  Dims index(static_cast<size_t>(rank), 0);
  index[0] = row;
  for (int64_t begin = 0; begin < from.num_elements(); begin += run) {
    int64_t at = 0;
    for (size_t i = 0; i < index.size(); ++i) at += index[i] * strides[i];
    CopyElements(from, begin, run, to, at);
    for (int i = rank - 2; i >= 0; --i) {
      int64_t& here = index[static_cast<size_t>(i)];
      if (++here < (i == 0 ? row + from.dim(0) : from.dim(i))) break;
      here = 0;
    }
  }
}

// Shape of the joined tensor, without dimension 0: the largest of each dimension.
StatusOr<Dims> JoinedDims(absl::Span<const Tensor* const> parts, bool ragged) {
  const Tensor& first = *parts[0];
  Dims dims(first.shape().dims().begin(), first.shape().dims().end());
  for (const Tensor* part : parts) {
    bool fits = part->dtype() == first.dtype() && part->rank() == first.rank();
    for (int i = 1; fits && i < first.rank(); ++i) {
      int64_t& dim = dims[static_cast<size_t>(i)];
      fits = ragged || part->dim(i) == dim;
      dim = std::max(dim, part->dim(i));
    }
    if (!fits) {
      return InvalidArgument("Batch: tensors of one batch must be of dtype ", first.dtype(),
                             " and fit to shape ", first.shape(), ", got ", part->dtype(), " of ",
                             part->shape());
    }
  }
  return dims;
}

}  // namespace

StatusOr<int64_t> BatchRowsOf(absl::Span<const Tensor> feeds) {
  if (feeds.empty()) {
    return absl::InvalidArgumentError("Batching Run() must have at least one input tensor");
  }
  for (const Tensor& feed : feeds) {
    if (feed.rank() == 0) {
      return absl::InvalidArgumentError(
          "Batching Run() input tensors must have at least one dimension");
    }
    if (feed.dim(0) != feeds[0].dim(0)) {
      return absl::InvalidArgumentError(
          "Batching Run() input tensors must have equal 0th-dimension size");
    }
  }
  return feeds[0].dim(0);
}

bool CanBeJoined(absl::Span<const Tensor> feeds) {
  return std::all_of(feeds.begin(), feeds.end(), [](const Tensor& feed) {
    return !feed.is_reference() && (feed.dtype() == DT_STRING || IsMemcopyable(feed.dtype()));
  });
}

bool FitTogether(absl::Span<const Tensor> a, absl::Span<const Tensor> b, bool ragged) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].dtype() != b[i].dtype() || a[i].rank() != b[i].rank()) return false;
    if (ragged) continue;
    for (int d = 1; d < a[i].rank(); ++d) {
      if (a[i].dim(d) != b[i].dim(d)) return false;
    }
  }
  return true;
}

StatusOr<Tensor> JoinRows(absl::Span<const Tensor* const> parts, int64_t padded_rows, bool ragged) {
  MR_ASSIGN_OR_RETURN(Dims dims, JoinedDims(parts, ragged));
  dims[0] = padded_rows;
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  int64_t elements = 0, rows = 0;
  for (const Tensor* part : parts) {
    elements += part->num_elements();
    rows += part->dim(0);
  }
  if (rows > padded_rows) {
    return Internal("Batch: padded_rows must be at least ", rows, ", got ", padded_rows);
  }
  const int64_t row_elements = shape.NumElements(1, shape.rank());
  if (ragged && rows * row_elements > kFreeRaggedElements &&
      rows * row_elements > kMaxRaggedGrowth * elements) {
    return absl::ResourceExhaustedError(absl::StrCat("Batch: padding must take at most ",
                                                     kMaxRaggedGrowth, " elements for each of ",
                                                     elements, ", got shape ", shape.ToString()));
  }
  MR_ASSIGN_OR_RETURN(Tensor joined, Tensor::Allocate(parts[0]->dtype(), shape));
  int64_t row = 0;
  for (const Tensor* part : parts) {
    const int64_t begin = row * row_elements, n = part->dim(0) * row_elements;
    if (part->num_elements() == n) {
      CopyElements(*part, 0, n, &joined, begin);
    } else if (part->num_elements() == 0) {
      return absl::InvalidArgumentError("Got empty tensor in batch of non-empty tensors.");
    } else {
      for (int64_t i = 0; i < n; ++i) CopyElements(*part, 0, 1, &joined, begin + i);
      CopyIntoLargerRows(*part, &joined, row);
    }
    row += part->dim(0);
  }
  const int64_t model_row = rows - parts.back()->dim(0);
  for (; row < padded_rows; ++row) {
    CopyElements(joined, model_row * row_elements, row_elements, &joined, row * row_elements);
  }
  return joined;
}

bool StepRows::Note(int64_t rows, absl::Span<const Tensor> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].rank() > 0 && outputs[i].dim(0) == rows) continue;
    if (state_.exchange(kAlone, std::memory_order_relaxed) != kAlone) {
      LogWarning("Batching: ", label_, ": outputs must have a row for each of the ", rows,
                 " rows of the inputs, got shape ", outputs[i].shape().ToString(), " of output ", i,
                 "; requests for these outputs run alone");
    }
    return false;
  }
  int64_t seen = kUnknown;
  if (!state_.compare_exchange_strong(seen, rows, std::memory_order_relaxed) && seen > 0 &&
      seen != rows) {
    state_.compare_exchange_strong(seen, kPerRow, std::memory_order_relaxed);
  }
  return true;
}

}  // namespace millrace
