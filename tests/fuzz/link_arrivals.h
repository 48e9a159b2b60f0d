// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FUZZ_LINK_ARRIVALS_H_
#define MILLRACE_TESTS_FUZZ_LINK_ARRIVALS_H_

// Arrivals: the oracle of links under a fuzzer. It reads the bytes that a link reads and tells
// which tensors come by them, in order, as long as no frame breaks a rule; behind one that does, it
// tells more than the link gives. So what a link gives is always some of it, and all of it while
// the rules are kept.
//
// It knows frames and the codec of tensors, which have tests of their own, and nothing of credit,
// segments or states.
//
// Thread-compatible. Failure: that of FrameReader.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"

namespace millrace {

// The same index, place in a loop, times, dtype, shape and bytes.
bool IsSame(const SentTensor& a, const SentTensor& b);
bool IsSame(const Tensor& a, const Tensor& b);

class Arrivals : private FrameReader::Owner {
 public:
  // Those of the link's options.
  static constexpr int64_t kMaxTensorBytes = int64_t{256} << 10;
  static constexpr int64_t kMaxPendingBytes = int64_t{512} << 10;
  static constexpr int64_t kMaxTransfers = 4;
  static constexpr int64_t kSplatBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxKeptBytes = int64_t{128} << 10;  // of a link that keeps any

  struct Arrival {
    int64_t step_id = 0;
    TensorsPurpose purpose = TensorsPurpose::kEdges;
    SentTensor tensor;
    bool is_shared = false;  // handed over where it lies
  };
  // A tensor that comes in parts.
  struct Parts {
    int64_t step_id = 0;
    TensorsPurpose purpose = TensorsPurpose::kEdges;
    TensorEntry entry;
    bool is_dropped = false;  // beyond a limit
    uint64_t filled = 0;
    std::string bytes;  // so far; none when it is dropped
  };

  Arrivals() : reader_(this) {}

  Status Read(absl::string_view bytes) { return reader_.Read(bytes); }
  Status End() { return reader_.End(); }

  // Called with each frame, before its tensors are taken. May be null.
  std::function<void(const LinkFrame&, int64_t num_bytes)> on_frame;
  // Where the bytes of a tensor in a pool lie; null: nowhere. May be null.
  std::function<const char*(const TensorEntry&)> region;

  // The caller takes them out.
  std::deque<Arrival> tensors;
  int64_t num_tensors = 0;  // so far
  int64_t num_refused = 0;  // so far; each harms its step only
  std::map<uint64_t, Parts> transfers;
  uint64_t last_transfer = 0;
  std::map<uint64_t, Tensor> kept;  // by number
  uint64_t last_kept = 0;

 private:
  Status OnFrame(LinkFrame frame, int64_t num_bytes) override;
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame& chunk) override;
  void Take(const TensorsFrame& message, TensorEntry* entry);
  void Announce(const TensorsFrame& message, const TensorEntry& entry);
  void Take(const ChunkFrame& chunk);
  void EndStep(int64_t step_id);
  void Push(int64_t step_id, TensorsPurpose purpose, const TensorEntry& entry,
            StatusOr<Tensor> value, bool is_shared);

  FrameReader reader_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_FUZZ_LINK_ARRIVALS_H_
