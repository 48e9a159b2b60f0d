// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FUZZ_POOL_PEERS_H_
#define MILLRACE_TESTS_FUZZ_POOL_PEERS_H_

// Peers of a link that has pools (link_talk.h), for each direction of shared memory:
//
//   PoolOwner   shares memory files and says tensors that lie in them; the link reads them
//   PoolReader  lets the link send, reads what it shares, and gives blocks and credit back
//
// Each says what the rules allow, in bytes that may be mutated, or one thing that they do not
// allow. What it knows of segments, blocks and credit comes from the frames that were said and
// heard, so it is right for mutated bytes, too.
//
// Threads: one. Lifetime: what they are made of outlives them. Failure: fails the test.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/owned_fd.h"
#include "core/shared_segments.h"
#include "core/tensor.h"
#include "distributed/link/frame.h"
#include "tests/fuzz/link_talk.h"
#include "tests/fuzz/mutator.h"

namespace millrace {

// A memory file that a fuzzer shares.
class SealedFile {
 public:
  // As a pool seals its own: all but what its owner writes.
  static const int kPoolSeals;

  SealedFile(int64_t bytes, int seals);
  ~SealedFile();
  SealedFile(const SealedFile&) = delete;
  SealedFile& operator=(const SealedFile&) = delete;

  const std::shared_ptr<const OwnedFd>& fd() const { return fd_; }
  int64_t bytes() const { return bytes_; }
  const char* data() const { return data_ != nullptr ? data_ : zeros_.data(); }
  // Null for one that is sealed against its owner, too.
  char* mutable_data() const { return data_; }

 private:
  const std::shared_ptr<const OwnedFd> fd_;
  const int64_t bytes_;
  char* data_ = nullptr;
  std::string zeros_;  // what is in a file that is not mapped here
};

// Made once: each link maps them again.
struct SharedFiles {
  SharedFiles();

  std::vector<std::unique_ptr<SealedFile>> right;  // as large as the pool together
  std::vector<std::unique_ptr<SealedFile>> badly_sealed;
  const SealedFile too_large{LinkTalk::kPoolBytes + 4096, SealedFile::kPoolSeals};
  const SealedFile empty{0, SealedFile::kPoolSeals};
  std::vector<std::shared_ptr<const OwnedFd>> others;  // of no memory
};

class PoolOwner {
 public:
  static constexpr uint64_t kWrongs = 24;

  PoolOwner(const SharedFiles* files, Mutator* random);

  LinkTalk& talk() { return talk_; }
  void SayRight(bool is_mutated);
  // `which`: below kWrongs.
  void SayWrong(uint64_t which);
  // Nothing but what is right was said.
  void ExpectAllTaken();
  void Finish();

 private:
  struct Segment {
    const SealedFile* file = nullptr;
    std::map<uint64_t, int64_t> blocks;  // that were not released: their bytes, by offset
  };

  void Say(const std::string& bytes, bool is_mutated = false,
           std::shared_ptr<const OwnedFd> fd = nullptr);
  void SayFile(const std::string& bytes, const SealedFile& file, bool is_mutated = false);
  void SayNewSegment(bool is_mutated);
  void SayGone(bool is_mutated);
  void SayTensors(bool is_mutated);
  // One tensor, with as little credit as there must be.
  void SayFloats(uint64_t segment, uint64_t offset, int64_t num_bytes, int64_t more_credit = 0,
                 std::shared_ptr<const OwnedFd> fd = nullptr);
  // A tensor of any kind in a free place, where it is written; perhaps none.
  void AddPooled(TensorsFrame* frame);
  // Dtype, shape and size. What its bytes must be; empty: any will do.
  std::string Describe(TensorEntry* entry);
  bool IsFree(const TensorEntry& entry, const TensorsFrame& frame) const;
  void Fill(const TensorEntry& entry, const std::string& proto, const SealedFile& file);
  void NoteSaid(const LinkFrame& frame);
  void NoteHeard(const LinkFrame& frame);
  const char* Region(const TensorEntry& entry) const;

  const SharedFiles& files_;
  std::map<uint64_t, Segment> segments_;
  uint64_t last_segment_ = 0;
  const SealedFile* coming_ = nullptr;  // it was sent, and its SEGMENT was not whole
  uint32_t next_index_ = 0;
  std::vector<Tensor> kept_;  // by the task behind the link
  LinkTalk talk_;             // goes first
};

class PoolReader {
 public:
  static constexpr uint64_t kWrongs = 9;

  explicit PoolReader(Mutator* random);

  LinkTalk& talk() { return talk_; }
  void SayRight(bool is_mutated);
  void SayWrong(uint64_t which);
  void ExpectAllTaken();
  void Finish();

  int64_t num_pooled = 0;  // read in shared memory

 private:
  using BlockPlace = std::pair<uint64_t, uint64_t>;  // segment and offset

  // The link does.
  void Send();
  Tensor Draw();
  void Cancel();
  ReleaseFrame::Block Unknown();
  void Say(const LinkFrame& frame, bool is_mutated = false);
  void SayReleased(bool all, bool is_mutated);
  void NoteSaid(const LinkFrame& frame);
  void NoteHeard(const LinkFrame& frame);
  const char* Region(const TensorEntry& entry);
  // What has come is what was sent.
  void Compare();

  const std::shared_ptr<SharedSegments> segments_;
  std::map<BlockPlace, BufferRef> blocks_;  // that were given, and not released
  struct Sent {
    int64_t step_id = 0;
    Tensor value;
  };
  std::map<uint32_t, Sent> sent_;  // and did not come
  uint32_t next_index_ = 0;
  LinkTalk talk_;  // goes first
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_FUZZ_POOL_PEERS_H_
