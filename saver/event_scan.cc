// SPDX-License-Identifier: Apache-2.0
#include "saver/event_scan.h"

#include <utility>

#include "core/dtype.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "proto/tensor.pb.h"
#include "saver/event_reader.h"

namespace millrace {
namespace {

// Of a tensor of one number; nullopt: it is another one. Larger tensors are not decoded.
std::optional<double> NumberIn(const tensorflow::TensorProto& proto) {
  for (const auto& dim : proto.tensor_shape().dim()) {
    if (dim.size() != 1) return std::nullopt;
  }
  const StatusOr<Tensor> tensor = TensorFromProto(proto);
  if (!tensor.ok() || tensor->num_elements() != 1) return std::nullopt;
  switch (tensor->dtype()) {
    case DT_FLOAT:
      return static_cast<double>(tensor->scalar<float>());
    case DT_DOUBLE:
      return tensor->scalar<double>();
    case DT_HALF:
      return static_cast<double>(ToFloat(tensor->scalar<Half>()));
    case DT_BFLOAT16:
      return static_cast<double>(ToFloat(tensor->scalar<Bfloat16>()));
    case DT_INT32:
      return static_cast<double>(tensor->scalar<int32_t>());
    case DT_INT64:
      return static_cast<double>(tensor->scalar<int64_t>());
    default:
      return std::nullopt;
  }
}

}  // namespace

void IgnoreDamage(const Status&) {}

Status ScanEvents(FileSystem* fs, const std::string& path,
                  absl::FunctionRef<void(const std::string& file, tensorflow::Event event)> take,
                  absl::FunctionRef<void(const Status& damage)> damaged) {
  MR_ASSIGN_OR_RETURN(const auto events, EventReader::Open(fs, path));
  Status told;  // the last file tells of its own again and again
  while (true) {
    StatusOr<tensorflow::Event> event = events->Next();
    if (event.ok()) {
      take(events->file(), *std::move(event));
    } else if (absl::IsDataLoss(event.status()) && event.status() != told) {
      told = event.status();
      damaged(told);
    } else if (absl::IsOutOfRange(event.status()) || absl::IsDataLoss(event.status())) {
      return absl::OkStatus();
    } else {
      return event.status();
    }
  }
}

Status ScanScalars(FileSystem* fs, const std::string& path,
                   absl::FunctionRef<void(const EventScalar& scalar)> take,
                   absl::FunctionRef<void(const Status& damage)> damaged) {
  return ScanEvents(
      fs, path,
      [take](const std::string&, const tensorflow::Event& event) {
        for (const tensorflow::Summary::Value& value : event.summary().value()) {
          const std::optional<double> number = ScalarOf(value);
          if (!number) continue;
          take({.tag = TagOf(value),
                .step = event.step(),
                .wall_time = event.wall_time(),
                .value = *number});
        }
      },
      damaged);
}

const std::string& TagOf(const tensorflow::Summary::Value& value) {
  return value.tag().empty() ? value.node_name() : value.tag();
}

std::optional<double> ScalarOf(const tensorflow::Summary::Value& value) {
  if (value.value_case() == tensorflow::Summary::Value::kSimpleValue) {
    return static_cast<double>(value.simple_value());
  }
  return value.has_tensor() ? NumberIn(value.tensor()) : std::nullopt;
}

}  // namespace millrace
