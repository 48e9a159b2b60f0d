// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/task_devices.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "run/run_id_text.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// Devices like the task's, with resources of their own.
struct DevicesOfRun : RunResources {
  explicit DevicesOfRun(DeviceList list) : devices(std::move(list)) {}
  const DeviceList devices;
};

int64_t VariableBytes(const ResourceManager& resources) {
  int64_t bytes = 0;
  for (const auto& variable : resources.All<VariableStorage>()) {
    if (const auto shape = variable->shape(); shape.ok()) {
      bytes += shape->num_elements() * static_cast<int64_t>(DTypeSize(variable->dtype()));
    }
  }
  return bytes;
}

}  // namespace

TaskDevices::TaskDevices(std::string task, int num_cpus) : task_(std::move(task)) {
  for (int i = 0; i < std::max(num_cpus, 1); ++i) {
    auto device = std::make_shared<Device>();
    device->name = absl::StrCat(task_, "/device:CPU:", i);
    device->type = "CPU";
    device->incarnation = RandomUint64();
    device->resources = std::make_unique<ResourceManager>(device->name);
    shared_.push_back(std::move(device));
  }
}

DeviceList TaskDevices::MakeOwn() const {
  DeviceList result;
  for (const auto& shared : shared_) {
    auto own = std::make_shared<Device>();
    own->name = shared->name;
    own->type = shared->type;
    own->incarnation = shared->incarnation;
    own->resources = std::make_unique<ResourceManager>(own->name);
    result.push_back(std::move(own));
  }
  return result;
}

std::shared_ptr<RunResources> TaskDevices::MakeContainer() const {
  return std::make_shared<DevicesOfRun>(MakeOwn());
}

std::vector<tensorflow::DeviceAttributes> TaskDevices::Attributes() const {
  std::vector<tensorflow::DeviceAttributes> result;
  for (const auto& device : shared_) {
    tensorflow::DeviceAttributes& attributes = result.emplace_back();
    attributes.set_name(device->name);
    attributes.set_device_type(device->type);
    attributes.set_incarnation(device->incarnation);
    attributes.set_memory_limit(int64_t{256} << 20);  // what TensorFlow says of CPUs
  }
  return result;
}

Status TaskDevices::CheckIncarnation(uint64_t expected) const {
  for (const auto& device : shared_) {
    if (device->incarnation == expected) return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      "RecvTensor expects a different device incarnation: ", expected, " vs. ",
      shared_[0]->incarnation, ". Your worker job (\"", task_,
      "\") was probably restarted; variables there are lost, restore from a checkpoint"));
}

void TaskDevices::ClearContainers(absl::Span<const std::string> names) const {
  for (const auto& device : shared_) {
    if (names.empty()) device->resources->ClearContainer("");
    for (const std::string& name : names) device->resources->ClearContainer(name);
  }
}

const DeviceList& DevicesOf(const RunResources& container) {
  return static_cast<const DevicesOfRun&>(container).devices;
}

void ClearAllOf(const DeviceList& devices) {
  for (const auto& device : devices) device->resources->ClearAll();
}

void FreeContainer(absl::string_view task, const RunRegistry::Freed& run) {
  int64_t bytes = 0;
  const DeviceList& devices = DevicesOf(*run.resources);
  for (const auto& device : devices) bytes += VariableBytes(*device->resources);
  ClearAllOf(devices);
  LogInfo(task, ": the container of run '", run.run.name, "' (", RunIdText(run.run.id),
          ") was freed, with ", bytes, " bytes of variables: ", run.reason);
}

}  // namespace millrace
