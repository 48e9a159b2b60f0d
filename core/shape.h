// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_SHAPE_H_
#define MILLRACE_CORE_SHAPE_H_

// Shape: the dimensions of a tensor. PartialShape: what is known of them before a step runs.
//
// Invariants of a Shape: every dimension is >= 0, the rank is at most kMaxRank,
// and the product of the dimensions is at most kMaxElements; so num_elements()
// and any index computed from the dimensions fit into int64_t. There is no other
// way to make a Shape than a function that returns a Status, one that cannot
// break these rules, or a literal, which ends the program when it does.
//
// Both are values; thread-compatible. Text form: "[2,3]", "[]" for a scalar,
// "[?,3]" for an unknown dimension, "<unknown>" for an unknown rank.

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"

namespace tensorflow {
class TensorShapeProto;
}

namespace millrace {

// Moving an InlinedVector moves its unused places too, which GCC 12 takes for a use.
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

class PartialShape;

class Shape {
 public:
  // Largest number of dimensions, as in TensorFlow.
  static constexpr int kMaxRank = 254;
  // Largest number of elements: a bound against sizes that only an attack has.
  static constexpr int64_t kMaxElements = int64_t{1} << 40;

  // A scalar.
  Shape() = default;

  // A literal in a program: Shape{2, 3}. For numbers that are known to be right; others go through
  // Make, whose error ends the program here.
  explicit Shape(std::initializer_list<int64_t> dims);

  // InvalidArgument when a dimension is negative, the rank too large or the product overflows.
  static StatusOr<Shape> Make(absl::Span<const int64_t> dims);
  static StatusOr<Shape> Make(std::initializer_list<int64_t> dims) {
    return Make(absl::MakeConstSpan(dims.begin(), dims.size()));
  }
  static StatusOr<Shape> FromProto(const tensorflow::TensorShapeProto& proto);
  // The shape that is known whole: requires known.valid() and known.IsFullyDefined().
  static Shape Of(const PartialShape& known);
  // The shape of an existing container of `size` elements (size <= kMaxElements).
  static Shape Vector(size_t size);

  int rank() const { return static_cast<int>(dims_.size()); }
  // 0 <= i < rank().
  int64_t dim(int i) const { return dims_[static_cast<size_t>(i)]; }
  absl::Span<const int64_t> dims() const { return dims_; }
  int64_t num_elements() const {
    int64_t product = 1;
    for (const int64_t dim : dims_) product *= dim;
    return product;
  }
  bool is_scalar() const { return dims_.empty(); }
  bool is_vector() const { return dims_.size() == 1; }
  bool is_matrix() const { return dims_.size() == 2; }

  // The product of dimensions [begin, end); 0 <= begin <= end <= rank().
  int64_t NumElements(int begin, int end) const;

  // Dimensions [begin, end) as a shape.
  Shape Slice(int begin, int end) const;
  // Without dimension i: never breaks an invariant.
  Shape WithoutDim(int i) const;
  // With a dimension of size 1 put before position i (0 <= i <= rank() < kMaxRank).
  Shape WithInsertedOne(int i) const;

  void ToProto(tensorflow::TensorShapeProto* proto) const;
  std::string ToString() const;

  friend bool operator==(const Shape& a, const Shape& b) { return a.dims_ == b.dims_; }
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const Shape& s) {
    return H::combine(std::move(h), s.dims_);
  }

 private:
  // The number of elements is not kept with it: an edge of a step holds a whole Tensor, which is
  // to fit into one cache line.
  absl::InlinedVector<int64_t, 4> dims_;
};

class PartialShape {
 public:
  // Unknown rank.
  PartialShape() = default;
  PartialShape(const Shape& shape);  // NOLINT: every Shape is a PartialShape.
  // -1 stands for an unknown dimension. Literals in programs: a value below -1, a rank above
  // kMaxRank or an overflowing product makes an invalid shape, which valid() tells and every
  // builder refuses with a Status.
  PartialShape(std::initializer_list<int64_t> dims);  // NOLINT

  // InvalidArgument when a dimension is below -1, the rank too large or the known product
  // overflows.
  static StatusOr<PartialShape> Make(absl::Span<const int64_t> dims);
  static StatusOr<PartialShape> FromProto(const tensorflow::TensorShapeProto& proto);
  // Reads the text form.
  static StatusOr<PartialShape> Parse(absl::string_view text);
  static PartialShape Unknown() { return PartialShape(); }
  static PartialShape UnknownOfRank(int rank);  // 0 <= rank <= Shape::kMaxRank
  static PartialShape Scalar() { return PartialShape(Shape()); }

  bool valid() const { return valid_; }
  bool has_rank() const { return has_rank_; }
  // Meaningful when has_rank().
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t dim(int i) const { return dims_[static_cast<size_t>(i)]; }
  absl::Span<const int64_t> dims() const { return dims_; }

  bool IsFullyDefined() const;
  // InvalidArgument unless fully defined.
  StatusOr<Shape> ToShape() const;
  // -1 when not fully defined.
  int64_t num_elements() const;

  // Could one shape be both? Unknown parts agree with everything.
  bool IsCompatibleWith(const PartialShape& other) const;
  bool IsCompatibleWith(const Shape& other) const;
  // Everything known in either. InvalidArgument when they contradict.
  StatusOr<PartialShape> MergeWith(const PartialShape& other) const;

  void ToProto(tensorflow::TensorShapeProto* proto) const;
  std::string ToString() const;

  friend bool operator==(const PartialShape& a, const PartialShape& b) {
    return a.has_rank_ == b.has_rank_ && a.valid_ == b.valid_ && a.dims_ == b.dims_;
  }
  friend bool operator!=(const PartialShape& a, const PartialShape& b) { return !(a == b); }

 private:
  absl::InlinedVector<int64_t, 4> dims_;
  bool has_rank_ = false;
  bool valid_ = true;
};

// "[2,3]", as ToString.
std::ostream& operator<<(std::ostream& out, const Shape& shape);
std::ostream& operator<<(std::ostream& out, const PartialShape& shape);

inline Shape Shape::Of(const PartialShape& known) {
  Shape shape;
  shape.dims_.assign(known.dims().begin(), known.dims().end());
  return shape;
}

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

// Rules that many ops share.

// `axis` counted from the end when negative. InvalidArgument unless -rank <= axis < rank.
StatusOr<int> ResolveAxis(int64_t axis, int rank);
// a * b, or InvalidArgument when it passes Shape::kMaxElements. Both >= 0.
StatusOr<int64_t> CheckedProduct(int64_t a, int64_t b);
// NumPy's rule. InvalidArgument when the shapes cannot be broadcast together.
StatusOr<Shape> BroadcastShape(const Shape& a, const Shape& b);
StatusOr<PartialShape> BroadcastShape(const PartialShape& a, const PartialShape& b);

}  // namespace millrace

#endif  // MILLRACE_CORE_SHAPE_H_
