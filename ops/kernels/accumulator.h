// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_ACCUMULATOR_H_
#define MILLRACE_OPS_KERNELS_ACCUMULATOR_H_

// GradientAccumulator: the resource behind the handles of accumulator ops
// (ops/training/accumulator.h): sums gradients that several workers give, until somebody takes
// their mean or sum.
//
//   MR_ASSIGN_OR_RETURN(const bool was_added, accumulator->Apply(step, {.values = gradient}));
//   accumulator->Take(ctx->cancellation(), 2, [](StatusOr<Taken> taken) {...});
//
// It has a step of its own, from 0. A gradient that was computed for an earlier step is dropped and
// counted. A take gets all gradients that are there, once there are as many as it requires, and the
// step becomes the next one.
//
//   take: waiting -> ended      by the gradient that completes it, or when its step is cancelled
//
// Takes wait in line, without a thread; only the first is served.
//
// In synchronous training of ours (ops/training/sync_replicas.h) steps are numbers of rounds, and
// nobody waits here: a gradient for a later round drops what is there of earlier ones, and the mean
// is always over all gradients.
//
// A sparse gradient is some rows by their ids, in any order; rows of one id are added, within a
// gradient, too. What is taken has each id once, in ascending order. The mean of a row is over the
// gradients that have it, as in TensorFlow.
//
// Thread-safety: all methods, from any thread; `done` is called without a lock.
// Failure: InvalidArgument, in TensorFlow's words, for gradients that do not fit: nothing of them
// is added. ResourceExhausted without memory: what is there stays. Cancelled "TakeGrad operation
// was cancelled".

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/loops/key_index.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {

// What an accumulator is made with.
struct AccumulatorSpec {
  bool is_sparse = false;
  DType dtype = DT_INVALID;
  PartialShape shape;   // of a gradient as a dense tensor; sparse ones may have more dimensions
  bool is_mean = true;  // else the sum
  std::string container, name;

  // Of an accumulator's node.
  Status Init(bool sparse, const NodeAttrs& attrs);
  Status Check() const;
  // One that exists must be what another node asks for.
  Status CheckSame(const AccumulatorSpec& want) const;
};

class GradientAccumulator : public Resource,
                            public std::enable_shared_from_this<GradientAccumulator> {
 public:
  static constexpr const char* kTypeName = "GradientAccumulator";

  struct NewGradient {
    Tensor values;        // sparse: a row for each id
    Tensor indices = {};  // int64, a vector; dense: none
    // Sparse: the shape of the dense tensor, where it is known.
    absl::Span<const int64_t> shape = {};
    bool has_shape = false;
  };
  struct Taken {
    Tensor values;
    Tensor indices;  // sparse: the ids
    Tensor shape;    // sparse: the shape of the dense tensor; -1: not known
  };
  using DoneFn = absl::AnyInvocable<void(StatusOr<Taken>)>;

  explicit GradientAccumulator(AccumulatorSpec spec) : spec_(std::move(spec)) {}

  const AccumulatorSpec& spec() const { return spec_; }
  std::string DebugString() const override;

  // False: it was for an earlier step than that of now.
  StatusOr<bool> Apply(int64_t local_step, NewGradient gradient);
  // InvalidArgument unless num_required >= 1.
  void Take(CancellationManager* cancellation, int64_t num_required, DoneFn done);
  // Of the gradients for a round, one of each giver. False: the round is over, or the giver has
  // given. What is there for an earlier round is dropped.
  StatusOr<bool> ApplyForRound(int64_t round, const std::string& giver, NewGradient gradient);
  // The sum of the gradients for `round`, divided by their number, rows of sparse ones, too; the
  // next round begins. Aborted where there are fewer than `least`: this accumulator, or the rounds,
  // were begun anew, or the round is over.
  StatusOr<Taken> TakeRound(int64_t round, int64_t least);
  // The step, also an earlier one. Gradients that are there stay.
  void SetGlobalStep(int64_t step);
  int64_t num_accumulated() const;
  // Gradients for earlier steps, so far.
  int64_t num_dropped() const;

 private:
  struct Attempt {
    int64_t num_required = 0;
    DoneFn done;
    StatusOr<Taken> result = Taken{};
    CancellationManager* cancellation = nullptr;  // set while registered
    CancellationManager::Token token = 0;
  };
  using Line = std::list<std::shared_ptr<Attempt>>;

  void Cancel(const std::shared_ptr<Attempt>& attempt);
  // Calls change(&ended) and serves the line, then calls what has ended, without the lock.
  void Change(absl::FunctionRef<void(Line* ended)> change);

  Status CheckDense(const Tensor& values) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status CheckSparse(const NewGradient& gradient) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Afterwards the sum may be written.
  Status OwnSum() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status AddDense(Tensor values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status AddSparse(const NewGradient& gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<Taken> TakeDense() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Rows are divided by these numbers of gradients; 0: by those that have the row.
  StatusOr<Taken> TakeSparse(int64_t divided_by) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Room for `rows` rows of the shape of those of `like`.
  Status ReserveRows(int64_t rows, const Tensor& like) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AccumulatorSpec spec_;
  mutable Mutex mu_;
  int64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;  // gradients that are there
  int64_t num_dropped_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string> givers_ ABSL_GUARDED_BY(mu_);  // for this round
  Line takes_ ABSL_GUARDED_BY(mu_);
  // Dense: their sum. Sparse: rows by place; those behind the last place have no meaning. Without
  // gradients there are no places, and the room of the last ones may be there.
  Tensor sum_ ABSL_GUARDED_BY(mu_);
  math::KeyIndex<int64_t> places_ ABSL_GUARDED_BY(mu_);  // of ids
  struct RowCount {
    int32_t gradients;  // that have the row
    int64_t last;       // the number of the last of them
  };
  std::vector<RowCount> row_counts_ ABSL_GUARDED_BY(mu_);  // by place
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_ACCUMULATOR_H_
