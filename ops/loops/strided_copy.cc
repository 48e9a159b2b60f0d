// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "core/resource_handle.h"
#include "core/tensor.h"
#include "ops/loops/bytes.h"

namespace millrace::math {
namespace {

// Side of the square that a transposition copies at once: both sides of it stay in the first cache.
constexpr int64_t kTile = 16;

// dims[i] and strides of all three move to place j; the ones between shift by one.
void MoveDim(StridedBox* box, size_t i, size_t j) {
  for (StridedBox::Dims* d : {&box->dims, &box->in_strides, &box->out_strides}) {
    const int64_t value = (*d)[i];
    d->erase(d->begin() + static_cast<std::ptrdiff_t>(i));
    d->insert(d->begin() + static_cast<std::ptrdiff_t>(j), value);
  }
}

template <typename E>
void CopyRow(int64_t n, const E* in, int64_t in_stride, E* out, int64_t out_stride) {
  if (in_stride == 1 && out_stride == 1) {
    if constexpr (std::is_trivially_copyable_v<E>) {
      std::memcpy(out, in, static_cast<size_t>(n) * sizeof(E));
    } else {
      std::copy(in, in + n, out);
    }
    return;
  }
  if (in_stride == 0 && out_stride == 1) {
    std::fill(out, out + n, *in);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i * out_stride] = in[i * in_stride];
}

// [n, m]: the input is contiguous along the first, the output along the second.
template <typename E>
void CopyTransposed(int64_t n, int64_t m, const E* in, int64_t in_stride, E* out,
                    int64_t out_stride) {
  for (int64_t i0 = 0; i0 < n; i0 += kTile) {
    const int64_t i1 = std::min(n, i0 + kTile);
    for (int64_t j0 = 0; j0 < m; j0 += kTile) {
      const int64_t j1 = std::min(m, j0 + kTile);
      for (int64_t i = i0; i < i1; ++i) {
        for (int64_t j = j0; j < j1; ++j) out[i * out_stride + j] = in[i + j * in_stride];
      }
    }
  }
}

}  // namespace

int64_t StridedBox::size() const {
  int64_t size = 1;
  for (int64_t d : dims) size *= d;
  return size;
}

int64_t StridedBox::row_size() const {
  if (dims.empty()) return 1;
  return transposes ? dims[dims.size() - 1] * std::min(dims[dims.size() - 2], kTile) : dims.back();
}

int64_t StridedBox::num_rows() const {
  if (dims.empty()) return 1;
  int64_t rows = 1;
  for (size_t d = 0; d + (transposes ? 2 : 1) < dims.size(); ++d) rows *= dims[d];
  if (transposes) rows *= (dims[dims.size() - 2] + kTile - 1) / kTile;
  return dims.back() == 0 ? 0 : rows;
}

StridedBox MakeStridedBox(absl::Span<const int64_t> dims, absl::Span<const int64_t> in_strides,
                          absl::Span<const int64_t> out_strides) {
  StridedBox box;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0) {
      box.dims.assign({0});
      box.in_strides.assign({1});
      box.out_strides.assign({1});
      return box;
    }
    if (dims[d] == 1) continue;
    // One step of the dimension before is this whole dimension, on both sides: they are one.
    if (!box.dims.empty() && box.in_strides.back() == in_strides[d] * dims[d] &&
        box.out_strides.back() == out_strides[d] * dims[d]) {
      box.dims.back() *= dims[d];
      box.in_strides.back() = in_strides[d];
      box.out_strides.back() = out_strides[d];
      continue;
    }
    box.dims.push_back(dims[d]);
    box.in_strides.push_back(in_strides[d]);
    box.out_strides.push_back(out_strides[d]);
  }
  const size_t rank = box.dims.size();
  if (rank == 0) return box;
  // The inner loop writes contiguously when any dimension can.
  for (size_t d = 0; d + 1 < rank; ++d) {
    if (box.out_strides[d] == 1 && box.out_strides[rank - 1] != 1) MoveDim(&box, d, rank - 1);
  }
  // When the input is contiguous along another dimension, that one becomes the other side of tiles.
  if (rank >= 2 && box.out_strides[rank - 1] == 1 && box.in_strides[rank - 1] != 1 &&
      box.in_strides[rank - 1] != 0) {
    for (size_t d = 0; d + 1 < rank; ++d) {
      if (box.in_strides[d] != 1) continue;
      MoveDim(&box, d, rank - 2);
      box.transposes = true;
      break;
    }
  }
  return box;
}

StridedBox::Dims DenseStrides(absl::Span<const int64_t> dims) {
  StridedBox::Dims strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

template <typename E>
void CopyStrided(const StridedBox& box, const E* in, E* out, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (box.dims.empty()) {
    *out = *in;
    return;
  }
  const size_t rank = box.dims.size();
  const size_t inner = box.transposes ? rank - 2 : rank - 1;  // first dimension of the inner loop
  // A transposition's row is a strip of kTile of its first inner dimension.
  const int64_t strips = box.transposes ? (box.dims[inner] + kTile - 1) / kTile : 1;
  StridedBox::Dims index(inner, 0);
  int64_t strip = begin % strips;
  int64_t in_offset = 0, out_offset = 0;
  for (int64_t d = static_cast<int64_t>(inner) - 1, rest = begin / strips; d >= 0; --d) {
    const size_t i = static_cast<size_t>(d);
    index[i] = rest % box.dims[i];
    rest /= box.dims[i];
    in_offset += index[i] * box.in_strides[i];
    out_offset += index[i] * box.out_strides[i];
  }
  for (int64_t row = begin; row < end; ++row) {
    if (box.transposes) {
      const int64_t from = strip * kTile;
      const int64_t n = std::min(kTile, box.dims[inner] - from);
      CopyTransposed(n, box.dims[inner + 1], in + in_offset + from, box.in_strides[inner + 1],
                     out + out_offset + from * box.out_strides[inner], box.out_strides[inner]);
      if (++strip < strips) continue;
      strip = 0;
    } else {
      CopyRow(box.dims[inner], in + in_offset, box.in_strides[inner], out + out_offset,
              box.out_strides[inner]);
    }
    for (size_t d = inner; d-- > 0;) {
      in_offset += box.in_strides[d];
      out_offset += box.out_strides[d];
      if (++index[d] < box.dims[d]) break;
      in_offset -= box.dims[d] * box.in_strides[d];
      out_offset -= box.dims[d] * box.out_strides[d];
      index[d] = 0;
    }
  }
}

#define MR_STRIDED_COPY(E) \
  template void CopyStrided<E>(const StridedBox&, const E*, E*, int64_t, int64_t);
MR_STRIDED_COPY(Bytes<1>)
MR_STRIDED_COPY(Bytes<2>)
MR_STRIDED_COPY(Bytes<4>)
MR_STRIDED_COPY(Bytes<8>)
MR_STRIDED_COPY(Bytes<16>)
MR_STRIDED_COPY(std::string)
MR_STRIDED_COPY(ResourceHandle)
MR_STRIDED_COPY(Variant)
#undef MR_STRIDED_COPY

}  // namespace millrace::math
