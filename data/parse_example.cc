// SPDX-License-Identifier: Apache-2.0
// Two passes over a batch, each in parallel over the examples: the first finds the features that
// are asked for and counts their values, the second copies them into tensors of known size.
#include "data/parse_example.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/mutex.h"
#include "data/example_wire.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Rule ----------------------------------------------------------------------------------------

struct Dense {
  DType dtype;
  bool variable = false;       // the first dimension is as long as it needs to be
  std::vector<int64_t> shape;  // of one example; -1 first when variable
  int64_t stride = 1;          // values of one example; of one row when variable
};

// Feature number `d`, described by the attrs.
StatusOr<Dense> DenseFeature(size_t d, DType dtype, const PartialShape& shape) {
  if (!shape.has_rank()) {
    return InvalidArgument("dense_shapes[", d, "] must have a known rank, got ", shape);
  }
  Dense dense{dtype, false, {shape.dims().begin(), shape.dims().end()}, 1};
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape.dim(i) >= 0) {
      MR_ASSIGN_OR_RETURN(dense.stride, CheckedProduct(dense.stride, shape.dim(i)));
    } else if (i == 0) {
      dense.variable = true;
    } else {
      return InvalidArgument("dense_shapes[", d, "] may leave only its first dimension open, got ",
                             shape);
    }
  }
  if (dense.variable && dense.stride == 0) {
    return InvalidArgument("dense_shapes[", d,
                           "] with an open first dimension must have other dimensions > 0, got ",
                           shape);
  }
  return dense;
}

// Of a fixed feature: the feature's shape, or no elements; of a variable one: one element.
Status CheckDefault(size_t d, const Dense& dense, const PartialShape& value) {
  if (!value.IsFullyDefined()) return absl::OkStatus();
  const int64_t elements = value.num_elements();
  if (dense.variable) {
    if (elements == 1) return absl::OkStatus();
    return InvalidArgument(
        "dense_defaults[", d,
        "] of a feature of variable length must have 1 element, the padding, got shape ", value);
  }
  const bool same =
      std::equal(dense.shape.begin(), dense.shape.end(), value.dims().begin(), value.dims().end());
  if (elements == 0 || same) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const PartialShape wanted, PartialShape::Make(dense.shape));
  return InvalidArgument("dense_defaults[", d, "] must have shape ", wanted,
                         " of the feature or no elements, got ", value);
}

struct ParseExampleRule {
  std::vector<DType> sparse_types;
  std::vector<Dense> dense;

  Status Init(const NodeAttrs& attrs) {
    int64_t num_sparse = 0, num_dense = 0;
    std::vector<DType> dense_types;
    std::vector<PartialShape> dense_shapes;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "Nsparse", &num_sparse, "Ndense", &num_dense,
                                 "sparse_types", &sparse_types, "Tdense", &dense_types,
                                 "dense_shapes", &dense_shapes));
    const auto check = [](const char* name, size_t size, const char* keys, int64_t num) {
      if (static_cast<int64_t>(size) == num) return absl::OkStatus();
      return InvalidArgument(name, " must have one element for each of the ", num, " ", keys,
                             ", got ", size);
    };
    MR_RETURN_IF_ERROR(check("sparse_types", sparse_types.size(), "sparse_keys", num_sparse));
    MR_RETURN_IF_ERROR(check("Tdense", dense_types.size(), "dense_keys", num_dense));
    MR_RETURN_IF_ERROR(check("dense_shapes", dense_shapes.size(), "dense_keys", num_dense));
    for (size_t d = 0; d < dense_types.size(); ++d) {
      MR_ASSIGN_OR_RETURN(Dense feature, DenseFeature(d, dense_types[d], dense_shapes[d]));
      dense.push_back(std::move(feature));
    }
    return absl::OkStatus();
  }

  // Sparse features come before dense ones: in the keys (inputs 2, 3, ...), and in the outputs.
  size_t num_features() const { return sparse_types.size() + dense.size(); }
  static int KeyInput(size_t feature) { return static_cast<int>(2 + feature); }
  int DefaultInput(size_t d) const { return static_cast<int>(2 + num_features() + d); }
  int DenseOutput(size_t d) const { return static_cast<int>(3 * sparse_types.size() + d); }

  // The number of sparse values, and the length of variable features, are in the examples.
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape serialized, Vector(c, 0, "serialized"));
    MR_ASSIGN_OR_RETURN(const PartialShape names, Vector(c, 1, "names"));
    const int64_t batch = serialized.dim(0);
    if (names.dim(0) > 0 && batch >= 0 && names.dim(0) != batch) {
      return InvalidArgument("names must be empty or have one element for each of the ", batch,
                             " examples, got ", names.dim(0));
    }
    const size_t sparse = sparse_types.size();
    for (size_t i = 0; i < num_features(); ++i) {
      const char* name = i < sparse ? "sparse_keys" : "dense_keys";
      MR_RETURN_IF_ERROR(c->InputWithRank(KeyInput(i), 0, name).status());
    }
    for (size_t i = 0; i < sparse; ++i) {
      c->set_output(static_cast<int>(i), {-1, 2});
      c->set_output(static_cast<int>(sparse + i), {-1});
      c->set_output(static_cast<int>(2 * sparse + i), {2});
    }
    for (size_t d = 0; d < dense.size(); ++d) {
      MR_RETURN_IF_ERROR(CheckDefault(d, dense[d], c->input(DefaultInput(d))));
      std::vector<int64_t> dims = {batch};
      dims.insert(dims.end(), dense[d].shape.begin(), dense[d].shape.end());
      MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
      c->set_output(DenseOutput(d), std::move(shape));
    }
    return absl::OkStatus();
  }

  static StatusOr<PartialShape> Vector(RuleContext* c, int i, const char* name) {
    const PartialShape& shape = c->input(i);
    if (!shape.has_rank()) return PartialShape::UnknownOfRank(1);
    if (shape.rank() == 1) return shape;
    return InvalidArgument(name, " must be a vector, got shape ", shape);
  }
};

// --- Kernel --------------------------------------------------------------------------------------

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
const char* NameOf(FeatureKind kind) {
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

// What the first pass finds of one feature in one example.
struct Found {
  FeatureView view;
  int64_t count = -1;  // -1: missing
};

// The error of the first example that has one, whatever the order in which examples are read.
class FirstError {
 public:
  // Examples after this one need not be read.
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void Report(int64_t example, Status status) {
    MutexLock lock(&mu_);
    // Relaxed: only saves work; the status is read after the parallel loop.
    if (example < limit_.load(std::memory_order_relaxed)) {
      limit_.store(example, std::memory_order_relaxed);
      status_ = std::move(status);
    }
  }
  Status status() {
    MutexLock lock(&mu_);
    return status_;
  }

 private:
  std::atomic<int64_t> limit_ = std::numeric_limits<int64_t>::max();
  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

// Nanoseconds to find and to copy one feature of one example, measured roughly.
constexpr double kFindNs = 60;
constexpr double kCopyNs = 20;

class ParseExampleKernel : public RuledKernel<ParseExampleRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    std::vector<std::string> keys;
    for (size_t i = 0; i < num_features(); ++i) {
      keys.push_back(ctx->input(rule().KeyInput(i)).raw_scalar<std::string>());
    }
    MR_ASSIGN_OR_RETURN(const std::vector<Found> found, FindAll(ctx, keys));
    for (size_t s = 0; s < rule().sparse_types.size(); ++s) {
      MR_RETURN_IF_ERROR(MakeSparse(ctx, found, s));
    }
    for (size_t d = 0; d < rule().dense.size(); ++d) MR_RETURN_IF_ERROR(MakeDense(ctx, found, d));
    return absl::OkStatus();
  }

 private:
  size_t num_features() const { return rule().num_features(); }
  DType TypeOf(size_t feature) const {
    const size_t sparse = rule().sparse_types.size();
    return feature < sparse ? rule().sparse_types[feature] : rule().dense[feature - sparse].dtype;
  }

  // found[example * num_features() + feature]
  StatusOr<std::vector<Found>> FindAll(KernelContext* ctx,
                                       const std::vector<std::string>& keys) const {
    const absl::Span<const std::string> examples = ctx->input(0).raw<std::string>();
    const absl::Span<const std::string> names = ctx->input(1).raw<std::string>();
    absl::flat_hash_map<absl::string_view, size_t> feature_of;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!feature_of.emplace(keys[i], i).second) {
        return InvalidArgument("keys must differ, got '", keys[i], "' for two features");
      }
    }
    std::vector<Found> found(examples.size() * keys.size());
    FirstError error;
    ctx->ParallelFor(
        static_cast<int64_t>(examples.size()), kFindNs * static_cast<double>(keys.size() + 1),
        [&](int64_t begin, int64_t end) {
          std::vector<FeatureEntry> entries;
          for (int64_t i = begin; i < end && i < error.limit(); ++i) {
            const size_t example = static_cast<size_t>(i);
            const absl::string_view name =
                names.empty() ? absl::string_view("<unknown>") : absl::string_view(names[example]);
            entries.clear();
            const Status status = Find(examples[example], name, i, keys, feature_of, &entries,
                                       found.data() + example * keys.size());
            if (!status.ok()) error.Report(i, status);
          }
        });
    MR_RETURN_IF_ERROR(error.status());
    return found;
  }

  Status Find(absl::string_view bytes, absl::string_view name, int64_t index,
              const std::vector<std::string>& keys,
              const absl::flat_hash_map<absl::string_view, size_t>& feature_of,
              std::vector<FeatureEntry>* entries, Found* found) const {
    const auto malformed = [&] {
      return InvalidArgument("Name: ", name, ", Index: ", index,
                             ".  Could not parse example input, value of ", bytes.size(),
                             " bytes is no tensorflow.Example");
    };
    if (!ReadExample(bytes, entries)) return malformed();
    // From the back: the last entry of a key counts.
    for (auto entry = entries->rbegin(); entry != entries->rend(); ++entry) {
      const auto at = feature_of.find(entry->key);
      if (at == feature_of.end()) continue;
      Found& f = found[at->second];
      if (f.count != -1) continue;
      if (!ReadFeature(entry->feature, &f.view)) return malformed();
      if (f.view.kind == FeatureKind::kNone) {  // an entry without a value: missing, and the last
        f.count = -2;
        continue;
      }
      const DType dtype = TypeOf(at->second);
      if (f.view.kind != KindOf(dtype)) {
        return InvalidArgument("Name: ", name, ", Key: ", keys[at->second], ", Index: ", index,
                               ".  Data types don't match. Data type: ", NameOf(f.view.kind),
                               " but expected type: ", dtype);
      }
      if (!CountValues(f.view, &f.count)) return malformed();
    }
    const size_t sparse = rule().sparse_types.size();
    for (size_t i = 0; i < keys.size(); ++i) {
      Found& f = found[i];
      if (f.count == -2) f.count = -1;
      if (i < sparse) continue;
      MR_RETURN_IF_ERROR(CheckCount(rule().dense[i - sparse], f.count, name, keys[i], index));
    }
    return absl::OkStatus();
  }

  static Status CheckCount(const Dense& dense, int64_t count, absl::string_view name,
                           absl::string_view key, int64_t index) {
    if (count < 0) return absl::OkStatus();
    const bool fits = dense.variable ? count % dense.stride == 0 : count == dense.stride;
    if (fits) return absl::OkStatus();
    const StatusOr<PartialShape> shape = PartialShape::Make(dense.shape);
    return InvalidArgument("Name: ", name, ", Key: ", key, ", Index: ", index, ".  Number of ",
                           dense.dtype, " values != expected.  values size: ", count,
                           " but output shape: ", shape.ok() ? shape->ToString() : "<invalid>");
  }

  // Calls visit.operator()<T>() for the element type.
  template <typename Visitor>
  static Status Visit(DType dtype, Visitor&& visit) {
    switch (dtype) {
      case DT_STRING:
        return visit.template operator()<std::string>();
      case DT_FLOAT:
        return visit.template operator()<float>();
      case DT_INT64:
        return visit.template operator()<int64_t>();
      default:
        return Internal("a feature cannot be of ", dtype);
    }
  }

  Status MakeSparse(KernelContext* ctx, const std::vector<Found>& found, size_t s) const {
    const size_t batch = static_cast<size_t>(ctx->input(0).num_elements());
    const int sparse = static_cast<int>(rule().sparse_types.size());
    std::vector<int64_t> first(batch + 1, 0);  // where each example's values begin
    int64_t most = 0;
    for (size_t i = 0; i < batch; ++i) {
      const int64_t count = std::max<int64_t>(0, found[i * num_features() + s].count);
      first[i + 1] = first[i] + count;
      most = std::max(most, count);
    }
    const int output = static_cast<int>(s);
    MR_ASSIGN_OR_RETURN(const Shape indices_shape, Shape::Make({first[batch], 2}));
    MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(output, indices_shape));
    MR_ASSIGN_OR_RETURN(Tensor * values,
                        ctx->AllocateOutput(sparse + output, indices_shape.WithoutDim(1)));
    ctx->set_output(2 * sparse + output,
                    Tensor::Vector<int64_t>({static_cast<int64_t>(batch), most}));
    return Visit(rule().sparse_types[s], [&]<typename T>() {
      const absl::Span<int64_t> at = indices->mutable_raw<int64_t>();
      const absl::Span<T> to = values->mutable_raw<T>();
      ctx->ParallelFor(static_cast<int64_t>(batch), kCopyNs, [&](int64_t begin, int64_t end) {
        for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
          const size_t from = static_cast<size_t>(first[i]);
          const size_t count = static_cast<size_t>(first[i + 1]) - from;
          for (size_t k = 0; k < count; ++k) {
            at[2 * (from + k)] = static_cast<int64_t>(i);
            at[2 * (from + k) + 1] = static_cast<int64_t>(k);
          }
          if (count > 0) CopyValues(found[i * num_features() + s].view, to.subspan(from, count));
        }
      });
      return absl::OkStatus();
    });
  }

  Status MakeDense(KernelContext* ctx, const std::vector<Found>& found, size_t d) const {
    const Dense& dense = rule().dense[d];
    const size_t batch = static_cast<size_t>(ctx->input(0).num_elements());
    const size_t feature = rule().sparse_types.size() + d;
    const Tensor& default_value = ctx->input(rule().DefaultInput(d));
    const auto of = [&](size_t i) -> const Found& { return found[i * num_features() + feature]; };
    std::vector<int64_t> dims = {static_cast<int64_t>(batch)};
    dims.insert(dims.end(), dense.shape.begin(), dense.shape.end());
    if (dense.variable) {
      int64_t most = 0;
      for (size_t i = 0; i < batch; ++i) most = std::max(most, of(i).count);
      dims[1] = most / dense.stride;
    } else if (default_value.num_elements() == 0 && dense.stride > 0) {
      for (size_t i = 0; i < batch; ++i) {
        if (of(i).count >= 0) continue;
        const absl::Span<const std::string> names = ctx->input(1).raw<std::string>();
        return InvalidArgument(
            "Name: ", names.empty() ? "<unknown>" : names[i],
            ", Feature: ", ctx->input(rule().KeyInput(feature)).raw_scalar<std::string>(),
            " (data type: ", dense.dtype, ") is required but could not be found.");
      }
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * result, ctx->AllocateOutput(rule().DenseOutput(d), shape));
    if (result->num_elements() == 0) return absl::OkStatus();
    const size_t row = static_cast<size_t>(result->num_elements()) / batch;
    return Visit(dense.dtype, [&]<typename T>() {
      const absl::Span<T> to = result->mutable_raw<T>();
      const absl::Span<const T> missing = default_value.raw<T>();
      ctx->ParallelFor(
          static_cast<int64_t>(batch), kCopyNs + 0.5 * static_cast<double>(row),
          [&](int64_t begin, int64_t end) {
            for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
              const absl::Span<T> out = to.subspan(i * row, row);
              const size_t count = static_cast<size_t>(std::max<int64_t>(0, of(i).count));
              if (of(i).count >= 0) CopyValues(of(i).view, out.first(count));
              if (dense.variable) {
                std::fill(out.begin() + static_cast<ptrdiff_t>(count), out.end(), missing[0]);
              } else if (of(i).count < 0) {
                std::copy(missing.begin(), missing.end(), out.begin());
              }
            }
          });
      return absl::OkStatus();
    });
  }
};

const OpRegistration kParseExample =
    OpSpec("ParseExample",
           "serialized: string, names: string, sparse_keys: Nsparse * string, "
           "dense_keys: Ndense * string, dense_defaults: Tdense -> "
           "sparse_indices: Nsparse * int64, sparse_values: sparse_types, "
           "sparse_shapes: Nsparse * int64, dense_values: Tdense",
           "Nsparse: int >= 0; Ndense: int >= 0; sparse_types: list({float, int64, string}) >= 0; "
           "Tdense: list({float, int64, string}) >= 0; dense_shapes: list(shape) >= 0")
        .Rule<ParseExampleRule>()
        .NotDifferentiable()
        .With(KernelFor<ParseExampleKernel>());

}  // namespace
}  // namespace millrace
