// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/step_rendezvous.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/dcheck.h"
#include "core/tensor.h"
#include "distributed/worker/send_groups.h"
#include "net/call_limits.h"
#include "runtime/done_callback.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

thread_local StepRendezvous* corked = nullptr;

Status GivenUp() { return absl::CancelledError("RecvTensor was cancelled by its caller"); }

}  // namespace

Status StepIsOver(int64_t step_id) {
  return Derived(absl::AbortedError(absl::StrCat("Cleanup ", step_id)));
}

// What the step sends to one task.
struct StepRendezvous::OnePush {
  // What a callback that waits for one tensor needs: all of a push are its push's, so that a
  // callback holds one pointer and takes no memory.
  struct Place {
    OnePush* push;
    uint64_t index;
  };
  std::weak_ptr<StepRendezvous> step;
  std::vector<Place> places;  // by index
  std::shared_ptr<PushSink> sink;
  std::shared_ptr<const StepEdges> edges;
  const StepEdges::Peer* peer = nullptr;  // in *edges
  const Link* link = nullptr;             // only compared
  std::optional<SendGroups> groups;       // of *peer
  std::atomic<int64_t> left{0};           // acq_rel: the last tensor's thread ends the push
  std::atomic<int64_t> immediate_left{0};
  // Something waits for Flush: for the end of a cork, for the rest of its group. acq_rel: set after
  // the tensor was given to the sink, taken before it is flushed.
  std::atomic<bool> corked{false}, grouped{false};
  std::atomic<bool> over{false}, failed{false};  // the sink has heard the end; and an error
  // Tensors that the sink has and the peer has not received, and those that it has not received at
  // all. acq_rel: given to the sink before they are received.
  std::atomic<int64_t> given{0}, not_received{0};
  bool counts_run = false;  // in not_received: its loops may send; under the step's lock

  void Flush() {
    groups->Leaving();
    sink->Flush();
  }

  void End(const Status& status) {
    if (over.exchange(true, std::memory_order_acq_rel)) return;
    if (status.ok()) return sink->OnDone(status);
    Cancel(status);
  }
  // Also when the sink has all: the peer may keep it for a step that never begins.
  void Cancel(const Status& status) {
    over.store(true, std::memory_order_release);
    if (!failed.exchange(true, std::memory_order_acq_rel)) sink->OnDone(status);
  }
};

StepRendezvous::StepRendezvous(int64_t step_id, std::weak_ptr<Keeper> keeper, Clock* clock,
                               std::shared_ptr<ParkedBytes> parked)
    : step_id_(step_id),
      keeper_(std::move(keeper)),
      clock_(clock),
      parked_bytes_(std::move(parked)) {}

StepRendezvous::~StepRendezvous() {
  // The local rendezvous tells those who wait in it; these wait outside.
  for (WaitingTensor& tensor : waiting_tensors_) tensor.done(StepIsOver(step_id_), Tensor(), false);
  if (in_loops_ != nullptr) in_loops_->End(StepIsOver(step_id_));
  std::vector<PushedMessage> parked;  // freed without the lock
  MutexLock lock(&mu_);
  parked = TakeParked();
}

std::shared_ptr<const StepEdges> StepRendezvous::edges() const {
  MutexLock lock(&mu_);
  return edges_;
}

void StepRendezvous::TraceSends() { sent_ns_.resize(started_edges_->is_sent.size()); }

Status StepRendezvous::Send(const Transfer& transfer, Tensor value, bool is_dead) {
  if (transfer.in_loop()) {
    const auto& sends = started_edges_->loop_sends_by_number;
    const auto to = sends.find(transfer.number);
    if (to != sends.end()) {
      outstanding_.fetch_add(1, std::memory_order_relaxed);
      if (fetch_ == nullptr) return PushInLoop(to->second, transfer, std::move(value), is_dead);
    }
  }
  const std::vector<bool>& is_sent = started_edges_->is_sent;
  if (transfer.number < is_sent.size() && is_sent[transfer.number]) {
    untaken_bytes_.fetch_add(value.TotalBytes(), std::memory_order_relaxed);
  }
  if (transfer.number < sent_ns_.size() && !transfer.in_loop()) {
    sent_ns_[transfer.number] = absl::GetCurrentTimeNanos();
  }
  return local_->Send(transfer, std::move(value), is_dead);
}

void StepRendezvous::RecvAsync(const Transfer& transfer, DoneCallback done) {
  if (fetch_ != nullptr) {
    const auto from = fetched_.find(transfer.number);
    if (from != fetched_.end()) return Fetch(from->second, transfer, std::move(done));
  } else if (transfer.in_loop() && started_edges_->loop_recvs.contains(transfer.number)) {
    return in_loops_->RecvAsync(transfer, std::move(done));
  }
  local_->RecvAsync(transfer, std::move(done));
}

void StepRendezvous::Fetch(const Fetched& from, const Transfer& transfer, DoneCallback done) {
  const Status aborted = this->aborted();
  if (!aborted.ok()) return done(aborted, Tensor(), false);
  fetch_(*from.task,
         transfer.in_loop()
             ? RendezvousKey::InFrame(*from.wire_key, transfer.frame_id, transfer.iteration)
             : *from.wire_key,
         std::move(done));
}

void StepRendezvous::StartAbort(const Status& status) {
  std::vector<WaitingTensor> tensors;
  std::vector<PushedMessage> parked;
  std::shared_ptr<PushReceiver> receiver;  // as parked: dropped without the lock
  std::shared_ptr<Rendezvous> local;
  std::map<size_t, std::vector<SentTensor>> early;  // freed without the lock
  bool has_begun = false;
  {
    MutexLock lock(&mu_);
    if (!aborted_.ok()) return;
    has_begun = edges_ != nullptr;
    aborted_ = status.ok() ? absl::InternalError("Rendezvous: a status that aborts must not be OK")
                           : status;
    tensors.swap(waiting_tensors_);
    parked = TakeParked();
    receiver.swap(push_receiver_);
    early.swap(early_in_loops_);
    local = local_;
  }
  if (local != nullptr) local->StartAbort(status);
  if (has_begun) {
    if (in_loops_ != nullptr) in_loops_->End(aborted());
    for (PushedMessage& message : parked) message.Drop();
  }
  for (WaitingTensor& tensor : tensors) tensor.done(Derived(status), Tensor(), false);
  std::vector<std::shared_ptr<OnePush>> over;
  {
    MutexLock lock(&mu_);
    over.swap(pushes_);
  }
  // Those that waited for a tensor have been told; the others have all of it.
  for (const auto& push : over) push->Cancel(Derived(status));
  cancellation_.StartCancel();
}

std::string StepRendezvous::Describe(uint32_t number) const {
  const std::shared_ptr<const Keeper> keeper = keeper_.lock();  // keeps the clock
  MutexLock lock(&mu_);
  if (edges_ == nullptr || keeper == nullptr) return std::string();
  const auto describe = [&](const std::string& wire_key, const std::string& task) {
    const auto key = RendezvousKey::Parse(wire_key);
    const absl::Duration waited = clock_->Now() - started_;
    return absl::StrCat("tensor '", key.ok() ? key->edge_name : wire_key, "' of ", task, ", for ",
                        absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(1))));
  };
  for (const StepEdges::Peer& peer : edges_->recvs) {
    for (size_t i = 0; i < peer.numbers.size(); ++i) {
      if (peer.numbers[i] == number) return describe(peer.wire_keys[i], peer.task);
    }
  }
  const auto in_loop = edges_->loop_recvs.find(number);
  if (in_loop == edges_->loop_recvs.end()) return std::string();
  return describe(in_loop->second.wire_key, in_loop->second.task);
}

Status StepRendezvous::Start(std::shared_ptr<const StepEdges> edges,
                             std::shared_ptr<const SessionLife> session,
                             std::shared_ptr<StepLoans> loans, FetchTensor fetch, absl::Time now) {
  std::vector<WaitingTensor> tensors;
  {
    MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    if (edges_ != nullptr) {
      return absl::AlreadyExistsError(
          absl::StrCat("Step ", step_id_, " must be run once by a task, got it twice"));
    }
    outstanding_.store(edges->num_sends + 1, std::memory_order_release);
    local_ = MakeLocalRendezvous(edges->transfers);
    fetch_ = std::move(fetch);
    if (fetch_ != nullptr) {
      for (const StepEdges::Peer& peer : edges->recvs) {
        for (size_t i = 0; i < peer.numbers.size(); ++i) {
          fetched_[peer.numbers[i]] = {&peer.task, &peer.wire_keys[i]};
        }
        for (size_t i = 0; i < peer.loop_numbers.size(); ++i) {
          fetched_[peer.loop_numbers[i]] = {&peer.task, &peer.loop_keys[i]};
        }
      }
    } else if (!edges->loop_recvs.empty()) {
      in_loops_ = std::make_unique<InLoopEdges>(step_id_, parked_bytes_);
    }
    edges_ = std::move(edges);
    started_edges_ = edges_.get();
    session_ = std::move(session);
    loans_ = std::move(loans);
    started_ = now;
    tensors.swap(waiting_tensors_);
  }
  for (WaitingTensor& tensor : tensors) BeginTensor(tensor.wire_key, std::move(tensor.done));
  return absl::OkStatus();
}

bool StepRendezvous::MayWait(int64_t number, CancellationManager* cancellation) {
  // Registered under the lock: the wait is in its list when the callback looks for it.
  CancellationManager::Token token;
  return cancellation == nullptr ||
         cancellation->Register(&token, [weak = weak_from_this(), number] {
           if (const auto step = weak.lock()) step->GiveUp(number);
         });
}

void StepRendezvous::GiveUp(int64_t number) {
  DoneCallback done;
  {
    MutexLock lock(&mu_);
    const auto tensor =
        std::find_if(waiting_tensors_.begin(), waiting_tensors_.end(),
                     [number](const WaitingTensor& waiting) { return waiting.number == number; });
    if (tensor == waiting_tensors_.end()) return;  // the step has started, or was aborted
    done = std::move(tensor->done);
    waiting_tensors_.erase(tensor);
  }
  done(GivenUp(), Tensor(), false);
  TellGivenUp();
}

void StepRendezvous::TellGivenUp() {
  if (const auto keeper = keeper_.lock()) keeper->WaitGivenUp(this);
}

bool StepRendezvous::EndUnused() {
  MutexLock lock(&mu_);
  if (edges_ != nullptr || !aborted_.ok() || !waiting_tensors_.empty() || !parked_.empty()) {
    return false;
  }
  aborted_ = StepIsOver(step_id_);
  return true;
}

void StepRendezvous::Push(const StepEdges::Peer& peer, const Link* link,
                          std::shared_ptr<PushSink> sink) {
  auto push = std::make_shared<OnePush>();
  push->sink = std::move(sink);
  push->peer = &peer;
  push->link = link;
  const uint64_t n = peer.numbers.size();
  push->not_received.store(static_cast<int64_t>(n), std::memory_order_relaxed);
  push->left.store(static_cast<int64_t>(n), std::memory_order_relaxed);
  push->immediate_left.store(peer.num_immediate, std::memory_order_relaxed);
  push->groups.emplace(peer);
  // What waits for a tensor that never comes must not keep the step in which it waits.
  push->step = weak_from_this();
  push->places.reserve(n);
  for (uint64_t i = 0; i < n; ++i) push->places.push_back({push.get(), i});
  std::vector<SentTensor> early;
  {
    MutexLock lock(&mu_);
    push->edges = edges_;
    MR_DCHECK(push->edges != nullptr, "a run pushes once it is started");
    early = List(push);
  }
  for (SentTensor& tensor : early) {
    untaken_bytes_.fetch_sub(tensor.value.TotalBytes(), std::memory_order_relaxed);
    push->sink->OnTensorInLoop(tensor.index, tensor.frame_id, tensor.iteration,
                               std::move(tensor.value), tensor.is_dead);
  }
  if (n == 0) {
    // No wait for a tensor tells the peer.
    const Status aborted = this->aborted();
    if (!aborted.ok()) push->Cancel(Derived(aborted));
  }
  // What is there already leaves in one message.
  Cork cork(this);
  for (uint64_t i = 0; i < n; ++i) {
    local_->RecvAsync(Transfer(peer.numbers[i]),
                      [place = std::shared_ptr<const OnePush::Place>(push, &push->places[i])](
                          const Status& status, Tensor value, bool is_dead) {
                        const std::shared_ptr<StepRendezvous> step = place->push->step.lock();
                        if (step == nullptr) return place->push->End(Derived(status));
                        step->Made(place->push, place->index, status, std::move(value), is_dead);
                      });
  }
}

std::vector<SentTensor> StepRendezvous::List(const std::shared_ptr<OnePush>& push) {
  std::vector<SentTensor> early;
  if (!push->peer->loop_numbers.empty()) {
    const auto it = early_in_loops_.find(static_cast<size_t>(push->peer - edges_->sends.data()));
    if (it != early_in_loops_.end()) {
      early = std::move(it->second);
      early_in_loops_.erase(it);
    }
    const auto n = static_cast<int64_t>(early.size());
    push->counts_run = !has_run_;
    push->not_received.fetch_add(n + (has_run_ ? 0 : 1), std::memory_order_acq_rel);
    push->given.fetch_add(n, std::memory_order_acq_rel);
    // Nothing of it is sent any more.
    if (push->not_received.load(std::memory_order_acquire) == 0) return early;
  }
  pushes_.push_back(push);
  return early;
}

Status StepRendezvous::PushInLoop(const StepEdges::LoopSend& to, const Transfer& transfer,
                                  Tensor value, bool is_dead) {
  const StepEdges::Peer* const peer = &started_edges_->sends[to.peer];
  std::shared_ptr<OnePush> push;
  {
    MutexLock lock(&mu_);
    if (!aborted_.ok()) return aborted_;
    for (const auto& listed : pushes_) {
      if (listed->peer == peer) push = listed;
    }
    if (push == nullptr) {
      untaken_bytes_.fetch_add(value.TotalBytes(), std::memory_order_relaxed);
      early_in_loops_[to.peer].push_back({.index = to.index,
                                          .value = std::move(value),
                                          .is_dead = is_dead,
                                          .in_loop = true,
                                          .frame_id = transfer.frame_id,
                                          .iteration = transfer.iteration});
      return absl::OkStatus();
    }
    push->not_received.fetch_add(1, std::memory_order_acq_rel);
    push->given.fetch_add(1, std::memory_order_acq_rel);
  }
  push->sink->OnTensorInLoop(to.index, transfer.frame_id, transfer.iteration, std::move(value),
                             is_dead);
  return absl::OkStatus();
}

void StepRendezvous::Made(OnePush* push, uint64_t index, const Status& status, Tensor value,
                          bool is_dead) {
  if (!status.ok()) return push->End(Derived(status));
  const int64_t bytes = value.TotalBytes();
  untaken_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  if (const uint32_t number = push->peer->numbers[index]; number < sent_ns_.size()) {
    push->sink->OnSendTimes(index, {.ready_ns = sent_ns_[number]});
  }
  push->given.fetch_add(1, std::memory_order_acq_rel);
  const int64_t travels = push->sink->OnTensor(index, std::move(value), is_dead);
  const SendGroups::Next next = push->groups->Add(index, travels);
  const bool immediates_complete =
      push->peer->immediate[index] &&
      push->immediate_left.fetch_sub(1, std::memory_order_acq_rel) == 1;
  const int64_t left = push->left.fetch_sub(1, std::memory_order_acq_rel);
  MR_DCHECK(left > 0, "each tensor of a push is made once");
  if (left == 1) {
    push->End(absl::OkStatus());
  } else if (next == SendGroups::Next::kWait) {
    push->grouped.store(true, std::memory_order_release);
  } else if (next == SendGroups::Next::kFree && corked == this && !immediates_complete) {
    push->corked.store(true, std::memory_order_release);
  } else {
    push->Flush();
  }
}

std::shared_ptr<StepRendezvous::OnePush> StepRendezvous::FindPushed(absl::string_view task,
                                                                    const Link* link) const {
  for (const auto& push : pushes_) {
    if (push->link == link && push->peer->task == task) return push;
  }
  return nullptr;
}

void StepRendezvous::Received(absl::string_view task, const Link* link, uint64_t tensors) {
  std::shared_ptr<OnePush> push;
  {
    MutexLock lock(&mu_);
    push = FindPushed(task, link);
  }
  if (push == nullptr) return;
  // A peer may say anything: it has received at most what was sent.
  int64_t given = push->given.load(std::memory_order_acquire);
  int64_t received;
  do {
    received = static_cast<int64_t>(std::min(tensors, static_cast<uint64_t>(given)));
  } while (!push->given.compare_exchange_weak(given, given - received, std::memory_order_acq_rel));
  if (received == 0) return;
  if (push->not_received.fetch_sub(received, std::memory_order_acq_rel) == received) {
    push->sink->OnAllReceived();
    MutexLock lock(&mu_);
    std::erase(pushes_, push);
  }
  for (int64_t i = 0; i < received; ++i) Consumed();
}

bool StepRendezvous::AwaitsReceipt(absl::string_view task, const Link* link) const {
  MutexLock lock(&mu_);
  return FindPushed(task, link) != nullptr;
}

std::vector<const Link*> StepRendezvous::OwingLinks() const {
  std::vector<const Link*> links;
  MutexLock lock(&mu_);
  for (const auto& push : pushes_) links.push_back(push->link);
  return links;
}

void StepRendezvous::LoseReceiver(absl::string_view task) {
  const std::shared_ptr<const StepEdges> edges = this->edges();
  if (edges == nullptr) return;
  for (const StepEdges::Peer& peer : edges->sends) {
    if (peer.task == task) has_lost_receiver_.store(true, std::memory_order_release);
  }
}

void StepRendezvous::FailPushes(absl::string_view task, const Status& status) {
  LoseReceiver(task);
  StartAbort(status);
  if (const auto keeper = keeper_.lock()) keeper->PushesFailed(this);
}

// --- What other tasks push -----------------------------------------------------------------------

void StepRendezvous::ReceivePushes(std::shared_ptr<PushReceiver> receiver) {
  std::vector<PushedMessage> parked;
  {
    MutexLock lock(&mu_);
    parks_ = false;
    if (aborted_.ok()) push_receiver_ = receiver;
    parked = TakeParked();
  }
  for (PushedMessage& message : parked) {
    if (receiver == nullptr) {
      message.Drop();
    } else {
      receiver->OnPushed(std::move(message));
    }
  }
}

Status StepRendezvous::CameInLoop(uint32_t number, SentTensor tensor, std::shared_ptr<Link> link,
                                  std::shared_ptr<const HeldCredit> held) {
  MR_DCHECK(in_loops_ != nullptr, "only edges that the step receives in loops come to it");
  return in_loops_->Came(number, std::move(tensor), std::move(link), std::move(held));
}

void StepRendezvous::FailLoops(const Status& status) {
  // First: a run that has ended well has ended them.
  if (in_loops_ == nullptr || !in_loops_->End(status)) return;
  StartAbort(status);
  // It may have ended well since.
  if (const auto keeper = keeper_.lock()) keeper->PushesFailed(this);
}

Status StepRendezvous::TakePushed(PushedMessage message) {
  std::shared_ptr<PushReceiver> receiver;
  {
    MutexLock lock(&mu_);
    if (aborted_.ok() && parks_) {
      const int64_t bytes = message.num_bytes();
      if (parked_.empty()) parked_since_ = clock_->Now();
      parked_.push_back(std::move(message));
      if (parked_bytes_ != nullptr && parked_bytes_->Take(bytes)) {
        num_parked_bytes_ += bytes;
        return absl::OkStatus();
      }
      PushedMessage& kept = parked_.back();
      const int64_t share =
          kept.creditor != nullptr && parked_bytes_ != nullptr ? parked_bytes_->TakeHeld(bytes) : 0;
      if (share > 0) {
        num_parked_bytes_ += bytes;
        num_held_share_ += share;
        kept.held = std::make_shared<const HeldCredit>(kept.creditor, bytes);
        return absl::OkStatus();
      }
      message = std::move(parked_.back());  // to be freed without the lock
      parked_.pop_back();
      // It passes: steps begin, and the next try has room.
      return absl::UnavailableError(
          BeyondLimit(absl::StrCat("Step ", step_id_, ": what ", message.task, " pushes"),
                      "bytes for steps that have not begun", "max_parked_bytes",
                      parked_bytes_ == nullptr ? 0 : parked_bytes_->limit(),
                      (parked_bytes_ == nullptr ? 0 : parked_bytes_->bytes()) + bytes)
              .message());
    }
    receiver = push_receiver_;  // null when the step was aborted
  }
  if (receiver == nullptr) {
    message.Drop();
  } else {
    receiver->OnPushed(std::move(message));
  }
  return absl::OkStatus();
}

std::vector<PushedMessage> StepRendezvous::TakeParked() {
  if (parked_bytes_ != nullptr) parked_bytes_->Return(num_parked_bytes_, num_held_share_);
  num_parked_bytes_ = num_held_share_ = 0;
  std::vector<PushedMessage> parked;
  parked.swap(parked_);
  return parked;
}

void StepRendezvous::DropParked() {
  std::vector<PushedMessage> parked;
  {
    MutexLock lock(&mu_);
    parked = TakeParked();
  }
  for (PushedMessage& message : parked) message.Drop();
}

bool StepRendezvous::HasParkedOf(absl::string_view task) const {
  MutexLock lock(&mu_);
  return std::any_of(parked_.begin(), parked_.end(),
                     [task](const PushedMessage& message) { return message.task == task; });
}

bool StepRendezvous::HasParkedSince(absl::Time then) const {
  MutexLock lock(&mu_);
  return !parked_.empty() && parked_since_ < then;
}

// --- Single tensors ------------------------------------------------------------------------------

void StepRendezvous::ServeTensor(const std::string& wire_key, CancellationManager* cancellation,
                                 DoneCallback done) {
  Status refused;
  bool is_given_up = false;
  {
    MutexLock lock(&mu_);
    refused = aborted_;
    if (refused.ok() && edges_ == nullptr) {
      const int64_t number = next_number_++;
      if (MayWait(number, cancellation)) {
        waiting_tensors_.push_back({wire_key, std::move(done), number});
        return;
      }
      refused = GivenUp();
      is_given_up = true;
    }
  }
  if (refused.ok()) return BeginTensor(wire_key, std::move(done));
  done(Derived(refused), Tensor(), false);
  if (is_given_up) TellGivenUp();
}

void StepRendezvous::BeginTensor(const std::string& wire_key, DoneCallback done) {
  std::shared_ptr<const StepEdges> edges;
  {
    MutexLock lock(&mu_);
    edges = edges_;
  }
  MR_DCHECK(edges != nullptr,
            "until Start has set the edges, requests for one tensor wait in their list");
  std::optional<Transfer> transfer;
  std::string root;
  uint64_t frame_id;
  int64_t iteration;
  if (RendezvousKey::SplitFrame(wire_key, &root, &frame_id, &iteration)) {
    const auto it = edges->loop_sends.find(root);
    if (it != edges->loop_sends.end()) transfer.emplace(it->second, "", frame_id, iteration);
  }
  for (const StepEdges::Peer& peer : edges->sends) {
    const auto it = std::lower_bound(peer.wire_keys.begin(), peer.wire_keys.end(), wire_key);
    if (it != peer.wire_keys.end() && *it == wire_key) {
      transfer.emplace(peer.numbers[static_cast<size_t>(it - peer.wire_keys.begin())]);
    }
  }
  if (!transfer) {
    // Not an edge of the plan: a tensor that a master feeds under this key.
    StatusOr<RendezvousKey> parsed = RendezvousKey::Parse(wire_key);
    if (!parsed.ok()) return done(parsed.status(), Tensor(), false);
    return local_->RecvAsync(*parsed, std::move(done));
  }
  local_->RecvAsync(*transfer, [weak = weak_from_this(), done = std::move(done)](
                                   const Status& status, Tensor value, bool is_dead) mutable {
    const std::shared_ptr<StepRendezvous> step = weak.lock();
    if (step != nullptr) {
      step->untaken_bytes_.fetch_sub(value.TotalBytes(), std::memory_order_relaxed);
    }
    done(status.ok() ? status : Derived(status), std::move(value), is_dead);
    if (status.ok() && step != nullptr) step->Consumed();
  });
}

void StepRendezvous::Consumed() {
  if (!ReleaseOne()) return;
  if (const auto keeper = keeper_.lock()) keeper->AllTaken(this);
}

bool StepRendezvous::EndRun() {
  FlushAll(Flushed::kAll);
  if (in_loops_ != nullptr) in_loops_->End(StepIsOver(step_id_));
  std::vector<std::shared_ptr<OnePush>> over;  // destroyed without the lock
  {
    MutexLock lock(&mu_);
    has_run_ = true;
    for (const auto& push : pushes_) {
      if (!std::exchange(push->counts_run, false)) continue;
      if (push->not_received.fetch_sub(1, std::memory_order_acq_rel) == 1) over.push_back(push);
    }
    for (const auto& push : over) std::erase(pushes_, push);
  }
  for (const auto& push : over) push->sink->OnAllReceived();
  return ReleaseOne();
}

bool StepRendezvous::ReleaseOne() {
  if (outstanding_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  if (const std::shared_ptr<StepLoans> loans = this->loans()) loans->Settle();
  return true;
}

bool StepRendezvous::IsWanted() const {
  MutexLock lock(&mu_);
  return aborted_.ok() && session_ != nullptr && session_->ended().ok();
}

bool StepRendezvous::is_started() const {
  MutexLock lock(&mu_);
  return edges_ != nullptr;
}

Status StepRendezvous::aborted() const {
  MutexLock lock(&mu_);
  return aborted_;
}

std::shared_ptr<const SessionLife> StepRendezvous::session() const {
  MutexLock lock(&mu_);
  return session_;
}

Status StepRendezvous::EndOfSession() const {
  MutexLock lock(&mu_);
  if (!aborted_.ok() || session_ == nullptr) return absl::OkStatus();
  return session_->ended();
}

std::shared_ptr<StepLoans> StepRendezvous::loans() const {
  MutexLock lock(&mu_);
  return loans_;
}

void StepRendezvous::FlushAll(Flushed which) {
  std::vector<std::shared_ptr<OnePush>> held;
  {
    MutexLock lock(&mu_);
    for (const auto& push : pushes_) {
      const bool was_corked = push->corked.exchange(false, std::memory_order_acq_rel);
      const bool was_grouped =
          which == Flushed::kAll && push->grouped.exchange(false, std::memory_order_acq_rel);
      if (was_corked || was_grouped) held.push_back(push);
    }
  }
  for (const auto& push : held) push->Flush();
}

StepRendezvous::Cork::Cork(StepRendezvous* step) : step_(step), outer_(corked) { corked = step; }

StepRendezvous::Cork::~Cork() {
  MR_DCHECK(corked == step_, "corks live on the stack: the last one of a thread ends first");
  corked = outer_;
  if (outer_ != step_) step_->FlushAll(Flushed::kCorked);
}

}  // namespace millrace
