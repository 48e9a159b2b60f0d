// SPDX-License-Identifier: Apache-2.0
#include "saver/tensor_slice.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "core/coding.h"

namespace millrace {

TensorSlice TensorSlice::Full(int rank) {
  TensorSlice slice;
  slice.starts_.assign(static_cast<size_t>(rank), 0);
  slice.lengths_.assign(static_cast<size_t>(rank), kFull);
  return slice;
}

StatusOr<TensorSlice> TensorSlice::Parse(absl::string_view text) {
  TensorSlice slice;
  if (text.empty()) return slice;
  const auto refuse = [&](absl::string_view part) {
    return InvalidArgument("Slice '", text,
                           "': each dimension must be \"start,length\" or "
                           "\"-\", got '",
                           part, "'");
  };
  for (absl::string_view part : absl::StrSplit(text, ':')) {
    int64_t start = 0;
    int64_t length = kFull;
    if (part != "-") {
      const std::vector<absl::string_view> numbers = absl::StrSplit(part, ',');
      if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &start) ||
          !absl::SimpleAtoi(numbers[1], &length) || start < 0 || length < 0) {
        return refuse(part);
      }
    }
    slice.starts_.push_back(start);
    slice.lengths_.push_back(length);
    if (slice.rank() > Shape::kMaxRank) return refuse(part);
  }
  return slice;
}

StatusOr<TensorSlice> TensorSlice::FromProto(const tensorflow::TensorSliceProto& proto) {
  if (proto.extent_size() > Shape::kMaxRank) {
    return InvalidArgument("Slice: rank must be <= ", Shape::kMaxRank, ", got ",
                           proto.extent_size());
  }
  TensorSlice slice;
  for (const auto& extent : proto.extent()) {
    const bool is_full =
        extent.has_length_case() == tensorflow::TensorSliceProto::Extent::HAS_LENGTH_NOT_SET;
    if (extent.start() < 0 || (!is_full && extent.length() < 0) ||
        (is_full && extent.start() != 0)) {
      return InvalidArgument("Slice: extent must have start >= 0 and length >= 0, got start ",
                             extent.start(), " length ", is_full ? kFull : extent.length());
    }
    slice.starts_.push_back(extent.start());
    slice.lengths_.push_back(is_full ? kFull : extent.length());
  }
  return slice;
}

void TensorSlice::ToProto(tensorflow::TensorSliceProto* proto) const {
  proto->Clear();
  for (int i = 0; i < rank(); ++i) {
    auto* extent = proto->add_extent();
    if (length(i) == kFull) continue;
    extent->set_start(start(i));
    extent->set_length(length(i));
  }
}

std::string TensorSlice::ToString() const {
  std::string text;
  for (int i = 0; i < rank(); ++i) {
    if (i > 0) text += ':';
    if (length(i) == kFull) {
      text += '-';
    } else {
      absl::StrAppend(&text, start(i), ",", length(i));
    }
  }
  return text;
}

bool TensorSlice::IsFull() const {
  return std::all_of(lengths_.begin(), lengths_.end(), [](int64_t l) { return l == kFull; });
}

StatusOr<Shape> TensorSlice::SliceShape(const Shape& full) const {
  if (full.rank() != rank()) {
    return InvalidArgument("Slice '", ToString(), "' must have rank ", full.rank(), " of shape ",
                           full.ToString(), ", got rank ", rank());
  }
  std::vector<int64_t> dims;
  for (int i = 0; i < rank(); ++i) {
    if (length(i) == kFull) {
      dims.push_back(full.dim(i));
      continue;
    }
    if (length(i) > full.dim(i) || start(i) > full.dim(i) - length(i)) {
      return InvalidArgument("Slice '", ToString(), "' must lie in shape ", full.ToString(),
                             ", got [", start(i), ", ", start(i), " + ", length(i),
                             ") in dimension ", i);
    }
    dims.push_back(length(i));
  }
  return Shape::Make(dims);
}

std::string TensorSlice::BundleKey(absl::string_view tensor_name) const {
  std::string key;
  PutOrderedUint(&key, 0);
  PutOrderedString(&key, tensor_name);
  PutOrderedUint(&key, static_cast<uint64_t>(rank()));
  for (int i = 0; i < rank(); ++i) {
    PutOrderedInt(&key, start(i));
    PutOrderedInt(&key, length(i));
  }
  return key;
}

StatusOr<ShapeAndSlice> ParseShapeAndSlice(absl::string_view spec) {
  ShapeAndSlice result;
  if (spec.empty()) return result;
  result.is_whole = false;
  // "d0 d1 ... slice": the last word is the slice.
  const std::vector<absl::string_view> words = absl::StrSplit(spec, ' ');
  std::vector<int64_t> dims;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    int64_t dim;
    if (!absl::SimpleAtoi(words[i], &dim) || dim < 0) {
      return InvalidArgument("Shape and slice '", spec, "': dimensions must be numbers >= 0, got '",
                             words[i], "'");
    }
    dims.push_back(dim);
  }
  MR_ASSIGN_OR_RETURN(result.full_shape, Shape::Make(dims));
  MR_ASSIGN_OR_RETURN(result.slice, TensorSlice::Parse(words.back()));
  MR_ASSIGN_OR_RETURN(result.slice_shape, result.slice.SliceShape(result.full_shape));
  return result;
}

namespace {

// [begin, end) of a slice in one dimension.
struct Extent {
  int64_t begin, end;
};
Extent ExtentOf(const Shape& full, const TensorSlice& slice, int i) {
  if (slice.length(i) == TensorSlice::kFull) return {0, full.dim(i)};
  return {slice.start(i), slice.start(i) + slice.length(i)};
}

}  // namespace

StatusOr<int64_t> SliceOverlap(const Shape& full, const TensorSlice& a, const TensorSlice& b) {
  MR_RETURN_IF_ERROR(a.SliceShape(full).status());
  MR_RETURN_IF_ERROR(b.SliceShape(full).status());
  int64_t count = 1;
  bool apart = false;
  for (int i = 0; i < full.rank(); ++i) {
    const Extent x = ExtentOf(full, a, i);
    const Extent y = ExtentOf(full, b, i);
    const int64_t common = std::min(x.end, y.end) - std::max(x.begin, y.begin);
    apart = apart || common <= 0;
    // Only a shape with an empty dimension can have others whose product is no int64.
    if (!apart && __builtin_mul_overflow(count, common, &count)) apart = true;
  }
  return apart ? 0 : count;
}

StatusOr<SliceRuns> SliceRuns::Make(const Shape& full, const TensorSlice& from,
                                    const TensorSlice& to) {
  SliceRuns runs;
  MR_ASSIGN_OR_RETURN(const int64_t common, SliceOverlap(full, from, to));
  if (common == 0) return runs;
  MR_ASSIGN_OR_RETURN(const Shape from_shape, from.SliceShape(full));
  MR_ASSIGN_OR_RETURN(const Shape to_shape, to.SliceShape(full));
  runs.length_ = 1;
  bool together = true;  // all dimensions behind this one lie together in both parts
  int64_t from_stride = 1, to_stride = 1;
  for (int i = full.rank() - 1; i >= 0; --i) {
    const Extent a = ExtentOf(full, from, i);
    const Extent b = ExtentOf(full, to, i);
    const int64_t low = std::max(a.begin, b.begin);
    const int64_t size = std::min(a.end, b.end) - low;
    runs.from_base_ += (low - a.begin) * from_stride;
    runs.to_base_ += (low - b.begin) * to_stride;
    if (together) {
      runs.length_ *= size;
    } else {
      runs.dims_.push_back({size, from_stride, to_stride});
    }
    together = together && size == from_shape.dim(i) && size == to_shape.dim(i);
    from_stride *= from_shape.dim(i);
    to_stride *= to_shape.dim(i);
  }
  runs.count_ = common / runs.length_;
  return runs;
}

int64_t SliceRuns::Place(int64_t base, int64_t Dim::*stride, int64_t i) const {
  for (const Dim& dim : dims_) {
    base += i % dim.size * (dim.*stride);
    i /= dim.size;
  }
  return base;
}

StatusOr<int64_t> CopySliceOverlap(const Shape& full, const TensorSlice& from_slice,
                                   const Tensor& from, const TensorSlice& to_slice, Tensor* to) {
  MR_ASSIGN_OR_RETURN(const Shape from_shape, from_slice.SliceShape(full));
  MR_ASSIGN_OR_RETURN(const Shape to_shape, to_slice.SliceShape(full));
  if (from.shape() != from_shape || to->shape() != to_shape || from.dtype() != to->dtype()) {
    return InvalidArgument("Slice '", from_slice.ToString(), "' of shape ", full.ToString(),
                           " must hold ", DTypeName(to->dtype()), from_shape.ToString(), ", got ",
                           DTypeName(from.dtype()), from.shape().ToString());
  }
  MR_ASSIGN_OR_RETURN(const SliceRuns runs, SliceRuns::Make(full, from_slice, to_slice));
  const size_t width = DTypeSize(from.dtype());
  const size_t length = static_cast<size_t>(runs.length());
  if (runs.count() > 0 && from.dtype() != DT_STRING && width == 0) {
    return Unimplemented("Slice: tensors of dtype ", DTypeName(from.dtype()), " have no slices");
  }
  for (int64_t i = 0; i < runs.count(); ++i) {
    const size_t source = static_cast<size_t>(runs.from(i));
    const size_t target = static_cast<size_t>(runs.to(i));
    if (from.dtype() == DT_STRING) {
      const absl::Span<const std::string> strings = from.raw<std::string>().subspan(source, length);
      std::copy(strings.begin(), strings.end(), to->mutable_raw<std::string>().begin() + target);
    } else {
      std::memcpy(to->mutable_bytes().data() + target * width, from.bytes().data() + source * width,
                  length * width);
    }
  }
  return runs.count() * runs.length();
}

}  // namespace millrace
