// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_TENSOR_SLICE_H_
#define MILLRACE_SAVER_TENSOR_SLICE_H_

// TensorSlice: a rectangular part of a tensor: for each dimension where it starts
// and how long it is, or all of it.
//
// Text form, per dimension "start,length" or "-" for all, joined by ':': "0,2:-".
// A "shape and slice" spec puts the full shape in front: "4 3 0,2:-"; "" means the whole tensor.
//
// Values; thread-compatible. Failure: InvalidArgument for text or sizes that do not fit.
// Source: TensorFlow's tensor_slice.proto and SaveV2's shape_and_slices.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "proto/tensor_slice.pb.h"

namespace millrace {

class TensorSlice {
 public:
  static constexpr int64_t kFull = -1;

  // Everything of a tensor of this rank.
  static TensorSlice Full(int rank);
  static StatusOr<TensorSlice> Parse(absl::string_view text);
  static StatusOr<TensorSlice> FromProto(const tensorflow::TensorSliceProto& proto);
  void ToProto(tensorflow::TensorSliceProto* proto) const;
  std::string ToString() const;

  int rank() const { return static_cast<int>(starts_.size()); }
  int64_t start(int i) const { return starts_[static_cast<size_t>(i)]; }
  // kFull when all of the dimension.
  int64_t length(int i) const { return lengths_[static_cast<size_t>(i)]; }
  bool IsFull() const;

  // The shape of this part of a tensor of shape `full`. InvalidArgument when it does not fit.
  StatusOr<Shape> SliceShape(const Shape& full) const;

  // The key of this part in a checkpoint's index.
  std::string BundleKey(absl::string_view tensor_name) const;

  friend bool operator==(const TensorSlice& a, const TensorSlice& b) {
    return a.starts_ == b.starts_ && a.lengths_ == b.lengths_;
  }

 private:
  std::vector<int64_t> starts_;
  std::vector<int64_t> lengths_;
};

// A shape-and-slice spec. `is_whole` for "": then shape and slice say nothing.
struct ShapeAndSlice {
  bool is_whole = true;
  Shape full_shape;
  TensorSlice slice;
  Shape slice_shape;
};
StatusOr<ShapeAndSlice> ParseShapeAndSlice(absl::string_view spec);

// How many elements two parts of a tensor of shape `full` have in common.
StatusOr<int64_t> SliceOverlap(const Shape& full, const TensorSlice& a, const TensorSlice& b);

// The elements that two parts of a tensor have in common, as runs that lie together in both parts,
// in row-major order. Rows of a table are one run, some of its columns one run per row.
class SliceRuns {
 public:
  // None.
  SliceRuns() = default;
  static StatusOr<SliceRuns> Make(const Shape& full, const TensorSlice& from,
                                  const TensorSlice& to);

  int64_t count() const { return count_; }
  // Elements of each.
  int64_t length() const { return length_; }
  // Where run i begins, in elements of each part. Both grow with i.
  int64_t from(int64_t i) const { return Place(from_base_, &Dim::from_stride, i); }
  int64_t to(int64_t i) const { return Place(to_base_, &Dim::to_stride, i); }

 private:
  // A dimension in front of those that the runs lie in.
  struct Dim {
    int64_t size, from_stride, to_stride;
  };
  int64_t Place(int64_t base, int64_t Dim::*stride, int64_t i) const;

  int64_t count_ = 0, length_ = 0, from_base_ = 0, to_base_ = 0;
  std::vector<Dim> dims_;  // the last one first
};

// Copies the elements that `from_slice` and `to_slice` (parts of one tensor of shape `full`) have
// in common from `from` to `to`; returns how many there are. The tensors have the slices' shapes
// and one dtype.
StatusOr<int64_t> CopySliceOverlap(const Shape& full, const TensorSlice& from_slice,
                                   const Tensor& from, const TensorSlice& to_slice, Tensor* to);

}  // namespace millrace

#endif  // MILLRACE_SAVER_TENSOR_SLICE_H_
