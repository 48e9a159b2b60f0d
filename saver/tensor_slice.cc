// SPDX-License-Identifier: Apache-2.0
#include "saver/tensor_slice.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
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

TensorSlice TensorSlice::WithRows(int64_t begin, int64_t length) const {
  TensorSlice rows = *this;
  rows.starts_[0] = begin;
  rows.lengths_[0] = length;
  return rows;
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
  MR_ASSIGN_OR_RETURN(const int64_t count, SliceOverlap(full, from_slice, to_slice));
  if (count == 0) return count;
  const int rank = full.rank();
  std::vector<int64_t> begin(static_cast<size_t>(rank)), size(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) {
    const Extent a = ExtentOf(full, from_slice, i);
    const Extent b = ExtentOf(full, to_slice, i);
    const int64_t low = std::max(a.begin, b.begin);
    const int64_t high = std::min(a.end, b.end);
    begin[static_cast<size_t>(i)] = low;
    size[static_cast<size_t>(i)] = high - low;
  }
  // Runs of the last dimension are contiguous in both tensors.
  const int64_t run = rank == 0 ? 1 : size[static_cast<size_t>(rank - 1)];
  const auto offset = [&](const TensorSlice& slice, const Shape& shape,
                          absl::Span<const int64_t> at) {
    int64_t index = 0;
    for (int i = 0; i < rank; ++i) {
      index = index * shape.dim(i) + at[static_cast<size_t>(i)] - ExtentOf(full, slice, i).begin;
    }
    return index;
  };
  std::vector<int64_t> at = begin;
  const size_t width = DTypeSize(from.dtype());
  for (int64_t done = 0; done < count; done += run) {
    const int64_t source = offset(from_slice, from_shape, at);
    const int64_t target = offset(to_slice, to_shape, at);
    if (from.dtype() == DT_STRING) {
      for (int64_t j = 0; j < run; ++j) {
        to->mutable_raw<std::string>()[static_cast<size_t>(target + j)] =
            from.raw<std::string>()[static_cast<size_t>(source + j)];
      }
    } else if (width > 0) {
      std::memcpy(to->mutable_bytes().data() + static_cast<size_t>(target) * width,
                  from.bytes().data() + static_cast<size_t>(source) * width,
                  static_cast<size_t>(run) * width);
    } else {
      return Unimplemented("Slice: tensors of dtype ", DTypeName(from.dtype()), " have no slices");
    }
    for (int i = rank - 2; i >= 0; --i) {
      const size_t d = static_cast<size_t>(i);
      if (++at[d] < begin[d] + size[d]) break;
      at[d] = begin[d];
    }
  }
  return count;
}

}  // namespace millrace
