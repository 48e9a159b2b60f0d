// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_DEVICE_NAME_H_
#define MILLRACE_GRAPH_DEVICE_NAME_H_

// DeviceName: which devices a node may run on: "/job:ps/replica:0/task:1/device:CPU:0".
//
// A name is full (all five fields, one device) or partial (a request that many devices satisfy).
// A field that is not given, or given as "*", is free. Parts come in any order in text
// ("/cpu:0/job:ps" is legal) but at most once; ToString always writes job, replica, task, device.
// The legacy forms "/cpu:0" and "/gpu:1" mean "/device:CPU:0" and "/device:GPU:1"; the first slash
// may be missing ("cpu:0"). CPU, GPU and TPU are upper case whatever the text says.
//
// Plain values without invariants. Failure: InvalidArgument that quotes the text and its bad part.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"

namespace millrace {

struct DeviceName {
  std::optional<std::string> job;
  std::optional<int> replica;
  std::optional<int> task;
  std::optional<std::string> type;  // "CPU"
  std::optional<int> id;

  // "" is the name that allows everything.
  static StatusOr<DeviceName> Parse(absl::string_view text);

  // "/job:ps/task:1/device:CPU:0"; a type without id is "/device:CPU:*", an id without type
  // "/device:*:0". "" when nothing is given.
  std::string ToString() const;

  bool IsFull() const { return job && replica && task && type && id; }
  bool empty() const { return !job && !replica && !task && !type && !id; }

  // Some device satisfies both: no field is given differently in the two.
  bool IsCompatible(const DeviceName& other) const;
  // Every field that `request` gives is given here, with the same value: a device of this name
  // satisfies the request.
  bool Matches(const DeviceName& request) const;
  // Job, replica and task are given in both and agree.
  bool IsSameTask(const DeviceName& other) const;

  // Lays the fields that `inner` gives over this one's.
  void Override(const DeviceName& inner);
  // Adds the fields that `other` gives. InvalidArgument when one is given differently; nothing is
  // changed then. With `allow_soft_placement` a conflict of type or id frees both instead.
  Status Intersect(const DeviceName& other, bool allow_soft_placement = false);

  // Job, replica and task only.
  DeviceName Task() const;

  friend bool operator==(const DeviceName&, const DeviceName&) = default;
};

// "/job:ps/replica:0/task:1/device:CPU:0".
std::string FullDeviceName(absl::string_view job, int replica, int task, absl::string_view type,
                           int id);

// The device of a node in a scope with device `base` that asks for `overriding` itself: each field
// of `overriding` wins. Canonical text.
StatusOr<std::string> MergeDeviceNames(absl::string_view base, absl::string_view overriding);

// "/job:ps/replica:0/task:1" of a full device name: the part that names the process.
// InvalidArgument when job or task is not given; a missing replica is 0.
StatusOr<std::string> TaskOfDevice(absl::string_view device);

// Whether a device (or task) passes a session's device filters: there are none, or one of them
// agrees with every field that both give. InvalidArgument for a malformed filter or name.
StatusOr<bool> PassesDeviceFilters(absl::string_view device, absl::Span<const std::string> filters);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_DEVICE_NAME_H_
