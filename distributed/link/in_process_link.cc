// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/in_process_link.h"

#include <cstddef>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/call_limits.h"

namespace millrace {
namespace {

// As much waits at most behind a cork.
constexpr int64_t kMaxCorkedBytes = int64_t{256} << 10;

struct Receipt {
  int64_t step_id = 0;
  uint64_t tensors = 0;
};
struct Loss {
  Status status;
  bool by_peer = false;
};

int64_t BytesIn(const LinkMessage& message) {
  const auto* const tensors = std::get_if<SentTensors>(&message);
  if (tensors == nullptr) return 0;
  int64_t bytes = 0;
  for (const SentTensor& tensor : tensors->tensors) {
    if (!tensor.is_dead) bytes += tensor.value.TotalBytes();
  }
  return bytes;
}

// What is on its way to one end.
class Direction {
 public:
  Direction(std::shared_ptr<LinkEnd> end, std::string sender, int64_t max_queued_bytes)
      : max_queued_bytes_(max_queued_bytes), end_(std::move(end)), sender_(std::move(sender)) {}

  // Receipts of what arrives here go there. Before anything is added.
  void set_back(Direction* back) { back_ = back; }

  Status Add(LinkMessage message) {
    std::vector<Item> dropped;  // freed without the lock
    const int64_t bytes = BytesIn(message);
    MutexLock lock(&mu_);
    if (!closed_.ok()) return closed_;
    if (bytes > 0 && queued_bytes_ > 0 && bytes > max_queued_bytes_ - queued_bytes_) {
      return BeyondLimit(absl::StrCat("Link from ", sender_),
                         "bytes of tensors that the peer has not taken", "max_queued_bytes",
                         max_queued_bytes_, queued_bytes_ + bytes);
    }
    const auto* const end = std::get_if<EndFrame>(&message);
    const auto* const cancel = std::get_if<CancelFrame>(&message);
    if (cancel != nullptr || (end != nullptr && !end->status.ok())) {
      const int64_t step_id = cancel != nullptr ? cancel->step_id : end->step_id;
      DropTensors(&step_id, &dropped);
    }
    queued_bytes_ += bytes;
    queue_.push_back({std::move(message), bytes});
    return absl::OkStatus();
  }
  void AddReceipt(const Receipt& receipt) {
    MutexLock lock(&mu_);
    if (closed_.ok()) queue_.push_back({receipt, 0});
  }
  // The last that comes; `drops_all`: and the only one. What Add says from now on is `closed`.
  void AddLoss(const Loss& loss, const Status& closed, bool drops_all) {
    std::vector<Item> dropped;
    MutexLock lock(&mu_);
    if (!closed_.ok()) return;
    closed_ = closed;
    if (drops_all) {
      for (Item& item : queue_) dropped.push_back(std::move(item));
      queue_.clear();
      queued_bytes_ = 0;
    } else {
      DropTensors(nullptr, &dropped);
    }
    queue_.push_back({loss, 0});
  }

  // Calls the end until nothing waits, unless another thread, or this one further out, does so.
  void Deliver() {
    {
      MutexLock lock(&mu_);
      if (delivering_) return;
      delivering_ = true;
    }
    while (true) {
      Item item;
      {
        MutexLock lock(&mu_);
        if (queue_.empty()) {
          delivering_ = false;
          return;
        }
        item = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= item.bytes;
      }
      std::visit([this](auto& what) { Give(std::move(what)); }, item.what);
    }
  }

  int64_t queued_bytes() const {
    MutexLock lock(&mu_);
    return queued_bytes_;
  }

 private:
  struct Item {
    std::variant<LinkMessage, Receipt, Loss> what;
    int64_t bytes = 0;
  };

  // Of the step; of all steps when it is null.
  void DropTensors(const int64_t* step_id, std::vector<Item>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::deque<Item> kept;
    for (Item& item : queue_) {
      const auto* const message = std::get_if<LinkMessage>(&item.what);
      const auto* const tensors = message == nullptr ? nullptr : std::get_if<SentTensors>(message);
      if (tensors != nullptr && (step_id == nullptr || tensors->step_id == *step_id)) {
        queued_bytes_ -= item.bytes;
        dropped->push_back(std::move(item));
      } else {
        kept.push_back(std::move(item));
      }
    }
    queue_.swap(kept);
  }

  void Give(LinkMessage message) {
    std::visit([this](auto& m) { GiveMessage(std::move(m)); }, message);
  }
  void Give(const Receipt& receipt) { end_->OnReceived(receipt.step_id, receipt.tensors); }
  void Give(const Loss& loss) {
    const std::shared_ptr<LinkEnd> end = std::move(end_);
    end->OnLost(loss.status, loss.by_peer);
  }
  void GiveMessage(BindFrame bind) { end_->OnBind(std::move(bind)); }
  void GiveMessage(UnbindFrame unbind) { end_->OnUnbind(unbind.number); }
  void GiveMessage(RunFrame run) { end_->OnRun(run); }
  void GiveMessage(SentTensors tensors) {
    const Receipt receipt{tensors.step_id, tensors.tensors.size()};
    if (receipt.tensors == 0) return;
    end_->OnTensors(std::move(tensors));
    back_->AddReceipt(receipt);
    back_->Deliver();
  }
  void GiveMessage(EndFrame end) { end_->OnEnd(std::move(end)); }
  void GiveMessage(CancelFrame cancel) { end_->OnCancel(cancel.step_id, cancel.status); }

  const int64_t max_queued_bytes_;
  Direction* back_ = nullptr;
  std::shared_ptr<LinkEnd> end_;  // by who delivers; null after OnLost
  const std::string sender_;

  mutable Mutex mu_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
  Status closed_ ABSL_GUARDED_BY(mu_);
};

// Both directions, by the number of the end that they lead to.
struct Both {
  Both(std::shared_ptr<LinkEnd> first, const LinkPeer& first_task, std::shared_ptr<LinkEnd> second,
       const LinkPeer& second_task, int64_t max_queued_bytes)
      : to_first(std::move(first), second_task.task, max_queued_bytes),
        to_second(std::move(second), first_task.task, max_queued_bytes) {
    to_first.set_back(&to_second);
    to_second.set_back(&to_first);
  }
  Direction to_first, to_second;
};

class InProcessLink : public Link {
 public:
  InProcessLink(std::shared_ptr<Both> both, Direction* out, Direction* in, const LinkPeer& own,
                const LinkPeer& peer)
      : both_(std::move(both)), out_(out), in_(in), own_task_(own.task) {
    set_peer(peer);
  }

  Status Send(LinkMessage message) override {
    return NoExceptions("Link", [&]() -> Status {
      MR_RETURN_IF_ERROR(CheckSendable(message));
      MR_RETURN_IF_ERROR(out_->Add(std::move(message)));
      if (!LinkCork::Holds(this) || out_->queued_bytes() >= kMaxCorkedBytes) out_->Deliver();
      return absl::OkStatus();
    });
  }
  void Flush() override { out_->Deliver(); }
  int64_t queued_bytes() const override { return out_->queued_bytes(); }
  void Close(const Status& reason) override {
    const Status why = reason.ok() ? absl::UnavailableError("Link: closed") : reason;
    const Status heard =
        Prefixed(absl::StrCat("Link to ", own_task_, " was closed by the peer"), why);
    out_->AddLoss({heard, /*by_peer=*/true}, why, /*drops_all=*/false);
    in_->AddLoss({why, /*by_peer=*/false}, heard, /*drops_all=*/true);
    out_->Deliver();
    in_->Deliver();
  }

 private:
  const std::shared_ptr<Both> both_;
  Direction* const out_;  // in *both_, as in_
  Direction* const in_;
  const std::string own_task_;
};

}  // namespace

std::pair<std::shared_ptr<Link>, std::shared_ptr<Link>> OpenInProcessLink(
    const LinkPeer& first_task, std::shared_ptr<LinkEnd> first, const LinkPeer& second_task,
    std::shared_ptr<LinkEnd> second, const InProcessLinkOptions& options) {
  const auto both =
      std::make_shared<Both>(first, first_task, second, second_task, options.max_queued_bytes);
  auto of_first = std::make_shared<InProcessLink>(both, &both->to_second, &both->to_first,
                                                  first_task, second_task);
  auto of_second = std::make_shared<InProcessLink>(both, &both->to_first, &both->to_second,
                                                   second_task, first_task);
  // What the first one sends waits until the second one is open, too.
  LinkCork cork;
  first->OnOpen(of_first);
  second->OnOpen(of_second);
  return {std::move(of_first), std::move(of_second)};
}

}  // namespace millrace
