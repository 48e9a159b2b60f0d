// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_ELEMENTS_H_
#define MILLRACE_OPS_RULES_ELEMENTS_H_

// Elements as things to copy: kernels that only move elements are compiled once per
// element size instead of once per dtype.
//
//   return VisitElements(x.dtype(), [&]<typename E>() {
//     const E* from = ElementsOf<E>(x);
//     ...
//   });
//
// E is Bytes<1>, <2>, <4>, <8> or <16> for plain dtypes, std::string, ResourceHandle or Variant for
// the others. Pure functions; Unimplemented for a dtype that has no elements.

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "core/dtype.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/loops/bytes.h"

namespace millrace {

template <typename E>
const E* ElementsOf(const Tensor& t) {
  return static_cast<const E*>(t.raw_data());
}
template <typename E>
E* MutableElementsOf(Tensor* t) {
  return static_cast<E*>(t->mutable_raw_data());
}

// Calls visit.operator()<E>(), which returns void or Status.
template <typename Visitor>
Status VisitElements(DType dtype, Visitor&& visit) {
  const auto call = [&]<typename E>() -> Status {
    if constexpr (std::is_void_v<decltype(visit.template operator()<E>())>) {
      visit.template operator()<E>();
      return absl::OkStatus();
    } else {
      return visit.template operator()<E>();
    }
  };
  switch (DTypeSize(dtype)) {
    case 1:
      return call.template operator()<Bytes<1>>();
    case 2:
      return call.template operator()<Bytes<2>>();
    case 4:
      return call.template operator()<Bytes<4>>();
    case 8:
      return call.template operator()<Bytes<8>>();
    case 16:
      return call.template operator()<Bytes<16>>();
    default:
      break;
  }
  switch (dtype) {
    case DT_STRING:
      return call.template operator()<std::string>();
    case DT_RESOURCE:
      return call.template operator()<ResourceHandle>();
    case DT_VARIANT:
      return call.template operator()<Variant>();
    default:
      return Unimplemented("elements of dtype ", dtype, " cannot be copied");
  }
}

// Every element of `out` becomes the one of `value`, which has the same dtype.
inline Status FillElements(const Tensor& value, Tensor* out) {
  return VisitElements(value.dtype(), [&]<typename E>() {
    E* const to = MutableElementsOf<E>(out);
    const int64_t n = out->num_elements();
    if (n > 0) *to = *ElementsOf<E>(value);
    // What is there is copied behind itself: as fast for elements of any size.
    for (int64_t done = 1; done < n; done *= 2) {
      std::copy(to, to + std::min(done, n - done), to + done);
    }
  });
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_ELEMENTS_H_
