// SPDX-License-Identifier: Apache-2.0
#include "serving/example_input.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "proto/example.pb.h"
#include "proto/serving/input.pb.h"

namespace millrace {
namespace {

// A small request could ask for any memory.
constexpr uint64_t kMaxContextBytes = uint64_t{256} << 20;

template <typename Examples>
StatusOr<Tensor> Serialized(const Examples& examples, const std::string& context) {
  if (examples.empty()) return InvalidArgument("Input is empty.");
  const auto repeated =
      static_cast<uint64_t>(context.size()) * static_cast<uint64_t>(examples.size());
  if (repeated > kMaxContextBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Input: the context, which stands before each example, must have at most ",
                     kMaxContextBytes, " bytes in all of them, got ", context.size(),
                     " in each of ", examples.size()));
  }
  MR_ASSIGN_OR_RETURN(
      Tensor tensor,
      Tensor::Allocate(DT_STRING, Shape::Vector(static_cast<size_t>(examples.size()))));
  const absl::Span<std::string> out = tensor.mutable_flat<std::string>();
  for (size_t i = 0; i < out.size(); ++i) {
    const tensorflow::Example& example = examples[static_cast<int>(i)];
    out[i].reserve(context.size() + example.ByteSizeLong());
    out[i] = context;
    if (!example.AppendToString(&out[i])) {
      return InvalidArgument("Input: an example must be at most 2 GB, got ", example.ByteSizeLong(),
                             " bytes");
    }
  }
  return tensor;
}

}  // namespace

StatusOr<Tensor> SerializedExamples(const tensorflow::serving::Input& input) {
  if (input.kind_case() == tensorflow::serving::Input::kExampleListWithContext) {
    const auto& list = input.example_list_with_context();
    return Serialized(list.examples(), list.context().SerializeAsString());
  }
  return Serialized(input.example_list().examples(), "");
}

}  // namespace millrace
