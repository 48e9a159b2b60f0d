// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/byte_link.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/tensor.h"
#include "net/call_limits.h"

namespace millrace {
namespace {

// Of one call: what else waits leaves on a thread of the wire.
constexpr int kMaxWrites = 4;
// More between two Ticks does not count. The process was stopped, or the wall clock was set; what
// the peer has sent meanwhile is read before the next Tick.
constexpr absl::Duration kMaxTickGap = absl::Seconds(5);

// PINGs that are marks behind parts of large tensors have such numbers where others have the time,
// which is far from there; their PONGs bring it back.
constexpr int64_t kFirstMark = std::numeric_limits<int64_t>::min();
constexpr int64_t kLastMark = kFirstMark + (int64_t{1} << 60);

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
      peer_pool_(segments_, options_.transfers.max_tensor_bytes, options_.on_bad_pool),
      kept_for_peer_(options_.max_kept_bytes, options_.kept_counts),
      kept_(std::make_shared<KeptByPeer>(options_.kept_counts)),
      hello_waits_(options_.waits_for_hello),
      name_(options_.peer_task.empty() ? "Link to a task that has not said HELLO"
                                       : LinkName(options_, options_.peer_task)),
      queue_(wire_->takes_megabytes()),
      receipts_(options_.window_bytes, segments_, kept_),
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
  hello.kept_bytes = kept_for_peer_.max_bytes();
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
  return queue_.message_bytes() + queue_.tensor_bytes();
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
  if (!LinkCork::Holds(this) || queued_bytes() >= SendQueue::kBatchBytes) Pump();
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
  std::list<SendQueue::Message> queued;
  queued.emplace_back().bytes = bytes.ToString();
  const int64_t cost = queued.front().cost();
  Dropped dropped;
  Status too_much;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(MayQueue());
    if (cost > options_.max_queued_message_bytes - queue_.message_bytes()) {
      too_much =
          absl::UnavailableError(absl::StrCat(name_, ": the peer must take messages, got ",
                                              queue_.message_bytes(), " bytes of them that wait"));
    } else {
      if (ended_step != nullptr) queue_.DropStep(*ended_step, &dropped.queued);
      queue_.Add(&queued);
    }
  }
  // Steps would wait for what is not sent.
  if (!too_much.ok()) Lose(too_much, /*by_peer=*/false);
  return too_much;
}

std::shared_ptr<SharedPool> ByteLink::PoolForSending() const {
  if (segments_ == nullptr) return nullptr;
  MutexLock lock(&mu_);
  return pool_;
}

Status ByteLink::Queue(const SentTensors& message) {
  const std::shared_ptr<SharedPool> pool = PoolForSending();
  OutgoingTensors outgoing(message, pool.get(), options_.pools.get());
  for (;;) {
    MR_RETURN_IF_ERROR(outgoing.Next());
    MR_RETURN_IF_ERROR(Queue(&outgoing));
    if (outgoing.is_done()) return absl::OkStatus();
    PumpUnlessCorked();
  }
}

Status ByteLink::Queue(OutgoingTensors* outgoing) {
  int64_t cost = 0;
  for (const OutgoingFrame& frame : outgoing->frames) cost += frame.cost();
  for (const OutgoingTransfer& transfer : outgoing->transfers) cost += transfer.cost();
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(MayQueue());
  // Edges are references to what the step has anyway: to refuse them would fail each step of a
  // model that is larger than the bound.
  const int64_t queued = queue_.bounded_bytes();
  if (outgoing->purpose() != TensorsPurpose::kEdges && queued > 0 &&
      cost > options_.max_queued_bytes - queued) {
    return BeyondLimit(name_, "bytes of tensors that the peer has not taken", "max_queued_bytes",
                       options_.max_queued_bytes, queued + cost);
  }
  queue_.Add(outgoing, cost);
  return absl::OkStatus();
}

void ByteLink::DropAll(Dropped* dropped) {
  dropped->questions.swap(questions_);
  queue_.DropTensors(&dropped->queued);
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
  const absl::Time now = LinkTime();
  queue_.Fill(now, &batch);
  if (queue_.NeedsMark()) {
    PingFrame mark;
    mark.clock_ns = kFirstMark + queue_.Mark(now);
    batch.Append(Encoded(mark));
  }
  if (state_ != State::kOpen || (batch.empty() && !receipts_.IsDue())) return batch;
  ByteChain result = receipts_.Take();
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

void ByteLink::Flush() {
  {
    MutexLock lock(&mu_);
    receipts_.Flush();
  }
  Pump();
}

void ByteLink::HoldCredit(int64_t bytes) {
  MutexLock lock(&mu_);
  receipts_.HoldCredit(bytes);
}

// At once: the peer may have nothing left, and nothing else may leave.
void ByteLink::LetGoOfCredit(int64_t bytes) {
  {
    MutexLock lock(&mu_);
    receipts_.LetGoOfCredit(bytes);
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
    return peer_pool_.CheckDescriptor(reader_);
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
  if (is_over()) return;
  const Status status = peer_pool_.OnDescriptor(std::move(descriptor));
  if (!status.ok()) End(status, /*cuts_farewell=*/false);
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
    MR_RETURN_IF_ERROR(queue_.OpenCredit(hello.window_bytes));
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
      if (options_.pools != nullptr) {
        pool.budget = options_.pools->budget;
        pool.block_bytes = options_.pools->block_bytes;
      }
      pool_ = SharedPool::Make(std::move(pool));
    }
  }
  greeted_ = true;
  set_peer(peer);
  if (const int64_t most = std::min(options_.max_kept_bytes, hello.kept_bytes); most > 0) {
    kept_->Open(most);
    set_kept_by_peer(kept_);
  }
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
  return receipts_.Received(num_bytes);
}

void ByteLink::AddReceipt(int64_t step_id, uint64_t tensors) {
  MutexLock lock(&mu_);
  receipts_.Add(step_id, tensors);
}

void ByteLink::PumpIfDue() {
  {
    MutexLock lock(&mu_);
    if (!receipts_.IsDue()) return;
  }
  Pump();
}

StatusOr<bool> ByteLink::TakeTensor(int64_t step_id, TensorEntry* entry, int64_t* splat_bytes,
                                    SentTensor* tensor) {
  tensor->index = entry->index;
  tensor->is_dead = entry->is_dead;
  tensor->in_loop = entry->in_loop;
  tensor->frame_id = entry->frame_id;
  tensor->iteration = entry->iteration;
  tensor->ready_ns = entry->ready_ns;
  tensor->left_ns = entry->left_ns;
  if (entry->is_dead) return true;
  tensor->is_kept = entry->is_kept;
  if (entry->is_kept) {
    MR_ASSIGN_OR_RETURN(tensor->value, kept_for_peer_.Find(entry->keep_number));
    return true;
  }
  StatusOr<Tensor> value = entry->value.TakeTensor(splat_bytes);
  if (!value.ok()) {
    end_->OnRefused(step_id, value.status());
    return false;
  }
  tensor->value = *std::move(value);
  // Before its step hears of it: once the step has acknowledged it, the peer may name it.
  if (entry->keep_number != 0) {
    MR_RETURN_IF_ERROR(kept_for_peer_.Keep(entry->keep_number, tensor->value));
  }
  return true;
}

Status ByteLink::Take(TensorsFrame frame, int64_t num_bytes) {
  // Of what does not come with the frame. A head has some 5,000 entries of 2^44 bytes: no overflow.
  int64_t pooled_bytes = 0;
  std::vector<uint64_t> kept_numbers;
  for (const TensorEntry& entry : frame.tensors) {
    if (entry.segment != 0) pooled_bytes += entry.num_bytes;
    if (!entry.is_kept) continue;
    MR_ASSIGN_OR_RETURN(const Tensor kept, kept_for_peer_.Find(entry.keep_number));
    pooled_bytes += kept.TotalBytes();
    kept_numbers.push_back(entry.keep_number);
  }
  // A number is of one edge, and a step counts what is kept again: so a small message cannot name
  // more than the link may keep.
  std::sort(kept_numbers.begin(), kept_numbers.end());
  if (const auto twice = std::adjacent_find(kept_numbers.begin(), kept_numbers.end());
      twice != kept_numbers.end()) {
    return InvalidArgument("Link: a message must name a kept tensor once, got number ", *twice,
                           " twice");
  }
  if (pooled_bytes == 0) {
    MR_RETURN_IF_ERROR(CountReceived(num_bytes));
  } else {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(receipts_.ReceivedPooled(frame.credit_bytes, num_bytes, pooled_bytes));
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
      const Status taken = peer_pool_.TakeValue(&entry);
      if (absl::IsResourceExhausted(taken)) {
        end_->OnRefused(frame.step_id, taken);
        continue;
      }
      MR_RETURN_IF_ERROR(taken);
    }
    SentTensor& tensor = tensors.tensors.emplace_back();
    // A large tensor has what one that comes in parts has.
    int64_t own_splat_bytes = options_.max_splat_bytes;
    int64_t* const splat_left = entry.segment != 0 ? &own_splat_bytes : &splat_bytes;
    MR_ASSIGN_OR_RETURN(const bool is_taken,
                        TakeTensor(frame.step_id, &entry, splat_left, &tensor));
    if (!is_taken) tensors.tensors.pop_back();
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
    MR_ASSIGN_OR_RETURN(const bool is_taken,
                        TakeTensor(whole->step_id, &whole->entry, &splat_bytes, &tensor));
    if (is_taken) {
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
    MR_RETURN_IF_ERROR(queue_.ReturnCredit(frame.credit_bytes));
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

Status ByteLink::Take(PongFrame frame, int64_t) {
  std::list<Question> answered;
  const bool is_mark = frame.ping_clock_ns >= kFirstMark && frame.ping_clock_ns < kLastMark;
  if (is_mark) {
    {
      MutexLock lock(&mu_);
      queue_.Arrived(frame.ping_clock_ns - kFirstMark, LinkTime());
    }
    Pump();
    return absl::OkStatus();
  }
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

Status ByteLink::Take(SegmentFrame frame, int64_t) { return peer_pool_.OnSegment(frame); }

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

Status ByteLink::Take(ForgetFrame frame, int64_t) {
  for (const uint64_t number : frame.numbers) kept_for_peer_.Forget(number);
  return absl::OkStatus();
}

// --- The end

void ByteLink::Close(const Status& reason) { End(reason, /*cuts_farewell=*/true); }

void ByteLink::End(const Status& reason, bool cuts_farewell) {
  Dropped dropped;
  bool at_once = false;
  ByeFrame bye;
  bye.status = reason.ok() ? absl::UnavailableError("Link: closed") : reason;
  std::list<SendQueue::Message> queued;
  queued.emplace_back().bytes = Encoded(bye).ToString();
  {
    MutexLock lock(&mu_);
    if (state_ == State::kClosed) return;
    if (state_ == State::kOpen) {
      // The peer would give back what its steps have sent, and was taken here.
      const ByteChain receipts = receipts_.Take();
      if (!receipts.empty()) queued.emplace_front().bytes = receipts.ToString();
    }
    at_once = state_ == State::kClosing;
    if (at_once) {
      if (!cuts_farewell) return;  // the farewell of the first may still be read
      state_ = State::kClosed;
    } else {
      if (state_ == State::kOpening) {
        // A peer that was not admitted, or has not said who it is, gets BYE alone.
        queue_.DropMessages(&dropped.queued);
      }
      state_ = State::kClosing;
      lost_ = bye.status;
      since_ = LinkTime();
      DropAll(&dropped);
      queue_.Add(&queued);
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
    queue_.DropMessages(&dropped.queued);
    lost = lost_;
    by_peer = lost_by_peer_;
  }
  incoming_.EndAll();
  peer_pool_.Close();
  kept_for_peer_.Clear();
  kept_->Close();
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
    const absl::Duration waited = queue_.WaitedForCredit(now);
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
              "left after ", absl::FormatDuration(writing), " while ", queue_.tensor_bytes(),
              " bytes wait"));
        } else if (waited >= options_.max_wait_for_credit) {
          lost = absl::UnavailableError(absl::StrCat(
              name_, ": the peer must read on and return credit for a frame within ",
              absl::FormatDuration(options_.max_wait_for_credit), ", got too little for ",
              absl::FormatDuration(waited), " while ", queue_.tensor_bytes(), " bytes wait"));
        } else {
          pings = silent >= options_.ping_after && !pinged_;
          if (pings) {
            pinged_ = true;
            pinged_at_ = now;
          }
          owed_is_old = receipts_.Tick();
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
  kept_->Age();
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
