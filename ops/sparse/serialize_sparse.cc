// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/serialize_sparse.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/tensor_proto.h"
#include "graph/op_registry.h"
#include "ops/rules/elements.h"
#include "ops/rules/sparse_input.h"
#include "proto/tensor.pb.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- One tensor as an element --------------------------------------------------------------------

Status Pack(const Tensor& tensor, std::string* element) {
  tensorflow::TensorProto proto;
  MR_RETURN_IF_ERROR(TensorToProto(tensor, &proto));
  if (proto.SerializeToString(element)) return absl::OkStatus();
  return InvalidArgument("a tensor must be smaller than 2 GiB to be serialized, got ",
                         tensor.TotalBytes(), " bytes");
}
Status Pack(const Tensor& tensor, Variant* element) {
  element->type_name = "tensorflow::Tensor";
  element->tensors = {tensor};
  return absl::OkStatus();
}

StatusOr<Tensor> Unpack(const std::string& element) {
  // A proto may say one value for all elements: what a few bytes may claim is bounded.
  constexpr int64_t kMostFromFewBytes = 4096;
  tensorflow::TensorProto proto;
  if (!proto.ParseFromString(element)) {
    return InvalidArgument("must be a serialized TensorProto, got ", element.size(),
                           " bytes that are none");
  }
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::FromProto(proto.tensor_shape()));
  const int64_t most = std::max(kMostFromFewBytes, static_cast<int64_t>(element.size()));
  if (shape.num_elements() > most) {
    return InvalidArgument("must have a value for each of its elements, got shape ", shape, " in ",
                           element.size(), " bytes");
  }
  return TensorFromProto(proto);
}
StatusOr<Tensor> Unpack(const Variant& element) {
  if (element.tensors.size() == 1) return element.tensors[0];
  return InvalidArgument("must be a variant of one tensor, got one of ", element.tensors.size());
}

// Calls visit.operator()<E>() with the element type of what is serialized.
template <typename Visitor>
Status VisitSerialized(DType dtype, Visitor&& visit) {
  return dtype == DT_VARIANT ? visit.template operator()<Variant>()
                             : visit.template operator()<std::string>();
}

// --- SerializeSparse, SerializeManySparse --------------------------------------------------------

struct SerializeSparseRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckSparseInput(c, {.prefix = "sparse_"}).status());
    return PartialShape({3});
  }
};

Status RunSerializeSparse(KernelContext* ctx, const SerializeSparseRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  return VisitSerialized(out->dtype(), [&]<typename E>() -> Status {
    for (int i = 0; i < 3; ++i) {
      MR_RETURN_IF_ERROR(Pack(ctx->input(i), MutableElementsOf<E>(out) + i));
    }
    return absl::OkStatus();
  });
}

struct SerializeManySparseRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize size, CheckSparseInput(c, {.prefix = "sparse_"}));
    MR_ASSIGN_OR_RETURN(const PartialInts shape, c->IntVector(2, "sparse_shape"));
    if (size.rank >= 0 && size.rank < 2) {
      return InvalidArgument("sparse_shape must have at least 2 dimensions, got ", size.rank);
    }
    const int64_t rows = shape.at(0).value_or(-1);
    if (shape.at(0) && rows < 0) {
      return InvalidArgument("sparse_shape[0] must be >= 0, got ", rows);
    }
    return PartialShape::Make({{rows, 3}});
  }
};

Status RunSerializeManySparse(KernelContext* ctx, const SerializeManySparseRule&) {
  const Tensor &indices = ctx->input(0), &values = ctx->input(1), &shape = ctx->input(2);
  const int64_t count = indices.dim(0), rank = indices.dim(1);
  const int64_t* const index = indices.raw<int64_t>().data();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  return VisitSerialized(out->dtype(), [&]<typename E>() -> Status {
    E* element = MutableElementsOf<E>(out);
    E own_shape;  // of each
    MR_RETURN_IF_ERROR(Pack(shape.Rows(1, rank), &own_shape));
    int64_t begin = 0;
    for (int64_t row = 0; row < out->dim(0); ++row, element += 3) {
      int64_t end = begin;
      while (end < count && index[end * rank] == row) ++end;
      MR_ASSIGN_OR_RETURN(const Shape own_indices_shape, Shape::Make({end - begin, rank - 1}));
      MR_ASSIGN_OR_RETURN(Tensor own_indices, ctx->AllocateTemp(DT_INT64, own_indices_shape));
      int64_t* to = own_indices.mutable_raw<int64_t>().data();
      for (int64_t i = begin; i < end; ++i) {
        to = std::copy_n(index + i * rank + 1, rank - 1, to);
      }
      MR_RETURN_IF_ERROR(Pack(own_indices, element));
      MR_RETURN_IF_ERROR(Pack(values.Rows(begin, end), element + 1));
      element[2] = own_shape;
      begin = end;
    }
    if (begin == count) return absl::OkStatus();
    return InvalidArgument("sparse_indices[", begin, ",0] must be in [",
                           begin == 0 ? 0 : index[(begin - 1) * rank], ", ", out->dim(0),
                           "), in the order of rows, got ", index[begin * rank]);
  });
}

OpSpec SerializeSpec(absl::string_view op) {
  return OpSpec(op,
                "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> "
                "serialized_sparse: out_type",
                "T: type; out_type: {string, variant} = DT_STRING");
}
const OpRegistration kSerializeSparse =
    SerializeSpec("SerializeSparse")
        .With(RuledKernelFor<SerializeSparseRule>(RunSerializeSparse))
        .NotDifferentiable();
const OpRegistration kSerializeManySparse =
    SerializeSpec("SerializeManySparse")
        .With(RuledKernelFor<SerializeManySparseRule>(RunSerializeManySparse))
        .NotDifferentiable();

// --- DeserializeSparse, DeserializeManySparse ----------------------------------------------------

template <int kRank>  // 0: any
struct DeserializeRule {
  DType dtype = DT_INVALID;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "dtype", &dtype); }
  Status operator()(RuleContext* c) const {
    const PartialShape& in = c->input(0);
    if (in.has_rank()) {
      const int last = in.rank() - 1;
      const bool has_rank = kRank == 0 ? last >= 0 : in.rank() == kRank;
      if (!has_rank || (in.dim(last) != 3 && in.dim(last) != -1)) {
        return InvalidArgument("serialized_sparse must have shape ",
                               kRank == 2 ? "[n,3]" : "[...,3]", ", got ", in);
      }
    }
    c->set_output(0, {-1, -1});
    c->set_output(1, {-1});
    c->set_output(2, {-1});
    return absl::OkStatus();
  }
};

struct Part {
  Tensor indices, values, shape;
};

StatusOr<Part> CheckedPart(Part part, DType dtype) {
  const Tensor &indices = part.indices, &values = part.values, &shape = part.shape;
  if (indices.dtype() != DT_INT64 || indices.rank() != 2) {
    return InvalidArgument("indices must be an int64 matrix, got ", indices.dtype(), " of shape ",
                           indices.shape());
  }
  if (values.dtype() != dtype || values.rank() != 1) {
    return InvalidArgument("values must be a vector of ", dtype, ", got ", values.dtype(),
                           " of shape ", values.shape());
  }
  if (shape.dtype() != DT_INT64 || shape.rank() != 1) {
    return InvalidArgument("shape must be an int64 vector, got ", shape.dtype(), " of shape ",
                           shape.shape());
  }
  if (indices.dim(0) != values.dim(0) || indices.dim(1) != shape.dim(0)) {
    return InvalidArgument("indices must have shape [", values.dim(0), ",", shape.dim(0),
                           "] for these values and this shape, got ", indices.shape());
  }
  return part;
}

template <typename E>
StatusOr<std::vector<Part>> ReadParts(const Tensor& serialized, DType dtype) {
  std::vector<Part> parts;
  const E* element = ElementsOf<E>(serialized);
  const char* const names[] = {"indices", "values", "shape"};
  for (int64_t i = 0; i < serialized.num_elements() / 3; ++i) {
    const auto where = [&](const Status& status) {
      return InvalidArgument("sparse tensor ", i, ": ", status.message());
    };
    Part part;
    Tensor* const tensors[] = {&part.indices, &part.values, &part.shape};
    for (size_t k = 0; k < 3; ++k) {
      StatusOr<Tensor> tensor = Unpack(*element++);
      if (absl::IsResourceExhausted(tensor.status())) return tensor.status();
      if (!tensor.ok()) {
        return where(InvalidArgument(names[k], " ", tensor.status().message()));
      }
      *tensors[k] = *std::move(tensor);
    }
    StatusOr<Part> checked = CheckedPart(std::move(part), dtype);
    if (!checked.ok()) return where(checked.status());
    if (!parts.empty() && checked->shape.dim(0) != parts[0].shape.dim(0)) {
      return where(InvalidArgument("rank must be ", parts[0].shape.dim(0),
                                   " as of those before it, got ", checked->shape.dim(0)));
    }
    parts.push_back(*std::move(checked));
  }
  return parts;
}

template <int kRank>
Status RunDeserialize(KernelContext* ctx, const DeserializeRule<kRank>& rule) {
  const Tensor& serialized = ctx->input(0);
  std::vector<Part> parts;
  MR_RETURN_IF_ERROR(VisitSerialized(serialized.dtype(), [&]<typename E>() -> Status {
    MR_ASSIGN_OR_RETURN(parts, ReadParts<E>(serialized, rule.dtype));
    return absl::OkStatus();
  }));
  if (parts.empty()) {
    return InvalidArgument("serialized_sparse must have at least one sparse tensor, got shape ",
                           serialized.shape());
  }
  const Shape leading = serialized.shape().Slice(0, serialized.rank() - 1);
  const int64_t own_rank = parts[0].shape.dim(0), rank = leading.rank() + own_rank;
  std::vector<int64_t> dims(leading.dims().begin(), leading.dims().end());
  dims.resize(static_cast<size_t>(rank), 0);
  int64_t count = 0;
  for (const Part& part : parts) {
    count += part.values.dim(0);
    int64_t* dim = dims.data() + leading.rank();
    for (const int64_t own : part.shape.ints()) {
      *dim = std::max(*dim, own);
      ++dim;
    }
  }
  MR_ASSIGN_OR_RETURN(const Shape indices_shape, Shape::Make({count, rank}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, indices_shape));
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, indices_shape.Slice(0, 1)));
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(2, Shape::Vector(dims.size())));
  std::copy(dims.begin(), dims.end(), shape->mutable_raw<int64_t>().begin());

  int64_t* to = indices->mutable_raw<int64_t>().data();
  std::vector<int64_t> at(static_cast<size_t>(leading.rank()), 0);  // which sparse tensor
  for (const Part& part : parts) {
    const int64_t* index = part.indices.template raw<int64_t>().data();
    for (int64_t i = 0; i < part.values.dim(0); ++i, index += own_rank) {
      to = std::copy(at.begin(), at.end(), to);
      to = std::copy_n(index, own_rank, to);
    }
    for (int d = leading.rank() - 1; d >= 0; --d) {
      if (++at[static_cast<size_t>(d)] < leading.dim(d)) break;
      at[static_cast<size_t>(d)] = 0;
    }
  }
  return VisitElements(rule.dtype, [&]<typename E>() {
    E* value = MutableElementsOf<E>(values);
    for (const Part& part : parts) {
      value = std::copy_n(ElementsOf<E>(part.values), part.values.dim(0), value);
    }
  });
}

const OpRegistration kDeserializeSparse =
    OpSpec("DeserializeSparse",
           "serialized_sparse: Tserialized -> sparse_indices: int64, sparse_values: dtype, "
           "sparse_shape: int64",
           "dtype: type; Tserialized: {string, variant} = DT_STRING")
        .With(RuledKernelFor<DeserializeRule<0>>(RunDeserialize<0>))
        .NotDifferentiable();
const OpRegistration kDeserializeManySparse =
    OpSpec("DeserializeManySparse",
           "serialized_sparse: string -> sparse_indices: int64, sparse_values: dtype, "
           "sparse_shape: int64",
           "dtype: type")
        .With(RuledKernelFor<DeserializeRule<2>>(RunDeserialize<2>))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
