// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_TASK_DEVICES_H_
#define MILLRACE_DISTRIBUTED_WORKER_TASK_DEVICES_H_

// TaskDevices: the devices of one task, and whose resources are on them.
//
//   shared()           resources of all sessions that are of no run
//   MakeOwn()          the same devices with other resources, for a session that is isolated
//   MakeContainer()    the same, for a training run (run/run_registry.h)
//
// Invariants: there is a device at least; all these lists have the same names and incarnations.
// Thread-safety: all functions, from any thread: the list never changes, its resources have locks.
// Lifetime: sessions and plans share the devices and may outlive the task.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "proto/device_attributes.pb.h"
#include "run/run_registry.h"
#include "runtime/device.h"

namespace millrace {

using DeviceList = std::vector<std::shared_ptr<Device>>;

class TaskDevices {
 public:
  // `task`: "/job:ps/replica:0/task:0". Below 1, one CPU.
  TaskDevices(std::string task, int num_cpus);

  const DeviceList& shared() const { return shared_; }
  DeviceList MakeOwn() const;
  std::shared_ptr<RunResources> MakeContainer() const;

  std::vector<tensorflow::DeviceAttributes> Attributes() const;
  // Aborted when no device has it: a process that this task was before is meant.
  Status CheckIncarnation(uint64_t expected) const;
  // Of the shared resources; none named: the default one.
  void ClearContainers(absl::Span<const std::string> names) const;

 private:
  const std::string task_;
  DeviceList shared_;
};

// Of a container that MakeContainer has made.
const DeviceList& DevicesOf(const RunResources& container);

void ClearAllOf(const DeviceList& devices);

// Clears the container of a run that is over, and logs how many bytes of variables it had.
void FreeContainer(absl::string_view task, const RunRegistry::Freed& run);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_TASK_DEVICES_H_
