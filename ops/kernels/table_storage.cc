// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/table_storage.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "ops/kernels/value_rows.h"
#include "ops/loops/key_index.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// Part of a message: one element.
std::string ElementText(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DT_STRING:
      return tensor.raw<std::string>()[static_cast<size_t>(i)];
    case DT_BOOL:
      return tensor.raw<bool>()[static_cast<size_t>(i)] ? "1" : "0";
    case DT_INT32:
    case DT_INT64:
      return absl::StrCat(tensor.ints()[static_cast<size_t>(i)]);
    case DT_FLOAT:
      return absl::StrCat(tensor.raw<float>()[static_cast<size_t>(i)]);
    case DT_DOUBLE:
      return absl::StrCat(tensor.raw<double>()[static_cast<size_t>(i)]);
    default:
      return "?";
  }
}

// --- Keys with values ----------------------------------------------------------------------------

Status TooManyKeys(int64_t most, int64_t got) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a table must have at most ", most, " keys, got ", got));
}

template <typename K>
struct Entries {
  explicit Entries(const TableSpec& spec)
      : values(spec.value_dtype, spec.value_shape.num_elements()) {}

  // For `n` keys more.
  Status Reserve(int64_t n) {
    const int64_t sum = index.size() + n;
    if (sum > math::KeyIndex<K>::kMaxKeys) return TooManyKeys(math::KeyIndex<K>::kMaxKeys, sum);
    index.Reserve(sum);
    return values.Reserve(sum);
  }
  // After Reserve. A key is there when it has its value.
  Status Insert(const K& key, const Tensor& new_values, int64_t i) {
    const int64_t found = index.Find(key);
    MR_RETURN_IF_ERROR(values.Set(found < 0 ? index.size() : found, new_values, i));
    if (found < 0) index.Insert(key);
    return absl::OkStatus();
  }
  Status InsertAll(const Tensor& keys, const Tensor& new_values) {
    MR_RETURN_IF_ERROR(Reserve(keys.num_elements()));
    int64_t i = 0;
    for (const K& key : keys.raw<K>()) MR_RETURN_IF_ERROR(Insert(key, new_values, i++));
    return absl::OkStatus();
  }
  Status Find(const Tensor& keys, const Tensor& missing, int64_t begin, int64_t end,
              Tensor* out) const {
    int64_t places[kFindBlock];
    for (; begin < end; begin += kFindBlock) {
      const size_t n = static_cast<size_t>(std::min(kFindBlock, end - begin));
      index.FindEach(keys.raw<K>().subspan(static_cast<size_t>(begin), n), places);
      MR_RETURN_IF_ERROR(values.Gather(absl::MakeConstSpan(places, n), missing, begin, out));
    }
    return absl::OkStatus();
  }
  Status FindAll(const Tensor& keys, const Tensor& missing, TableLoop loop, Tensor* out) const {
    return InParts(keys.num_elements(), loop, [&](int64_t begin, int64_t end) {
      return Find(keys, missing, begin, end, out);
    });
  }
  // For keys that are strings, values that are int64.
  void FindWords(absl::Span<const absl::string_view> words, int64_t missing, int64_t* out) const {
    index.FindEach(words, out);
    if (index.size() == 0) return std::fill(out, out + words.size(), missing);
    const absl::Span<const int64_t> of_place = values.rows().raw<int64_t>();
    for (size_t i = 0; i < words.size(); ++i) {
      out[i] = out[i] < 0 ? missing : of_place[static_cast<size_t>(out[i])];
    }
  }
  bool Equal(const Entries& other) const {
    if (index.size() != other.index.size()) return false;
    for (int64_t i = 0; i < index.size(); ++i) {
      const int64_t there = other.index.Find(index.keys()[static_cast<size_t>(i)]);
      if (there < 0 || !values.Equal(i, other.values.rows(), there)) return false;
    }
    return true;
  }
  Status Export(KernelContext* ctx, const Shape& value_shape) const {
    std::vector<int64_t> dims = {index.size()};
    MR_ASSIGN_OR_RETURN(const Shape key_shape, Shape::Make(dims));
    for (int i = 0; i < value_shape.rank(); ++i) dims.push_back(value_shape.dim(i));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * keys, ctx->AllocateOutput(0, key_shape));
    std::copy(index.keys().begin(), index.keys().end(), keys->mutable_raw<K>().begin());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(1, shape));
    return values.CopyTo(index.size(), out);
  }

  math::KeyIndex<K> index;
  ValueRows values;  // by place
};

// --- Fixed tables --------------------------------------------------------------------------------

template <typename K>
class FixedTable final : public TableStorage {
 public:
  explicit FixedTable(TableSpec spec) : TableStorage(std::move(spec)) {}

  bool is_initialized() const override { return content() != nullptr; }
  int64_t size() const override {
    const Entries<K>* const entries = content();
    return entries == nullptr ? 0 : entries->index.size();
  }
  Status FindWords(absl::Span<const absl::string_view> words, int64_t missing,
                   int64_t* values) const override {
    if constexpr (std::is_same_v<K, std::string>) {
      if (spec().value_dtype == DT_INT64) {
        MR_ASSIGN_OR_RETURN(const Entries<K>* entries, Content());
        entries->FindWords(words, missing, values);
        return absl::OkStatus();
      }
    }
    return TableStorage::FindWords(words, missing, values);
  }
  Status Export(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Entries<K>* entries, Content());
    return entries->Export(ctx, spec().value_shape);
  }
  StatusOr<std::unique_ptr<TableFiller>> BeginFilling() override {
    return std::make_unique<Filler>(std::static_pointer_cast<FixedTable>(this->shared_from_this()));
  }

 protected:
  Status DoFind(const Tensor& keys, const Tensor& default_value, TableLoop loop,
                Tensor* values) const override {
    MR_ASSIGN_OR_RETURN(const Entries<K>* entries, Content());
    return entries->FindAll(keys, default_value, loop, values);
  }
  Status DoImport(const Tensor& keys, const Tensor& values) override {
    return DoInitialize(keys, values);
  }
  // A frozen graph does so in every step, from the same constants.
  Status DoInitialize(const Tensor& keys, const Tensor& values) override {
    {
      MutexLock lock(&mu_);
      if (keys.SharesBufferWith(keys_) && keys.raw_data() == keys_.raw_data() &&
          keys.shape() == keys_.shape() && values.SharesBufferWith(values_) &&
          values.raw_data() == values_.raw_data()) {
        return absl::OkStatus();
      }
    }
    MR_RETURN_IF_ERROR(TableStorage::DoInitialize(keys, values));
    MutexLock lock(&mu_);
    keys_ = keys;
    values_ = values;
    return absl::OkStatus();
  }

 private:
  class Filler final : public TableFiller {
   public:
    explicit Filler(std::shared_ptr<FixedTable> table)
        : table_(std::move(table)), entries_(std::make_unique<Entries<K>>(table_->spec())) {}
    Status Add(const Tensor& keys, const Tensor& values, int64_t* wrong) override {
      Entries<K>& entries = *entries_;
      MR_RETURN_IF_ERROR(entries.Reserve(keys.num_elements()));
      int64_t i = 0;
      for (const K& key : keys.raw<K>()) {
        const int64_t place = entries.index.Find(key);
        if (place >= 0 && !entries.values.Equal(place, values, i)) {
          *wrong = i;
          return FailedPrecondition("HashTable has different value for same key. Key ",
                                    ElementText(keys, i), " has ",
                                    ElementText(entries.values.rows(), place),
                                    " and trying to add value ", ElementText(values, i));
        }
        MR_RETURN_IF_ERROR(entries.Insert(key, values, i++));
      }
      return absl::OkStatus();
    }
    Status Publish() override { return table_->Publish(std::move(entries_)); }

   private:
    const std::shared_ptr<FixedTable> table_;
    std::unique_ptr<Entries<K>> entries_;
  };

  const Entries<K>* content() const { return content_.load(std::memory_order_acquire); }
  StatusOr<const Entries<K>*> Content() const {
    if (const Entries<K>* const entries = content()) return entries;
    return FailedPrecondition("Table not initialized. ", spec().Title(),
                              " must be initialized before it is used, by its initializer (those "
                              "of all tables are in the collection 'table_initializer')");
  }
  Status Publish(std::unique_ptr<const Entries<K>> entries) {
    MutexLock lock(&mu_);
    if (entries_ != nullptr) {
      if (entries_->Equal(*entries)) return absl::OkStatus();
      return FailedPrecondition("Table was already initialized with different data. ",
                                spec().Title(), " has ", entries_->index.size(), " entries, got ",
                                entries->index.size());
    }
    entries_ = std::move(entries);
    content_.store(entries_.get(), std::memory_order_release);
    return absl::OkStatus();
  }

  std::atomic<const Entries<K>*> content_{nullptr};  // release when it is complete; then for good
  Mutex mu_;
  std::unique_ptr<const Entries<K>> entries_ ABSL_GUARDED_BY(mu_);
  // That the table is known to have been initialised with; held, so nobody writes to them.
  Tensor keys_ ABSL_GUARDED_BY(mu_), values_ ABSL_GUARDED_BY(mu_);
};

// --- Mutable tables ------------------------------------------------------------------------------

template <typename K>
class MutableTable final : public TableStorage {
 public:
  explicit MutableTable(TableSpec spec) : TableStorage(std::move(spec)), entries_(this->spec()) {}

  int64_t size() const override {
    ReaderLock lock(&mu_);
    return entries_.index.size();
  }
  Status FindWords(absl::Span<const absl::string_view> words, int64_t missing,
                   int64_t* values) const override {
    if constexpr (std::is_same_v<K, std::string>) {
      if (spec().value_dtype == DT_INT64 && spec().value_shape.is_scalar()) {
        ReaderLock lock(&mu_);
        entries_.FindWords(words, missing, values);
        return absl::OkStatus();
      }
    }
    return TableStorage::FindWords(words, missing, values);
  }
  Status Export(KernelContext* ctx) const override {
    ReaderLock lock(&mu_);
    return entries_.Export(ctx, spec().value_shape);
  }

 protected:
  Status DoFind(const Tensor& keys, const Tensor& default_value, TableLoop loop,
                Tensor* values) const override {
    ReaderLock lock(&mu_);
    return entries_.FindAll(keys, default_value, loop, values);
  }
  Status DoInsert(const Tensor& keys, const Tensor& values) override {
    WriterLock lock(&mu_);
    return entries_.InsertAll(keys, values);
  }
  Status DoRemove(const Tensor& keys) override {
    WriterLock lock(&mu_);
    for (const K& key : keys.raw<K>()) {
      const int64_t place = entries_.index.Remove(key);
      if (place < 0 || place == entries_.index.size()) continue;
      MR_RETURN_IF_ERROR(entries_.values.Move(entries_.index.size(), place));
    }
    return absl::OkStatus();
  }
  Status DoImport(const Tensor& keys, const Tensor& values) override {
    Entries<K> fresh(spec());
    MR_RETURN_IF_ERROR(fresh.InsertAll(keys, values));
    WriterLock lock(&mu_);
    std::swap(entries_, fresh);
    return absl::OkStatus();
  }

 private:
  mutable SharedMutex mu_;
  Entries<K> entries_ ABSL_GUARDED_BY(mu_);
};

template <typename K>
std::shared_ptr<TableStorage> Make(TableSpec spec) {
  if (spec.kind == TableKind::kFixed) return std::make_shared<FixedTable<K>>(std::move(spec));
  return std::make_shared<MutableTable<K>>(std::move(spec));
}

}  // namespace

// --- TableSpec -----------------------------------------------------------------------------------

const char* TableKindName(TableKind kind) {
  switch (kind) {
    case TableKind::kMutable:
      return "MutableHashTable";
    case TableKind::kDense:
      return "MutableDenseHashTable";
    case TableKind::kFixed:
      break;
  }
  return "HashTable";
}

std::string TableSpec::Title() const { return absl::StrCat(TableKindName(kind), " '", name, "'"); }

Status TableSpec::CheckSame(const TableSpec& want) const {
  if (want.key_dtype != key_dtype || want.value_dtype != value_dtype) {
    return InvalidArgument("Conflicting key/value dtypes ", want.key_dtype, "->", want.value_dtype,
                           " with ", key_dtype, "-", value_dtype, " for table ", name);
  }
  if (want.kind == kind && want.key_shape == key_shape && want.value_shape == value_shape) {
    return absl::OkStatus();
  }
  return InvalidArgument("Shared table '", name, "' is a ", TableKindName(kind), " of keys ",
                         key_shape, " and values ", value_shape, ", got ", TableKindName(want.kind),
                         " of keys ", want.key_shape, " and values ", want.value_shape);
}

// --- TableStorage --------------------------------------------------------------------------------

std::string TableStorage::DebugString() const {
  return absl::StrCat(spec_.Title(), ": ", size(), " keys",
                      is_initialized() ? "" : ", not initialized");
}

void TableStorage::SessionEnded(absl::string_view session_handle) {
  if (!spec_.session.empty() && session_handle == spec_.session) {
    is_over_.store(true, std::memory_order_relaxed);
  }
}

Status TableStorage::Refuse(absl::string_view what) const {
  return InvalidArgument(spec_.Title(), " ", what);
}

Status TableStorage::CheckTypes(DType keys, DType values) const {
  if (keys != spec_.key_dtype) {
    return InvalidArgument(spec_.Title(), " has keys of ", spec_.key_dtype, ", got ", keys);
  }
  if (values == spec_.value_dtype) return absl::OkStatus();
  return InvalidArgument(spec_.Title(), " has values of ", spec_.value_dtype, ", got ", values);
}

StatusOr<Shape> TableStorage::ShapeOfValues(const Shape& keys) const {
  const int prefix = keys.rank() - spec_.key_shape.rank();
  std::vector<int64_t> dims;
  bool fits = prefix >= 0;
  for (int i = 0; fits && i < keys.rank(); ++i) {
    if (i < prefix) {
      dims.push_back(keys.dim(i));
    } else {
      fits = keys.dim(i) == spec_.key_shape.dim(i - prefix);
    }
  }
  if (!fits) {
    return InvalidArgument("Input key shape ", keys, " must end with the table's key shape ",
                           spec_.key_shape);
  }
  for (int i = 0; i < spec_.value_shape.rank(); ++i) dims.push_back(spec_.value_shape.dim(i));
  return Shape::Make(dims);
}

Status TableStorage::CheckValues(const Tensor& keys, const Tensor& values) const {
  MR_RETURN_IF_ERROR(CheckTypes(keys.dtype(), values.dtype()));
  MR_ASSIGN_OR_RETURN(const Shape wanted, ShapeOfValues(keys.shape()));
  if (values.shape() == wanted) return absl::OkStatus();
  return InvalidArgument("Expected shape ", wanted, " for value, got ", values.shape());
}

Status TableStorage::Find(const Tensor& keys, const Tensor& default_value, TableLoop loop,
                          Tensor* values) const {
  MR_RETURN_IF_ERROR(CheckTypes(keys.dtype(), default_value.dtype()));
  if (default_value.shape() != spec_.value_shape) {
    return InvalidArgument("Expected shape ", spec_.value_shape, " for default value, got ",
                           default_value.shape());
  }
  return DoFind(keys, default_value, loop, values);
}

Status TableStorage::FindWords(absl::Span<const absl::string_view>, int64_t, int64_t*) const {
  return Refuse(absl::StrCat("must have scalars of int64 by strings, got ",
                             DTypeName(spec_.value_dtype), spec_.value_shape.ToString(), " by ",
                             DTypeName(spec_.key_dtype)));
}

Status TableStorage::Insert(const Tensor& keys, const Tensor& values) {
  MR_RETURN_IF_ERROR(CheckValues(keys, values));
  return DoInsert(keys, values);
}

Status TableStorage::Remove(const Tensor& keys) {
  MR_RETURN_IF_ERROR(CheckTypes(keys.dtype(), spec_.value_dtype));
  MR_RETURN_IF_ERROR(ShapeOfValues(keys.shape()).status());
  return DoRemove(keys);
}

Status TableStorage::Import(const Tensor& keys, const Tensor& values) {
  MR_RETURN_IF_ERROR(CheckTypes(keys.dtype(), values.dtype()));
  if (spec_.kind != TableKind::kDense) {
    MR_RETURN_IF_ERROR(CheckValues(keys, values));
    return DoImport(keys, values);
  }
  // Buckets are rows, of scalars as of vectors.
  const int64_t key_size = spec_.key_shape.num_elements();
  const int64_t value_size = spec_.value_shape.num_elements();
  const int64_t rows = keys.rank() > 0 ? keys.dim(0) : -1;
  MR_ASSIGN_OR_RETURN(const int64_t wanted_keys,
                      CheckedProduct(std::max<int64_t>(rows, 0), key_size));
  MR_ASSIGN_OR_RETURN(const int64_t wanted_values,
                      CheckedProduct(std::max<int64_t>(rows, 0), value_size));
  if (rows < 0 || keys.num_elements() != wanted_keys || values.rank() == 0 ||
      values.dim(0) != rows || values.num_elements() != wanted_values) {
    return InvalidArgument("Expected shapes [n,", key_size, "] for keys and [n,", value_size,
                           "] for values, got ", keys.shape(), " and ", values.shape());
  }
  return DoImport(keys, values);
}

StatusOr<std::unique_ptr<TableFiller>> TableStorage::BeginFilling() {
  return Refuse("is not initializable");
}

Status TableStorage::Initialize(const Tensor& keys, const Tensor& values) {
  MR_RETURN_IF_ERROR(CheckValues(keys, values));
  return DoInitialize(keys, values);
}

Status TableStorage::DoInitialize(const Tensor& keys, const Tensor& values) {
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<TableFiller> filler, BeginFilling());
  int64_t wrong = 0;
  MR_RETURN_IF_ERROR(filler->Add(keys, values, &wrong));
  return filler->Publish();
}

Status TableStorage::DoInsert(const Tensor&, const Tensor&) {
  return Refuse("does not change once it is initialized: nothing can be inserted");
}
Status TableStorage::DoRemove(const Tensor&) {
  return Refuse("does not change once it is initialized: nothing can be removed");
}
Status TableStorage::DoImport(const Tensor&, const Tensor&) {
  return Refuse("cannot be imported into");
}

// --- Makers --------------------------------------------------------------------------------------

StatusOr<std::shared_ptr<TableStorage>> MakeTable(TableSpec spec) {
  switch (spec.key_dtype) {
    case DT_INT32:
      return Make<int32_t>(std::move(spec));
    case DT_INT64:
      return Make<int64_t>(std::move(spec));
    case DT_STRING:
      return Make<std::string>(std::move(spec));
    default:
      return InvalidArgument("key_dtype must be int32, int64 or string, got ", spec.key_dtype);
  }
}

StatusOr<std::shared_ptr<TableStorage>> TableInput(KernelContext* ctx, int i) {
  if (!ctx->input(i).is_reference()) return ctx->ResourceInput<TableStorage>(i);
  MR_ASSIGN_OR_RETURN(const auto reference, ctx->ref_input(i));
  MR_ASSIGN_OR_RETURN(const Tensor names, reference->Read());
  if (names.dtype() != DT_STRING || names.num_elements() != 2) {
    return InvalidArgument("table_handle must be container and name of a table, got ",
                           names.dtype(), names.shape());
  }
  const absl::Span<const std::string> name = names.raw<std::string>();
  return ctx->resources()->Lookup<TableStorage>(name[0], name[1]);
}

}  // namespace millrace
