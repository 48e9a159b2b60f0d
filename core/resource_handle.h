// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_RESOURCE_HANDLE_H_
#define MILLRACE_CORE_RESOURCE_HANDLE_H_

// Resource: state that outlives a step (variables, queues, tables).
// ResourceHandle: the element of a DT_RESOURCE tensor: which resource, on which device.
// Variant: the element of a DT_VARIANT tensor: a named list of tensors with metadata.
//
// A handle made in this process also holds the resource itself, so that a step
// reaches it without a look-up; the pointer never travels. A handle that came over
// the wire is resolved by (container, name) on its device.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace millrace {

class Tensor;

class Resource {
 public:
  virtual ~Resource() = default;
  // One line for messages: kind, name, state.
  virtual std::string DebugString() const = 0;

  // The resource manager let go of it (Reset, DestroyResourceOp): cached handles look it up anew.
  void Abandon() {
    abandoned_.store(true, std::memory_order_release);
    OnAbandoned();
  }
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }

 protected:
  // For what is over then although handles to it live on; called without a lock of the manager.
  virtual void OnAbandoned() {}

 private:
  std::atomic<bool> abandoned_{false};  // release/acquire: a reader that sees it looks up anew
};

struct ResourceHandle {
  std::string device;  // full name of the device that owns the resource
  std::string container;
  std::string name;
  uint64_t hash_code = 0;     // of the C++ type of the resource
  std::string type_name;      // "VariableStorage", ...: for messages
  std::vector<DType> dtypes;  // element type and shape of what is stored, when known
  std::vector<PartialShape> shapes;
  std::shared_ptr<Resource> resource;  // null when the handle came from another process
};

// Include core/tensor.h to make, copy or destroy one.
struct Variant {
  std::string type_name;
  std::string metadata;
  std::vector<Tensor> tensors;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_RESOURCE_HANDLE_H_
