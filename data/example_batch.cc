// SPDX-License-Identifier: Apache-2.0
#include "data/example_batch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace millrace {

// --- Forms ---------------------------------------------------------------------------------------

StatusOr<DenseForm> DenseForm::Make(absl::string_view attr, size_t d, DType dtype,
                                    const PartialShape& shape) {
  if (!shape.has_rank()) {
    return InvalidArgument(attr, "[", d, "] must have a known rank, got ", shape);
  }
  DenseForm form;
  form.dtype = dtype;
  form.shape.assign(shape.dims().begin(), shape.dims().end());
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape.dim(i) >= 0) {
      MR_ASSIGN_OR_RETURN(form.stride, CheckedProduct(form.stride, shape.dim(i)));
    } else if (i == 0) {
      form.is_variable = true;
    } else {
      return InvalidArgument(attr, "[", d, "] may leave only its first dimension open, got ",
                             shape);
    }
  }
  if (form.is_variable && form.stride == 0) {
    return InvalidArgument(
        attr, "[", d, "] with an open first dimension must have other dimensions > 0, got ", shape);
  }
  return form;
}

Status DenseForm::CheckDefault(size_t d, const PartialShape& value) const {
  if (!value.IsFullyDefined()) return absl::OkStatus();
  const int64_t elements = value.num_elements();
  if (is_variable) {
    if (elements == 1) return absl::OkStatus();
    return InvalidArgument(
        "dense_defaults[", d,
        "] of a feature of variable length must have 1 element, the padding, got shape ", value);
  }
  const bool same =
      std::equal(shape.begin(), shape.end(), value.dims().begin(), value.dims().end());
  if (elements == 0 || same) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const PartialShape wanted, PartialShape::Make(shape));
  return InvalidArgument("dense_defaults[", d, "] must have shape ", wanted,
                         " of the feature or no elements, got ", value);
}

Status CheckCount(absl::string_view name, size_t size, absl::string_view keys, int64_t n) {
  if (static_cast<int64_t>(size) == n) return absl::OkStatus();
  return InvalidArgument(name, " must have one element for each of the ", n, " ", keys, ", got ",
                         size);
}

StatusOr<std::vector<DenseForm>> DenseForms(absl::string_view types_attr,
                                            absl::Span<const DType> dense_types,
                                            absl::string_view shapes_attr,
                                            absl::Span<const PartialShape> shapes,
                                            int64_t num_keys) {
  MR_RETURN_IF_ERROR(CheckCount(types_attr, dense_types.size(), "dense_keys", num_keys));
  MR_RETURN_IF_ERROR(CheckCount(shapes_attr, shapes.size(), "dense_keys", num_keys));
  std::vector<DenseForm> forms;
  for (size_t d = 0; d < dense_types.size(); ++d) {
    MR_ASSIGN_OR_RETURN(DenseForm form, DenseForm::Make(shapes_attr, d, dense_types[d], shapes[d]));
    forms.push_back(std::move(form));
  }
  return forms;
}

Status SetExampleShapes(RuleContext* c, const ExampleForms& forms, const ExampleOutputs& outputs,
                        Batched batched, int64_t batch) {
  const auto set = [&](int first, size_t i, PartialShape shape) {
    c->set_output(first + static_cast<int>(i), std::move(shape));
  };
  const int64_t rank = batched == Batched::kYes ? 2 : 1;
  for (size_t i = 0; i < forms.sparse.size(); ++i) {
    set(outputs.sparse_indices, i, {-1, rank});
    set(outputs.sparse_values, i, {-1});
    set(outputs.sparse_shapes, i, {rank});
  }
  for (size_t d = 0; d < forms.dense.size(); ++d) {
    std::vector<int64_t> dims;
    if (batched == Batched::kYes) dims.push_back(batch);
    dims.insert(dims.end(), forms.dense[d].shape.begin(), forms.dense[d].shape.end());
    MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
    set(outputs.dense, d, std::move(shape));
  }
  for (size_t r = 0; r < forms.ragged.size(); ++r) {
    set(outputs.ragged_values, r, {-1});
    set(outputs.ragged_splits, r, {batched == Batched::kNo ? 0 : batch < 0 ? -1 : batch + 1});
  }
  return absl::OkStatus();
}

// --- Keys ----------------------------------------------------------------------------------------

size_t FeatureKeys::Hash(absl::string_view key) {
  uint64_t first = 0, last = 0;
  const size_t n = std::min<size_t>(key.size(), 8);
  if (n == 8) {
    std::memcpy(&first, key.data(), 8);
    std::memcpy(&last, key.data() + key.size() - 8, 8);
  } else {
    for (size_t i = 0; i < n; ++i) first = first << 8 | static_cast<uint8_t>(key[i]);
  }
  // An odd constant whose bits are well mixed: 2^64 divided by the golden ratio.
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
  const uint64_t mixed = (first ^ std::rotl(last, 23) ^ key.size()) * kMultiplier;
  return static_cast<size_t>(mixed >> 40);
}

FeatureKeys::FeatureKeys(std::vector<std::string> keys) : keys_(std::move(keys)) {
  slots_.resize(std::bit_ceil(4 * keys_.size() + 1), -1);
  mask_ = slots_.size() - 1;
}

StatusOr<std::shared_ptr<const FeatureKeys>> FeatureKeys::Make(std::vector<std::string> keys) {
  std::shared_ptr<FeatureKeys> made(new FeatureKeys(std::move(keys)));
  for (size_t i = 0; i < made->keys_.size(); ++i) {
    const std::string& key = made->keys_[i];
    if (made->Find(key) >= 0) {
      return InvalidArgument("keys must differ, got '", key, "' for two features");
    }
    size_t slot = Hash(key) & made->mask_;
    while (made->slots_[slot] >= 0) slot = (slot + 1) & made->mask_;
    made->slots_[slot] = static_cast<int>(i);
  }
  return std::shared_ptr<const FeatureKeys>(std::move(made));
}

StatusOr<std::shared_ptr<const FeatureKeys>> LastFeatureKeys::Get(
    std::vector<absl::string_view> keys) const {
  {
    MutexLock lock(&mu_);
    if (keys_ != nullptr &&
        std::equal(keys.begin(), keys.end(), keys_->keys().begin(), keys_->keys().end())) {
      return keys_;
    }
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const FeatureKeys> made,
                      FeatureKeys::Make({keys.begin(), keys.end()}));
  MutexLock lock(&mu_);
  keys_ = made;
  return made;
}

// --- Examples ------------------------------------------------------------------------------------

FeatureKind KindOf(DType dtype) {
  switch (dtype) {
    case DT_STRING:
      return FeatureKind::kBytes;
    case DT_FLOAT:
      return FeatureKind::kFloat;
    case DT_INT64:
      return FeatureKind::kInt64;
    default:
      return FeatureKind::kNone;
  }
}

absl::string_view NameOf(FeatureKind kind) {
  switch (kind) {
    case FeatureKind::kBytes:
      return "string";
    case FeatureKind::kFloat:
      return "float";
    case FeatureKind::kInt64:
      return "int64";
    case FeatureKind::kNone:
      break;
  }
  return "none";
}

void FirstError::Report(int64_t example, Status status) {
  MutexLock lock(&mu_);
  if (example < limit_.load(std::memory_order_relaxed)) {
    limit_.store(example, std::memory_order_relaxed);
    status_ = std::move(status);
  }
}

Status FirstError::status() {
  MutexLock lock(&mu_);
  return status_;
}

namespace {

// Nanoseconds to find and copy one feature of one example, and to copy one of another length:
// roughly as measured.
constexpr double kFindNs = 30, kCopyNs = 20;

class Parser {
 public:
  Parser(const ExampleForms& forms, const FeatureKeys& keys, const ExampleInputs& inputs,
         const ExampleOutputs& outputs, Arena* arena, AllocateExampleOutput allocate)
      : arena_(arena),
        allocate_(allocate),
        forms_(forms),
        keys_(keys),
        in_(inputs),
        out_(outputs),
        batch_(inputs.serialized.size()) {}

  Status Run(int64_t* num_good) {
    MR_RETURN_IF_ERROR(PlanFeatures());
    MR_RETURN_IF_ERROR(FindAll(num_good));
    for (size_t f = 0; f < plans_.size(); ++f) {
      switch (plans_[f].place) {
        case Place::kFixed:
          break;
        case Place::kSparse:
          MR_RETURN_IF_ERROR(MakeSparse(plans_[f]));
          break;
        case Place::kPadded:
          MR_RETURN_IF_ERROR(MakePadded(plans_[f]));
          break;
        case Place::kRagged:
          MR_RETURN_IF_ERROR(MakeRagged(plans_[f]));
          break;
      }
    }
    return absl::OkStatus();
  }

 private:
  // Where values go: to their place in the batch at once, or, noted first, to one of the others.
  enum class Place { kFixed, kSparse, kPadded, kRagged };
  struct Plan {
    Place place = Place::kFixed;
    DType dtype = DT_INVALID;
    FeatureKind kind = FeatureKind::kNone;
    size_t index = 0;                  // among the features of its form
    size_t noted = 0;                  // among those that are noted
    const DenseForm* dense = nullptr;  // kFixed, kPadded
    const Tensor* missing = nullptr;   // the same: what missing ones are
    void* data = nullptr;              // kFixed: of the output
  };

  Status PlanFeatures() {
    const auto add = [&](Place place, DType dtype, size_t index) -> Plan& {
      Plan& plan = plans_.emplace_back();
      plan.place = place;
      plan.dtype = dtype;
      plan.kind = KindOf(dtype);
      plan.index = index;
      if (place != Place::kFixed) plan.noted = num_noted_++;
      return plan;
    };
    for (size_t s = 0; s < forms_.sparse.size(); ++s) add(Place::kSparse, forms_.sparse[s], s);
    for (size_t d = 0; d < forms_.dense.size(); ++d) {
      const DenseForm& form = forms_.dense[d];
      Plan& plan = add(form.is_variable ? Place::kPadded : Place::kFixed, form.dtype, d);
      plan.dense = &form;
      plan.missing = &in_.dense_defaults[d];
      if (form.is_variable) continue;
      std::vector<int64_t> dims = BatchDims();
      dims.insert(dims.end(), form.shape.begin(), form.shape.end());
      MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
      MR_ASSIGN_OR_RETURN(Tensor * output, allocate_(OutputOf(out_.dense, d), shape));
      plan.data = output->mutable_raw_data();
    }
    for (size_t r = 0; r < forms_.ragged.size(); ++r) add(Place::kRagged, forms_.ragged[r], r);
    noted_.resize(batch_ * num_noted_);
    return absl::OkStatus();
  }

  static int OutputOf(int first, size_t i) { return first + static_cast<int>(i); }
  std::vector<int64_t> BatchDims() const {
    if (in_.batched == Batched::kNo) return {};
    return {static_cast<int64_t>(batch_)};
  }

  // --- The first pass

  Status FindAll(int64_t* num_good) {
    FirstError error;
    arena_->ParallelFor(
        static_cast<int64_t>(batch_), kFindNs * static_cast<double>(plans_.size() + 1),
        [&](int64_t begin, int64_t end) {
          std::vector<absl::string_view> features(plans_.size());
          for (int64_t i = begin; i < end && i < error.limit(); ++i) {
            Status status = FindIn(static_cast<size_t>(i), absl::MakeSpan(features));
            if (!status.ok()) error.Report(i, std::move(status));
          }
        });
    if (num_good != nullptr) *num_good = error.limit();
    return error.status();
  }

  // `features` is scratch memory: the serialized Feature of each key.
  Status FindIn(size_t example, absl::Span<absl::string_view> features) {
    std::fill(features.begin(), features.end(), absl::string_view());
    FeatureEntries entries(in_.serialized[example]);
    for (FeatureEntry entry; entries.Next(&entry);) {
      const int feature = keys_.Find(entry.key);
      if (feature >= 0) features[static_cast<size_t>(feature)] = entry.feature;
    }
    if (!entries.ok()) return Malformed(example);
    FeatureValues values;
    for (size_t f = 0; f < plans_.size(); ++f) {
      const Plan& plan = plans_[f];
      bool is_there = !features[f].empty();
      if (is_there) {
        if (!ReadValues(features[f], &values)) return Malformed(example);
        is_there = values.kind != FeatureKind::kNone;
        if (is_there && values.kind != plan.kind) return WrongType(example, f, values.kind);
      }
      if (plan.place == Place::kFixed) {
        if (is_there) {
          if (values.count != plan.dense->stride) return WrongCount(example, f, values.count);
        } else if (plan.missing->num_elements() == 0 && plan.dense->stride > 0) {
          return Missing(example, f);
        }
        CopyFixed(plan, is_there ? &values : nullptr, example);
      } else {
        if (!is_there) values = FeatureValues();
        if (plan.place == Place::kPadded && values.count % plan.dense->stride != 0) {
          return WrongCount(example, f, values.count);
        }
        noted_[example * num_noted_ + plan.noted] = values;
      }
    }
    return absl::OkStatus();
  }

  // Null: there are none in this example.
  static void CopyFixed(const Plan& plan, const FeatureValues* values, size_t example) {
    switch (plan.kind) {
      case FeatureKind::kBytes:
        return CopyFixedOf<std::string>(plan, values, example);
      case FeatureKind::kFloat:
        return CopyFixedOf<float>(plan, values, example);
      case FeatureKind::kInt64:
        return CopyFixedOf<int64_t>(plan, values, example);
      case FeatureKind::kNone:
        break;
    }
  }
  template <typename T>
  static void CopyFixedOf(const Plan& plan, const FeatureValues* values, size_t example) {
    const size_t stride = static_cast<size_t>(plan.dense->stride);
    const absl::Span<T> out(static_cast<T*>(plan.data) + example * stride, stride);
    if (values != nullptr) {
      CopyValues(*values, out);
    } else {
      const absl::Span<const T> missing = plan.missing->raw<T>();
      std::copy(missing.begin(), missing.end(), out.begin());
    }
  }

  // --- The second pass

  const FeatureValues& Noted(const Plan& plan, size_t example) const {
    return noted_[example * num_noted_ + plan.noted];
  }
  // Where each example's values begin, and where the last one's end.
  std::vector<int64_t> Starts(const Plan& plan) const {
    std::vector<int64_t> starts(batch_ + 1, 0);
    for (size_t i = 0; i < batch_; ++i) starts[i + 1] = starts[i] + Noted(plan, i).count;
    return starts;
  }
  template <typename Body>
  void ForEachExample(double cost_ns, Body body) const {
    arena_->ParallelFor(static_cast<int64_t>(batch_), cost_ns, [&](int64_t begin, int64_t end) {
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(i);
    });
  }
  // The values of all examples one after the other.
  Status CopyAll(const Plan& plan, const std::vector<int64_t>& starts, Tensor* values) const {
    return VisitFeatureType(plan.dtype, [&]<typename T>() {
      const absl::Span<T> to = values->mutable_raw<T>();
      ForEachExample(kCopyNs, [&](size_t i) {
        const FeatureValues& noted = Noted(plan, i);
        if (noted.count == 0) return;
        CopyValues(noted,
                   to.subspan(static_cast<size_t>(starts[i]), static_cast<size_t>(noted.count)));
      });
      return absl::OkStatus();
    });
  }

  Status MakeSparse(const Plan& plan) const {
    const std::vector<int64_t> starts = Starts(plan);
    const bool batched = in_.batched == Batched::kYes;
    const int64_t rank = batched ? 2 : 1;
    int64_t most = 0;
    for (size_t i = 0; i < batch_; ++i) most = std::max(most, Noted(plan, i).count);
    MR_ASSIGN_OR_RETURN(const Shape places, Shape::Make({starts.back(), rank}));
    MR_ASSIGN_OR_RETURN(Tensor * indices,
                        allocate_(OutputOf(out_.sparse_indices, plan.index), places));
    MR_ASSIGN_OR_RETURN(Tensor * values,
                        allocate_(OutputOf(out_.sparse_values, plan.index), places.WithoutDim(1)));
    MR_ASSIGN_OR_RETURN(Tensor * shape, allocate_(OutputOf(out_.sparse_shapes, plan.index),
                                                  Shape::Vector(static_cast<size_t>(rank))));
    const absl::Span<int64_t> sizes = shape->mutable_raw<int64_t>();
    if (batched) sizes[0] = static_cast<int64_t>(batch_);
    sizes.back() = most;
    int64_t* at = indices->mutable_raw<int64_t>().data();
    for (size_t i = 0; i < batch_; ++i) {
      for (int64_t k = 0; k < Noted(plan, i).count; ++k) {
        if (batched) *at++ = static_cast<int64_t>(i);
        *at++ = k;
      }
    }
    return CopyAll(plan, starts, values);
  }

  Status MakeRagged(const Plan& plan) const {
    const std::vector<int64_t> starts = Starts(plan);
    MR_ASSIGN_OR_RETURN(const Shape length, Shape::Make({starts.back()}));
    MR_ASSIGN_OR_RETURN(Tensor * values,
                        allocate_(OutputOf(out_.ragged_values, plan.index), length));
    const bool batched = in_.batched == Batched::kYes;
    MR_ASSIGN_OR_RETURN(Tensor * splits, allocate_(OutputOf(out_.ragged_splits, plan.index),
                                                   Shape::Vector(batched ? batch_ + 1 : 0)));
    if (batched && splits->dtype() == DT_INT64) {
      std::copy(starts.begin(), starts.end(), splits->mutable_raw<int64_t>().begin());
    } else if (batched) {
      if (starts.back() > std::numeric_limits<int32_t>::max()) {
        return InvalidArgument("feature '", keys_.keys()[FeatureOf(plan)], "' must have at most ",
                               std::numeric_limits<int32_t>::max(),
                               " values for int32 row splits, got ", starts.back());
      }
      std::transform(starts.begin(), starts.end(), splits->mutable_raw<int32_t>().begin(),
                     [](int64_t start) { return static_cast<int32_t>(start); });
    }
    return CopyAll(plan, starts, values);
  }

  Status MakePadded(const Plan& plan) const {
    int64_t most = 0;
    for (size_t i = 0; i < batch_; ++i) most = std::max(most, Noted(plan, i).count);
    std::vector<int64_t> dims = BatchDims();
    dims.push_back(most / plan.dense->stride);
    dims.insert(dims.end(), plan.dense->shape.begin() + 1, plan.dense->shape.end());
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * output, allocate_(OutputOf(out_.dense, plan.index), shape));
    if (output->num_elements() == 0) return absl::OkStatus();
    const size_t row = static_cast<size_t>(most);
    return VisitFeatureType(plan.dtype, [&]<typename T>() {
      const absl::Span<T> to = output->mutable_raw<T>();
      const T padding = plan.missing->raw<T>()[0];
      ForEachExample(kCopyNs + 0.5 * static_cast<double>(row), [&](size_t i) {
        const absl::Span<T> out = to.subspan(i * row, row);
        const FeatureValues& noted = Noted(plan, i);
        const size_t count = static_cast<size_t>(noted.count);
        if (count > 0) CopyValues(noted, out.first(count));
        std::fill(out.begin() + static_cast<ptrdiff_t>(count), out.end(), padding);
      });
      return absl::OkStatus();
    });
  }

  // --- Errors, in TensorFlow's words

  size_t FeatureOf(const Plan& plan) const { return static_cast<size_t>(&plan - plans_.data()); }
  absl::string_view Name(size_t example) const {
    return in_.names.empty() ? absl::string_view("<unknown>") : in_.names[example];
  }
  int64_t Index(size_t example) const { return static_cast<int64_t>(example) % in_.count_to; }
  std::string Where(size_t example, size_t feature) const {
    const std::string& key = keys_.keys()[feature];
    if (in_.batched == Batched::kNo && in_.names.empty()) return absl::StrCat("Key: ", key, ".  ");
    return absl::StrCat("Name: ", Name(example), ", Key: ", key, ", Index: ", Index(example),
                        ".  ");
  }
  Status Malformed(size_t example) const {
    return InvalidArgument("Name: ", Name(example), ", Index: ", Index(example),
                           ".  Could not parse example input, value of ",
                           in_.serialized[example].size(), " bytes is no tensorflow.Example");
  }
  Status WrongType(size_t example, size_t feature, FeatureKind kind) const {
    return InvalidArgument(Where(example, feature),
                           "Data types don't match. Data type: ", NameOf(kind),
                           " but expected type: ", plans_[feature].dtype);
  }
  Status WrongCount(size_t example, size_t feature, int64_t count) const {
    const Plan& plan = plans_[feature];
    const StatusOr<PartialShape> shape = PartialShape::Make(plan.dense->shape);
    return InvalidArgument(Where(example, feature), "Number of ", plan.dtype,
                           " values != expected.  values size: ", count,
                           " but output shape: ", shape.ok() ? shape->ToString() : "<invalid>");
  }
  Status Missing(size_t example, size_t feature) const {
    const std::string name = in_.batched == Batched::kNo && in_.names.empty()
                                 ? std::string()
                                 : absl::StrCat("Name: ", Name(example), ", ");
    return InvalidArgument(name, "Feature: ", keys_.keys()[feature],
                           " (data type: ", plans_[feature].dtype,
                           ") is required but could not be found.");
  }

  Arena* const arena_;
  const AllocateExampleOutput allocate_;
  const ExampleForms& forms_;
  const FeatureKeys& keys_;
  const ExampleInputs& in_;
  const ExampleOutputs& out_;
  const size_t batch_;
  std::vector<Plan> plans_;           // one per feature
  size_t num_noted_ = 0;              // features that are noted
  std::vector<FeatureValues> noted_;  // [batch_, num_noted_]
};

}  // namespace

Status ParseExamples(const ExampleForms& forms, const FeatureKeys& keys,
                     const ExampleInputs& inputs, const ExampleOutputs& outputs, Arena* arena,
                     AllocateExampleOutput allocate, int64_t* num_good) {
  return Parser(forms, keys, inputs, outputs, arena, allocate).Run(num_good);
}

}  // namespace millrace
