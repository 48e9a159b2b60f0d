// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PUSHED_MESSAGE_H_
#define MILLRACE_DISTRIBUTED_WORKER_PUSHED_MESSAGE_H_

// PushedMessage: what another task has pushed for a step of this one; and PushReceiver, which takes
// it once the step runs.
//
// All of it may be a stranger's: the receiver checks it. The sender keeps what its step has taken
// from queues and the like until it hears that its tensors were taken: by a step, not by the memory
// of a task whose step may never begin.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/status.h"
#include "distributed/link/link.h"

namespace millrace {

// While it lives, a link holds back credit: the peer sends so many bytes less. Destroyed without a
// lock, because what the link then sends may call the methods of its ends.
class HeldCredit {
 public:
  HeldCredit(std::shared_ptr<Link> link, int64_t bytes) : link_(std::move(link)), bytes_(bytes) {
    link_->HoldCredit(bytes_);
  }
  ~HeldCredit() { link_->LetGoOfCredit(bytes_); }
  HeldCredit(const HeldCredit&) = delete;
  HeldCredit& operator=(const HeldCredit&) = delete;

 private:
  const std::shared_ptr<Link> link_;
  const int64_t bytes_;
};

struct PushedMessage {
  // What else came with it, or why nothing more will come.
  enum class Kind {
    kTensors,
    kFailed,  // `error` of the peer's part, or of a tensor that could not be taken here
    kLost,    // the link was lost, with `error`
  };
  // Counted next to the bytes of tensors, so that small ones have a bound as well.
  static constexpr int64_t kOverheadBytes = 1024;

  Kind kind = Kind::kTensors;
  std::string task;            // that sent it
  const Link* link = nullptr;  // by which it came; only compared
  // By which kTensors came, and to which they are acknowledged; its credit may be held back. Null:
  // no one waits for that.
  std::shared_ptr<Link> creditor;
  std::shared_ptr<const HeldCredit> held;  // while it is parked beyond the bound
  SentTensors tensors;
  Status error;

  // The step takes so many of them: the sender hears so with the next message.
  void Acknowledge(uint64_t n) const {
    if (creditor != nullptr && n > 0) creditor->Acknowledge(tensors.step_id, n);
  }
  // The step is over here and has no more messages to its sender, who may wait to stop.
  void Drop() {
    const std::shared_ptr<Link> link = std::exchange(creditor, nullptr);
    if (link == nullptr) return;
    link->Acknowledge(tensors.step_id, tensors.tensors.size());
    link->Flush();
  }

  // What the step keeps, also of tensors that did not travel.
  int64_t num_bytes() const {
    int64_t bytes = 0;
    for (const SentTensor& tensor : tensors.tensors) {
      if (!tensor.is_dead) bytes += tensor.value.TotalBytes();
    }
    return bytes + kOverheadBytes * (1 + static_cast<int64_t>(tensors.tensors.size()));
  }
};

// Of the elements of tensors that travel; a tensor that its receiver has kept does not.
inline int64_t BytesThatTravel(const SentTensors& message) {
  int64_t bytes = 0;
  for (const SentTensor& tensor : message.tensors) {
    if (!tensor.is_dead && !tensor.is_kept) bytes += tensor.value.TotalBytes();
  }
  return bytes;
}

class PushReceiver {
 public:
  virtual ~PushReceiver() = default;
  // Any thread; several at once, in any order.
  virtual void OnPushed(PushedMessage message) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PUSHED_MESSAGE_H_
