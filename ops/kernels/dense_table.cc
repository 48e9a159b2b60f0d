// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/hash64.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/kernels/table_storage.h"
#include "ops/kernels/value_rows.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// TensorFlow's least, and what a graph may ask for before anything is in the table.
constexpr int64_t kMinBuckets = 4;
constexpr int64_t kMaxInitialBytes = int64_t{1} << 30;
// A smaller factor would make a graph's few keys fill the memory.
constexpr double kLeastLoadFactor = 1.0 / 64;

// TensorFlow's hashes and its order of probes: buckets that it has saved are found here, and the
// other way round.
uint64_t HashOf(int32_t key) { return static_cast<uint64_t>(key); }
uint64_t HashOf(int64_t key) { return static_cast<uint64_t>(key); }
uint64_t HashOf(const std::string& key) { return Hash64(key); }
uint64_t Combine(uint64_t a, uint64_t b) {
  return a ^ (b + 0x9e3779b97f4a7800ull + (a << 10) + (a >> 4));
}

template <typename K>
uint64_t HashOfRow(const K* key, int64_t size) {
  if (size == 1) return HashOf(*key);
  uint64_t hash = 0;
  for (int64_t i = 0; i < size; ++i) hash = Combine(hash, HashOf(key[i]));
  return hash;
}

// Buckets, a power of two of them, each with a key (or one of the two that mark it as empty or
// deleted) and a value. One at least is empty: probing ends there.
template <typename K>
class Buckets {
 public:
  // `marks`: the empty key and, behind it, the deleted one if there is one; outlives this.
  Buckets(const std::vector<K>* marks, int64_t key_size, const TableSpec& spec)
      : marks_(marks),
        key_size_(key_size),
        values_(spec.value_dtype, spec.value_shape.num_elements()) {}

  // All empty.
  Status Allocate(int64_t num_buckets) {
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({num_buckets, key_size_}));
    MR_ASSIGN_OR_RETURN(keys_, Tensor::Allocate(DTypeOf<K>, shape));
    MR_RETURN_IF_ERROR(values_.Reserve(num_buckets));
    K* to = keys_.mutable_raw<K>().data();
    for (int64_t i = 0; i < num_buckets; ++i) {
      to = std::copy(marks_->begin(), marks_->begin() + key_size_, to);
    }
    num_buckets_ = num_buckets;
    return absl::OkStatus();
  }

  int64_t num_buckets() const { return num_buckets_; }
  int64_t size() const { return size_; }
  int64_t taken() const { return taken_; }  // those deleted included
  const K* key(int64_t bucket) const { return keys_.raw<K>().data() + bucket * key_size_; }
  const Tensor& keys() const { return keys_; }
  const ValueRows& values() const { return values_; }

  bool IsEmpty(const K* key) const { return Equal(key, marks_->data()); }
  bool IsDeleted(const K* key) const {
    return marks_->size() > static_cast<size_t>(key_size_) &&
           Equal(key, marks_->data() + key_size_);
  }
  // -1 when the key is not there.
  int64_t Find(const K* key) const {
    const Probe probe = Search(key);
    return probe.is_there ? probe.bucket : -1;
  }
  // Requires an empty bucket besides the one that the key may take.
  Status Insert(const K* key_to_add, const Tensor& values, int64_t i) {
    const Probe probe = Search(key_to_add);
    MR_RETURN_IF_ERROR(values_.Set(probe.bucket, values, i));
    if (probe.is_there) return absl::OkStatus();
    K* const at = keys_.mutable_raw<K>().data() + probe.bucket * key_size_;
    const bool was_empty = IsEmpty(at);
    std::copy(key_to_add, key_to_add + key_size_, at);
    ++size_;
    if (was_empty) ++taken_;
    return absl::OkStatus();
  }
  void Remove(const K* key_to_remove) {
    const Probe probe = Search(key_to_remove);
    if (!probe.is_there) return;
    K* const at = keys_.mutable_raw<K>().data() + probe.bucket * key_size_;
    std::copy(marks_->begin() + key_size_, marks_->end(), at);
    --size_;
  }

 private:
  struct Probe {
    int64_t bucket;
    bool is_there;  // else the bucket is the first that the key may take
  };
  Probe Search(const K* wanted) const {
    const uint64_t mask = static_cast<uint64_t>(num_buckets_ - 1);
    uint64_t bucket = HashOfRow(wanted, key_size_) & mask;
    int64_t free = -1;
    for (uint64_t probes = 1;; ++probes) {
      const K* const there = key(static_cast<int64_t>(bucket));
      if (Equal(there, wanted)) return {static_cast<int64_t>(bucket), true};
      if (IsEmpty(there)) return {free >= 0 ? free : static_cast<int64_t>(bucket), false};
      if (free < 0 && IsDeleted(there)) free = static_cast<int64_t>(bucket);
      bucket = (bucket + probes) & mask;  // meets each bucket, as their number is a power of two
    }
  }
  bool Equal(const K* a, const K* b) const { return std::equal(a, a + key_size_, b); }

  const std::vector<K>* marks_;
  int64_t key_size_;
  Tensor keys_;  // [num_buckets, key_size]
  ValueRows values_;
  int64_t num_buckets_ = 0, size_ = 0, taken_ = 0;
};

template <typename K>
class DenseTable final : public TableStorage {
 public:
  DenseTable(TableSpec spec, const DenseTableOptions& options)
      : TableStorage(std::move(spec)),
        key_size_(this->spec().key_shape.num_elements()),
        max_load_factor_(std::max(static_cast<double>(options.max_load_factor), kLeastLoadFactor)),
        buckets_(&marks_, key_size_, this->spec()) {
    for (const Tensor* mark : {&options.empty_key, &options.deleted_key}) {
      if (!mark->has_value()) continue;
      marks_.insert(marks_.end(), mark->raw<K>().begin(), mark->raw<K>().end());
    }
  }
  Status Allocate(int64_t num_buckets) {
    WriterLock lock(&mu_);
    return buckets_.Allocate(num_buckets);
  }

  int64_t size() const override {
    ReaderLock lock(&mu_);
    return buckets_.size();
  }
  // All buckets.
  Status Export(KernelContext* ctx) const override {
    ReaderLock lock(&mu_);
    const int64_t n = buckets_.num_buckets();
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({n, spec().value_shape.num_elements()}));
    MR_ASSIGN_OR_RETURN(Tensor * keys, ctx->AllocateOutput(0, buckets_.keys().shape()));
    const auto all = buckets_.keys().template raw<K>();
    std::copy(all.begin(), all.end(), keys->mutable_raw<K>().begin());
    MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, shape));
    return buckets_.values().CopyTo(n, values);
  }

 protected:
  Status DoFind(const Tensor& keys, const Tensor& default_value, TableLoop loop,
                Tensor* values) const override {
    MR_RETURN_IF_ERROR(CheckNoMarks(keys));
    const K* const wanted = keys.raw<K>().data();
    ReaderLock lock(&mu_);
    return InParts(keys.num_elements() / key_size_, loop, [&](int64_t begin, int64_t end) {
      return FindPart(buckets_, wanted, key_size_, default_value, begin, end, values);
    });
  }
  Status DoInsert(const Tensor& keys, const Tensor& values) override {
    MR_RETURN_IF_ERROR(CheckNoMarks(keys));
    const int64_t n = keys.num_elements() / key_size_;
    WriterLock lock(&mu_);
    // As if all were new, like TensorFlow's.
    if (!HasRoom(buckets_.taken() + n, buckets_.num_buckets())) {
      int64_t wanted = buckets_.num_buckets();
      while (!HasRoom(buckets_.size() + n, wanted)) wanted *= 2;
      MR_ASSIGN_OR_RETURN(Buckets<K> grown,
                          Copied(buckets_.keys(), buckets_.values().rows(), wanted));
      std::swap(buckets_, grown);
    }
    for (int64_t i = 0; i < n; ++i) {
      MR_RETURN_IF_ERROR(buckets_.Insert(keys.raw<K>().data() + i * key_size_, values, i));
    }
    return absl::OkStatus();
  }
  Status DoRemove(const Tensor& keys) override {
    if (marks_.size() == static_cast<size_t>(key_size_)) return Refuse("has no deleted_key");
    MR_RETURN_IF_ERROR(CheckNoMarks(keys));
    WriterLock lock(&mu_);
    const K* const all = keys.raw<K>().data();
    for (int64_t i = 0; i < keys.num_elements(); i += key_size_) buckets_.Remove(all + i);
    return absl::OkStatus();
  }
  // Buckets; each key goes where it is found.
  Status DoImport(const Tensor& keys, const Tensor& values) override {
    const int64_t n = keys.num_elements() / key_size_;
    int64_t wanted = kMinBuckets;
    while (wanted < n) wanted *= 2;
    int64_t entries = 0;
    for (int64_t i = 0; i < n; ++i) entries += IsMark(keys.raw<K>().data() + i * key_size_) ? 0 : 1;
    while (!HasRoom(entries, wanted)) wanted *= 2;
    MR_ASSIGN_OR_RETURN(Buckets<K> fresh, Copied(keys, values, wanted));
    WriterLock lock(&mu_);
    std::swap(buckets_, fresh);
    return absl::OkStatus();
  }

 private:
  bool HasRoom(int64_t entries, int64_t buckets) const {
    return static_cast<double>(entries) <= static_cast<double>(buckets) * max_load_factor_ &&
           entries < buckets;
  }
  bool IsMark(const K* key) const {
    return std::equal(key, key + key_size_, marks_.begin()) ||
           (marks_.size() > static_cast<size_t>(key_size_) &&
            std::equal(key, key + key_size_, marks_.begin() + key_size_));
  }
  Status CheckNoMarks(const Tensor& keys) const {
    const K* const all = keys.raw<K>().data();
    for (int64_t i = 0; i < keys.num_elements(); i += key_size_) {
      if (std::equal(all + i, all + i + key_size_, marks_.begin())) {
        return InvalidArgument("Using the empty_key as a table key is not allowed");
      }
      if (IsMark(all + i)) {
        return InvalidArgument("Using the deleted_key as a table key is not allowed");
      }
    }
    return absl::OkStatus();
  }
  static Status FindPart(const Buckets<K>& buckets, const K* wanted, int64_t key_size,
                         const Tensor& default_value, int64_t begin, int64_t end, Tensor* values) {
    int64_t places[kFindBlock];
    while (begin < end) {
      const int64_t n = std::min(kFindBlock, end - begin);
      for (int64_t i = 0; i < n; ++i) places[i] = buckets.Find(wanted + (begin + i) * key_size);
      MR_RETURN_IF_ERROR(buckets.values().Gather(
          absl::MakeConstSpan(places, static_cast<size_t>(n)), default_value, begin, values));
      begin += n;
    }
    return absl::OkStatus();
  }
  // What of `keys` is none of the marks, with its values, in so many buckets.
  StatusOr<Buckets<K>> Copied(const Tensor& keys, const Tensor& values, int64_t num_buckets) const {
    Buckets<K> copy(&marks_, key_size_, spec());
    MR_RETURN_IF_ERROR(copy.Allocate(num_buckets));
    const K* const all = keys.raw<K>().data();
    for (int64_t i = 0; i < keys.num_elements() / key_size_; ++i) {
      const K* const key = all + i * key_size_;
      if (!IsMark(key)) MR_RETURN_IF_ERROR(copy.Insert(key, values, i));
    }
    return copy;
  }

  const int64_t key_size_;
  const double max_load_factor_;
  std::vector<K> marks_;
  mutable SharedMutex mu_;
  Buckets<K> buckets_ ABSL_GUARDED_BY(mu_);
};

int64_t ElementBytes(DType dtype) {
  return static_cast<int64_t>(dtype == DT_STRING ? sizeof(std::string) : DTypeSize(dtype));
}

template <typename K>
StatusOr<std::shared_ptr<TableStorage>> Make(TableSpec spec, const DenseTableOptions& options) {
  auto table = std::make_shared<DenseTable<K>>(std::move(spec), options);
  MR_RETURN_IF_ERROR(table->Allocate(options.initial_num_buckets));
  return table;
}

}  // namespace

StatusOr<std::shared_ptr<TableStorage>> MakeDenseTable(TableSpec spec,
                                                       const DenseTableOptions& options) {
  if (!(options.max_load_factor > 0 && options.max_load_factor < 1)) {
    return InvalidArgument("max_load_factor must be between 0 and 1, got: ",
                           options.max_load_factor);
  }
  const int64_t n = options.initial_num_buckets;
  if (n < kMinBuckets || (n & (n - 1)) != 0) {
    return InvalidArgument("Number of buckets must be at least 4 and a power of 2, got: ", n);
  }
  if (spec.key_shape.rank() > 1 || spec.key_shape.num_elements() == 0) {
    return InvalidArgument("Empty key must be a scalar or a vector, got shape ", spec.key_shape);
  }
  if (spec.value_shape.rank() > 1) {
    return InvalidArgument("Empty value must be a scalar or a vector, got shape ",
                           spec.value_shape);
  }
  if (options.deleted_key.has_value()) {
    if (options.deleted_key.shape() != spec.key_shape) {
      return InvalidArgument("deleted_key must have the shape of empty_key, ", spec.key_shape,
                             ", got ", options.deleted_key.shape());
    }
    if (options.deleted_key == options.empty_key) {
      return InvalidArgument("Empty and deleted keys must differ, got ",
                             options.empty_key.DebugString());
    }
  }
  MR_ASSIGN_OR_RETURN(const int64_t key_bytes,
                      CheckedProduct(spec.key_shape.num_elements(), ElementBytes(spec.key_dtype)));
  MR_ASSIGN_OR_RETURN(const int64_t value_bytes, CheckedProduct(spec.value_shape.num_elements(),
                                                                ElementBytes(spec.value_dtype)));
  const int64_t bucket_bytes = std::max(key_bytes, value_bytes);
  if (n > kMaxInitialBytes / std::max<int64_t>(bucket_bytes, 1)) {
    return absl::ResourceExhaustedError(absl::StrCat("initial_num_buckets must take at most ",
                                                     kMaxInitialBytes, " bytes, got ", n, " of ",
                                                     bucket_bytes, " bytes each"));
  }
  switch (spec.key_dtype) {
    case DT_INT32:
      return Make<int32_t>(std::move(spec), options);
    case DT_INT64:
      return Make<int64_t>(std::move(spec), options);
    case DT_STRING:
      return Make<std::string>(std::move(spec), options);
    default:
      return InvalidArgument("key_dtype must be int32, int64 or string, got ", spec.key_dtype);
  }
}

}  // namespace millrace
