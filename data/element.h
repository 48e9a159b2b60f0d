// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ELEMENT_H_
#define MILLRACE_DATA_ELEMENT_H_

// Element: what a dataset is a sequence of: a list of tensors, its components.
// ElementSpec: what is known of the elements of a dataset before any is read.
//
// Values. An empty spec means that nothing is known, not even the number of components. Names are
// for those who look components up (feature columns); nothing here depends on them.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"   // IWYU pragma: export
#include "core/shape.h"   // IWYU pragma: export
#include "core/status.h"  // IWYU pragma: export
#include "core/tensor.h"  // IWYU pragma: export

namespace millrace::data {

using Element = std::vector<Tensor>;

struct ComponentSpec {
  DType dtype = DT_INVALID;
  PartialShape shape = {};  // unknown rank unless said otherwise
  std::string name = {};
};
using ElementSpec = std::vector<ComponentSpec>;

// What is known of the only element that is `element`.
ElementSpec SpecOf(const Element& element);

// "(int64 [], float [?,3] 'x')"; "(unknown)" for an empty one.
std::string SpecText(const ElementSpec& spec);

// InvalidArgument, which begins with `where`, unless the element is one of these.
Status CheckElement(absl::string_view where, const ElementSpec& spec, const Element& element);

// Could an element be of both? Everything known in either; InvalidArgument when it could not.
StatusOr<ElementSpec> MergeSpecs(absl::string_view where, const ElementSpec& a,
                                 const ElementSpec& b);

// What both allow: dimensions that differ are unknown. InvalidArgument, when the number of
// components or a dtype differs.
StatusOr<ElementSpec> CommonSpec(absl::string_view where, const ElementSpec& a,
                                 const ElementSpec& b);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ELEMENT_H_
