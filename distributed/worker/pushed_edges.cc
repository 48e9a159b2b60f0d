// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/pushed_edges.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "distributed/link/kept_tensors.h"
#include "distributed/worker/peer_error.h"
#include "distributed/worker/send_groups.h"
#include "distributed/worker/trace_transfer.h"
#include "runtime/rendezvous.h"

namespace millrace {
namespace {

int64_t NowNanos() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

// --- Sending -------------------------------------------------------------------------------------

LinkSink::LinkSink(std::shared_ptr<Link> link, const std::shared_ptr<StepRendezvous>& step,
                   std::shared_ptr<const StepEdges> edges, const StepEdges::Peer* peer,
                   std::shared_ptr<PeerCounter> counter, std::shared_ptr<SentReads> reads,
                   bool is_traced)
    : link_(std::move(link)),
      step_id_(step->step_id()),
      step_(step),
      edges_(std::move(edges)),
      peer_(peer),
      counter_(std::move(counter)),
      reads_(is_traced || link_->kept_by_peer() == nullptr ? nullptr : std::move(reads)),
      is_traced_(is_traced) {
  if (is_traced_) ready_ns_.resize(peer_->numbers.size());
}

LinkSink::~LinkSink() {
  MutexLock lock(&mu_);
  for (const SentReads::Choice& named : named_) {
    if (!named.is_kept() && !named.entry()->is_there()) named.entry()->MayNotCome();
  }
}

void LinkSink::OnSendTimes(uint64_t index, const SendTimes& times) {
  if (index < ready_ns_.size()) ready_ns_[index] = times.ready_ns;
}

int64_t LinkSink::OnTensor(uint64_t index, Tensor value, bool is_dead) {
  int64_t travels = is_dead ? 0 : value.TotalBytes();
  SentTensor tensor;
  tensor.index = static_cast<uint32_t>(index);
  if (!is_dead) tensor.value = std::move(value);
  tensor.is_dead = is_dead;
  if (index < ready_ns_.size()) tensor.ready_ns = ready_ns_[index];
  const Status kept = NoExceptions("Push", [&]() -> Status {
    if (reads_ != nullptr && !is_dead) {
      // Without memory to keep it, it travels.
      NoExceptions("Push", [&] {
        ChooseWay(&tensor);
        return absl::OkStatus();
      }).IgnoreError();
      if (tensor.is_kept) travels = 0;
    }
    MutexLock lock(&mu_);
    if (counter_ != nullptr && gathered_.empty()) since_ns_ = NowNanos();
    gathered_.push_back(std::move(tensor));
    return absl::OkStatus();
  });
  if (!kept.ok()) Abort(kept);
  return travels;
}

void LinkSink::ChooseWay(SentTensor* tensor) {
  SentReads::Choice choice =
      reads_->Choose(tensor->index, tensor->value, link_->kept_by_peer().get());
  KeptByPeer::Entry* const entry = choice.entry();
  if (entry == nullptr) return;
  const bool is_kept = choice.is_kept();
  const Status listed = NoExceptions("Push", [&] {
    MutexLock lock(&mu_);
    named_.push_back(std::move(choice));
    return absl::OkStatus();
  });
  if (!listed.ok()) {
    if (!is_kept) entry->MayNotCome();
    return;
  }
  tensor->keep_number = entry->number();
  tensor->is_kept = is_kept;
  names_any_.store(true, std::memory_order_release);
}

void LinkSink::OnAllReceived() {
  if (!names_any_.load(std::memory_order_acquire)) return;
  MutexLock lock(&mu_);
  for (const SentReads::Choice& named : named_) {
    if (!named.is_kept()) named.entry()->HasCome();
  }
}

void LinkSink::OnTensorInLoop(uint64_t index, uint64_t frame_id, int64_t iteration, Tensor value,
                              bool is_dead) {
  if (is_over_.load(std::memory_order_acquire)) return;
  const Status sent = NoExceptions("Push", [&]() -> Status {
    SentTensors message;
    message.step_id = step_id_;
    message.fingerprint = peer_->loop_fingerprint;
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.index = static_cast<uint32_t>(index);
    if (!is_dead) tensor.value = std::move(value);
    tensor.is_dead = is_dead;
    tensor.in_loop = true;
    tensor.frame_id = frame_id;
    tensor.iteration = iteration;
    if (is_traced_) tensor.ready_ns = tensor.left_ns = absl::GetCurrentTimeNanos();
    if (counter_ != nullptr) {
      counter_->AddSent(is_dead ? 0 : tensor.value.TotalBytes(), 1, /*queued_ns=*/0);
    }
    return link_->Send(std::move(message));
  });
  if (!sent.ok()) Abort(sent);
  TellAgainIfOver();
}

void LinkSink::Abort(const Status& status) {
  if (const auto step = step_.lock()) {
    step->FailPushes(peer_->task, PushToError(peer_->task, status));
  }
}

SentTensors LinkSink::Take(int64_t* since_ns) {
  SentTensors sent;
  sent.step_id = step_id_;
  sent.fingerprint = peer_->fingerprint;
  MutexLock lock(&mu_);
  sent.tensors.swap(gathered_);
  *since_ns = since_ns_;
  return sent;
}

void LinkSink::Flush() {
  int64_t since_ns = 0;
  SentTensors sent = Take(&since_ns);
  if (sent.tensors.empty() || is_over_.load(std::memory_order_acquire)) return;
  if (is_traced_) {
    const int64_t now_ns = absl::GetCurrentTimeNanos();
    for (SentTensor& tensor : sent.tensors) tensor.left_ns = now_ns;
  }
  if (counter_ != nullptr) {
    counter_->AddSent(BytesThatTravel(sent), static_cast<int64_t>(sent.tensors.size()),
                      NowNanos() - since_ns);
  }
  if (names_any_.load(std::memory_order_acquire)) {
    const auto kept = std::count_if(sent.tensors.begin(), sent.tensors.end(),
                                    [](const SentTensor& tensor) { return tensor.is_kept; });
    link_->kept_by_peer()->counts()->kept_tensors.fetch_add(kept, std::memory_order_relaxed);
  }
  const Status status = link_->Send(std::move(sent));
  if (!status.ok()) Abort(status);
  TellAgainIfOver();
}

void LinkSink::TellAgainIfOver() {
  if (!is_over_.load(std::memory_order_acquire)) return;
  link_->Send(CancelFrame{step_id_, over_}).IgnoreError();
}

void LinkSink::OnDone(const Status& status) {
  if (status.ok()) return Flush();
  over_ = status;
  is_over_.store(true, std::memory_order_release);
  int64_t since_ns = 0;
  Take(&since_ns);
  // A link that is lost tells the peer as much.
  link_->Send(CancelFrame{step_id_, status}).IgnoreError();
}

// --- Receiving -----------------------------------------------------------------------------------

ArrivingEdges::ArrivingEdges(const std::shared_ptr<StepRendezvous>& step,
                             std::shared_ptr<const StepEdges> edges,
                             std::shared_ptr<StepStatsCollector> stats)
    : step_(step),
      edges_(std::move(edges)),
      stats_(std::move(stats)),
      begun_ns_(stats_ == nullptr ? 0 : absl::GetCurrentTimeNanos()),
      peers_(edges_->recvs.size()) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    peers_[i].num_left = edges_->recvs[i].numbers.size();
    peers_[i].has_come.resize(peers_[i].num_left);
    const std::string& task = edges_->recvs[i].task;
    peers_[i].flushes = std::none_of(edges_->sends.begin(), edges_->sends.end(),
                                     [&](const StepEdges::Peer& to) { return to.task == task; });
  }
}

size_t ArrivingEdges::Find(absl::string_view task) const {
  size_t i = 0;
  while (i < edges_->recvs.size() && edges_->recvs[i].task != task) ++i;
  return i;
}

void ArrivingEdges::Expect(absl::string_view task, std::shared_ptr<Link> link) {
  const size_t i = Find(task);
  MR_DCHECK(i < edges_->recvs.size(), "only tasks that send are expected to");
  MutexLock lock(&mu_);
  if (peers_[i].way == nullptr) peers_[i].way = link.get();
  peers_[i].link = std::move(link);
}

void ArrivingEdges::OnPushed(PushedMessage message) {
  const size_t i = Find(message.task);
  const std::shared_ptr<StepRendezvous> step = step_.lock();
  if (i == edges_->recvs.size() || step == nullptr) return message.Drop();
  if (message.kind == PushedMessage::Kind::kTensors) return TakeTensors(i, &message, step.get());
  bool waits = false;
  {
    MutexLock lock(&mu_);
    const Peer& peer = peers_[i];
    waits = peer.num_left > 0;
    const bool is_lost = message.kind == PushedMessage::Kind::kLost;
    if (is_lost && peer.way != nullptr && peer.way != message.link) return;
  }
  const Status why = PushFromError(message.task, message.error);
  if (waits) {
    step->StartAbort(why);
  } else if (!edges_->recvs[i].loop_numbers.empty()) {
    step->FailLoops(why);
  }
}

void ArrivingEdges::TakeTensors(size_t peer, PushedMessage* message, StepRendezvous* step) {
  std::vector<SentTensor>& tensors = message->tensors.tensors;
  const auto in_loops = static_cast<uint64_t>(
      std::count_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.in_loop; }));
  // First: it rides on what the step sends for it.
  message->Acknowledge(tensors.size() - in_loops);
  const StepEdges::Peer& edges = edges_->recvs[peer];
  const uint64_t fingerprint = message->tensors.fingerprint;
  Status wrong;
  if ((tensors.size() > in_loops && fingerprint != edges.fingerprint) ||
      (in_loops > 0 && fingerprint != edges.loop_fingerprint)) {
    wrong = Internal("Push from ", edges.task, ": both tasks must have parts of ",
                     "one graph, got tensors of other names");
  }
  uint64_t num_dropped = 0;
  for (SentTensor& tensor : tensors) {
    if (wrong.ok()) wrong = Mark(peer, tensor, message->link);
    if (!wrong.ok()) {
      num_dropped += tensor.in_loop ? 1 : 0;
      continue;
    }
    if (stats_ != nullptr) Trace(peer, tensor);
    const size_t index = tensor.index;
    if (tensor.in_loop) {
      wrong = step->CameInLoop(edges.loop_numbers[index], std::move(tensor), message->creditor,
                               message->held);
    } else {
      // An error means that the step was aborted, which says why.
      step->Send(Transfer(edges.numbers[index]), std::move(tensor.value), tensor.is_dead)
          .IgnoreError();
    }
  }
  message->Acknowledge(num_dropped);
  if (!wrong.ok()) step->StartAbort(wrong);
}

void ArrivingEdges::Trace(size_t peer, const SentTensor& tensor) {
  const StepEdges::Peer& edges = edges_->recvs[peer];
  const int64_t now_ns = absl::GetCurrentTimeNanos();
  TransferTimes times;
  times.send = {.ready_ns = tensor.ready_ns, .left_ns = tensor.left_ns};
  times.arrived_ns = now_ns;
  const int64_t num_bytes = tensor.is_dead ? 0 : tensor.value.TotalBytes();
  if (tensor.in_loop) {
    // No one has asked for it: its iteration may have begun long ago, or not yet.
    times.asked_ns = now_ns;
    TraceTransfer(
        RendezvousKey::InFrame(edges.loop_keys[tensor.index], tensor.frame_id, tensor.iteration),
        num_bytes, times, stats_.get());
  } else {
    times.asked_ns = begun_ns_;
    TraceTransfer(edges.wire_keys[tensor.index], num_bytes, times, stats_.get());
  }
}

Status ArrivingEdges::Mark(size_t peer, const SentTensor& tensor, const Link* way) {
  const StepEdges::Peer& edges = edges_->recvs[peer];
  const size_t num_edges = tensor.in_loop ? edges.loop_numbers.size() : edges.numbers.size();
  MutexLock lock(&mu_);
  Peer& of_task = peers_[peer];
  of_task.way = way;
  if (tensor.index >= num_edges) {
    return Internal("Push from ", edges.task, ": the number of a tensor ",
                    tensor.in_loop ? "in a loop" : "in no loop", " must be below ", num_edges,
                    ", got ", tensor.index);
  }
  if (!tensor.is_dead && !tensor.is_kept && tensor.value.TotalBytes() >= SendGroups::kLargeBytes) {
    of_task.flushes = true;
  }
  if (tensor.in_loop) return absl::OkStatus();
  if (of_task.has_come[tensor.index]) {
    return Internal("Push from ", edges.task, ": each tensor must come once, got number ",
                    tensor.index, " twice");
  }
  of_task.has_come[tensor.index] = true;
  --of_task.num_left;
  return absl::OkStatus();
}

void ArrivingEdges::Flush() {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(&mu_);
    for (Peer& peer : peers_) {
      if (peer.link != nullptr && peer.flushes) links.push_back(std::move(peer.link));
      peer.link = nullptr;
    }
  }
  for (const auto& link : links) link->Flush();
}

}  // namespace millrace
