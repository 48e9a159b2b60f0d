// SPDX-License-Identifier: Apache-2.0
#include "data/element.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace millrace::data {

ElementSpec SpecOf(const Element& element) {
  ElementSpec spec;
  spec.reserve(element.size());
  for (const Tensor& tensor : element) spec.push_back({tensor.dtype(), tensor.shape()});
  return spec;
}

std::string SpecText(const ElementSpec& spec) {
  if (spec.empty()) return "(unknown)";
  std::string text = "(";
  for (const ComponentSpec& component : spec) {
    if (text.size() > 1) text += ", ";
    absl::StrAppend(&text, DTypeName(component.dtype), " ", component.shape.ToString());
    if (!component.name.empty()) absl::StrAppend(&text, " '", component.name, "'");
  }
  return text + ")";
}

Status CheckElement(absl::string_view where, const ElementSpec& spec, const Element& element) {
  if (spec.empty()) return absl::OkStatus();
  if (element.size() != spec.size()) {
    return InvalidArgument(where, ": an element must have ", spec.size(), " components, got ",
                           element.size());
  }
  for (size_t i = 0; i < spec.size(); ++i) {
    if (element[i].dtype() != spec[i].dtype) {
      return InvalidArgument(where, ": component ", i, " must be ", spec[i].dtype, ", got ",
                             element[i].dtype());
    }
    if (!spec[i].shape.IsCompatibleWith(element[i].shape())) {
      return InvalidArgument(where, ": component ", i, " must have shape ", spec[i].shape, ", got ",
                             element[i].shape());
    }
  }
  return absl::OkStatus();
}

namespace {

Status CheckSameKinds(absl::string_view where, const ElementSpec& a, const ElementSpec& b) {
  if (a.size() != b.size()) {
    return InvalidArgument(where, ": elements must have ", a.size(), " components, got ", b.size());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].dtype != b[i].dtype) {
      return InvalidArgument(where, ": component ", i, " must be ", a[i].dtype, ", got ",
                             b[i].dtype);
    }
  }
  return absl::OkStatus();
}

PartialShape CommonShape(const PartialShape& a, const PartialShape& b) {
  if (!a.has_rank() || !b.has_rank() || a.rank() != b.rank()) return PartialShape::Unknown();
  std::vector<int64_t> dims;
  for (int i = 0; i < a.rank(); ++i) dims.push_back(a.dim(i) == b.dim(i) ? a.dim(i) : -1);
  StatusOr<PartialShape> common = PartialShape::Make(dims);
  return common.ok() ? *std::move(common) : PartialShape::Unknown();
}

}  // namespace

StatusOr<ElementSpec> MergeSpecs(absl::string_view where, const ElementSpec& a,
                                 const ElementSpec& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  MR_RETURN_IF_ERROR(CheckSameKinds(where, a, b));
  ElementSpec merged = a;
  for (size_t i = 0; i < a.size(); ++i) {
    StatusOr<PartialShape> shape = a[i].shape.MergeWith(b[i].shape);
    if (!shape.ok()) {
      return InvalidArgument(where, ": component ", i, " must have shape ", a[i].shape, ", got ",
                             b[i].shape);
    }
    merged[i].shape = *std::move(shape);
    if (merged[i].name.empty()) merged[i].name = b[i].name;
  }
  return merged;
}

StatusOr<ElementSpec> CommonSpec(absl::string_view where, const ElementSpec& a,
                                 const ElementSpec& b) {
  if (a.empty() || b.empty()) return ElementSpec();
  MR_RETURN_IF_ERROR(CheckSameKinds(where, a, b));
  ElementSpec common = a;
  for (size_t i = 0; i < a.size(); ++i) {
    common[i].shape = CommonShape(a[i].shape, b[i].shape);
    if (common[i].name != b[i].name) common[i].name.clear();
  }
  return common;
}

}  // namespace millrace::data
