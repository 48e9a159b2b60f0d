// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/byte_link.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/tensor.h"
#include "net/call_limits.h"

namespace millrace {
namespace {

// Steps in one RECEIVED, whose head holds 3,000.
constexpr size_t kMaxReceipts = 1000;
// Of a TENSORS frame's head without entries.
constexpr uint64_t kTensorsHeadBytes = 64;

static_assert(kMinWindowBytes >= 4 * kMaxFrameBytes,
              "credit.h: a frame waits only when more than three quarters are taken");

// Of a frame that is within all limits by its construction.
template <typename Frame>
ByteChain Encoded(const Frame& frame) {
  FrameWriter writer;
  const Status status = writer.Add(frame);
  MR_DCHECK(status.ok(), "the caller keeps the limits of frames");
  return writer.Finish();
}

template <typename Frame>
StatusOr<ByteChain> Encode(const Frame& frame) {
  FrameWriter writer;
  MR_RETURN_IF_ERROR(writer.Add(frame));
  return writer.Finish();
}

}  // namespace

ByteLink::ByteLink(std::unique_ptr<ByteWire> wire, std::shared_ptr<LinkEnd> end,
                   ByteLinkOptions options)
    : options_(std::move(options)),
      wire_(std::move(wire)),
      end_(std::move(end)),
      reader_(this),
      incoming_(options_.transfers),
      hello_waits_(options_.waits_for_hello),
      peer_name_(options_.peer_task.empty() ? "a task that has not said HELLO"
                                            : options_.peer_task),
      receive_credit_(options_.window_bytes),
      since_(options_.clock->Now()) {
  HelloFrame hello;
  hello.task = options_.task;
  hello.incarnation = options_.incarnation;
  hello.clock_ns = absl::ToUnixNanos(since_);
  hello.window_bytes = options_.window_bytes;
  hello_ = Encoded(hello).ToString();
}

std::shared_ptr<ByteLink> ByteLink::Open(std::unique_ptr<ByteWire> wire,
                                         std::shared_ptr<LinkEnd> end, ByteLinkOptions options) {
  std::shared_ptr<ByteLink> link(new ByteLink(std::move(wire), std::move(end), std::move(options)));
  link->wire_->Start(std::shared_ptr<ByteWire::User>(link, link.get()));
  link->Pump();
  return link;
}

std::string ByteLink::Name() const { return absl::StrCat("Link to ", peer_name_); }

bool ByteLink::is_over() const {
  MutexLock lock(&mu_);
  return state_ == State::kClosing || state_ == State::kClosed;
}

int64_t ByteLink::queued_bytes() const {
  MutexLock lock(&mu_);
  return queued_message_bytes_ + queued_tensor_bytes_;
}

// --- Sending

Status ByteLink::Send(LinkMessage message) {
  return NoExceptions("Link", [&]() -> Status {
    MR_RETURN_IF_ERROR(CheckSendable(message));
    MR_RETURN_IF_ERROR(std::visit([this](const auto& m) { return Queue(m); }, message));
    if (!LinkCork::Holds(this) || queued_bytes() >= kBatchBytes) Pump();
    return absl::OkStatus();
  });
}

Status ByteLink::MayQueue() const {
  return state_ == State::kClosing || state_ == State::kClosed ? lost_ : absl::OkStatus();
}

Status ByteLink::Queue(const BindFrame& frame) {
  MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame));
  return QueueMessage(std::move(bytes));
}

Status ByteLink::Queue(const UnbindFrame& frame) {
  MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame));
  return QueueMessage(std::move(bytes));
}

Status ByteLink::Queue(const RunFrame& frame) {
  MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame));
  return QueueMessage(std::move(bytes));
}

Status ByteLink::Queue(const EndFrame& frame) {
  MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame));
  return QueueMessage(std::move(bytes), frame.status.ok() ? nullptr : &frame.step_id);
}

Status ByteLink::Queue(const CancelFrame& frame) {
  MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame));
  return QueueMessage(std::move(bytes), &frame.step_id);
}

Status ByteLink::QueueMessage(ByteChain bytes, const int64_t* ended_step) {
  Dropped dropped;
  Status too_much;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(MayQueue());
    if (bytes.num_bytes() > options_.max_queued_message_bytes - queued_message_bytes_) {
      too_much =
          absl::UnavailableError(absl::StrCat(Name(), ": the peer must take messages, got ",
                                              queued_message_bytes_, " bytes of them that wait"));
    } else {
      if (ended_step != nullptr) DropStep(*ended_step, &dropped);
      queued_message_bytes_ += bytes.num_bytes();
      messages_.push_back({++last_order_, bytes.ToString()});
    }
  }
  // Steps would wait for what is not sent.
  if (!too_much.ok()) Lose(too_much, /*by_peer=*/false);
  return too_much;
}

Status ByteLink::Queue(const SentTensors& message) {
  std::vector<TensorEntry> entries;
  entries.reserve(message.tensors.size());
  int64_t message_bytes = 0;
  for (const SentTensor& tensor : message.tensors) {
    TensorEntry& entry = entries.emplace_back();
    entry.index = tensor.index;
    entry.is_dead = tensor.is_dead;
    entry.in_loop = tensor.in_loop;
    entry.frame_id = tensor.frame_id;
    entry.iteration = tensor.iteration;
    if (tensor.is_dead) continue;
    MR_ASSIGN_OR_RETURN(entry.value, WireTensor::Of(tensor.value));
    message_bytes += entry.value.num_bytes();
  }
  std::vector<QueuedTensors> frames;
  std::vector<OutgoingTransfer> transfers;
  TensorsFrame frame;
  frame.step_id = message.step_id;
  frame.purpose = message.purpose;
  frame.fingerprint = message.fingerprint;
  uint64_t head_bytes = kTensorsHeadBytes;
  int64_t tensor_bytes = 0;
  const auto end_frame = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame));
    QueuedTensors& queued = frames.emplace_back();
    queued.step_id = message.step_id;
    queued.tensor_bytes = std::exchange(tensor_bytes, 0);
    queued.bytes = std::move(bytes);
    frame.tensors.clear();
    head_bytes = kTensorsHeadBytes;
    return absl::OkStatus();
  };
  // Numbers of transfers grow in the order in which they are announced: one lock for all of it.
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(MayQueue());
  if (queued_tensor_bytes_ > 0 &&
      message_bytes > options_.max_queued_bytes - queued_tensor_bytes_) {
    return BeyondLimit(Name(), "bytes of tensors that the peer has not taken", "max_queued_bytes",
                       options_.max_queued_bytes, queued_tensor_bytes_ + message_bytes);
  }
  uint64_t last_transfer = last_transfer_;
  for (TensorEntry& entry : entries) {
    int64_t whole_bytes = entry.value.num_bytes();
    if (whole_bytes > kMaxWholeBytes) {
      entry.transfer = ++last_transfer;
      entry.form = entry.value.form();
      entry.dtype = entry.value.dtype();
      entry.shape = entry.value.shape();
      entry.num_bytes = whole_bytes;
      whole_bytes = 0;
      OutgoingTransfer& transfer = transfers.emplace_back();
      transfer.number = entry.transfer;
      transfer.step_id = message.step_id;
      transfer.value = std::exchange(entry.value, WireTensor());
    }
    const uint64_t entry_bytes = FrameWriter::MaxEntryHeadBytes(entry);
    if (head_bytes + entry_bytes > kMaxFrameHeadBytes ||
        tensor_bytes + whole_bytes > static_cast<int64_t>(kMaxFramePayloadBytes)) {
      MR_RETURN_IF_ERROR(end_frame());
    }
    head_bytes += entry_bytes;
    tensor_bytes += whole_bytes;
    frame.tensors.push_back(std::move(entry));
  }
  if (!frame.tensors.empty()) MR_RETURN_IF_ERROR(end_frame());
  last_transfer_ = last_transfer;
  for (QueuedTensors& queued : frames) {
    queued.order = ++last_order_;
    tensors_.push_back(std::move(queued));
  }
  for (OutgoingTransfer& transfer : transfers) transfers_.push_back(std::move(transfer));
  queued_tensor_bytes_ += message_bytes;
  return absl::OkStatus();
}

void ByteLink::DropStep(int64_t step_id, Dropped* dropped) {
  std::deque<QueuedTensors> tensors;
  for (QueuedTensors& queued : tensors_) {
    if (queued.step_id == step_id) queued_tensor_bytes_ -= queued.tensor_bytes;
    (queued.step_id == step_id ? dropped->tensors : tensors).push_back(std::move(queued));
  }
  tensors_.swap(tensors);
  std::deque<OutgoingTransfer> transfers;
  for (OutgoingTransfer& transfer : transfers_) {
    const bool is_dropped = transfer.step_id == step_id;
    if (is_dropped) {
      queued_tensor_bytes_ -= transfer.value.num_bytes() - static_cast<int64_t>(transfer.sent);
    }
    (is_dropped ? dropped->transfers : transfers).push_back(std::move(transfer));
  }
  transfers_.swap(transfers);
}

void ByteLink::DropAll(Dropped* dropped) {
  dropped->tensors.swap(tensors_);
  dropped->transfers.swap(transfers_);
  queued_tensor_bytes_ = 0;
}

void ByteLink::Pump() {
  while (true) {
    ByteChain batch;
    {
      MutexLock lock(&mu_);
      if (writing_ || state_ == State::kClosed) return;
      batch = NextBatch();
      if (!batch.empty()) {
        writing_ = true;
      } else if (state_ == State::kClosing) {
        state_ = State::kClosed;  // BYE has left
      } else {
        return;
      }
    }
    if (batch.empty()) return wire_->Close();
    if (!wire_->Write(std::move(batch))) return;  // OnWritten goes on
    MutexLock lock(&mu_);
    writing_ = false;
  }
}

ByteChain ByteLink::NextBatch() {
  ByteChain batch;
  if (!hello_waits_) batch.Append(std::exchange(hello_, std::string()));
  if (state_ == State::kOpening) return batch;
  AddMessages(&batch);
  if (state_ != State::kOpen || (batch.empty() && !flushes_ && !ReceiptsAreDue())) return batch;
  ByteChain result = TakeReceipts();
  result.Append(std::move(batch));
  return result;
}

void ByteLink::AddMessages(ByteChain* batch) {
  const absl::Time now = options_.clock->Now();
  bool has_credit = true;
  while (batch->num_bytes() < kBatchBytes) {
    const bool may_take = has_credit && !tensors_.empty();
    if (may_take && (messages_.empty() || tensors_.front().order < messages_.front().order)) {
      QueuedTensors& next = tensors_.front();
      has_credit = send_credit_.Take(next.bytes.num_bytes(), now);
      if (!has_credit) continue;
      queued_tensor_bytes_ -= next.tensor_bytes;
      batch->Append(std::move(next.bytes));
      tensors_.pop_front();
    } else if (!messages_.empty()) {
      queued_message_bytes_ -= static_cast<int64_t>(messages_.front().bytes.size());
      batch->Append(messages_.front().bytes);
      messages_.pop_front();
    } else {
      break;
    }
  }
  // A transfer is announced by TENSORS that have left: none is queued here.
  while (has_credit && batch->num_bytes() < kBatchBytes && !transfers_.empty()) {
    OutgoingTransfer& next = transfers_.front();
    const absl::string_view left = next.value.bytes().substr(static_cast<size_t>(next.sent));
    const absl::string_view bytes = left.substr(0, static_cast<size_t>(kMaxFramePayloadBytes));
    FrameWriter writer;
    const Status status =
        writer.Add(ChunkFrame{next.number, next.sent, bytes.size()}, next.value.buffer(), bytes);
    MR_DCHECK(status.ok(), "a transfer leaves the queue with its last byte");
    has_credit = send_credit_.Take(writer.num_bytes(), now);
    if (!has_credit) return;
    batch->Append(writer.Finish());
    next.sent += bytes.size();
    queued_tensor_bytes_ -= static_cast<int64_t>(bytes.size());
    if (bytes.size() == left.size()) transfers_.pop_front();
  }
}

bool ByteLink::ReceiptsAreDue() const {
  return receive_credit_.IsDue() || owed_steps_.size() >= kMaxReceipts;
}

ByteChain ByteLink::TakeReceipts() {
  ByteChain result;
  flushes_ = false;
  int64_t credit = receive_credit_.TakeOwed();
  size_t begin = 0;
  while (credit > 0 || begin < owed_steps_.size()) {
    ReceivedFrame frame;
    frame.credit_bytes = std::exchange(credit, 0);
    const size_t end = std::min(begin + kMaxReceipts, owed_steps_.size());
    frame.steps.assign(owed_steps_.begin() + static_cast<std::ptrdiff_t>(begin),
                       owed_steps_.begin() + static_cast<std::ptrdiff_t>(end));
    result.Append(Encoded(frame));
    begin = end;
  }
  owed_steps_.clear();
  return result;
}

void ByteLink::Flush() {
  {
    MutexLock lock(&mu_);
    flushes_ = receive_credit_.owed() > 0 || !owed_steps_.empty();
  }
  Pump();
}

void ByteLink::OnWritten() {
  {
    MutexLock lock(&mu_);
    writing_ = false;
  }
  Pump();
}

// --- Receiving

void ByteLink::Reading(absl::FunctionRef<Status()> read) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosing || state_ == State::kClosed) return;
    // Until its HELLO is whole a peer has not been heard, however many bytes it sends.
    if (state_ == State::kOpen) since_ = options_.clock->Now();
    pinged_ = false;
  }
  const Status status = NoExceptions("Link", read);
  // What comes behind the end of a link is skipped, and need not fit together.
  if (!status.ok() && !is_over()) Close(status);
}

void ByteLink::OnBytes(absl::string_view bytes) {
  Reading([&] { return reader_.Read(bytes); });
}

absl::Span<char> ByteLink::Place() {
  if (is_over()) return {};
  return reader_.Direct();
}

void ByteLink::OnFilled(size_t num_bytes) {
  Reading([&] { return reader_.Filled(num_bytes); });
}

Status ByteLink::OnFrame(LinkFrame frame, int64_t num_bytes) {
  if (is_over()) return absl::OkStatus();
  if (!greeted_) {
    const HelloFrame* const hello = std::get_if<HelloFrame>(&frame);
    if (ByeFrame* const bye = std::get_if<ByeFrame>(&frame)) {
      return Take(std::move(*bye), num_bytes);
    }
    if (hello == nullptr) {
      return InvalidArgument("Link: the first frame must be HELLO, got another one");
    }
    return Greet(*hello);
  }
  return std::visit(
      [this, num_bytes](auto& received) { return Take(std::move(received), num_bytes); }, frame);
}

StatusOr<absl::Span<char>> ByteLink::PlaceFor(const ChunkFrame& chunk) {
  if (!greeted_) return InvalidArgument("Link: the first frame must be HELLO, got a CHUNK");
  return incoming_.PlaceFor(chunk);
}

Status ByteLink::Greet(const HelloFrame& hello) {
  if (hello.version != kLinkVersion) {
    return FailedPrecondition("Link: both tasks must speak version ", kLinkVersion,
                              " of links, got a peer of version ", hello.version,
                              "; run the same release in all tasks");
  }
  if (!options_.peer_task.empty() && hello.task != options_.peer_task) {
    return FailedPrecondition("Link to ", options_.peer_task, ": that task must answer, got ",
                              hello.task, "; do all tasks have the same cluster addresses?");
  }
  if (options_.peer_incarnation != 0 && hello.incarnation != options_.peer_incarnation) {
    return absl::AbortedError(absl::StrCat("Link to ", hello.task, ": the task restarted ",
                                           "(incarnation ", options_.peer_incarnation,
                                           " expected, ", hello.incarnation, " found)"));
  }
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(send_credit_.Open(hello.window_bytes));
  }
  if (options_.admit) MR_RETURN_IF_ERROR(options_.admit({hello.task, hello.incarnation}));
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpening) return absl::OkStatus();  // closed meanwhile
    state_ = State::kOpen;
    hello_waits_ = false;
    since_ = options_.clock->Now();
    peer_name_ = hello.task;
  }
  greeted_ = true;
  set_peer({hello.task, hello.incarnation});
  end_->OnOpen(shared_from_this());
  Pump();
  return absl::OkStatus();
}

Status ByteLink::Take(HelloFrame, int64_t) {
  return InvalidArgument("Link: HELLO must come once, got another one");
}

Status ByteLink::Take(BindFrame frame, int64_t) {
  end_->OnBind(std::move(frame));
  return absl::OkStatus();
}

Status ByteLink::Take(UnbindFrame frame, int64_t) {
  end_->OnUnbind(frame.number);
  return absl::OkStatus();
}

Status ByteLink::Take(RunFrame frame, int64_t) {
  end_->OnRun(frame);
  return absl::OkStatus();
}

Status ByteLink::CountReceived(int64_t num_bytes) {
  MutexLock lock(&mu_);
  return receive_credit_.Received(num_bytes);
}

void ByteLink::AddReceipt(int64_t step_id, uint64_t tensors) {
  if (tensors == 0) return;
  MutexLock lock(&mu_);
  if (!owed_steps_.empty() && owed_steps_.back().step_id == step_id) {
    owed_steps_.back().tensors += tensors;
  } else {
    owed_steps_.push_back({step_id, tensors});
  }
}

void ByteLink::PumpIfDue() {
  {
    MutexLock lock(&mu_);
    if (!ReceiptsAreDue()) return;
  }
  Pump();
}

bool ByteLink::TakeTensor(int64_t step_id, TensorEntry* entry, int64_t* splat_bytes,
                          SentTensor* tensor) {
  tensor->index = entry->index;
  tensor->is_dead = entry->is_dead;
  tensor->in_loop = entry->in_loop;
  tensor->frame_id = entry->frame_id;
  tensor->iteration = entry->iteration;
  if (entry->is_dead) return true;
  StatusOr<Tensor> value = entry->value.TakeTensor(splat_bytes);
  if (!value.ok()) {
    end_->OnRefused(step_id, value.status());
    return false;
  }
  tensor->value = *std::move(value);
  return true;
}

Status ByteLink::Take(TensorsFrame frame, int64_t num_bytes) {
  MR_RETURN_IF_ERROR(CountReceived(num_bytes));
  SentTensors tensors;
  tensors.step_id = frame.step_id;
  tensors.purpose = frame.purpose;
  tensors.fingerprint = frame.fingerprint;
  tensors.tensors.reserve(frame.tensors.size());
  int64_t splat_bytes = options_.max_splat_bytes;
  for (TensorEntry& entry : frame.tensors) {
    if (entry.transfer != 0) {
      const Status announced = incoming_.Announce(frame, entry);
      if (absl::IsResourceExhausted(announced)) {
        end_->OnRefused(frame.step_id, announced);
      } else {
        MR_RETURN_IF_ERROR(announced);
      }
      continue;
    }
    SentTensor& tensor = tensors.tensors.emplace_back();
    if (!TakeTensor(frame.step_id, &entry, &splat_bytes, &tensor)) tensors.tensors.pop_back();
  }
  AddReceipt(frame.step_id, tensors.tensors.size());
  if (!tensors.tensors.empty()) end_->OnTensors(std::move(tensors));
  PumpIfDue();
  return absl::OkStatus();
}

Status ByteLink::Take(ChunkFrame frame, int64_t num_bytes) {
  MR_RETURN_IF_ERROR(CountReceived(num_bytes));
  const std::unique_ptr<IncomingTransfers::Whole> whole = incoming_.Filled(frame);
  if (whole != nullptr) {
    SentTensors tensors;
    tensors.step_id = whole->step_id;
    tensors.purpose = whole->purpose;
    tensors.fingerprint = whole->fingerprint;
    int64_t splat_bytes = options_.max_splat_bytes;
    SentTensor& tensor = tensors.tensors.emplace_back();
    if (TakeTensor(whole->step_id, &whole->entry, &splat_bytes, &tensor)) {
      AddReceipt(whole->step_id, 1);
      end_->OnTensors(std::move(tensors));
    }
  }
  PumpIfDue();
  return absl::OkStatus();
}

Status ByteLink::Take(EndFrame frame, int64_t) {
  if (!frame.status.ok()) incoming_.EndStep(frame.step_id);
  end_->OnEnd(std::move(frame));
  return absl::OkStatus();
}

Status ByteLink::Take(CancelFrame frame, int64_t) {
  incoming_.EndStep(frame.step_id);
  end_->OnCancel(frame.step_id, frame.status);
  return absl::OkStatus();
}

Status ByteLink::Take(ReceivedFrame frame, int64_t) {
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(send_credit_.Return(frame.credit_bytes));
  }
  for (const ReceivedFrame::Step& step : frame.steps) {
    end_->OnReceived(step.step_id, step.tensors);
  }
  Pump();  // with the credit
  return absl::OkStatus();
}

Status ByteLink::Take(PingFrame frame, int64_t) {
  PongFrame pong;
  pong.ping_clock_ns = frame.clock_ns;
  pong.clock_ns = absl::ToUnixNanos(options_.clock->Now());
  // An error means that the link is over, which says why.
  QueueMessage(Encoded(pong)).IgnoreError();
  Pump();
  return absl::OkStatus();
}

Status ByteLink::Take(PongFrame, int64_t) { return absl::OkStatus(); }

Status ByteLink::Take(ByeFrame frame, int64_t) {
  std::string name;
  {
    MutexLock lock(&mu_);
    name = Name();
  }
  Lose(Prefixed(absl::StrCat(name, " was closed by the peer"), frame.status), /*by_peer=*/true);
  return absl::OkStatus();
}

// --- The end

void ByteLink::Close(const Status& reason) {
  Dropped dropped;
  bool at_once = false;
  ByeFrame bye;
  bye.status = reason.ok() ? absl::UnavailableError("Link: closed") : reason;
  std::string bytes = Encoded(bye).ToString();
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    at_once = state_ == State::kClosing;
    if (at_once) {
      state_ = State::kClosed;
    } else {
      state_ = State::kClosing;
      lost_ = bye.status;
      since_ = options_.clock->Now();
      DropAll(&dropped);
      queued_message_bytes_ += static_cast<int64_t>(bytes.size());
      messages_.push_back({++last_order_, std::move(bytes)});
    }
  }
  if (at_once) return wire_->Close();
  Pump();
}

void ByteLink::Lose(const Status& status, bool by_peer) {
  Dropped dropped;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    if (lost_.ok()) {
      lost_ = status;
      lost_by_peer_ = by_peer;
    }
    state_ = State::kClosed;
    DropAll(&dropped);
  }
  wire_->Close();
}

void ByteLink::OnClosed(const Status& status, bool by_peer) {
  Dropped dropped;
  Status lost;
  {
    MutexLock lock(&mu_);
    if (lost_.ok()) {
      lost_ = Prefixed(Name(), status);
      lost_by_peer_ = by_peer;
    }
    if (lost_.ok()) lost_ = absl::UnavailableError(absl::StrCat(Name(), " was closed"));
    state_ = State::kClosed;
    DropAll(&dropped);
    messages_.clear();
    queued_message_bytes_ = 0;
    lost = lost_;
    by_peer = lost_by_peer_;
  }
  incoming_.EndAll();
  MR_DCHECK(end_ != nullptr, "a wire is closed once");
  const std::shared_ptr<LinkEnd> end = std::move(end_);
  end->OnLost(lost, by_peer);
}

void ByteLink::Tick() {
  const absl::Time now = options_.clock->Now();
  Status lost;
  bool pings = false;
  {
    MutexLock lock(&mu_);
    const absl::Duration silent = now - since_;
    const absl::Duration waited = send_credit_.Waited(now);
    switch (state_) {
      case State::kOpening:
        if (silent < options_.max_greeting) return;
        lost = absl::UnavailableError(absl::StrCat(Name(), ": HELLO must come within ",
                                                   absl::FormatDuration(options_.max_greeting),
                                                   ", got none"));
        break;
      case State::kOpen:
        if (silent >= options_.max_silence) {
          lost = absl::UnavailableError(absl::StrCat(
              Name(), ": the peer must answer within ", absl::FormatDuration(options_.max_silence),
              ", got no byte for ", absl::FormatDuration(silent)));
        } else if (waited >= options_.max_wait_for_credit) {
          lost = absl::UnavailableError(absl::StrCat(
              Name(), ": the peer must return credit within ",
              absl::FormatDuration(options_.max_wait_for_credit), ", got none for ",
              absl::FormatDuration(waited), " while ", queued_tensor_bytes_, " bytes wait"));
        } else {
          pings = silent >= options_.ping_after && !pinged_;
          pinged_ = pinged_ || pings;
        }
        break;
      case State::kClosing:
        if (silent < options_.max_farewell) return;
        lost = lost_;
        break;
      case State::kClosed:
        return;
    }
  }
  if (!lost.ok()) return Lose(lost, /*by_peer=*/false);
  if (!pings) return;
  PingFrame ping;
  ping.clock_ns = absl::ToUnixNanos(now);
  QueueMessage(Encoded(ping)).IgnoreError();
  Pump();
}

}  // namespace millrace
