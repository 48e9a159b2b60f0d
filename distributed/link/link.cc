// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/link.h"

#include <algorithm>
#include <utility>

#include "core/dcheck.h"

namespace millrace {
namespace {

thread_local LinkCork* outermost = nullptr;

Status CheckTensors(const SentTensors& message) {
  std::vector<uint32_t> indices;
  indices.reserve(message.tensors.size());
  for (const SentTensor& tensor : message.tensors) {
    if (!tensor.is_dead && (!tensor.value.has_value() || tensor.value.is_reference())) {
      return InvalidArgument("Link: tensor ", tensor.index, " of step ", message.step_id,
                             " must have a value, got ",
                             tensor.value.has_value() ? "a reference to a variable" : "none");
    }
    if (tensor.keep_number != 0 &&
        (tensor.is_dead || tensor.in_loop || message.purpose != TensorsPurpose::kEdges)) {
      return InvalidArgument("Link: tensor ", tensor.index, " of step ", message.step_id,
                             ", which the peer is to keep, must be an edge with a value, got ",
                             tensor.is_dead ? "a dead one" : "another one");
    }
    if (!tensor.in_loop) {
      indices.push_back(tensor.index);
    } else if (tensor.iteration < 0) {
      return InvalidArgument("Link: the iteration of tensor ", tensor.index, " of step ",
                             message.step_id, " must be >= 0, got ", tensor.iteration);
    }
  }
  // Senders mostly count up.
  if (!std::is_sorted(indices.begin(), indices.end())) std::sort(indices.begin(), indices.end());
  const auto doubled = std::adjacent_find(indices.begin(), indices.end());
  if (doubled == indices.end()) return absl::OkStatus();
  return InvalidArgument("Link: each tensor of step ", message.step_id,
                         " must be sent once, got number ", *doubled, " twice");
}

}  // namespace

Status CheckSendable(const LinkMessage& message) {
  if (const auto* const tensors = std::get_if<SentTensors>(&message)) return CheckTensors(*tensors);
  if (const auto* const cancel = std::get_if<CancelFrame>(&message)) {
    if (cancel->status.ok()) {
      return InvalidArgument("Link: CANCEL of step ", cancel->step_id,
                             " must have an error, got OK");
    }
  }
  return absl::OkStatus();
}

Status LossOfLink(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return status;
    default:  // Internal, too: gRPC says so of connections that were reset
      return absl::UnavailableError(status.message());
  }
}

LinkCork::LinkCork() : is_outermost_(outermost == nullptr) {
  if (is_outermost_) outermost = this;
}

LinkCork::~LinkCork() { LinkCork::Do(); }

void LinkCork::Do() noexcept {
  if (!std::exchange(is_outermost_, false)) return;
  MR_DCHECK(outermost == this, "corks live on the stack: the outermost of a thread ends last");
  outermost = nullptr;
  for (const std::shared_ptr<Link>& link : links_) link->Flush();
  links_.clear();
}

bool LinkCork::Holds(Link* link) {
  if (outermost == nullptr) return false;
  for (const std::shared_ptr<Link>& held : outermost->links_) {
    if (held.get() == link) return true;
  }
  outermost->links_.push_back(link->shared_from_this());
  return true;
}

}  // namespace millrace
