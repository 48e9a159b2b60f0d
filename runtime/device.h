// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_DEVICE_H_
#define MILLRACE_RUNTIME_DEVICE_H_

// Device: what kernels run on: a name, a kind, memory and resources.
//
// Only CPUs run kernels here. A kernel's tensors are in the memory of its device unless its
// registration says that an argument lives in host memory (KernelSpec::HostMemory); on a CPU both
// are one.
//
// Lifetime: a device outlives the plans that were built for it.

#include <cstdint>
#include <memory>
#include <string>

#include "core/allocator.h"
#include "runtime/resource_manager.h"

namespace millrace {

enum class MemoryKind {
  kDevice,  // where the device's kernels compute
  kHost,    // where this program's own code reads: shapes, indices, strings
};

struct Device {
  std::string name;          // "/job:worker/replica:0/task:0/device:CPU:0"
  std::string type;          // "CPU"
  uint64_t incarnation = 0;  // random, nonzero, new in every process
  std::unique_ptr<ResourceManager> resources;
  Allocator* allocator = DefaultAllocator();  // of MemoryKind::kDevice; outlives all tensors
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_DEVICE_H_
