// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_FRAME_H_
#define MILLRACE_DISTRIBUTED_LINK_FRAME_H_

// Frames: what two tasks say to each other on a link, as bytes.
//
//   frame    := kind u8, head bytes varint, payload bytes varint, head, payload
//   HELLO    version varint, task text, incarnation fixed64, clock ns fixed64, window varint,
//            pool varint, offer text, takes offer u8, kept varint
//   BIND     number varint, session handle text, graph handle text
//   UNBIND   number varint
//   RUN      step fixed64, number varint, flags u8 (trace, graphs), microseconds left varint,
//            args varint
//   TENSORS  step fixed64, purpose u8, fingerprint fixed64, n varint, n x entry, [credit fixed64]
//            | bytes
//     entry  := index varint, flags varint (dead, loop, proto, parts, narrow, times, pooled, keep,
//            kept), [frame id fixed64, iteration varint], [ready ns fixed64, left ns fixed64],
//            [number varint], [dtype u8, rank u8, dims varint], [transfer varint], [segment varint,
//            offset varint], bytes varint
//   CHUNK    transfer varint, offset varint | bytes
//   END      step fixed64, status, results varint, report u8
//   CANCEL   step fixed64, status
//   RECEIVED credit varint, n varint, n x { step fixed64, tensors varint }
//   PING     clock ns fixed64
//   PONG     clock ns of the PING fixed64, clock ns fixed64
//   BYE      status
//   SEGMENT  segment varint, bytes varint
//   RELEASE  n varint, n x { segment varint, offset varint }
//   FORGET   n varint, n x number varint
//     status := code varint, text, payloads text      text := bytes varint, bytes
//
// What is behind a bar is payload; all else is head. Numbers are little-endian. There are no
// optional fields but those in brackets, which flags announce (an entry has dtype, rank and dims
// when it is neither dead nor a proto, a transfer when it comes in parts, segment and offset when
// its bytes lie in a pool, and no bytes when it is dead; a frame has the credit that it took when
// one of its entries lies in a pool or is kept; narrow bytes are int32 numbers of an int64 tensor;
// a tensor to be kept has a number, and one that is kept has nothing else): what one version does
// not know it refuses, and HELLO says the version first.
//
// No frame has more than kMaxFrameHeadBytes of head and kMaxFramePayloadBytes of payload, so a
// frame that is urgent waits for at most one other. A larger tensor comes in parts: TENSORS
// announces a transfer, CHUNKs bring it. Or it lies in a pool (core/shared_pool.h), where the wire
// passes descriptors: that of a segment comes with the first byte of its SEGMENT.
//
// Threads: a writer or reader belongs to one thread at a time. Failure: see both.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/dtype.h"
#include "core/owned_fd.h"
#include "core/shape.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/wire_tensor.h"

namespace millrace {

// Of this page. Version 1 had no links, version 2 no offers, version 3 no times, reports and pools,
// version 4 nothing that is kept.
inline constexpr uint32_t kLinkVersion = 5;

inline constexpr uint64_t kMaxFrameHeadBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMaxFramePayloadBytes = uint64_t{256} << 10;
// Kind and two varints.
inline constexpr uint64_t kMaxFramePrefixBytes = 1 + 10 + 10;
inline constexpr int64_t kMaxFrameBytes =
    static_cast<int64_t>(kMaxFramePrefixBytes + kMaxFrameHeadBytes + kMaxFramePayloadBytes);
// Names of tasks, handles of sessions and graphs.
inline constexpr uint64_t kMaxFrameNameBytes = 4 << 10;
// Of a second way between the two tasks.
inline constexpr uint64_t kMaxFrameOfferBytes = 256;
// The text of a status; what is longer is cut.
inline constexpr uint64_t kMaxFrameTextBytes = 16 << 10;
// Shorter bytes of tensors are copied next to the head: at 1 KiB a piece of their own costs as much
// (as kMinBytesByReference in net/tensor_coding.h).
inline constexpr int64_t kMinReferredBytes = 1024;

enum class FrameKind : uint8_t {
  kHello = 1,
  kBind = 2,
  kUnbind = 3,
  kRun = 4,
  kTensors = 5,
  kChunk = 6,
  kEnd = 7,
  kCancel = 8,
  kReceived = 9,
  kPing = 10,
  kPong = 11,
  kBye = 12,
  kSegment = 13,
  kRelease = 14,
  kForget = 15,
};
// Bits of the flags of RUN and of an entry, as they travel. A bit that is none of these is refused.
struct RunFlags {
  static constexpr uint8_t kTrace = 1, kGraphs = 2;
};
struct EntryFlags {
  static constexpr uint8_t kDead = 1, kLoop = 2, kProto = 4, kParts = 8, kNarrow = 16, kTimes = 32,
                           kPooled = 64;
  static constexpr uint32_t kKeep = 128, kKept = 256;
};
// "HELLO"; "of no kind" for a number that is none.
absl::string_view FrameKindName(FrameKind kind);

// The first frame of each direction.
struct HelloFrame {
  uint32_t version = kLinkVersion;
  // All that follows is empty when the version is another one.
  std::string task;
  uint64_t incarnation = 0;
  int64_t clock_ns = 0;
  // Bytes of TENSORS and CHUNK frames that may be on their way to the sender of this frame.
  int64_t window_bytes = 0;
  // A second way to the sender of this frame, which carries steps if the peer takes it; empty:
  // none.
  std::string offer = {};
  // Of who was dialled: it has taken the caller's offer.
  bool takes_offer = false;
  // Of segments that the peer may share with the sender of this frame; 0: none, over this wire.
  int64_t pool_bytes = 0;
  // Of tensors that the sender of this frame keeps for the peer (kept_tensors.h); 0: none.
  int64_t kept_bytes = 0;
};

// A number for a registered graph of a session, until UNBIND.
struct BindFrame {
  uint64_t number = 0;
  std::string session_handle;
  std::string graph_handle;
};
struct UnbindFrame {
  uint64_t number = 0;
};

struct RunFrame {
  int64_t step_id = 0;
  uint64_t number = 0;  // of a BIND
  bool wants_trace = false;
  bool wants_graphs = false;
  int64_t timeout_us = 0;  // 0: none
  // So many tensors of purpose kArgs belong to the step. They come after this frame.
  uint64_t num_args = 0;
};

// What the tensors of a step are, and so what their indices count.
enum class TensorsPurpose : uint8_t {
  kEdges = 0,    // of the sorted keys of the pair of tasks
  kArgs = 1,     // of the graph's _Arg nodes
  kResults = 2,  // of its _Retval nodes
  kReport = 3,   // one: DT_UINT8 [n], the serialized RunGraphResponse with costs and graphs
};

struct TensorEntry {
  uint32_t index = 0;
  bool is_dead = false;
  bool in_loop = false;
  uint64_t frame_id = 0;  // with in_loop
  int64_t iteration = 0;  // with in_loop
  // Of a traced step, by the sender's clock: when it was ready and when it left; 0: not told.
  int64_t ready_ns = 0, left_ns = 0;
  // The whole tensor; empty when it is dead, comes in parts or lies in a pool.
  WireTensor value;
  // Not 0: the tensor comes in CHUNKs of this transfer, and this is what will come. The numbers of
  // a direction only grow. Dtype and shape are those of one that is no proto.
  uint64_t transfer = 0;
  // Not 0: the tensor lies in this segment of its sender's pool, `num_bytes` from `offset` on.
  uint64_t segment = 0;
  uint64_t offset = 0;
  WireTensor::Form form = WireTensor::Form::kRaw;
  DType dtype = DT_INVALID;
  Shape shape;
  int64_t num_bytes = 0;
  // Not 0: the receiver keeps the tensor under this number, beyond its step. With is_kept it has no
  // bytes: it is the tensor that was kept under the number. Only edges outside of loops, not dead,
  // no protos, and none that lies in a pool, whose block it would hold.
  uint64_t keep_number = 0;
  bool is_kept = false;
};

struct TensorsFrame {
  int64_t step_id = 0;
  TensorsPurpose purpose = TensorsPurpose::kEdges;
  uint64_t fingerprint = 0;  // of the keys, with kEdges
  std::vector<TensorEntry> tensors;
  // With tensors in a pool, or kept ones: what the frame takes of the window (credit.h). Eight
  // bytes of the head, whatever it is.
  int64_t credit_bytes = 0;
};

struct ChunkFrame {
  uint64_t transfer = 0;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;  // not 0
};

struct EndFrame {
  int64_t step_id = 0;
  Status status;
  // So many tensors of purpose kResults, and one kReport if has_report, belong to the answer. Large
  // ones may come after this frame.
  uint64_t num_results = 0;
  bool has_report = false;
};

struct CancelFrame {
  int64_t step_id = 0;
  Status status;  // not OK
};

struct ReceivedFrame {
  struct Step {
    int64_t step_id = 0;
    uint64_t tensors = 0;
  };
  int64_t credit_bytes = 0;
  std::vector<Step> steps;
};

struct PingFrame {
  int64_t clock_ns = 0;
};
struct PongFrame {
  int64_t ping_clock_ns = 0;
  int64_t clock_ns = 0;
};

// The last frame of a direction.
struct ByeFrame {
  Status status;  // not OK
};

// A segment of the sender's pool that TENSORS will name; or it is gone.
struct SegmentFrame {
  uint64_t segment = 0;   // not 0
  int64_t num_bytes = 0;  // 0: it is gone
};

// Blocks of the peer's pool that the sender does not read any more.
struct ReleaseFrame {
  struct Block {
    uint64_t segment = 0;
    uint64_t offset = 0;
  };
  std::vector<Block> blocks;
};

// Tensors that the peer need not keep any more. What it does not keep is passed over.
struct ForgetFrame {
  std::vector<uint64_t> numbers;
};

using LinkFrame = std::variant<HelloFrame, BindFrame, UnbindFrame, RunFrame, TensorsFrame,
                               ChunkFrame, EndFrame, CancelFrame, ReceivedFrame, PingFrame,
                               PongFrame, ByeFrame, SegmentFrame, ReleaseFrame, ForgetFrame>;

// Gathers frames. What the reader would refuse is not written: InvalidArgument, and the writer is
// as it was.
class FrameWriter {
 public:
  Status Add(const HelloFrame& frame);
  Status Add(const BindFrame& frame);
  Status Add(const UnbindFrame& frame);
  Status Add(const RunFrame& frame);
  // The bytes of tensors that have some KiB are referred to, not copied.
  Status Add(const TensorsFrame& frame);
  // `bytes` lie in `buffer`, which is kept; `frame.num_bytes` are theirs.
  Status Add(const ChunkFrame& frame, const BufferRef& buffer, absl::string_view bytes);
  Status Add(const EndFrame& frame);
  Status Add(const CancelFrame& frame);
  Status Add(const ReceivedFrame& frame);
  Status Add(const PingFrame& frame);
  Status Add(const PongFrame& frame);
  Status Add(const ByeFrame& frame);
  // `fd` leaves with the frame; null when the segment is gone, and in tests.
  Status Add(const SegmentFrame& frame, std::shared_ptr<const OwnedFd> fd = nullptr);
  Status Add(const ReleaseFrame& frame);
  Status Add(const ForgetFrame& frame);

  // An entry takes at most so many bytes of the head; TENSORS without entries takes less than 64.
  static uint64_t MaxEntryHeadBytes(const TensorEntry& entry);

  int64_t num_bytes() const { return chain_.num_bytes(); }
  // All frames so far. The writer is empty afterwards.
  ByteChain Finish();

 private:
  Status Put(FrameKind kind, absl::string_view head, uint64_t payload_bytes = 0,
             std::shared_ptr<const OwnedFd> fd = nullptr);

  ByteChain chain_;
};

// Cuts bytes, which come in any pieces, into frames.
//
// Nothing that comes makes it read past an end, allocate more than a frame's limits, or keep more
// than one frame. The payload of TENSORS goes into the memory of its tensors, that of a CHUNK where
// the owner says: bytes are copied once, or not at all by callers that fill Direct() themselves.
//
// Failure: InvalidArgument "Link: frame RUN must be well formed, got ..." for bytes that are no
// frame; what the owner returns; ResourceExhausted when there is no memory. The first error is for
// good: all later calls return it.
class FrameReader {
 public:
  // Called by Read and Filled, in their thread, in the order of the bytes.
  class Owner {
   public:
    virtual ~Owner() = default;
    // A whole frame, which took `num_bytes` on the wire. An error ends the reading.
    virtual Status OnFrame(LinkFrame frame, int64_t num_bytes) = 0;
    // Where the bytes of this chunk belong: chunk.num_bytes that stay valid until OnFrame got the
    // chunk. Empty: they are of no use and are skipped.
    virtual StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame& chunk) = 0;
  };

  // `owner` outlives the reader.
  explicit FrameReader(Owner* owner) : owner_(owner) {}
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // Takes all of `bytes`.
  Status Read(absl::string_view bytes);
  // Where the next bytes of a payload belong; empty when the next bytes are others. To be filled
  // from its begin, as far as bytes have come, and told by Filled(how many).
  absl::Span<char> Direct();
  Status Filled(size_t num_bytes);

  // A frame of this kind has begun and not ended.
  bool IsWithin(FrameKind kind) const { return state_ != State::kKind && kind_ == kind; }

  // No more bytes come: InvalidArgument in the middle of a frame.
  Status End();

 private:
  enum class State { kKind, kHeadBytes, kPayloadBytes, kHead, kPayload };

  Status ReadOrFail(absl::string_view bytes);
  Status ReadPrefixByte(uint8_t byte);
  Status ReadHead(absl::string_view head);
  Status ReadTensors(absl::string_view head);
  Status ReadChunk(absl::string_view head);
  // Moves on over `n` bytes of the payload, which are in place.
  void Advance(size_t n);
  Status EndFrameIfWhole();
  Status Fail(Status status);
  Status Malformed(absl::string_view what) const;

  Owner* const owner_;
  Status failed_;
  State state_ = State::kKind;
  FrameKind kind_ = FrameKind::kHello;
  uint64_t varint_ = 0;  // of the prefix, so far
  unsigned shift_ = 0;
  uint64_t head_bytes_ = 0, payload_left_ = 0;
  int64_t frame_bytes_ = 0;
  std::string head_;  // so far, when it comes in pieces
  LinkFrame frame_;
  // Where the rest of the payload goes, one after the other; from places_[place_] on. Empty ones
  // are not listed. None with payload left: it is skipped.
  std::vector<absl::Span<char>> places_;
  size_t place_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_FRAME_H_
