// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/tensor_list.h"

#include <algorithm>
#include <utility>

#include "core/coding.h"
#include "graph/op_rule.h"

namespace millrace {
namespace {

// --- TensorShapeProto: field 2, a dimension with its size in field 1; field 3, unknown rank
// --------

constexpr uint64_t kDimTag = 2 << 3 | 2, kUnknownRankTag = 3 << 3, kSizeTag = 1 << 3;

void PutShape(const PartialShape& shape, std::string* out) {
  if (!shape.has_rank()) {
    PutVarint64(out, kUnknownRankTag);
    PutVarint64(out, 1);
    return;
  }
  for (const int64_t dim : shape.dims()) {
    std::string size;
    // A default value is not written.
    if (dim != 0) {
      PutVarint64(&size, kSizeTag);
      PutVarint64(&size, static_cast<uint64_t>(dim));
    }
    PutVarint64(out, kDimTag);
    PutVarint64(out, size.size());
    out->append(size);
  }
}

// The next field; bytes for a field of wire type 2, else a number. False at what is none.
bool GetField(absl::string_view* in, uint64_t* tag, uint64_t* number, absl::string_view* bytes) {
  if (!GetVarint64(in, tag)) return false;
  if ((*tag & 7) == 0) return GetVarint64(in, number);
  if ((*tag & 7) != 2 || !GetVarint64(in, number) || *number > in->size()) return false;
  *bytes = in->substr(0, *number);
  in->remove_prefix(*number);
  return true;
}

bool GetShape(absl::string_view in, PartialShape* shape) {
  std::vector<int64_t> dims;
  bool has_rank = true;
  uint64_t tag, number;
  absl::string_view bytes;
  while (!in.empty()) {
    if (!GetField(&in, &tag, &number, &bytes)) return false;
    if (tag == kUnknownRankTag) has_rank = number == 0;
    if (tag != kDimTag) continue;
    int64_t size = 0;
    while (!bytes.empty()) {
      absl::string_view name;
      if (!GetField(&bytes, &tag, &number, &name)) return false;
      if (tag == kSizeTag) size = static_cast<int64_t>(number);
    }
    dims.push_back(size);
    if (dims.size() > static_cast<size_t>(Shape::kMaxRank)) return false;
  }
  if (!has_rank) {
    *shape = PartialShape();
    return true;
  }
  StatusOr<PartialShape> made = PartialShape::Make(dims);
  if (!made.ok()) return false;
  *shape = *std::move(made);
  return true;
}

Status NoList(const Variant& variant) {
  return InvalidArgument("Input handle is not a list. Saw: '", variant.type_name, "' with ",
                         variant.tensors.size(), " tensors and ", variant.metadata.size(),
                         " bytes of metadata");
}

// How many variants stand in each other in `tensor`, at most `limit`.
int Nesting(const Tensor& tensor, int limit) {
  int deepest = 0;
  if (tensor.dtype() != DT_VARIANT || limit == 0) return deepest;
  for (const Variant& variant : tensor.raw<Variant>()) {
    deepest = std::max(deepest, 1);
    for (const Tensor& inner : variant.tensors) {
      deepest = std::max(deepest, 1 + Nesting(inner, limit - 1));
    }
  }
  return deepest;
}

}  // namespace

std::string TensorListSpec::ToMetadata() const {
  std::string metadata;
  PutVarint64(&metadata, 0);
  PutVarint64(&metadata, static_cast<uint64_t>(dtype));
  PutVarint64(&metadata, static_cast<uint64_t>(max_num_elements));
  PutShape(element_shape, &metadata);
  return metadata;
}

StatusOr<TensorListView> ReadTensorList(const Variant& variant) {
  if (variant.type_name != kTensorListTypeName) return NoList(variant);
  absl::string_view in = variant.metadata;
  uint64_t not_set, dtype, max;
  if (!GetVarint64(&in, &not_set) || not_set > in.size()) return NoList(variant);
  TensorListView list;
  list.elements = variant.tensors;
  if (not_set > 0) {
    size_t next = 0;  // of the tensors that are there
    for (uint64_t i = 0; i < not_set; ++i) {
      uint64_t index;
      if (!GetVarint64(&in, &index) || index < list.owned.size() ||
          index - list.owned.size() > variant.tensors.size() - next) {
        return NoList(variant);
      }
      while (list.owned.size() < index) list.owned.push_back(variant.tensors[next++]);
      list.owned.emplace_back();
    }
    while (next < variant.tensors.size()) list.owned.push_back(variant.tensors[next++]);
    list.elements = list.owned;
  }
  if (!GetVarint64(&in, &dtype) || !GetVarint64(&in, &max)) return NoList(variant);
  StatusOr<DType> known = DTypeFromNumber(static_cast<int>(std::min<uint64_t>(dtype, 1 << 20)));
  if (!known.ok() || !GetShape(in, &list.spec.element_shape)) return NoList(variant);
  list.spec.dtype = *known;
  // Written as 32 bits made 64.
  list.spec.max_num_elements = static_cast<int32_t>(max);
  return list;
}

Status TensorListView::CheckElement(const Tensor& element) const {
  if (!element.has_value() || element.dtype() == spec.dtype) return absl::OkStatus();
  return InvalidArgument("Input handle is not a list of ", spec.dtype, ". Saw an element of type ",
                         element.dtype());
}

StatusOr<TensorListView> ReadTensorList(const Tensor& scalar, absl::string_view name) {
  if (scalar.dtype() != DT_VARIANT || scalar.rank() != 0) {
    return InvalidArgument(name, ": Input list must be a scalar saw: ", scalar.shape());
  }
  return ReadTensorList(scalar.raw_scalar<Variant>());
}

Tensor MakeTensorList(const TensorListSpec& spec, std::vector<Tensor> elements) {
  Variant variant;
  variant.type_name = kTensorListTypeName;
  variant.metadata = spec.ToMetadata();
  variant.tensors = std::move(elements);
  return Tensor::Scalar<Variant>(std::move(variant));
}

StatusOr<std::vector<Tensor>*> MutableTensorList(Tensor* scalar) {
  MR_ASSIGN_OR_RETURN(TensorListView list, ReadTensorList(scalar->raw_scalar<Variant>()));
  if (!list.owned.empty()) {
    *scalar = MakeTensorList(list.spec, std::move(list.owned));
  } else if (!scalar->BufferIsUnique()) {
    *scalar = Tensor::Scalar<Variant>(scalar->raw_scalar<Variant>());
  }
  return &scalar->mutable_raw<Variant>()[0].tensors;
}

Status CheckTensorListSize(int64_t size) {
  if (size < 0) return InvalidArgument("a list's size must be >= 0, got ", size);
  if (size <= kMaxTensorListElements) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a list must have at most ", kMaxTensorListElements, " elements, got ", size));
}

Status CheckTensorListNesting(const Tensor& element) {
  if (Nesting(element, kMaxTensorListNesting) < kMaxTensorListNesting) return absl::OkStatus();
  return InvalidArgument("lists must be nested at most ", kMaxTensorListNesting,
                         " deep, got one more");
}

StatusOr<PartialShape> ElementShapeOf(const Tensor& ints) {
  if (ints.rank() == 0) {
    if (ints.ints()[0] == -1) return PartialShape();
    return InvalidArgument(
        "The only valid scalar shape tensor is the fully unknown shape specified as -1, got ",
        ints.ints()[0]);
  }
  if (ints.rank() != 1) {
    return InvalidArgument("element_shape must be a vector, got shape ", ints.shape());
  }
  for (const int64_t dim : ints.ints()) {
    if (dim < -1) return InvalidArgument("element_shape must have dimensions >= -1, got ", dim);
  }
  return ShapeOfElements(ints);
}

}  // namespace millrace
