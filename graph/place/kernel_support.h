// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PLACE_KERNEL_SUPPORT_H_
#define MILLRACE_GRAPH_PLACE_KERNEL_SUPPORT_H_

// KernelSupport: what the placer asks about kernels without knowing the runtime, which implements
// it over its kernel registry.
//
// Thread-safety: const functions may be called from any thread.

#include <string>

#include "absl/strings/string_view.h"

namespace tensorflow {
class NodeDef;
}

namespace millrace {

class KernelSupport {
 public:
  virtual ~KernelSupport() = default;

  // Whether a kernel for the node's op and type attrs exists on devices of this type ("CPU").
  virtual bool HasKernel(const tensorflow::NodeDef& node, absl::string_view device_type) const = 0;

  // The kernels that exist for an op kind, for messages: "T=float; T=double". Empty when none does.
  virtual std::string DescribeKernels(absl::string_view /*op*/) const { return std::string(); }
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PLACE_KERNEL_SUPPORT_H_
