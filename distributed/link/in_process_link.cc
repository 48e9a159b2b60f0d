// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/in_process_link.h"

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/call_limits.h"

namespace millrace {
namespace {

// As much waits at most behind a cork.
constexpr int64_t kMaxCorkedBytes = int64_t{256} << 10;

// What an item takes while it waits, next to its tensors and texts.
constexpr int64_t kItemBytes = 256;

struct Opening {
  std::shared_ptr<Link> link;
};
struct Receipt {
  int64_t step_id = 0;
  uint64_t tensors = 0;
};
struct Answer {
  absl::AnyInvocable<void()> answered;
};
struct Loss {
  Status status;
  bool by_peer = false;
};

int64_t BytesIn(const SentTensors& message) {
  int64_t bytes = 0;
  for (const SentTensor& tensor : message.tensors) {
    bytes += static_cast<int64_t>(sizeof(SentTensor));
    if (!tensor.is_dead) bytes += tensor.value.TotalBytes();
  }
  return bytes;
}
int64_t BytesIn(const BindFrame& bind) {
  return static_cast<int64_t>(bind.session_handle.size() + bind.graph_handle.size());
}
int64_t BytesIn(const UnbindFrame&) { return 0; }
int64_t BytesIn(const RunFrame&) { return 0; }
int64_t BytesIn(const EndFrame& end) { return static_cast<int64_t>(end.status.message().size()); }
int64_t BytesIn(const CancelFrame& cancel) {
  return static_cast<int64_t>(cancel.status.message().size());
}

// What is on its way to one end. Whoever made it delivers first (DeliverOn); until then others only
// add.
class Direction {
 public:
  Direction(std::shared_ptr<LinkEnd> end, std::string sender, const InProcessLinkOptions& options)
      : options_(options), end_(std::move(end)), sender_(std::move(sender)) {}

  // Receipts of what arrives here go there. Before anything is added.
  void set_back(Direction* back) { back_ = back; }

  // Before anything else is added.
  void AddOpening(std::shared_ptr<Link> link) {
    std::list<Item> items;
    items.push_back({Opening{std::move(link)}, 0});
    MutexLock lock(&mu_);
    queue_.splice(queue_.end(), items);
  }
  // `*loses`: the link cannot go on after this error.
  Status Add(LinkMessage message, bool* loses) {
    std::list<Item> items, dropped;  // made and freed without the lock
    const auto* const tensors = std::get_if<SentTensors>(&message);
    const bool is_tensors = tensors != nullptr;
    const bool is_bounded = is_tensors && tensors->purpose != TensorsPurpose::kEdges;
    const int64_t bytes =
        kItemBytes + std::visit([](const auto& m) { return BytesIn(m); }, message);
    int64_t ended_step = 0;
    bool ends_step = false;
    if (const auto* const cancel = std::get_if<CancelFrame>(&message)) {
      ends_step = true;
      ended_step = cancel->step_id;
    } else if (const auto* const end = std::get_if<EndFrame>(&message)) {
      ends_step = !end->status.ok();
      ended_step = end->step_id;
    }
    items.push_back({std::move(message), bytes});
    MutexLock lock(&mu_);
    if (!closed_.ok()) return LossOfLink(closed_);
    if (is_bounded) {
      if (bounded_bytes_ > 0 && bytes > options_.max_queued_bytes - bounded_bytes_) {
        return BeyondLimit(absl::StrCat("Link from ", sender_),
                           "bytes of tensors that the peer has not taken", "max_queued_bytes",
                           options_.max_queued_bytes, bounded_bytes_ + bytes);
      }
    } else if (is_tensors) {
      // Edges wait as references to what the step has anyway.
    } else if (bytes > options_.max_queued_message_bytes - message_bytes_) {
      *loses = true;
      return absl::UnavailableError(absl::StrCat("Link from ", sender_,
                                                 ": the peer must take messages, got ",
                                                 message_bytes_, " bytes of them that wait"));
    }
    if (ends_step) DropTensors(&ended_step, &dropped);
    Count(items.front(), bytes);
    queue_.splice(queue_.end(), items);
    return absl::OkStatus();
  }
  void AddReceipt(const Receipt& receipt) {
    std::list<Item> items;
    items.push_back({receipt, 0});
    MutexLock lock(&mu_);
    if (closed_.ok()) queue_.splice(queue_.end(), items);
  }
  // Comes behind the receipts that are there.
  void AddAnswer(absl::AnyInvocable<void()> answered) {
    std::list<Item> items;
    items.push_back({Answer{std::move(answered)}, 0});
    MutexLock lock(&mu_);
    if (closed_.ok()) queue_.splice(queue_.end(), items);
  }
  // The last that comes; `drops_all`: and the only one, but for OnOpen. What Add says from now on
  // is `closed`. Needs no memory.
  void AddLoss(const Loss& loss, const Status& closed, bool drops_all) {
    std::list<Item> dropped;
    MutexLock lock(&mu_);
    if (!closed_.ok()) return;
    closed_ = closed;
    loss_ = loss;
    if (!drops_all) return DropTensors(nullptr, &dropped);
    auto first = queue_.begin();
    if (first != queue_.end() && std::holds_alternative<Opening>(first->what)) ++first;
    dropped.splice(dropped.end(), queue_, first, queue_.end());
    tensor_bytes_ = bounded_bytes_ = message_bytes_ = 0;
  }

  // Calls the end until nothing waits, unless another thread, or this one further out, does so.
  void Deliver() {
    {
      MutexLock lock(&mu_);
      if (delivering_) return;
      delivering_ = true;
    }
    DeliverOn();
  }
  // By who delivers.
  void DeliverOn() {
    while (true) {
      std::list<Item> items;
      std::optional<Loss> loss;
      {
        MutexLock lock(&mu_);
        if (!queue_.empty()) {
          items.splice(items.end(), queue_, queue_.begin());
          Count(items.front(), -items.front().bytes);
        } else if (loss_.has_value()) {
          loss.swap(loss_);
        } else {
          delivering_ = false;
          return;
        }
      }
      const Status status = NoExceptions("Link", [&]() -> Status {
        if (loss.has_value()) {
          GiveLoss(*loss);
        } else {
          std::visit([this](auto& what) { Give(std::move(what)); }, items.front().what);
        }
        return absl::OkStatus();
      });
      // What was being given may be lost for want of memory: nothing may come after it.
      if (!status.ok()) Fail(status);
    }
  }

  int64_t queued_bytes() const {
    MutexLock lock(&mu_);
    return tensor_bytes_ + message_bytes_;
  }

 private:
  struct Item {
    std::variant<LinkMessage, Opening, Receipt, Answer> what;
    int64_t bytes = 0;
  };

  static const SentTensors* TensorsIn(const Item& item) {
    const auto* const message = std::get_if<LinkMessage>(&item.what);
    return message == nullptr ? nullptr : std::get_if<SentTensors>(message);
  }

  void Count(const Item& item, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const SentTensors* const tensors = TensorsIn(item);
    (tensors != nullptr ? tensor_bytes_ : message_bytes_) += bytes;
    if (tensors != nullptr && tensors->purpose != TensorsPurpose::kEdges) bounded_bytes_ += bytes;
  }

  // Of the step, but for a report; of all steps when it is null.
  void DropTensors(const int64_t* step_id, std::list<Item>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto it = queue_.begin(); it != queue_.end();) {
      const auto item = it++;
      const SentTensors* const tensors = TensorsIn(*item);
      if (tensors == nullptr) continue;
      if (step_id != nullptr &&
          (tensors->step_id != *step_id || tensors->purpose == TensorsPurpose::kReport)) {
        continue;
      }
      Count(*item, -item->bytes);
      dropped->splice(dropped->end(), queue_, item);
    }
  }

  void Fail(const Status& status) {
    const Loss loss{status, /*by_peer=*/false};
    AddLoss(loss, status, /*drops_all=*/true);
    back_->AddLoss(loss, status, /*drops_all=*/true);
    back_->Deliver();
  }

  void Give(LinkMessage message) {
    std::visit([this](auto& m) { GiveMessage(std::move(m)); }, message);
  }
  void Give(Opening opening) { end_->OnOpen(std::move(opening.link)); }
  void Give(const Receipt& receipt) { end_->OnReceived(receipt.step_id, receipt.tensors); }
  void Give(Answer answer) { answer.answered(); }
  void GiveLoss(const Loss& loss) {
    const std::shared_ptr<LinkEnd> end = std::move(end_);
    end->OnLost(loss.status, loss.by_peer);
  }
  void GiveMessage(BindFrame bind) { end_->OnBind(std::move(bind)); }
  void GiveMessage(UnbindFrame unbind) { end_->OnUnbind(unbind.number); }
  void GiveMessage(RunFrame run) { end_->OnRun(run); }
  void GiveMessage(SentTensors tensors) {
    const Receipt receipt{tensors.step_id, tensors.tensors.size()};
    if (receipt.tensors == 0) return;
    const bool end_acknowledges = end_->acknowledges_edges();
    end_->OnTensors(std::move(tensors));
    if (end_acknowledges) return;
    back_->AddReceipt(receipt);
    back_->Deliver();
  }
  void GiveMessage(EndFrame end) { end_->OnEnd(std::move(end)); }
  void GiveMessage(CancelFrame cancel) { end_->OnCancel(cancel.step_id, cancel.status); }

  const InProcessLinkOptions options_;
  Direction* back_ = nullptr;
  std::shared_ptr<LinkEnd> end_;  // by who delivers; null after OnLost
  const std::string sender_;

  mutable Mutex mu_;
  std::list<Item> queue_ ABSL_GUARDED_BY(mu_);
  std::optional<Loss> loss_ ABSL_GUARDED_BY(mu_);  // given behind the queue
  int64_t tensor_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bounded_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of these, without edges
  int64_t message_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool delivering_ ABSL_GUARDED_BY(mu_) = true;  // at first by who made it
  Status closed_ ABSL_GUARDED_BY(mu_);
};

// Both directions, by the number of the end that they lead to.
struct Both {
  Both(std::shared_ptr<LinkEnd> first, const LinkPeer& first_task, std::shared_ptr<LinkEnd> second,
       const LinkPeer& second_task, const InProcessLinkOptions& options)
      : to_first(std::move(first), second_task.task, options),
        to_second(std::move(second), first_task.task, options) {
    to_first.set_back(&to_second);
    to_second.set_back(&to_first);
  }
  Direction to_first, to_second;
};

// A delivery may end the life of the link that began it: an end that hears OnLost lets go of it. So
// what is needed until a delivery ends is kept by the call.
class InProcessLink : public Link {
 public:
  InProcessLink(std::shared_ptr<Both> both, Direction* out, Direction* in, const LinkPeer& own,
                const LinkPeer& peer)
      : both_(std::move(both)), out_(out), in_(in), own_task_(own.task) {
    set_peer(peer);
  }

  Status Send(LinkMessage message) override {
    const std::shared_ptr<Both> both = both_;
    Direction* const out = out_;
    Direction* const in = in_;
    return NoExceptions("Link", [&]() -> Status {
      MR_RETURN_IF_ERROR(CheckSendable(message));
      bool loses = false;
      const Status added = out->Add(std::move(message), &loses);
      if (loses) {
        const Loss loss{added, /*by_peer=*/false};
        out->AddLoss(loss, added, /*drops_all=*/true);
        in->AddLoss(loss, added, /*drops_all=*/true);
        out->Deliver();
        in->Deliver();
      }
      MR_RETURN_IF_ERROR(added);
      if (!LinkCork::Holds(this) || out->queued_bytes() >= kMaxCorkedBytes) out->Deliver();
      return absl::OkStatus();
    });
  }
  void Flush() override {
    const std::shared_ptr<Both> both = both_;
    out_->Deliver();
  }
  void Acknowledge(int64_t step_id, uint64_t tensors) override {
    if (tensors == 0) return;
    const std::shared_ptr<Both> both = both_;
    Direction* const out = out_;
    out->AddReceipt({step_id, tensors});
    out->Deliver();
  }
  void Ask(absl::AnyInvocable<void()> answered) override {
    const std::shared_ptr<Both> both = both_;
    Direction* const in = in_;
    in->AddAnswer(std::move(answered));
    in->Deliver();
  }
  int64_t queued_bytes() const override { return out_->queued_bytes(); }
  void Close(const Status& reason) override {
    const std::shared_ptr<Both> both = both_;
    Direction* const out = out_;
    Direction* const in = in_;
    const Status why = reason.ok() ? absl::UnavailableError("Link: closed") : reason;
    const Status heard =
        Prefixed(absl::StrCat("Link to ", own_task_, " was closed by the peer"), why);
    out->AddLoss({heard, /*by_peer=*/true}, why, /*drops_all=*/false);
    in->AddLoss({why, /*by_peer=*/false}, heard, /*drops_all=*/true);
    out->Deliver();
    in->Deliver();
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
      std::make_shared<Both>(std::move(first), first_task, std::move(second), second_task, options);
  auto of_first = std::make_shared<InProcessLink>(both, &both->to_second, &both->to_first,
                                                  first_task, second_task);
  auto of_second = std::make_shared<InProcessLink>(both, &both->to_first, &both->to_second,
                                                   second_task, first_task);
  // OnOpen is the first of each queue, and this thread delivers it: what an end sends, flushes or
  // closes within its OnOpen, or another thread by then, waits behind the other end's.
  both->to_first.AddOpening(of_first);
  both->to_second.AddOpening(of_second);
  both->to_first.DeliverOn();
  both->to_second.DeliverOn();
  return {std::move(of_first), std::move(of_second)};
}

}  // namespace millrace
