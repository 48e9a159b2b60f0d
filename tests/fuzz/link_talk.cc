// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/link_talk.h"

#include <cstddef>
#include <fstream>
#include <limits>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/testing/frame_text.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/link/testing/system_state.h"
#include "distributed/link/wire_tensor.h"
#include "gtest/gtest.h"
#include "tests/fuzz/fuzz.h"

namespace millrace {
namespace {

// Of what one saying leads to: some thousand happen when large bytes come in small pieces.
constexpr int64_t kMaxEvents = 1'000'000;
// Inputs between two looks at the system.
constexpr int64_t kLookEach = 64;
constexpr uint64_t kAnySeed = std::numeric_limits<uint64_t>::max();

SimulatedWay::Options WayOf(Mutator* random, bool passes_descriptors) {
  SimulatedWay::Options options;
  options.passes_descriptors = passes_descriptors;
  // Heads are cut, too.
  if (random->Below(4) == 0) options.max_piece_bytes = 64 + random->Below(2000);
  options.longest_delay = absl::Microseconds(100);
  return options;
}

// What a frame takes of a window; 0 for one that takes none, or says that it takes what it may not.
// `kept`: by the reader.
int64_t CreditOfFrame(const LinkFrame& frame, int64_t num_bytes, int64_t window_bytes,
                      const std::map<uint64_t, Tensor>& kept) {
  if (std::holds_alternative<ChunkFrame>(frame)) return num_bytes;
  const auto* const tensors = std::get_if<TensorsFrame>(&frame);
  if (tensors == nullptr) return 0;
  int64_t pooled = 0;
  for (const TensorEntry& entry : tensors->tensors) {
    if (entry.segment != 0) pooled += entry.num_bytes;
    const auto it = entry.is_kept ? kept.find(entry.keep_number) : kept.end();
    if (it != kept.end()) pooled += it->second.TotalBytes();
  }
  if (pooled == 0) return num_bytes;
  const int64_t credit = tensors->credit_bytes;
  const int64_t most = CreditOf(num_bytes, pooled, window_bytes);
  return credit >= num_bytes && credit <= most ? credit : 0;
}

bool IsMessage(const LinkFrame& frame) {
  return std::holds_alternative<BindFrame>(frame) || std::holds_alternative<UnbindFrame>(frame) ||
         std::holds_alternative<RunFrame>(frame) || std::holds_alternative<EndFrame>(frame) ||
         std::holds_alternative<CancelFrame>(frame);
}

// Mappings of memory files in this process.
int NumMappings() {
  std::ifstream maps("/proc/self/maps");
  int num = 0;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, "memfd:")) ++num;
  }
  return num;
}

}  // namespace

// --- FuzzedEnd

void FuzzedEnd::OnOpen(std::shared_ptr<Link> opened) {
  EXPECT_EQ(num_opens, 0);
  EXPECT_EQ(num_losses, 0);
  ++num_opens;
  link = std::move(opened);
  if (on_open) on_open(link.get());
}

void FuzzedEnd::Hear() {
  EXPECT_EQ(num_opens, 1);
  EXPECT_EQ(num_losses, 0);
}

void FuzzedEnd::HearMessage() {
  Hear();
  ++num_messages;
}

void FuzzedEnd::OnCancel(int64_t, const Status& status) {
  EXPECT_FALSE(status.ok());
  HearMessage();
}

void FuzzedEnd::OnRefused(int64_t, const Status& status) {
  Hear();
  EXPECT_FALSE(status.ok());
  ++num_refused;
}

void FuzzedEnd::OnTensors(SentTensors tensors) {
  Hear();
  EXPECT_FALSE(tensors.tensors.empty());
  for (const SentTensor& tensor : tensors.tensors) {
    ++num_tensors;
    ExpectSaid(tensors, tensor);
    if (on_tensor) on_tensor(tensor);
  }
}

void FuzzedEnd::OnLost(const Status& status, bool peer) {
  EXPECT_EQ(num_losses, 0);
  EXPECT_FALSE(status.ok());
  ++num_losses;
  lost = status;
  by_peer = peer;
}

// What was said before it and did not come was refused: tests compare the counts.
void FuzzedEnd::ExpectSaid(const SentTensors& message, const SentTensor& got) {
  while (!said_->tensors.empty()) {
    const Arrivals::Arrival next = std::move(said_->tensors.front());
    said_->tensors.pop_front();
    if (next.step_id != message.step_id || next.purpose != message.purpose ||
        !IsSame(got, next.tensor)) {
      continue;
    }
    const BufferRef buffer = got.value.has_value() ? got.value.buffer() : BufferRef();
    EXPECT_EQ(buffer && buffer->is_read_only(), next.is_shared);
    return;
  }
  ADD_FAILURE() << "tensor " << got.index << " of step " << message.step_id
                << " must have been said, with these bytes";
}

// --- FuzzingPeer

FuzzingPeer::FuzzingPeer() {
  heard.on_frame = [this](const LinkFrame& frame, int64_t num_bytes) { Hear(frame, num_bytes); };
}

void FuzzingPeer::OnBytes(absl::string_view bytes) { EXPECT_OK(heard.Read(bytes)); }

void FuzzingPeer::OnFilled(size_t) { ADD_FAILURE() << "there is no place"; }

void FuzzingPeer::OnDescriptor(OwnedFd came) {
  EXPECT_TRUE(came.open());
  EXPECT_FALSE(descriptor.open());
  descriptor = std::move(came);
}

void FuzzingPeer::Hear(const LinkFrame& frame, int64_t num_bytes) {
  EXPECT_OK(bye) << "nothing comes behind BYE";
  const bool greets = std::holds_alternative<HelloFrame>(frame);
  if (const auto* const farewell = std::get_if<ByeFrame>(&frame)) {
    bye = farewell->status;  // alone, when the peer was refused
  } else {
    EXPECT_EQ(greets, num_frames == 0) << FrameText(frame);
  }
  ++num_frames;
  if (greets) ++num_hellos;
  if (std::holds_alternative<PongFrame>(frame)) ++num_pongs;
  if (on_frame) on_frame(frame, num_bytes);
  if (std::holds_alternative<SegmentFrame>(frame)) descriptor.Close();
}

// --- LinkTalk

LinkTalk::LinkTalk(Mutator* random, bool has_pools)
    : random_(random),
      pair_(random_->Below(kAnySeed), WayOf(random_, has_pools)),
      wire_(pair_.way->TakeWire(1)) {
  options.window_bytes = kWindowBytes;
  options.max_splat_bytes = Arrivals::kSplatBytes;
  options.max_pool_bytes = has_pools ? kPoolBytes : 0;
  options.pools = pools;
  options.transfers.max_tensor_bytes = Arrivals::kMaxTensorBytes;
  options.transfers.max_transfers = Arrivals::kMaxTransfers;
  options.transfers.pending = pending_;
  said.on_frame = [this](const LinkFrame& frame, int64_t num_bytes) { NoteSaid(frame, num_bytes); };
  peer->on_frame = [this](const LinkFrame& frame, int64_t num_bytes) {
    NoteHeard(frame, num_bytes);
  };
}

LinkTalk::~LinkTalk() {
  wire_->Close();
  if (link != nullptr) link->Close(absl::AbortedError("the test is over"));
  Run();
  end->link.reset();
}

std::string LinkTalk::Mutated(const std::string& bytes) {
  return Mutator(random_->Below(kAnySeed), {bytes}).Next();
}

HelloFrame LinkTalk::PsHello() {
  HelloFrame hello;
  hello.task = kPs;
  hello.incarnation = 42;
  hello.window_bytes = kWindowBytes;
  return hello;
}

void LinkTalk::Open() {
  link = pair_.links[0] = ByteLink::Open(pair_.way->TakeWire(0), end, options);
  wire_->Start(peer);
  Run();
}

void LinkTalk::Open(const HelloFrame& hello) {
  Open();
  Say(FrameBytes(hello));
  EXPECT_EQ(end->num_opens, 1) << end->lost;
}

void LinkTalk::Say(const std::string& bytes, std::shared_ptr<const OwnedFd> fd) {
  said.Read(bytes).IgnoreError();  // the link says it, too
  ByteChain chain;
  if (fd != nullptr) {
    chain.AppendWithDescriptor(bytes, std::move(fd));
  } else {
    chain.Append(bytes);
  }
  wire_->Write(std::move(chain));
  Run();
}

void LinkTalk::Run() { EXPECT_TRUE(pair_.time.Run(kMaxEvents)) << "the link goes round"; }

void LinkTalk::PassSeconds(int64_t seconds) {
  pair_.time.clock()->Advance(absl::Seconds(seconds));
  link->Tick();
  Run();
}

void LinkTalk::NoteSaid(const LinkFrame& frame, int64_t num_bytes) {
  if (const auto* const hello = std::get_if<HelloFrame>(&frame)) {
    if (peer_window_ == 0) peer_window_ = hello->window_bytes;
  } else if (const auto* const received = std::get_if<ReceivedFrame>(&frame)) {
    if (received->credit_bytes <= taken_) taken_ -= received->credit_bytes;
  }
  said_bytes_ += CreditOfFrame(frame, num_bytes, kWindowBytes, said.kept);
  if (std::holds_alternative<PingFrame>(frame)) ++num_pings;
  if (IsMessage(frame)) ++num_messages;
  if (on_said) on_said(frame);
}

void LinkTalk::NoteHeard(const LinkFrame& frame, int64_t num_bytes) {
  if (const auto* const received = std::get_if<ReceivedFrame>(&frame)) {
    EXPECT_LE(received->credit_bytes, said_bytes_);
    said_bytes_ -= received->credit_bytes;
  }
  const int64_t credit = CreditOfFrame(frame, num_bytes, peer_window_, peer->heard.kept);
  EXPECT_EQ(credit > 0, std::holds_alternative<ChunkFrame>(frame) ||
                            std::holds_alternative<TensorsFrame>(frame));
  taken_ += credit;
  EXPECT_LE(taken_, peer_window_);
  if (on_heard) on_heard(frame);
}

void LinkTalk::ExpectAllTaken() const {
  EXPECT_FALSE(is_lost()) << end->lost;
  EXPECT_EQ(end->num_tensors, said.num_tensors);
  EXPECT_EQ(end->num_refused, said.num_refused);
  EXPECT_EQ(end->num_messages, num_messages);
  EXPECT_EQ(peer->num_pongs, num_pings);
}

void LinkTalk::Finish() {
  if (is_lost()) {
    if (!end->by_peer) {
      EXPECT_EQ(peer->bye.code(), end->lost.code()) << end->lost;
    }
    EXPECT_OK(peer->heard.End());
  } else {
    End();
  }
  wire_->Close();
  Run();
  EXPECT_EQ(end->num_losses, 1);
  EXPECT_EQ(link->queued_bytes(), 0);
  EXPECT_EQ(pools->budget->left(), 2 * kPoolBytes);
  EXPECT_EQ(pools->block_bytes->load(), 0);
  EXPECT_EQ(pending_->left(), Arrivals::kMaxPendingBytes);
  const std::weak_ptr<ByteLink> gone = link;
  link.reset();
  pair_.links[0].reset();
  end->link.reset();
  EXPECT_TRUE(gone.expired());
}

void LinkTalk::End() {
  switch (Below(3)) {
    case 0:  // the peer's process ends
      wire_->Close();
      Run();
      EXPECT_TRUE(end->by_peer) << end->lost;
      return;
    case 1:  // as by its owner
      link->Close(absl::AbortedError("enough"));
      Run();
      EXPECT_EQ(peer->bye.code(), absl::StatusCode::kAborted) << peer->bye;
      EXPECT_OK(peer->heard.End());
      return;
    default:  // HELLO has 10 s, and a peer that says nothing 30
      for (int i = 0; i < 20 && !is_lost(); ++i) PassSeconds(2);
      EXPECT_EQ(end->lost.code(), absl::StatusCode::kUnavailable) << end->lost;
  }
}

// --- What tests say

Tensor FloatsOf(int64_t elements, float value) {
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, Shape{elements});
  for (float& element : tensor.mutable_flat<float>()) element = value;
  return tensor;
}

SentTensors MessageOf(int64_t step_id, std::vector<Tensor> values, uint32_t first_index) {
  SentTensors message;
  message.step_id = step_id;
  for (Tensor& value : values) {
    SentTensor& tensor = message.tensors.emplace_back();
    tensor.index = first_index++;
    tensor.value = std::move(value);
  }
  return message;
}

TensorEntry WholeEntry(uint32_t index, const Tensor& tensor) {
  TensorEntry entry;
  entry.index = index;
  const StatusOr<WireTensor> value = WireTensor::Of(tensor);
  EXPECT_OK(value);
  if (value.ok()) entry.value = *value;
  return entry;
}

void FuzzTalks(
    int n, std::vector<std::string> corpus,
    const std::function<void(int64_t number, const std::string& mutated, Mutator* random)>& talk) {
  const int num_fds = NumFds(), num_mappings = NumMappings();
  const auto look = [&] {
    EXPECT_EQ(NumFds(), num_fds);
    EXPECT_EQ(NumMappings(), num_mappings);
  };
  int64_t number = 0;
  Fuzz(n, std::move(corpus), [&](const std::string& mutated, Mutator* random) {
    if (::testing::Test::HasFailure()) return;
    SCOPED_TRACE(absl::StrCat("input ", number));
    talk(number, mutated, random);
    if (++number % kLookEach == 0) look();
  });
  look();
}

}  // namespace millrace
