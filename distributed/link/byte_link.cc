// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/byte_link.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/buffer.h"
#include "core/dcheck.h"
#include "core/dtype.h"
#include "core/exceptions.h"
#include "core/tensor.h"
#include "net/call_limits.h"

namespace millrace {
namespace {

// Steps in one RECEIVED, whose head holds 3,000.
constexpr size_t kMaxReceipts = 1000;
// Of a TENSORS frame's head without entries.
constexpr uint64_t kTensorsHeadBytes = 64;

// What waits takes this much next to its bytes: a message, a frame of TENSORS, a large tensor.
constexpr int64_t kMessageBytes = 128;
constexpr int64_t kTensorsBytes = 256;
constexpr int64_t kTransferBytes = 512;
// Of one call: what else waits leaves on a thread of the wire.
constexpr int kMaxWrites = 4;
// More between two Ticks does not count. The process was stopped, or the wall clock was set; what
// the peer has sent meanwhile is read before the next Tick.
constexpr absl::Duration kMaxTickGap = absl::Seconds(5);

// Tensors in a pool that one frame has, unless it has one that is larger: their credit comes back
// frame by frame.
constexpr int64_t kFramePooledBytes = int64_t{16} << 20;
// Larger tensors that the receiver copies out of a pool come straight into its memory otherwise.
constexpr int64_t kMaxCopiedBytes = int64_t{1} << 20;
// So much that was let go of the peer's pool does not wait for a message to go with.
constexpr int64_t kReleasedIsDueBytes = int64_t{16} << 20;
// Blocks in one RELEASE, whose head holds 3,000.
constexpr size_t kMaxReleases = 1000;

static_assert(kMinWindowBytes >= 4 * kMaxFrameBytes,
              "credit.h: a frame waits only when more than three quarters are taken or held");

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

std::string LinkName(const ByteLinkOptions& options, const std::string& task) {
  const std::string address = options.address ? options.address(task) : "";
  return address.empty() ? absl::StrCat("Link to ", task)
                         : absl::StrCat("Link to ", task, " at ", address);
}

ByteLink::ByteLink(std::unique_ptr<ByteWire> wire, std::shared_ptr<LinkEnd> end,
                   ByteLinkOptions options)
    : options_(std::move(options)),
      wire_(std::move(wire)),
      end_(std::move(end)),
      reader_(this),
      incoming_(options_.transfers),
      segments_(options_.max_pool_bytes > 0 && wire_->passes_descriptors()
                    ? SharedSegments::Make(options_.max_pool_bytes)
                    : nullptr),
      hello_waits_(options_.waits_for_hello),
      name_(options_.peer_task.empty() ? "Link to a task that has not said HELLO"
                                       : LinkName(options_, options_.peer_task)),
      receive_credit_(options_.window_bytes),
      ticked_at_(options_.clock->Now()) {
  hello_ = Hello(/*takes_offer=*/false);
}

std::string ByteLink::Hello(bool takes_offer) const {
  HelloFrame hello;
  hello.task = options_.task;
  hello.incarnation = options_.incarnation;
  hello.clock_ns = absl::ToUnixNanos(options_.clock->Now());
  hello.window_bytes = options_.window_bytes;
  hello.pool_bytes = segments_ != nullptr ? options_.max_pool_bytes : 0;
  hello.offer = options_.offer;
  hello.takes_offer = takes_offer;
  return Encoded(hello).ToString();
}

std::shared_ptr<ByteLink> ByteLink::Open(std::unique_ptr<ByteWire> wire,
                                         std::shared_ptr<LinkEnd> end, ByteLinkOptions options) {
  std::shared_ptr<ByteLink> link(new ByteLink(std::move(wire), std::move(end), std::move(options)));
  link->wire_->Start(std::shared_ptr<ByteWire::User>(link, link.get()));
  link->Pump();
  return link;
}

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
    PumpUnlessCorked();
    return absl::OkStatus();
  });
}

void ByteLink::PumpUnlessCorked() {
  if (!LinkCork::Holds(this) || queued_bytes() >= kBatchBytes) Pump();
}

Status ByteLink::MayQueue() const {
  if (state_ != State::kClosing && state_ != State::kClosed) return absl::OkStatus();
  return LossOfLink(lost_);
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
  std::list<QueuedMessage> queued;
  queued.push_back({0, bytes.ToString()});
  const int64_t cost = CostOf(queued.front());
  Dropped dropped;
  Status too_much;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(MayQueue());
    if (cost > options_.max_queued_message_bytes - queued_message_bytes_) {
      too_much =
          absl::UnavailableError(absl::StrCat(name_, ": the peer must take messages, got ",
                                              queued_message_bytes_, " bytes of them that wait"));
    } else {
      if (ended_step != nullptr) DropStep(*ended_step, &dropped);
      queued_message_bytes_ += cost;
      queued.front().order = ++last_order_;
      messages_.splice(messages_.end(), queued);
    }
  }
  // Steps would wait for what is not sent.
  if (!too_much.ok()) Lose(too_much, /*by_peer=*/false);
  return too_much;
}

int64_t ByteLink::CostOf(const QueuedMessage& message) {
  return kMessageBytes + static_cast<int64_t>(message.bytes.size());
}

int64_t ByteLink::CostOf(const QueuedTensors& tensors) {
  return kTensorsBytes + tensors.bytes.num_bytes() + tensors.pooled_bytes;
}

int64_t ByteLink::CostOf(const OutgoingTransfer& transfer) {
  return kTransferBytes + transfer.value.num_bytes() - static_cast<int64_t>(transfer.sent);
}

std::shared_ptr<SharedPool> ByteLink::PoolForSending() const {
  if (segments_ == nullptr) return nullptr;
  MutexLock lock(&mu_);
  return pool_;
}

bool ByteLink::IsForPool(const WireTensor& value) {
  const int64_t num_bytes = value.num_bytes();
  const bool is_handed_over = value.form() == WireTensor::Form::kRaw && IsFloating(value.dtype());
  return num_bytes >= kMinPooledBytes && (is_handed_over || num_bytes <= kMaxCopiedBytes);
}

SharedBlock ByteLink::CopyToPool(SharedPool* pool, const WireTensor& value) {
  SharedBlock block = pool->Allocate(value.num_bytes());
  if (!block) return block;
  const absl::string_view bytes = value.bytes();
  std::memcpy(block.data(), bytes.data(), bytes.size());
  if (options_.pools != nullptr) {
    options_.pools->sent_tensors.fetch_add(1, std::memory_order_relaxed);
    options_.pools->sent_bytes.fetch_add(value.num_bytes(), std::memory_order_relaxed);
  }
  return block;
}

// What becomes of a message's tensors: frames and transfers that are not queued yet.
class ByteLink::Outgoing {
 public:
  explicit Outgoing(const SentTensors& message) {
    frame_.step_id = message.step_id;
    frame_.purpose = message.purpose;
    frame_.fingerprint = message.fingerprint;
  }

  // Its bytes are `whole_bytes` of the frame, or `block`.
  Status Add(TensorEntry entry, int64_t whole_bytes, SharedBlock block) {
    const uint64_t entry_bytes = FrameWriter::MaxEntryHeadBytes(entry);
    const int64_t block_bytes = block ? entry.num_bytes : 0;
    const bool is_much = pooled_bytes_ > 0 && block_bytes > kFramePooledBytes - pooled_bytes_;
    if (is_much || head_bytes_ + entry_bytes > kMaxFrameHeadBytes ||
        tensor_bytes_ + whole_bytes > static_cast<int64_t>(kMaxFramePayloadBytes)) {
      MR_RETURN_IF_ERROR(EndFrame());
    }
    head_bytes_ += entry_bytes;
    tensor_bytes_ += whole_bytes;
    pooled_bytes_ += block_bytes;
    if (block) blocks_.push_back(std::move(block));
    frame_.tensors.push_back(std::move(entry));
    return pooled_bytes_ < kFramePooledBytes ? absl::OkStatus() : EndFrame();
  }
  Status AddPooled(TensorEntry entry, SharedBlock block) {
    Tell(&entry);
    entry.segment = block.segment();
    entry.offset = block.offset();
    return Add(std::move(entry), 0, std::move(block));
  }
  Status AddTransfer(TensorEntry entry) {
    OutgoingTransfer& transfer = transfers.emplace_back();
    transfer.step_id = frame_.step_id;
    transfer.value = Tell(&entry);
    // Its number is given when it leaves; the longest one for now.
    entry.transfer = std::numeric_limits<uint64_t>::max();
    TensorsFrame& announced = transfer.announcement;
    announced.step_id = frame_.step_id;
    announced.purpose = frame_.purpose;
    announced.fingerprint = frame_.fingerprint;
    announced.tensors.push_back(std::move(entry));
    cost += CostOf(transfer);
    return Encode(announced).status();
  }
  // What was added is in `frames`.
  Status EndFrame() {
    if (frame_.tensors.empty()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(ByteChain bytes, Encode(frame_));
    QueuedTensors& queued = frames.emplace_back();
    queued.step_id = frame_.step_id;
    queued.purpose = frame_.purpose;
    queued.bytes = std::move(bytes);
    if (!blocks_.empty()) queued.frame = frame_;
    queued.blocks = std::exchange(blocks_, {});
    queued.pooled_bytes = pooled_bytes_;
    cost += CostOf(queued);
    frame_.tensors.clear();
    head_bytes_ = kTensorsHeadBytes;
    tensor_bytes_ = pooled_bytes_ = 0;
    return absl::OkStatus();
  }

  std::list<QueuedTensors> frames;
  std::list<OutgoingTransfer> transfers;
  int64_t cost = 0;  // of both

 private:
  // Of what comes in parts, or lies in a pool: the entry says what its value was.
  static WireTensor Tell(TensorEntry* entry) {
    WireTensor value;
    std::swap(value, entry->value);
    entry->form = value.form();
    entry->dtype = value.dtype();
    entry->shape = value.shape();
    entry->num_bytes = value.num_bytes();
    return value;
  }

  TensorsFrame frame_;
  uint64_t head_bytes_ = kTensorsHeadBytes;
  int64_t tensor_bytes_ = 0, pooled_bytes_ = 0;
  std::vector<SharedBlock> blocks_;
};

Status ByteLink::Queue(const SentTensors& message) {
  Outgoing outgoing(message);
  const std::shared_ptr<SharedPool> pool = PoolForSending();
  std::vector<TensorEntry> for_pool;
  for (const SentTensor& tensor : message.tensors) {
    TensorEntry entry;
    entry.index = tensor.index;
    entry.is_dead = tensor.is_dead;
    entry.in_loop = tensor.in_loop;
    entry.frame_id = tensor.frame_id;
    entry.iteration = tensor.iteration;
    entry.ready_ns = tensor.ready_ns;
    entry.left_ns = tensor.left_ns;
    if (!tensor.is_dead) {
      MR_ASSIGN_OR_RETURN(entry.value, WireTensor::Of(tensor.value));
    }
    const int64_t whole_bytes = entry.value.num_bytes();
    if (pool != nullptr && IsForPool(entry.value)) {
      for_pool.push_back(std::move(entry));
    } else if (whole_bytes > kMaxWholeBytes) {
      MR_RETURN_IF_ERROR(outgoing.AddTransfer(std::move(entry)));
    } else {
      MR_RETURN_IF_ERROR(outgoing.Add(std::move(entry), whole_bytes, SharedBlock()));
    }
  }
  MR_RETURN_IF_ERROR(outgoing.EndFrame());
  // The peer reads what has left while the next is copied. What may be refused leaves as a whole.
  const bool leaves_early = message.purpose == TensorsPurpose::kEdges;
  for (TensorEntry& entry : for_pool) {
    if (leaves_early && !outgoing.frames.empty()) {
      MR_RETURN_IF_ERROR(Queue(message.purpose, &outgoing));
      PumpUnlessCorked();
    }
    SharedBlock block = CopyToPool(pool.get(), entry.value);
    if (block) {
      MR_RETURN_IF_ERROR(outgoing.AddPooled(std::move(entry), std::move(block)));
    } else {
      MR_RETURN_IF_ERROR(outgoing.AddTransfer(std::move(entry)));
    }
  }
  MR_RETURN_IF_ERROR(outgoing.EndFrame());
  return Queue(message.purpose, &outgoing);
}

Status ByteLink::Queue(TensorsPurpose purpose, Outgoing* outgoing) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(MayQueue());
  const int64_t cost = std::exchange(outgoing->cost, 0);
  // Edges are references to what the step has anyway: to refuse them would fail each step of a
  // model that is larger than the bound.
  if (purpose != TensorsPurpose::kEdges && queued_bounded_bytes_ > 0 &&
      cost > options_.max_queued_bytes - queued_bounded_bytes_) {
    return BeyondLimit(name_, "bytes of tensors that the peer has not taken", "max_queued_bytes",
                       options_.max_queued_bytes, queued_bounded_bytes_ + cost);
  }
  for (QueuedTensors& queued : outgoing->frames) queued.order = ++last_order_;
  for (OutgoingTransfer& transfer : outgoing->transfers) transfer.order = ++last_order_;
  tensors_.splice(tensors_.end(), outgoing->frames);
  transfers_.splice(transfers_.end(), outgoing->transfers);
  CountQueued(purpose, cost);
  return absl::OkStatus();
}

void ByteLink::CountQueued(TensorsPurpose purpose, int64_t bytes) {
  queued_tensor_bytes_ += bytes;
  if (purpose != TensorsPurpose::kEdges) queued_bounded_bytes_ += bytes;
}

void ByteLink::DropStep(int64_t step_id, Dropped* dropped) {
  for (auto it = tensors_.begin(); it != tensors_.end();) {
    const auto queued = it++;
    if (queued->step_id != step_id || queued->purpose == TensorsPurpose::kReport) continue;
    CountQueued(queued->purpose, -CostOf(*queued));
    dropped->tensors.splice(dropped->tensors.end(), tensors_, queued);
  }
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    const auto transfer = it++;
    const TensorsPurpose purpose = transfer->announcement.purpose;
    if (transfer->step_id != step_id || purpose == TensorsPurpose::kReport) continue;
    CountQueued(purpose, -CostOf(*transfer));
    dropped->transfers.splice(dropped->transfers.end(), transfers_, transfer);
  }
  if (tensors_.empty() && transfers_.empty()) send_credit_.StopWaiting();
}

void ByteLink::DropAll(Dropped* dropped) {
  dropped->questions.swap(questions_);
  dropped->tensors.swap(tensors_);
  dropped->transfers.swap(transfers_);
  queued_tensor_bytes_ = queued_bounded_bytes_ = 0;
  send_credit_.StopWaiting();
}

void ByteLink::Pump() {
  const Status status = NoExceptions("Link", [this]() -> Status {
    WriteOn();
    return absl::OkStatus();
  });
  // What was taken to be written is gone, for want of memory: nothing may leave after it.
  if (!status.ok()) Lose(status, /*by_peer=*/false);
}

void ByteLink::WriteOn() {
  for (int writes = 0;; ++writes) {
    ByteChain batch;
    {
      MutexLock lock(&mu_);
      if (writing_ || state_ == State::kClosed) return;
      batch = NextBatch();
      if (!batch.empty()) {
        writing_ = true;
        writing_since_ = LinkTime();
      } else if (state_ == State::kClosing) {
        state_ = State::kClosed;  // BYE has left
      } else {
        return;
      }
    }
    if (batch.empty()) return wire_->Close();
    // A sender does not write gigabytes for others: the wire's own threads go on.
    const bool has_left =
        writes < kMaxWrites ? wire_->Write(std::move(batch)) : wire_->WriteLater(std::move(batch));
    if (!has_left) return;  // OnWritten goes on
    MutexLock lock(&mu_);
    writing_ = false;
  }
}

ByteChain ByteLink::NextBatch() {
  ByteChain batch;
  if (!hello_waits_) batch.Append(std::exchange(hello_, std::string()));
  if (state_ == State::kOpening) return batch;
  AddSegments(&batch);
  AddMessages(&batch);
  if (state_ != State::kOpen || (batch.empty() && !flushes_ && !ReceiptsAreDue())) return batch;
  ByteChain result = TakeReceipts();
  result.Append(std::move(batch));
  return result;
}

// Before all tensors that lie in them: a block's segment is told of before anyone has the block.
void ByteLink::AddSegments(ByteChain* batch) {
  if (pool_ == nullptr || state_ != State::kOpen) return;
  for (SharedPool::News& news : pool_->TakeNews()) {
    FrameWriter writer;
    const Status status = writer.Add(SegmentFrame{news.segment, news.bytes}, std::move(news.fd));
    MR_DCHECK(status.ok(), "numbers of segments begin at 1");
    batch->Append(writer.Finish());
  }
}

void ByteLink::AddMessages(ByteChain* batch) {
  const absl::Time now = LinkTime();
  bool has_credit = true, has_chunk = false;
  // The last write brought none. What was sent before the large tensor still leaves before it.
  if (chunk_is_due_ && !transfers_.empty()) {
    const uint64_t order = transfers_.front().order;
    if ((messages_.empty() || order < messages_.front().order) &&
        (tensors_.empty() || order < tensors_.front().order)) {
      has_chunk = has_credit = AddChunk(batch, now);
    }
  }
  while (batch->num_bytes() < kBatchBytes) {
    const bool may_take = has_credit && !tensors_.empty();
    if (may_take && (messages_.empty() || tensors_.front().order < messages_.front().order)) {
      QueuedTensors& next = tensors_.front();
      const int64_t num_bytes = next.bytes.num_bytes();
      if (next.blocks.empty()) {
        has_credit = send_credit_.Take(num_bytes, now);
      } else {
        next.frame.credit_bytes = send_credit_.TakePooled(num_bytes, next.pooled_bytes, now);
        has_credit = next.frame.credit_bytes > 0;
      }
      if (!has_credit) continue;
      CountQueued(next.purpose, -CostOf(next));
      batch->Append(next.blocks.empty() ? std::move(next.bytes) : Encoded(next.frame));
      for (SharedBlock& block : next.blocks) block.Give();
      tensors_.pop_front();
    } else if (!messages_.empty()) {
      AddMessage(batch);
    } else {
      break;
    }
  }
  // They do not wait for all tensors before them: those are overtaken that do not fit in.
  const int64_t most = batch->num_bytes() + kBatchBytes;
  while (!messages_.empty() && batch->num_bytes() < most) AddMessage(batch);
  while (has_credit && batch->num_bytes() < kBatchBytes && !transfers_.empty()) {
    has_credit = AddChunk(batch, now);
    has_chunk = has_chunk || has_credit;
  }
  chunk_is_due_ = !has_chunk && !transfers_.empty();
}

void ByteLink::AddMessage(ByteChain* batch) {
  queued_message_bytes_ -= CostOf(messages_.front());
  batch->Append(messages_.front().bytes);
  messages_.pop_front();
}

bool ByteLink::AddChunk(ByteChain* batch, absl::Time now) {
  OutgoingTransfer& next = transfers_.front();
  const absl::string_view left = next.value.bytes().substr(static_cast<size_t>(next.sent));
  const absl::string_view bytes = left.substr(0, static_cast<size_t>(kMaxFramePayloadBytes));
  FrameWriter writer;
  Status status;
  uint64_t& number = next.announcement.tensors.front().transfer;
  if (next.sent == 0) {
    // Announced by its first chunk: the peer sets memory aside for one large tensor at a time.
    number = last_transfer_ + 1;
    status = writer.Add(next.announcement);
  }
  status.Update(
      writer.Add(ChunkFrame{number, next.sent, bytes.size()}, next.value.buffer(), bytes));
  MR_DCHECK(status.ok(), "a transfer is checked when it is sent, and leaves with its last byte");
  if (!send_credit_.Take(writer.num_bytes(), now)) return false;
  last_transfer_ = number;
  batch->Append(writer.Finish());
  const TensorsPurpose purpose = next.announcement.purpose;
  CountQueued(purpose, -static_cast<int64_t>(bytes.size()));
  next.sent += bytes.size();
  if (bytes.size() == left.size()) {
    CountQueued(purpose, -CostOf(next));
    transfers_.pop_front();
  }
  return true;
}

bool ByteLink::ReceiptsAreDue() const {
  return receive_credit_.IsDue() || owed_steps_.size() >= kMaxReceipts ||
         ReleasedBytes() >= kReleasedIsDueBytes;
}

int64_t ByteLink::ReleasedBytes() const {
  return segments_ == nullptr ? 0 : segments_->released_bytes();
}

ByteChain ByteLink::TakeReceipts() {
  ByteChain result;
  flushes_ = owed_at_tick_ = false;
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
  if (segments_ == nullptr) return result;
  const std::vector<SharedSegments::Block> released = segments_->TakeReleased();
  for (size_t i = 0; i < released.size(); i += kMaxReleases) {
    ReleaseFrame frame;
    for (size_t k = i; k < std::min(i + kMaxReleases, released.size()); ++k) {
      frame.blocks.push_back({released[k].segment, released[k].offset});
    }
    result.Append(Encoded(frame));
  }
  return result;
}

void ByteLink::Flush() {
  {
    MutexLock lock(&mu_);
    flushes_ = receive_credit_.owed() > 0 || !owed_steps_.empty() || ReleasedBytes() > 0;
  }
  Pump();
}

void ByteLink::HoldCredit(int64_t bytes) {
  MutexLock lock(&mu_);
  receive_credit_.Hold(bytes);
}

// At once: the peer may have nothing left, and nothing else may leave.
void ByteLink::LetGoOfCredit(int64_t bytes) {
  {
    MutexLock lock(&mu_);
    receive_credit_.LetGo(bytes);
  }
  Flush();
}

void ByteLink::Acknowledge(int64_t step_id, uint64_t tensors) {
  const Status status = NoExceptions("Link", [&]() -> Status {
    AddReceipt(step_id, tensors);
    return absl::OkStatus();
  });
  if (!status.ok()) return Lose(status, /*by_peer=*/false);
  PumpIfDue();
}

void ByteLink::Ask(absl::AnyInvocable<void()> answered) {
  std::list<Question> question;
  question.push_back({0, std::move(answered)});
  {
    MutexLock lock(&mu_);
    if (!MayQueue().ok()) return;
    // Of PINGs that threads send at once any may leave first: the answer to it is no older.
    question.front().ping = pings_ + 1;
    questions_.splice(questions_.end(), question);
  }
  SendPing();
}

void ByteLink::SendPing() {
  {
    MutexLock lock(&mu_);
    ++pings_;
  }
  PingFrame ping;
  ping.clock_ns = absl::ToUnixNanos(options_.clock->Now());
  // An error means that the link is over, which says why.
  QueueMessage(Encoded(ping)).IgnoreError();
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
    if (state_ == State::kOpen) since_ = LinkTime();
    pinged_ = false;
  }
  const Status status = NoExceptions("Link", [&]() -> Status {
    MR_RETURN_IF_ERROR(read());
    return CheckDescriptor();
  });
  // What comes behind the end of a link is skipped, and need not fit together.
  if (!status.ok()) End(status, /*cuts_farewell=*/false);
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

void ByteLink::OnDescriptor(OwnedFd descriptor) {
  Status status;
  if (is_over()) return;
  if (segments_ == nullptr) {
    status = InvalidArgument("Link: a descriptor must be asked for, got one on a link without ",
                             "pools");
  } else if (!descriptor.open()) {
    status = OfPool(
        absl::UnavailableError("Link: a descriptor of the peer must find room here, got none"));
  } else if (descriptor_.open()) {
    status = InvalidArgument("Link: a descriptor must come with its SEGMENT, got another one ",
                             "before that");
  } else {
    descriptor_ = std::move(descriptor);
  }
  if (!status.ok()) End(status, /*cuts_farewell=*/false);
}

Status ByteLink::CheckDescriptor() const {
  // It has come with the first byte of the frame, so with these bytes the frame has begun.
  if (!descriptor_.open() || reader_.IsWithin(FrameKind::kSegment) || is_over()) {
    return absl::OkStatus();
  }
  return InvalidArgument("Link: a descriptor must come with a SEGMENT, got one without");
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
    return FailedPrecondition(LinkName(options_, options_.peer_task),
                              ": that task must answer, got ", hello.task,
                              "; do all tasks have the same cluster addresses?");
  }
  if (options_.peer_incarnation != 0 && hello.incarnation != options_.peer_incarnation) {
    return absl::AbortedError(absl::StrCat("Link to ", hello.task, ": the task restarted ",
                                           "(incarnation ", options_.peer_incarnation,
                                           " expected, ", hello.incarnation, " found)"));
  }
  if (hello.takes_offer && options_.offer.empty()) {
    return InvalidArgument("Link to ", hello.task,
                           ": HELLO must take an offer that was made, got none");
  }
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(send_credit_.Open(hello.window_bytes));
  }
  const LinkPeer peer = {hello.task, hello.incarnation, hello.takes_offer};
  if (options_.admit) MR_RETURN_IF_ERROR(options_.admit(peer));
  std::string answer;  // empty: HELLO as it was made
  if (options_.waits_for_hello && options_.takes_offer && !hello.offer.empty() &&
      options_.takes_offer(peer, hello.offer)) {
    answer = Hello(/*takes_offer=*/true);
  }
  std::string name = LinkName(options_, hello.task);
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpening) return absl::OkStatus();  // closed meanwhile
    if (!answer.empty()) hello_ = std::move(answer);
    state_ = State::kOpen;
    hello_waits_ = false;
    since_ = LinkTime();
    name_ = std::move(name);
    if (segments_ != nullptr && hello.pool_bytes > 0) {
      SharedPool::Options pool;
      pool.max_bytes = std::min(options_.max_pool_bytes, hello.pool_bytes);
      if (options_.pools != nullptr) pool.budget = options_.pools->budget;
      pool_ = SharedPool::Make(std::move(pool));
    }
  }
  greeted_ = true;
  set_peer(peer);
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
  tensor->ready_ns = entry->ready_ns;
  tensor->left_ns = entry->left_ns;
  if (entry->is_dead) return true;
  StatusOr<Tensor> value = entry->value.TakeTensor(splat_bytes);
  if (!value.ok()) {
    end_->OnRefused(step_id, value.status());
    return false;
  }
  tensor->value = *std::move(value);
  return true;
}

Status ByteLink::OfPool(Status status) {
  if (!status.ok() && options_.on_bad_pool) options_.on_bad_pool();
  return status;
}

Status ByteLink::TakePooled(TensorEntry* entry) {
  if (segments_ == nullptr) {
    return InvalidArgument("Link: a tensor must come in its frame or in parts, got one in a pool ",
                           "on a link without pools");
  }
  if (entry->num_bytes < kMinPooledBytes) {
    // So what blocks take here next to their bytes is bounded.
    return InvalidArgument("Link: a tensor in a pool must have at least ", kMinPooledBytes,
                           " bytes, got ", entry->num_bytes);
  }
  // Also one that is refused must be where it may be, and is released.
  MR_ASSIGN_OR_RETURN(BufferRef block,
                      segments_->Take(entry->segment, entry->offset, entry->num_bytes));
  if (entry->num_bytes > options_.transfers.max_tensor_bytes) {
    return BeyondLimit("Link", "bytes of a tensor", "max_tensor_bytes",
                       options_.transfers.max_tensor_bytes, entry->num_bytes);
  }
  if (entry->form == WireTensor::Form::kRaw && IsFloating(entry->dtype)) {
    entry->value = WireTensor::Over(entry->dtype, entry->shape, std::move(block));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(entry->value,
                      WireTensor::For(entry->form, entry->dtype, entry->shape, entry->num_bytes));
  std::memcpy(entry->value.mutable_bytes().data(), block->data(), block->size());
  return absl::OkStatus();
}

Status ByteLink::Take(TensorsFrame frame, int64_t num_bytes) {
  int64_t pooled_bytes = 0;  // a head has some 5,000 entries of 2^44 bytes: no overflow
  for (const TensorEntry& entry : frame.tensors) {
    if (entry.segment != 0) pooled_bytes += entry.num_bytes;
  }
  if (pooled_bytes == 0) {
    MR_RETURN_IF_ERROR(CountReceived(num_bytes));
  } else {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(receive_credit_.ReceivedPooled(frame.credit_bytes, num_bytes, pooled_bytes));
  }
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
    if (entry.segment != 0) {
      const Status taken = TakePooled(&entry);
      if (absl::IsResourceExhausted(taken)) {
        end_->OnRefused(frame.step_id, taken);
        continue;
      }
      MR_RETURN_IF_ERROR(OfPool(taken));
    }
    SentTensor& tensor = tensors.tensors.emplace_back();
    // A large tensor has what one that comes in parts has.
    int64_t own_splat_bytes = options_.max_splat_bytes;
    int64_t* const splat_left = entry.segment != 0 ? &own_splat_bytes : &splat_bytes;
    if (!TakeTensor(frame.step_id, &entry, splat_left, &tensor)) tensors.tensors.pop_back();
  }
  if (!end_->acknowledges_edges()) AddReceipt(frame.step_id, tensors.tensors.size());
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
      if (!end_->acknowledges_edges()) AddReceipt(whole->step_id, 1);
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

Status ByteLink::Take(PongFrame, int64_t) {
  std::list<Question> answered;
  {
    MutexLock lock(&mu_);
    if (pongs_ < pings_) ++pongs_;
    while (!questions_.empty() && questions_.front().ping <= pongs_) {
      answered.splice(answered.end(), questions_, questions_.begin());
    }
  }
  for (Question& question : answered) question.answered();
  return absl::OkStatus();
}

Status ByteLink::Take(ByeFrame frame, int64_t) {
  std::string name;
  {
    MutexLock lock(&mu_);
    name = name_;
  }
  Lose(Prefixed(absl::StrCat(name, " was closed by the peer"), frame.status), /*by_peer=*/true);
  return absl::OkStatus();
}

Status ByteLink::Take(SegmentFrame frame, int64_t) { return OfPool(AddSegment(frame)); }

Status ByteLink::AddSegment(const SegmentFrame& frame) {
  if (segments_ == nullptr) {
    return InvalidArgument("Link: SEGMENT must be asked for, got one on a link without pools");
  }
  if (frame.num_bytes == 0) return segments_->Remove(frame.segment);
  OwnedFd descriptor = std::move(descriptor_);
  if (!descriptor.open()) {
    return InvalidArgument("Link: SEGMENT must come with a descriptor, got none");
  }
  return segments_->Add(frame.segment, frame.num_bytes, std::move(descriptor));
}

Status ByteLink::Take(ReleaseFrame frame, int64_t) {
  std::shared_ptr<SharedPool> pool;
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpen) return absl::OkStatus();
    pool = pool_;
  }
  if (pool == nullptr) {
    return InvalidArgument("Link: RELEASE must be of a block that was given, got one on a link ",
                           "without pools");
  }
  for (const ReleaseFrame::Block& block : frame.blocks) {
    MR_RETURN_IF_ERROR(pool->Release(block.segment, block.offset));
  }
  Pump();  // segments that are gone: the peer keeps their memory until it hears so
  return absl::OkStatus();
}

// --- The end

void ByteLink::Close(const Status& reason) { End(reason, /*cuts_farewell=*/true); }

void ByteLink::End(const Status& reason, bool cuts_farewell) {
  Dropped dropped;
  bool at_once = false;
  ByeFrame bye;
  bye.status = reason.ok() ? absl::UnavailableError("Link: closed") : reason;
  std::list<QueuedMessage> queued;
  queued.push_back({0, Encoded(bye).ToString()});
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    if (state_ == State::kOpen) {
      // The peer would give back what its steps have sent, and was taken here.
      const ByteChain receipts = TakeReceipts();
      if (!receipts.empty()) queued.push_front({0, receipts.ToString()});
    }
    at_once = state_ == State::kClosing;
    if (at_once) {
      if (!cuts_farewell) return;  // the farewell of the first may still be read
      state_ = State::kClosed;
    } else {
      if (state_ == State::kOpening) {
        // A peer that was not admitted, or has not said who it is, gets BYE alone.
        dropped.messages.swap(messages_);
        queued_message_bytes_ = 0;
      }
      state_ = State::kClosing;
      lost_ = bye.status;
      since_ = LinkTime();
      DropAll(&dropped);
      for (QueuedMessage& message : queued) {
        queued_message_bytes_ += CostOf(message);
        message.order = ++last_order_;
      }
      messages_.splice(messages_.end(), queued);
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
  std::shared_ptr<SharedPool> pool;  // its memory goes without the lock
  Status lost;
  {
    MutexLock lock(&mu_);
    pool.swap(pool_);
    if (lost_.ok()) {
      lost_ = Prefixed(name_, status);
      lost_by_peer_ = by_peer;
    }
    if (lost_.ok()) lost_ = absl::UnavailableError(absl::StrCat(name_, " was closed"));
    state_ = State::kClosed;
    DropAll(&dropped);
    messages_.clear();
    queued_message_bytes_ = 0;
    lost = lost_;
    by_peer = lost_by_peer_;
  }
  incoming_.EndAll();
  descriptor_ = OwnedFd();
  if (segments_ != nullptr) segments_->Close();
  MR_DCHECK(end_ != nullptr, "a wire is closed once");
  const std::shared_ptr<LinkEnd> end = std::move(end_);
  end->OnLost(lost, by_peer);
}

absl::Time ByteLink::LinkTime() const {
  const absl::Duration since_tick = options_.clock->Now() - ticked_at_;
  return link_time_ + std::clamp(since_tick, absl::ZeroDuration(), kMaxTickGap);
}

void ByteLink::Tick() {
  Status lost;
  bool pings = false, owed_is_old = false;
  std::shared_ptr<SharedPool> pool;
  absl::Time now;
  {
    MutexLock lock(&mu_);
    now = link_time_ = LinkTime();
    pool = pool_;
    ticked_at_ = options_.clock->Now();
    const absl::Duration silent = now - since_;
    const absl::Duration unanswered = pinged_ ? now - pinged_at_ : absl::ZeroDuration();
    const absl::Duration writing = writing_ ? now - writing_since_ : absl::ZeroDuration();
    const absl::Duration waited = send_credit_.Waited(now);
    switch (state_) {
      case State::kOpening:
        if (silent < options_.max_greeting) return;
        lost = absl::UnavailableError(absl::StrCat(name_, ": HELLO must come within ",
                                                   absl::FormatDuration(options_.max_greeting),
                                                   ", got none"));
        break;
      case State::kOpen:
        if (pinged_ && unanswered >= options_.max_silence - options_.ping_after) {
          lost = absl::UnavailableError(absl::StrCat(
              name_, ": the peer must answer within ", absl::FormatDuration(options_.max_silence),
              ", got no byte for ", absl::FormatDuration(silent)));
        } else if (writing >= options_.max_wait_for_write) {
          lost = absl::UnavailableError(absl::StrCat(
              name_, ": the peer must take what is written within ",
              absl::FormatDuration(options_.max_wait_for_write), ", got one write that has not ",
              "left after ", absl::FormatDuration(writing), " while ", queued_tensor_bytes_,
              " bytes wait"));
        } else if (waited >= options_.max_wait_for_credit) {
          lost = absl::UnavailableError(absl::StrCat(
              name_, ": the peer must return credit for a frame within ",
              absl::FormatDuration(options_.max_wait_for_credit), ", got too little for ",
              absl::FormatDuration(waited), " while ", queued_tensor_bytes_, " bytes wait"));
        } else {
          pings = silent >= options_.ping_after && !pinged_;
          if (pings) {
            pinged_ = true;
            pinged_at_ = now;
          }
          // Nobody waits for it to leave, but it should not wait for a message that never comes.
          const bool owes = !owed_steps_.empty() || ReleasedBytes() > 0;
          owed_is_old = owed_at_tick_ && owes;
          owed_at_tick_ = owes;
          if (owed_is_old) flushes_ = true;
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
  const bool has_news = pool != nullptr && pool->Trim(now);
  if (pings) return SendPing();
  if (owed_is_old || has_news) Pump();
}

void ByteLink::Ping() {
  {
    MutexLock lock(&mu_);
    if (state_ != State::kOpen || pinged_) return;
    pinged_ = true;
    pinged_at_ = LinkTime();
  }
  SendPing();
}

absl::Duration ByteLink::Unanswered() const {
  MutexLock lock(&mu_);
  return pinged_ ? LinkTime() - pinged_at_ : absl::ZeroDuration();
}

}  // namespace millrace
