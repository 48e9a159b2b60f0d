// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous.h"

#include <atomic>
#include <charconv>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/dcheck.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "runtime/done_callback.h"

namespace millrace {
namespace {

// The end of every key that is not in a loop.
constexpr absl::string_view kRootFrame = ";0:0";

// Takes one or more digits off the front.
bool ConsumeDigits(absl::string_view* text) {
  size_t n = 0;
  while (n < text->size() && absl::ascii_isdigit(static_cast<unsigned char>((*text)[n]))) ++n;
  text->remove_prefix(n);
  return n > 0;
}

// The one form that this project writes; anything else takes the general parser.
bool IsCanonicalFullDevice(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "/job:")) return false;
  const size_t slash = text.find('/');
  if (slash == absl::string_view::npos || slash == 0) return false;
  for (const char c : text.substr(0, slash)) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') return false;
  }
  text.remove_prefix(slash);
  return absl::ConsumePrefix(&text, "/replica:") && ConsumeDigits(&text) &&
         absl::ConsumePrefix(&text, "/task:") && ConsumeDigits(&text) &&
         absl::ConsumePrefix(&text, "/device:CPU:") && ConsumeDigits(&text) && text.empty();
}

bool IsFullDevice(absl::string_view text) {
  if (IsCanonicalFullDevice(text)) return true;
  const StatusOr<DeviceName> name = DeviceName::Parse(text);
  return name.ok() && name->IsFull();
}

const Status& StepHasEnded() {
  static const Status* const status =
      new Status(absl::CancelledError("The step has ended: its rendezvous was destroyed"));
  return *status;
}

class LocalRendezvous : public Rendezvous {
 public:
  explicit LocalRendezvous(std::shared_ptr<const TransferTable> transfers)
      : transfers_(std::move(transfers)), slots_(transfers_ == nullptr ? 0 : transfers_->size()) {}
  // Nobody can send any more: waits that are left end with an error. Needs no memory.
  ~LocalRendezvous() override {
    for (Slot& slot : slots_) TellWaiters(slot.queue, ended_);
    for (auto& [key, queue] : in_loops_) TellWaiters(queue, ended_);
    for (auto& [key, queue] : named_) TellWaiters(queue, ended_);
  }

  Status Send(const Transfer& transfer, Tensor value, bool is_dead) override {
    DoneCallback waiter;
    MR_RETURN_IF_ERROR(WithQueue(transfer, [&](Queue& queue) {
      if (queue.HasWaiter()) {
        waiter = std::move(queue.front().waiter);
        queue.Pop();
      } else {
        queue.Push(std::move(value), is_dead, nullptr);
      }
    }));
    if (waiter) waiter(absl::OkStatus(), std::move(value), is_dead);
    return absl::OkStatus();
  }

  void RecvAsync(const Transfer& transfer, DoneCallback done) override {
    Tensor value;
    bool is_dead = false, waits = false;
    const Status aborted = WithQueue(transfer, [&](Queue& queue) {
      waits = queue.empty() || queue.HasWaiter();
      if (waits) {
        queue.Push(Tensor(), false, std::move(done));
      } else {
        value = std::move(queue.front().value);
        is_dead = queue.front().is_dead;
        queue.Pop();
      }
    });
    if (!waits) done(aborted, std::move(value), is_dead);
  }

  void StartAbort(const Status& status) override {
    Abort(status.ok() ? absl::InternalError("Rendezvous: a status that aborts must not be OK")
                      : status);
  }

 private:
  // A tensor sent and not received yet, or (waiter set) a receiver that waits.
  struct Item {
    Item(Tensor&& v, bool dead, DoneCallback&& w)
        : value(std::move(v)), is_dead(dead), waiter(std::move(w)) {}
    Tensor value;
    bool is_dead = false;
    DoneCallback waiter;
  };
  // First in, first out; all items are of one kind. Nearly always of length one.
  class Queue {
   public:
    bool empty() const { return items_.empty(); }
    bool HasWaiter() const { return !empty() && items_[head_].waiter; }
    Item& front() { return items_[head_]; }
    void Push(Tensor&& value, bool is_dead, DoneCallback&& waiter) {
      MR_DCHECK(
          empty() || HasWaiter() == static_cast<bool>(waiter),
          "a queue has tensors or receivers, never both: the second of a kind takes the first "
          "of the other");
      items_.emplace_back(std::move(value), is_dead, std::move(waiter));
    }
    void Pop() {
      MR_DCHECK(!empty(), "only what is in the queue leaves it");
      if (++head_ < items_.size()) return;
      items_.clear();
      head_ = 0;
    }

   private:
    absl::InlinedVector<Item, 1> items_;
    size_t head_ = 0;
  };
  struct Slot {
    Mutex mu;
    Queue queue ABSL_GUARDED_BY(mu);
  };

  // Calls `use` with the queue of the transfer, under its lock, unless the step was aborted.
  Status WithQueue(const Transfer& transfer, absl::FunctionRef<void(Queue&)> use) {
    if (transfer.number < slots_.size() && !transfer.in_loop()) {
      return WithSlot(slots_[transfer.number], use);
    }
    return WithOther(transfer, use);
  }

  Status WithSlot(Slot& slot, absl::FunctionRef<void(Queue&)> use) {
    MutexLock lock(&slot.mu);
    if (is_aborted_.load(std::memory_order_acquire)) return first_abort_;
    use(slot.queue);
    return absl::OkStatus();
  }

  Status WithOther(const Transfer& transfer, absl::FunctionRef<void(Queue&)> use) {
    uint32_t number = transfer.number;
    uint64_t frame_id = transfer.frame_id;
    int64_t iteration = transfer.iteration;
    if (number >= slots_.size() && transfers_ != nullptr) {
      std::string root;
      const bool in_loop = !transfer.in_loop() &&
                           RendezvousKey::SplitFrame(transfer.key, &root, &frame_id, &iteration);
      number = transfers_->NumberOfKey(in_loop ? root : transfer.key);
    }
    if (number < slots_.size() && frame_id == 0) return WithSlot(slots_[number], use);
    MutexLock lock(&named_mu_);
    if (is_aborted_.load(std::memory_order_acquire)) return first_abort_;
    const auto use_entry = [&](auto& queues, auto&& key) {
      const auto it = queues.try_emplace(std::forward<decltype(key)>(key)).first;
      use(it->second);
      if (it->second.empty()) queues.erase(it);
    };
    if (number < slots_.size()) {
      use_entry(in_loops_, LoopKey(number, frame_id, iteration));
    } else if (transfer.in_loop()) {
      use_entry(named_, RendezvousKey::InFrame(transfer.key, frame_id, iteration));
    } else {
      use_entry(named_, std::string(transfer.key));
    }
    return absl::OkStatus();
  }

  void Abort(const Status& status) {
    {
      MutexLock lock(&abort_mu_);
      MR_DCHECK(!status.ok(), "an abort has a reason: receivers get it as their error");
      if (first_abort_.ok()) first_abort_ = status;
      is_aborted_.store(true, std::memory_order_release);
    }
    // Who took a queue's lock before this one does has left there what he had; others see the flag.
    for (Slot& slot : slots_) {
      Queue dropped;
      {
        MutexLock lock(&slot.mu);
        std::swap(dropped, slot.queue);
      }
      TellWaiters(dropped, first_abort_);
    }
    HashMap<std::string, Queue> dropped;
    HashMap<LoopKey, Queue> dropped_in_loops;
    {
      MutexLock lock(&named_mu_);
      dropped.swap(named_);
      dropped_in_loops.swap(in_loops_);
    }
    for (auto& [key, queue] : dropped) TellWaiters(queue, first_abort_);
    for (auto& [key, queue] : dropped_in_loops) TellWaiters(queue, first_abort_);
  }

  static void TellWaiters(Queue& queue, const Status& status) {
    for (; queue.HasWaiter(); queue.Pop()) queue.front().waiter(status, Tensor(), false);
  }

  const std::shared_ptr<const TransferTable> transfers_;  // may be null
  std::vector<Slot> slots_;                               // by number

  using LoopKey = std::tuple<uint32_t, uint64_t, int64_t>;  // number, frame, iteration
  Mutex named_mu_;
  // An entry goes when its queue is empty.
  HashMap<LoopKey, Queue> in_loops_ ABSL_GUARDED_BY(named_mu_);
  HashMap<std::string, Queue> named_ ABSL_GUARDED_BY(named_mu_);

  const Status ended_ = StepHasEnded();
  Mutex abort_mu_;
  Status first_abort_;                   // written once, before is_aborted_ is set
  std::atomic<bool> is_aborted_{false};  // release when set, acquire by readers of first_abort_
};

}  // namespace

StatusOr<RendezvousKey> RendezvousKey::Parse(absl::string_view text) {
  const auto invalid = [text](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("Invalid rendezvous key: ", why, ", got '", text, "'"));
  };
  absl::string_view parts[5];
  size_t begin = 0;
  for (int i = 0; i < 5; ++i) {
    const size_t end = text.find(';', begin);
    if ((end == absl::string_view::npos) != (i == 4)) {
      return invalid("it must have five parts between ';'");
    }
    parts[i] = text.substr(begin, i == 4 ? absl::string_view::npos : end - begin);
    begin = end + 1;
  }
  RendezvousKey key;
  if (!IsFullDevice(parts[0]) || !IsFullDevice(parts[2])) {
    return invalid("parts 1 and 3 must be full device names");
  }
  const char* const hex_end = parts[1].data() + parts[1].size();
  const auto hex = std::from_chars(parts[1].data(), hex_end, key.src_incarnation, 16);
  if (parts[1].size() != 16 || hex.ec != std::errc() || hex.ptr != hex_end) {
    return invalid("part 2 must be 16 hexadecimal digits");
  }
  absl::string_view frame = parts[4];
  if (!ConsumeDigits(&frame) || !absl::ConsumePrefix(&frame, ":") || !ConsumeDigits(&frame) ||
      !frame.empty()) {
    return invalid("part 5 must be <frame>:<iteration>");
  }
  key.text = std::string(text);
  key.src_device = std::string(parts[0]);
  key.dst_device = std::string(parts[2]);
  key.edge_name = std::string(parts[3]);
  return key;
}

StatusOr<RendezvousKey> RendezvousKey::Of(const NodeAttrs& node) {
  MR_ASSIGN_OR_RETURN(const std::string src, GetAttr<std::string>(node, "send_device"));
  MR_ASSIGN_OR_RETURN(const std::string dst, GetAttr<std::string>(node, "recv_device"));
  MR_ASSIGN_OR_RETURN(const std::string name, GetAttr<std::string>(node, "tensor_name"));
  MR_ASSIGN_OR_RETURN(const int64_t incarnation, GetAttr<int64_t>(node, "send_device_incarnation"));
  return Parse(Make(src, static_cast<uint64_t>(incarnation), dst, name, 0, 0));
}

std::string RendezvousKey::Make(absl::string_view src_device, uint64_t src_incarnation,
                                absl::string_view dst_device, absl::string_view edge_name,
                                uint64_t frame_id, int64_t iteration) {
  return absl::StrCat(src_device, ";", absl::Hex(src_incarnation, absl::kZeroPad16), ";",
                      dst_device, ";", edge_name, ";", frame_id, ":", iteration);
}

std::string RendezvousKey::InFrame(absl::string_view root, uint64_t frame_id, int64_t iteration) {
  return absl::StrCat(absl::StripSuffix(root, kRootFrame), ";", frame_id, ":", iteration);
}

bool RendezvousKey::SplitFrame(absl::string_view text, std::string* root, uint64_t* frame_id,
                               int64_t* iteration) {
  const size_t begin = text.rfind(';');
  const size_t colon = text.rfind(':');
  if (begin == absl::string_view::npos || colon == absl::string_view::npos || colon < begin ||
      !absl::SimpleAtoi(text.substr(begin + 1, colon - begin - 1), frame_id) ||
      !absl::SimpleAtoi(text.substr(colon + 1), iteration) || *frame_id == 0) {
    *frame_id = 0;
    *iteration = 0;
    return false;
  }
  *root = absl::StrCat(text.substr(0, begin), kRootFrame);
  return true;
}

uint32_t TransferTable::Add(const RendezvousKey& key, const std::string& node, bool in_loop) {
  const auto [it, is_new] = by_key_.try_emplace(key.text, size());
  by_node_[node] = it->second;
  if (is_new) in_loop_.push_back(in_loop);
  return it->second;
}

uint32_t TransferTable::NumberOfKey(absl::string_view key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? Transfer::kUnnumbered : it->second;
}

uint32_t TransferTable::NumberOfNode(absl::string_view node) const {
  const auto it = by_node_.find(node);
  return it == by_node_.end() ? Transfer::kUnnumbered : it->second;
}

StatusOr<Tensor> Rendezvous::Recv(const Transfer& transfer, bool* is_dead, absl::Duration timeout) {
  // Shared with the callback, which may come after the time is over.
  struct State {
    Notification done;
    Status status;
    Tensor value;
    bool is_dead = false;
  };
  auto state = std::make_shared<State>();
  RecvAsync(transfer, [state](const Status& status, Tensor value, bool dead) {
    state->status = status;
    state->value = std::move(value);
    state->is_dead = dead;
    state->done.Notify();
  });
  if (timeout == absl::InfiniteDuration()) {
    state->done.Wait();
  } else if (!state->done.WaitFor(timeout)) {
    return absl::DeadlineExceededError(absl::StrCat("Rendezvous: nothing was sent for key '",
                                                    transfer.key, "' within ",
                                                    absl::FormatDuration(timeout)));
  }
  MR_RETURN_IF_ERROR(state->status);
  if (is_dead != nullptr) *is_dead = state->is_dead;
  return std::move(state->value);
}

std::shared_ptr<Rendezvous> MakeLocalRendezvous(std::shared_ptr<const TransferTable> transfers) {
  return std::make_shared<LocalRendezvous>(std::move(transfers));
}

}  // namespace millrace
