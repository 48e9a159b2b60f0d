// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/v2_messages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "proto/inference/grpc_service.pb.h"
#include "serving/protocols/v2_tensors.h"

namespace millrace {
namespace {

using ::inference::InferTensorContents;
using ::inference::ModelInferRequest;
using ::inference::ModelInferResponse;

// The field that carries elements of type T.
template <typename T>
const auto& FieldOf(const InferTensorContents& contents) {
  if constexpr (std::is_same_v<T, bool>) {
    return contents.bool_contents();
  } else if constexpr (std::is_same_v<T, float>) {
    return contents.fp32_contents();
  } else if constexpr (std::is_same_v<T, double>) {
    return contents.fp64_contents();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return contents.bytes_contents();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return contents.int64_contents();
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return contents.uint64_contents();
  } else if constexpr (std::is_signed_v<T>) {
    return contents.int_contents();
  } else {
    return contents.uint_contents();
  }
}
template <typename T>
auto* MutableFieldOf(InferTensorContents* contents) {
  if constexpr (std::is_same_v<T, bool>) {
    return contents->mutable_bool_contents();
  } else if constexpr (std::is_same_v<T, float>) {
    return contents->mutable_fp32_contents();
  } else if constexpr (std::is_same_v<T, double>) {
    return contents->mutable_fp64_contents();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return contents->mutable_bytes_contents();
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return contents->mutable_int64_contents();
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return contents->mutable_uint64_contents();
  } else if constexpr (std::is_signed_v<T>) {
    return contents->mutable_int_contents();
  } else {
    return contents->mutable_uint_contents();
  }
}

// Calls fn.operator()<T>() for the element type of a dtype that HasTypedV2Form.
template <typename Fn>
auto ForTyped(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DT_BOOL:
      return fn.template operator()<bool>();
    case DT_INT8:
      return fn.template operator()<int8_t>();
    case DT_INT16:
      return fn.template operator()<int16_t>();
    case DT_INT32:
      return fn.template operator()<int32_t>();
    case DT_INT64:
      return fn.template operator()<int64_t>();
    case DT_UINT8:
      return fn.template operator()<uint8_t>();
    case DT_UINT16:
      return fn.template operator()<uint16_t>();
    case DT_UINT32:
      return fn.template operator()<uint32_t>();
    case DT_UINT64:
      return fn.template operator()<uint64_t>();
    case DT_FLOAT:
      return fn.template operator()<float>();
    case DT_DOUBLE:
      return fn.template operator()<double>();
    default:
      return fn.template operator()<std::string>();
  }
}

int64_t NumContents(const InferTensorContents& c) {
  return int64_t{c.bool_contents_size()} + c.int_contents_size() + c.int64_contents_size() +
         c.uint_contents_size() + c.uint64_contents_size() + c.fp32_contents_size() +
         c.fp64_contents_size() + c.bytes_contents_size();
}

StatusOr<Tensor> TensorOfContents(absl::string_view where, DType dtype, const Shape& shape,
                                  const InferTensorContents& contents) {
  if (!HasTypedV2Form(dtype)) {
    return InvalidArgument(where, ": ", V2Datatype(dtype),
                           " has no typed contents; use raw_input_contents");
  }
  return ForTyped(dtype, [&]<typename T>() -> StatusOr<Tensor> {
    const auto& field = FieldOf<T>(contents);
    const int64_t elements = shape.num_elements();
    if (field.size() != elements) {
      return InvalidArgument(where, ": ", V2Datatype(dtype), " of shape ", shape.ToString(),
                             " must have ", elements, " elements in the field of its datatype, ",
                             "got ", field.size());
    }
    if (NumContents(contents) != elements) {
      return InvalidArgument(where, ": contents must be in the field of ", V2Datatype(dtype),
                             " alone, got elements in others, too");
    }
    MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
    const absl::Span<T> out = tensor.mutable_raw<T>();
    using Wire = std::decay_t<decltype(field.Get(0))>;
    if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(Wire)) {
      for (size_t i = 0; i < out.size(); ++i) {
        const Wire value = field.Get(static_cast<int>(i));
        if (value < Wire{std::numeric_limits<T>::min()} ||
            value > Wire{std::numeric_limits<T>::max()}) {
          return InvalidArgument(where, ": elements must be ", V2Datatype(dtype), "s, got ", value);
        }
        out[i] = static_cast<T>(value);
      }
    } else {
      std::copy(field.begin(), field.end(), out.begin());
    }
    return tensor;
  });
}

template <typename Parameters>
Status CheckParameters(absl::string_view where, const Parameters& parameters) {
  for (const char* name : {"shared_memory_region", "classification"}) {
    if (parameters.contains(name)) {
      return Unimplemented(where, ": parameters must be ones of this server, got ", name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<V2Infer> ReadInferRequest(const ModelInferRequest& request) {
  const std::vector<absl::string_view> contents(request.raw_input_contents().begin(),
                                                request.raw_input_contents().end());
  V2RawContents raw;
  for (const absl::string_view& one : contents) raw.push_back({&one, 1});
  return ReadInferRequest(request, raw);
}

StatusOr<V2Infer> ReadInferRequest(const ModelInferRequest& request, const V2RawContents& raw) {
  V2Infer read;
  read.id = request.id();
  const auto signature = request.parameters().find(kV2SignatureParameter);
  if (signature != request.parameters().end()) {
    if (!signature->second.has_string_param()) {
      return InvalidArgument("Inference request: parameter signature_name must be a string");
    }
    read.signature_name = signature->second.string_param();
  }
  const bool is_raw = !raw.empty();
  if (is_raw && raw.size() != static_cast<size_t>(request.inputs_size())) {
    return InvalidArgument("Inference request: raw_input_contents must be one for each of ",
                           request.inputs_size(), " inputs, got ", raw.size());
  }
  std::set<absl::string_view> names;
  for (int i = 0; i < request.inputs_size(); ++i) {
    const ModelInferRequest::InferInputTensor& input = request.inputs(i);
    const std::string where = absl::StrCat("Input '", input.name(), "'");
    if (!names.insert(input.name()).second) {
      return InvalidArgument(where, ": inputs must have different names, got it twice");
    }
    MR_RETURN_IF_ERROR(CheckParameters(where, input.parameters()));
    MR_ASSIGN_OR_RETURN(const DType dtype, DTypeOfV2(where, input.datatype()));
    MR_ASSIGN_OR_RETURN(
        const Shape shape,
        ShapeOfV2(where, absl::MakeConstSpan(input.shape().data(),
                                             static_cast<size_t>(input.shape_size()))));
    if (is_raw && input.has_contents()) {
      return InvalidArgument(where, ": elements must be in raw_input_contents or in contents, ",
                             "got both");
    }
    MR_ASSIGN_OR_RETURN(Tensor tensor,
                        is_raw
                            ? TensorOfRawPiecesV2(where, dtype, shape, raw[static_cast<size_t>(i)])
                            : TensorOfContents(where, dtype, shape, input.contents()));
    read.inputs.push_back({input.name(), std::move(tensor)});
  }
  for (const auto& output : request.outputs()) {
    MR_RETURN_IF_ERROR(
        CheckParameters(absl::StrCat("Output '", output.name(), "'"), output.parameters()));
    read.outputs.push_back({.name = output.name(), .raw = is_raw});
  }
  read.raw_outputs = is_raw;
  return read;
}

Status WriteInferOutputs(absl::Span<const AliasedTensor> outputs, bool raw,
                         ModelInferResponse* response) {
  for (const AliasedTensor& output : outputs) raw |= !HasTypedV2Form(output.tensor.dtype());
  for (const AliasedTensor& output : outputs) {
    const Tensor& tensor = output.tensor;
    const std::string where = absl::StrCat("Output '", output.alias, "'");
    ModelInferResponse::InferOutputTensor* const out = response->add_outputs();
    out->set_name(output.alias);
    out->set_datatype(std::string(V2Datatype(tensor.dtype())));
    for (const int64_t dim : tensor.shape().dims()) out->add_shape(dim);
    if (raw) {
      // Says so of dtypes that the protocol does not have.
      MR_ASSIGN_OR_RETURN(*response->add_raw_output_contents(), RawV2(where, tensor));
      continue;
    }
    if (tensor.num_elements() > INT32_MAX) {
      return absl::ResourceExhaustedError(absl::StrCat(
          where, ": elements must be at most 2^31 - 1 in a message, got ", tensor.num_elements()));
    }
    ForTyped(tensor.dtype(), [&]<typename T>() {
      auto* const field = MutableFieldOf<T>(out->mutable_contents());
      const absl::Span<const T> elements = tensor.raw<T>();
      field->Reserve(static_cast<int>(elements.size()));
      for (const T& element : elements) *field->Add() = element;
    });
  }
  return absl::OkStatus();
}

}  // namespace millrace
