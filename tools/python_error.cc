// SPDX-License-Identifier: Apache-2.0
#include "tools/python_error.h"

namespace millrace {
namespace {

// The class that TensorFlow's Python has for a code.
const char* ClassOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kCancelled:
      return "CancelledError";
    case absl::StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case absl::StatusCode::kDeadlineExceeded:
      return "DeadlineExceededError";
    case absl::StatusCode::kNotFound:
      return "NotFoundError";
    case absl::StatusCode::kAlreadyExists:
      return "AlreadyExistsError";
    case absl::StatusCode::kPermissionDenied:
      return "PermissionDeniedError";
    case absl::StatusCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case absl::StatusCode::kFailedPrecondition:
      return "FailedPreconditionError";
    case absl::StatusCode::kAborted:
      return "AbortedError";
    case absl::StatusCode::kOutOfRange:
      return "OutOfRangeError";
    case absl::StatusCode::kUnimplemented:
      return "UnimplementedError";
    case absl::StatusCode::kInternal:
      return "InternalError";
    case absl::StatusCode::kUnavailable:
      return "UnavailableError";
    case absl::StatusCode::kDataLoss:
      return "DataLossError";
    default:
      return "UnknownError";
  }
}

}  // namespace

Status PythonErrorFromStatus(const Status& status) {
  return Prefixed(ClassOf(status.code()), status);
}

}  // namespace millrace
