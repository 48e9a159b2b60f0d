// SPDX-License-Identifier: Apache-2.0
//
// Reads of a variable whose stripes are apart from its buffer: they are brought together a few at a
// time, into the buffer when nobody else holds it, else into another that takes its place.
#include <algorithm>
#include <utility>

#include "core/dcheck.h"
#include "core/fail_point.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_stripes.h"

namespace millrace {

StatusOr<Tensor> VariableStorage::ReadTogether() const {
  // Copied per hold of mu_, so that an exclusive lock waits some ten microseconds.
  constexpr size_t kStripesAtOnce = 8;
  MutexLock one(&together_mu_);
  for (;;) {
    Tensor target, old_value;  // freed without the lock
    Shape shape;
    uint64_t generation;
    bool kept;  // a reader holds the buffer
    {
      ReaderLock lock(&mu_);
      if (!value_.has_value()) return Uninitialized();
      shape = value_.shape();
      generation = generation_;
      kept = !OwnsValue();
    }
    if (kept) {
      MR_ASSIGN_OR_RETURN(target, Tensor::Allocate(dtype_, shape));
      MR_RETURN_IF_ERROR(FailPoint("variable/target_allocated"));
    }
    size_t count;
    {
      WriterLock lock(&mu_);
      if (generation_ != generation) continue;
      if (stripes_ == nullptr || !stripes_->IsAnyApart()) {
        frozen_ = true;
        return value_;
      }
      if (kept) {
        stripes_->target = std::move(target);
        // The reader may have gone and rows been written in place meanwhile: from here on none is
        // written into the buffer, nor brought back to it, until the target takes its place.
        frozen_ = true;
      } else if (OwnsValue()) {
        frozen_ = false;
      } else {
        continue;
      }
      count = stripes_->count;
    }
    bool moved = true;
    for (size_t begin = 0; moved && begin < count; begin += kStripesAtOnce) {
      if (begin > 0) MR_RETURN_IF_ERROR(FailPoint("variable/stripes_moved"));
      ReaderLock lock(&mu_);
      // Another Read may have shared the buffer again; then nothing may be written into it.
      moved = generation_ == generation && (kept || !frozen_);
      if (!moved) break;
      int64_t copied = 0;
      char* const buffer = static_cast<char*>(value_.mutable_raw_data());
      for (size_t s = begin; s < std::min(count, begin + kStripesAtOnce); ++s) {
        if (!kept && !stripes_->IsApart(s)) continue;
        stripes_->WithStripe(s, [&] {
          kept ? stripes_->MoveToTarget(s, buffer, &copied) : stripes_->Return(s, buffer, &copied);
          return true;
        });
      }
      bytes_copied_.fetch_add(copied, std::memory_order_relaxed);
    }
    WriterLock lock(&mu_);
    if (!moved || generation_ != generation) continue;
    MR_DCHECK(!kept || stripes_->target.has_value(),
              "the maker of a target finds it again while the generation is the same");
    if (kept) old_value = std::exchange(value_, stripes_->TakeTarget());
    if (stripes_->IsAnyApart()) continue;
    frozen_ = true;
    return value_;
  }
}

}  // namespace millrace
