// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/accumulator.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "ops/loops/number.h"

namespace millrace {
namespace {

using math::Load;
using math::Store;
using math::Wide;

// The arithmetic of one dtype, on memory.
struct Loops {
  // to[i] = a[i] + b[i]; `to` may be one of them.
  void (*add)(const void* a, const void* b, void* to, int64_t n);
  // to[i] = from[i] / by; `to` may be `from`.
  void (*divide)(const void* from, int64_t by, void* to, int64_t n);
};

template <typename T>
void Add(const void* a, const void* b, void* to, int64_t n) {
  const T* const x = static_cast<const T*>(a);
  const T* const y = static_cast<const T*>(b);
  T* const z = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T>) {  // wraps
      z[i] = static_cast<T>(static_cast<uint64_t>(x[i]) + static_cast<uint64_t>(y[i]));
    } else {
      z[i] = Store<T>(Load(x[i]) + Load(y[i]));
    }
  }
}

template <typename T>
void Divide(const void* from, int64_t by, void* to, int64_t n) {
  const T* const x = static_cast<const T*>(from);
  T* const z = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>) {
        z[i] = static_cast<T>(static_cast<int64_t>(x[i]) / by);
      } else {
        z[i] = static_cast<T>(static_cast<uint64_t>(x[i]) / static_cast<uint64_t>(by));
      }
    } else {
      z[i] = Store<T>(Load(x[i]) / static_cast<Wide<T>>(static_cast<float>(by)));
    }
  }
}

Loops LoopsOf(DType dtype) {
  return {math::LoopFor<math::NumberTypes>(dtype, []<typename T> { return &Add<T>; }),
          math::LoopFor<math::NumberTypes>(dtype, []<typename T> { return &Divide<T>; })};
}

// Ids that are looked up together.
constexpr size_t kBlock = 16;
// Room for rows stays when it is at most so many times what was needed.
constexpr int64_t kKeptRows = 4;
// Rows of this many ahead of the one that is added are fetched.
constexpr size_t kFetchedAhead = 8;

// Numbers of rounds that are so far apart are of two series (ops/kernels/sync_rounds.h).
constexpr int64_t kNewSeries = 1'000'000;

Status CancelledTake() { return absl::CancelledError("TakeGrad operation was cancelled"); }

}  // namespace

// --- AccumulatorSpec -----------------------------------------------------------------------------

Status AccumulatorSpec::Init(bool sparse, const NodeAttrs& attrs) {
  is_sparse = sparse;
  std::string reduction;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "dtype", &dtype, "shape", &shape, "container", &container,
                               "shared_name", &name, "reduction_type", &reduction));
  is_mean = reduction != "SUM";
  return Check();
}

Status AccumulatorSpec::Check() const {
  if (LoopsOf(dtype).add != nullptr) return absl::OkStatus();
  return InvalidArgument("dtype must be one of numbers, got ", dtype);
}

Status AccumulatorSpec::CheckSame(const AccumulatorSpec& want) const {
  const auto check = [this](const char* what, const std::string& have, const std::string& wanted) {
    if (have == wanted) return absl::OkStatus();
    return InvalidArgument("Shared conditional accumulator '", name, "' has ", what, " ", have,
                           " but requested ", what, " ", wanted);
  };
  MR_RETURN_IF_ERROR(
      check("form", is_sparse ? "sparse" : "dense", want.is_sparse ? "sparse" : "dense"));
  MR_RETURN_IF_ERROR(check("type", DTypeName(dtype), DTypeName(want.dtype)));
  MR_RETURN_IF_ERROR(check("shape", shape.ToString(), want.shape.ToString()));
  return check("reduction", is_mean ? "MEAN" : "SUM", want.is_mean ? "MEAN" : "SUM");
}

// --- GradientAccumulator -------------------------------------------------------------------------

std::string GradientAccumulator::DebugString() const {
  MutexLock lock(&mu_);
  return absl::StrCat(spec_.is_sparse ? "sparse accumulator '" : "accumulator '", spec_.name,
                      "': step ", step_, ", ", count_, " gradients, ", num_dropped_,
                      " of earlier steps dropped");
}

int64_t GradientAccumulator::num_accumulated() const {
  MutexLock lock(&mu_);
  return count_;
}

int64_t GradientAccumulator::num_dropped() const {
  MutexLock lock(&mu_);
  return num_dropped_;
}

void GradientAccumulator::SetGlobalStep(int64_t step) {
  MutexLock lock(&mu_);
  if (step < step_) {
    LogWarning("Accumulator '", spec_.name, "': its step goes back from ", step_, " to ", step);
  }
  step_ = step;
}

StatusOr<bool> GradientAccumulator::Apply(int64_t local_step, NewGradient gradient) {
  if (gradient.values.dtype() != spec_.dtype) {
    return InvalidArgument("Accumulator '", spec_.name, "' has type ", spec_.dtype,
                           ", got a gradient of ", gradient.values.dtype());
  }
  Status status;
  bool was_added = false;
  Change([&](Line*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    status = spec_.is_sparse ? CheckSparse(gradient) : CheckDense(gradient.values);
    if (!status.ok()) return;
    if (local_step < step_) {
      ++num_dropped_;
      return;
    }
    status = NoExceptions("Accumulator", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return spec_.is_sparse ? AddSparse(gradient) : AddDense(std::move(gradient.values));
    });
    if (!status.ok()) return;
    ++count_;
    was_added = true;
  });
  if (!status.ok()) return status;
  return was_added;
}

StatusOr<bool> GradientAccumulator::ApplyForRound(int64_t round, const std::string& giver,
                                                  NewGradient gradient) {
  {
    MutexLock lock(&mu_);
    if (round > step_) {
      num_dropped_ += count_;
      DropAll();
      step_ = round;
    }
    // Two steps of one giver do not come at once.
    if (round == step_ && givers_.count(giver) > 0) return false;
  }
  MR_ASSIGN_OR_RETURN(const bool was_added, Apply(round, std::move(gradient)));
  MutexLock lock(&mu_);
  if (was_added && round == step_) givers_.insert(giver);
  return was_added;
}

StatusOr<GradientAccumulator::Taken> GradientAccumulator::TakeRound(int64_t round, int64_t least) {
  MutexLock lock(&mu_);
  if (step_ != round || count_ < std::max<int64_t>(least, 1)) {
    const Status status = absl::AbortedError(
        absl::StrCat("Accumulator '", spec_.name, "': ", least, " gradients for round ", round,
                     " must be there, got ", count_, " for round ", step_,
                     "; a server was started again, or the round is over; a new session goes on"));
    // What is there for a later round is others'. Unless numbers begin anew, below: they are times.
    if (round < step_ && step_ - round < kNewSeries) return status;
    num_dropped_ += count_;
    DropAll();
    step_ = round + 1;
    return status;
  }
  MR_ASSIGN_OR_RETURN(
      Taken taken,
      NoExceptions("Accumulator", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> StatusOr<Taken> {
        return spec_.is_sparse ? TakeSparse(count_) : TakeDense();
      }));
  DropAll();
  step_ = round + 1;
  return taken;
}

void GradientAccumulator::DropAll() {
  count_ = 0;
  givers_.clear();
  if (!spec_.is_sparse) sum_ = Tensor();
  places_.Clear();
  row_counts_.clear();
}

void GradientAccumulator::Take(CancellationManager* cancellation, int64_t num_required,
                               DoneFn done) {
  if (num_required < 1) {
    return done(InvalidArgument("Argument num_required must be positive, was ", num_required));
  }
  const auto attempt = std::make_shared<Attempt>();
  attempt->num_required = num_required;
  attempt->done = std::move(done);
  Line arrived = {attempt};
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool waits =
        cancellation == nullptr ||
        cancellation->Register(&attempt->token, [accumulator = shared_from_this(), attempt] {
          accumulator->Cancel(attempt);
        });
    if (waits) attempt->cancellation = cancellation;
    if (!waits) attempt->result = CancelledTake();
    Line& place = waits ? takes_ : *ended;
    place.splice(place.end(), arrived);
  });
}

void GradientAccumulator::Cancel(const std::shared_ptr<Attempt>& attempt) {
  Change([&](Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = std::find(takes_.begin(), takes_.end(), attempt);
    if (found == takes_.end()) return;  // ended by somebody else
    attempt->result = CancelledTake();
    ended->splice(ended->end(), takes_, found);
  });
}

void GradientAccumulator::Change(absl::FunctionRef<void(Line* ended)> change) {
  Line ended;
  {
    MutexLock lock(&mu_);
    change(&ended);
    while (!takes_.empty() && count_ >= takes_.front()->num_required) {
      Attempt* const a = takes_.front().get();
      a->result =
          NoExceptions("Accumulator", [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> StatusOr<Taken> {
            return spec_.is_sparse ? TakeSparse(spec_.is_mean ? 0 : 1) : TakeDense();
          });
      if (a->result.ok()) {
        count_ = 0;
        ++step_;
      }
      ended.splice(ended.end(), takes_, takes_.begin());
    }
  }
  for (const std::shared_ptr<Attempt>& a : ended) {
    // When its callback has begun, it finds that the attempt has left its line.
    if (a->cancellation != nullptr) a->cancellation->Deregister(a->token);
    a->done(std::move(a->result));
  }
}

// --- Dense ---------------------------------------------------------------------------------------

Status GradientAccumulator::CheckDense(const Tensor& values) const {
  const auto mismatch = [&](const auto& expected) {
    return InvalidArgument("Shape mismatch: expected ", expected, ", got ", values.shape());
  };
  if (count_ > 0) {
    return values.shape() == sum_.shape() ? absl::OkStatus() : mismatch(sum_.shape());
  }
  return spec_.shape.IsCompatibleWith(values.shape()) ? absl::OkStatus() : mismatch(spec_.shape);
}

Status GradientAccumulator::OwnSum() {
  // The first gradient may be somebody else's tensor, too.
  if (sum_.BufferIsUnique() || sum_.num_elements() == 0) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(sum_, sum_.Clone());
  return absl::OkStatus();
}

Status GradientAccumulator::AddDense(Tensor values) {
  if (count_ == 0) {
    sum_ = std::move(values);
    return absl::OkStatus();
  }
  MR_RETURN_IF_ERROR(OwnSum());
  LoopsOf(spec_.dtype)
      .add(sum_.raw_data(), values.raw_data(), sum_.mutable_raw_data(), sum_.num_elements());
  return absl::OkStatus();
}

StatusOr<GradientAccumulator::Taken> GradientAccumulator::TakeDense() {
  if (spec_.is_mean && count_ > 1) {
    MR_RETURN_IF_ERROR(OwnSum());
    LoopsOf(spec_.dtype)
        .divide(sum_.raw_data(), count_, sum_.mutable_raw_data(), sum_.num_elements());
  }
  return Taken{.values = std::exchange(sum_, Tensor()), .indices = {}, .shape = {}};
}

// --- Sparse --------------------------------------------------------------------------------------

Status GradientAccumulator::CheckSparse(const NewGradient& gradient) const {
  const Tensor& indices = gradient.indices;
  const Tensor& values = gradient.values;
  if (indices.rank() != 1) {
    return InvalidArgument("Input indices should be vector but received shape: ", indices.shape());
  }
  if (values.rank() < 1) return InvalidArgument("Values cannot be 0-dimensional.");
  const absl::Span<const int64_t> ids = indices.raw<int64_t>();
  const auto num_ids = static_cast<int64_t>(ids.size());
  if (values.dim(0) != num_ids) {
    return InvalidArgument("Expected ", num_ids, " non-empty input values, got ", values.dim(0));
  }
  const absl::Span<const int64_t> declared =
      spec_.shape.has_rank() ? spec_.shape.dims() : absl::Span<const int64_t>();
  const auto rank = static_cast<int>(declared.size());
  if (gradient.has_shape) {
    const auto got = static_cast<int>(gradient.shape.size());
    if (rank > got) {
      return InvalidArgument("Shape mismatch: expected shape rank at least ", rank, ", got ", got);
    }
    for (size_t i = 0; i < declared.size(); ++i) {
      if (declared[i] < 0 || declared[i] == gradient.shape[i]) continue;
      return InvalidArgument("Shape mismatch: expected dim ", i, " to be ", declared[i], ", got ",
                             gradient.shape[i]);
    }
  }
  const int64_t limit = rank > 0 && declared[0] >= 0 ? declared[0] : INT64_MAX;
  for (int64_t i = 0; i < num_ids; ++i) {
    const int64_t id = ids[static_cast<size_t>(i)];
    if (id < 0) {
      return InvalidArgument("Shape mismatch: index of slice ", i, " must be >= 0, got ", id);
    }
    if (id >= limit) {
      return InvalidArgument("Shape mismatch: index of slice ", i,
                             " exceeded limits of shape; index is ", id, " exceeded ", limit);
    }
  }
  if (count_ > 0) {
    if (sum_.rank() != values.rank()) {
      return InvalidArgument("Shape mismatch: expected values rank ", sum_.rank(), ", got ",
                             values.rank());
    }
  } else if (rank > values.rank()) {
    return InvalidArgument("Shape mismatch: expected values rank at least ", rank, ", got ",
                           values.rank());
  }
  for (int i = 1; i < values.rank(); ++i) {
    int64_t expected = -1;
    if (count_ > 0) {
      expected = sum_.dim(i);
    } else if (i < rank) {
      expected = declared[static_cast<size_t>(i)];
    }
    if (expected < 0 || expected == values.dim(i)) continue;
    return InvalidArgument("Shape mismatch: expected values dim ", i, " to be ", expected, ", got ",
                           values.dim(i));
  }
  return absl::OkStatus();
}

Status GradientAccumulator::ReserveRows(int64_t rows, const Tensor& like) {
  places_.Reserve(rows);
  if (static_cast<size_t>(rows) > row_counts_.capacity()) {
    row_counts_.reserve(std::max(static_cast<size_t>(rows), 2 * row_counts_.capacity()));
  }
  std::vector<int64_t> dims(like.shape().dims().begin(), like.shape().dims().end());
  const bool is_same_row = sum_.rank() == like.rank() &&
                           absl::MakeConstSpan(dims).subspan(1) == sum_.shape().dims().subspan(1);
  if (is_same_row && sum_.dim(0) >= rows) return absl::OkStatus();
  // Where gradients are there, rows are of one shape.
  dims[0] = is_same_row ? std::max(rows, 2 * sum_.dim(0)) : rows;
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  MR_ASSIGN_OR_RETURN(Tensor grown, Tensor::Allocate(spec_.dtype, shape));
  if (places_.size() > 0) {
    std::memcpy(grown.mutable_raw_data(), sum_.raw_data(),
                sum_.bytes().size() / static_cast<size_t>(sum_.dim(0)) *
                    static_cast<size_t>(places_.size()));
  }
  sum_ = std::move(grown);
  return absl::OkStatus();
}

Status GradientAccumulator::AddSparse(const NewGradient& gradient) {
  const absl::Span<const int64_t> ids = gradient.indices.raw<int64_t>();
  const auto num_ids = static_cast<int64_t>(ids.size());
  if (places_.size() + num_ids > places_.kMaxKeys) {
    return absl::ResourceExhaustedError(absl::StrCat("Accumulator '", spec_.name, "': at most ",
                                                     places_.kMaxKeys, " rows can be held, got ",
                                                     num_ids, " more than ", places_.size()));
  }
  MR_RETURN_IF_ERROR(ReserveRows(places_.size() + num_ids, gradient.values));
  // Nothing fails from here on.
  if (num_ids == 0) return absl::OkStatus();
  const auto row_bytes = gradient.values.bytes().size() / ids.size();
  const int64_t row_size = gradient.values.num_elements() / num_ids;
  const auto add = LoopsOf(spec_.dtype).add;
  const char* const from = static_cast<const char*>(gradient.values.raw_data());
  char* const rows = static_cast<char*>(sum_.mutable_raw_data());
  int64_t found[kBlock];
  for (size_t begin = 0; begin < ids.size(); begin += kBlock) {
    const absl::Span<const int64_t> block = ids.subspan(begin, kBlock);
    places_.FindEach(block, found);
    const auto num_old = places_.size();
    for (size_t i = 0; i < block.size(); ++i) {
      if (found[i] >= 0) {
        __builtin_prefetch(rows + static_cast<size_t>(found[i]) * row_bytes, 1);
        continue;
      }
      const auto [place, is_new] = places_.Insert(block[i]);
      if (is_new) row_counts_.push_back({0, -1});
      found[i] = place;
    }
    for (size_t i = 0; i < block.size(); ++i) {
      char* const row = rows + static_cast<size_t>(found[i]) * row_bytes;
      const char* const values = from + (begin + i) * row_bytes;
      RowCount& counted = row_counts_[static_cast<size_t>(found[i])];
      if (found[i] >= num_old && counted.gradients == 0) {
        std::memcpy(row, values, row_bytes);
      } else {
        add(row, values, row, row_size);
      }
      if (counted.last != count_) ++counted.gradients;
      counted.last = count_;
    }
  }
  return absl::OkStatus();
}

StatusOr<GradientAccumulator::Taken> GradientAccumulator::TakeSparse(int64_t divided_by) {
  const std::vector<int64_t>& ids = places_.keys();
  const size_t ids_taken = ids.size();
  std::vector<uint32_t> order(ids.size());  // places, by ascending ids
  std::iota(order.begin(), order.end(), uint32_t{0});
  if (!std::is_sorted(ids.begin(), ids.end())) {
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return ids[a] < ids[b]; });
  }
  std::vector<int64_t> dims(sum_.shape().dims().begin(), sum_.shape().dims().end());
  dims[0] = places_.size();
  MR_ASSIGN_OR_RETURN(const Shape rows_shape, Shape::Make(dims));
  MR_ASSIGN_OR_RETURN(const Shape ids_shape, Shape::Make({places_.size()}));
  Taken taken;
  MR_ASSIGN_OR_RETURN(taken.values, Tensor::Allocate(spec_.dtype, rows_shape));
  MR_ASSIGN_OR_RETURN(taken.indices, Tensor::Allocate(DT_INT64, ids_shape));
  dims[0] = spec_.shape.has_rank() && spec_.shape.rank() > 0 ? spec_.shape.dims()[0] : -1;
  taken.shape = Tensor::Vector<int64_t>(absl::MakeConstSpan(dims));
  if (!ids.empty()) {
    const size_t row_bytes = taken.values.bytes().size() / ids.size();
    const int64_t row_size = taken.values.num_elements() / places_.size();
    const auto divide = LoopsOf(spec_.dtype).divide;
    const char* const rows = static_cast<const char*>(sum_.raw_data());
    char* const to = static_cast<char*>(taken.values.mutable_raw_data());
    const absl::Span<int64_t> taken_ids = taken.indices.mutable_raw<int64_t>();
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t place = order[i];
      if (i + kFetchedAhead < order.size()) {
        __builtin_prefetch(rows + order[i + kFetchedAhead] * row_bytes);
      }
      taken_ids[i] = ids[place];
      const int64_t by = divided_by > 0 ? divided_by : row_counts_[place].gradients;
      if (by > 1) {
        divide(rows + place * row_bytes, by, to + i * row_bytes, row_size);
      } else {
        std::memcpy(to + i * row_bytes, rows + place * row_bytes, row_bytes);
      }
    }
  }
  // The next gradients are mostly as large; memory that is far too much goes.
  DropAll();
  if (sum_.dim(0) > kKeptRows * std::max<int64_t>(static_cast<int64_t>(ids_taken), 1)) {
    sum_ = Tensor();
    places_ = {};
    row_counts_ = {};
  }
  return taken;
}

}  // namespace millrace
