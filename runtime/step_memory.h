// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_STEP_MEMORY_H_
#define MILLRACE_RUNTIME_STEP_MEMORY_H_

// StepMemory: counts the memory that the kernels of one step take, and stops the step at a limit.
//
// Counted is what kernels allocate as outputs and scratch memory, until the last tensor that uses
// it is gone, on whichever thread that is; each block is booked to the node that asked for it.
// Memory that outlives the step (a fetched tensor, a variable's new value) stays booked, to no
// harm: the object lives until the last of its blocks is freed.
//
// A step that is neither limited nor watched has none (StepContext::memory is null) and pays
// nothing.
//
// Thread-safety: all methods, from any thread.
// Failure: ResourceExhausted that names the largest holders.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

class StepMemory final : private Allocator, public std::enable_shared_from_this<StepMemory> {
 public:
  // `limit_bytes` 0: no limit. Blocks come from `allocator`, which outlives them.
  static std::shared_ptr<StepMemory> Make(int64_t limit_bytes,
                                          Allocator* allocator = DefaultAllocator());

  // A fresh tensor, booked to `node`. ResourceExhausted "step memory must be at most L bytes, got U
  // in use and R more; held by 'a' (A bytes), ...", or as Tensor::Allocate.
  StatusOr<Tensor> Allocate(DType dtype, const Shape& shape, const std::string& node);

  // Is this the error of the limit?
  static bool IsOverLimit(const Status& status);

  int64_t bytes_in_use() const;
  int64_t peak_bytes() const;
  int64_t total_bytes() const;  // all that was ever taken

  struct Holder {
    std::string node;
    int64_t bytes;
  };
  // Of what is in use now; the largest first, at most `count`.
  std::vector<Holder> LargestHolders(size_t count) const;

 private:
  struct Block {
    std::string node;
    size_t bytes;
  };

  StepMemory(int64_t limit_bytes, Allocator* allocator)
      : limit_bytes_(limit_bytes), allocator_(allocator) {}
  void* Allocate(size_t bytes) override;
  void Deallocate(void* block, size_t bytes) override;
  std::vector<Holder> LargestHoldersLocked(size_t count) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t limit_bytes_;
  Allocator* const allocator_;

  mutable Mutex mu_;
  HashMap<void*, Block> blocks_ ABSL_GUARDED_BY(mu_);
  // Itself while there are blocks.
  std::shared_ptr<StepMemory> self_ ABSL_GUARDED_BY(mu_);
  int64_t in_use_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t total_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_STEP_MEMORY_H_
