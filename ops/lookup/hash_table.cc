// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/hash_table.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "graph/shape_inference.h"
#include "ops/kernels/table_storage.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// What attributes and (of dense tables) keys say of a table.
Status ReadSpec(const NodeAttrs& attrs, TableKind kind, bool of_tensors, TableSpec* spec) {
  spec->kind = kind;
  MR_RETURN_IF_ERROR(
      ReadAttrs(attrs, "key_dtype", &spec->key_dtype, "value_dtype", &spec->value_dtype));
  if (kind != TableKind::kDense && !of_tensors) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const auto shape, GetAttr<PartialShape>(attrs, "value_shape"));
  const StatusOr<Shape> whole = shape.ToShape();
  if (!whole.ok()) return InvalidArgument("value_shape must be fully defined, got ", shape);
  spec->value_shape = *whole;
  if (of_tensors && spec->value_shape.rank() != 1) {
    return InvalidArgument("Default value must be a vector, got shape ", spec->value_shape);
  }
  return absl::OkStatus();
}

// A handle is a scalar; in the old forms a container and a name.
template <TableKind kKind, bool kOfTensors, bool kByReference>
Status TableShape(InferenceContext* c) {
  TableSpec spec;
  MR_RETURN_IF_ERROR(ReadSpec(c->attrs(), kKind, kOfTensors, &spec));
  // What a key is must be known to tell the shape of values from that of keys.
  for (int i = 0; i < c->num_inputs(); ++i) {
    if (c->input(i).has_rank() && c->input(i).rank() > 1) {
      return InvalidArgument(i == 0 ? "empty_key" : "deleted_key",
                             " must be a scalar or a vector, got shape ", c->input(i));
    }
  }
  const bool keys_are_scalars =
      c->num_inputs() == 0 || (c->input(0).has_rank() && c->input(0).rank() == 0);
  c->set_output(0, kByReference ? PartialShape({2}) : PartialShape::Scalar());
  if (!kByReference && keys_are_scalars) {
    c->set_output_handle(0, {spec.value_dtype, spec.value_shape});
  }
  return absl::OkStatus();
}

class TableKernel : public Kernel {
 public:
  TableKernel(TableKind kind, bool of_tensors) : of_tensors_(of_tensors) { spec_.kind = kind; }

  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadSpec(c->attrs(), spec_.kind, of_tensors_, &spec_));
    std::string shared_name;
    bool use_node_name = false;
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "container", &container_, "shared_name", &shared_name,
                                 "use_node_name_sharing", &use_node_name));
    spec_.name = shared_name.empty() ? c->node().name() : shared_name;
    is_shared_ = use_node_name || !shared_name.empty();
    by_reference_ = IsRef(c->output_type(0));
    if (spec_.kind != TableKind::kDense) return absl::OkStatus();
    return ReadAttrs(c->attrs(), "initial_num_buckets", &dense_.initial_num_buckets,
                     "max_load_factor", &dense_.max_load_factor);
  }

  // One kernel may serve several sessions (plans are shared): what the last one got is kept.
  Status Compute(KernelContext* ctx) const override {
    static const std::string* const no_session = new std::string;
    const std::string& session = is_shared_ ? *no_session : ctx->session_handle();
    MutexLock lock(&mu_);
    if (table_ == nullptr || session != table_->spec().session || table_->abandoned()) {
      MR_RETURN_IF_ERROR(FindOrMake(ctx, session));
    }
    if (by_reference_) {
      ctx->set_output_ref(0, reference_);
    } else {
      ctx->set_output(0, handle_);
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  Status FindOrMake(KernelContext* ctx, const std::string& session) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    TableSpec spec = spec_;
    spec.session = session;
    DenseTableOptions dense = dense_;
    if (spec.kind == TableKind::kDense) {
      dense.empty_key = ctx->input(0);
      spec.key_shape = dense.empty_key.shape();
      if (ctx->num_inputs() > 1) dense.deleted_key = ctx->input(1);
    }
    const std::string key = is_shared_ ? spec.name : absl::StrCat(session, "/", spec.name);
    MR_ASSIGN_OR_RETURN(
        auto table, ctx->resources()->LookupOrCreate<TableStorage>(container_, key, [&] {
          return spec.kind == TableKind::kDense ? MakeDenseTable(spec, dense) : MakeTable(spec);
        }));
    MR_RETURN_IF_ERROR(table->spec().CheckSame(spec));
    if (by_reference_) {
      auto names = std::make_shared<VariableStorage>(spec.name, DT_STRING, PartialShape({2}));
      MR_RETURN_IF_ERROR(names->Assign(Tensor::Vector<std::string>({container_, key}),
                                       /*validate_shape=*/true));
      reference_ = std::move(names);
    } else {
      ResourceHandle handle = ctx->resources()->MakeHandle<TableStorage>(container_, key, table);
      // As the shape function says it.
      if (spec.key_shape.is_scalar()) {
        handle.dtypes = {spec.value_dtype};
        handle.shapes = {PartialShape(spec.value_shape)};
      }
      handle_ = Tensor::Scalar<ResourceHandle>(std::move(handle));
    }
    table_ = std::move(table);
    return absl::OkStatus();
  }

  const bool of_tensors_;
  TableSpec spec_;
  DenseTableOptions dense_;
  std::string container_;
  bool is_shared_ = false, by_reference_ = false;
  mutable Mutex mu_;
  mutable std::shared_ptr<TableStorage> table_ ABSL_GUARDED_BY(mu_);
  mutable Tensor handle_ ABSL_GUARDED_BY(mu_);
  mutable std::shared_ptr<VariableStorage> reference_ ABSL_GUARDED_BY(mu_);
};

// An op and its old form. `more`: attributes behind those that all tables have.
template <TableKind kKind, bool kOfTensors, bool kByReference>
OpSpec TableOp(const char* name, absl::string_view inputs, absl::string_view more) {
  return OpSpec(
             name,
             absl::StrCat(inputs, "-> table_handle: ", kByReference ? "Ref(string)" : "resource"),
             absl::StrCat("container: string = ''; shared_name: string = ''; "
                          "use_node_name_sharing: bool = false; key_dtype: type; "
                          "value_dtype: type",
                          more))
      .Stateful()
      .Shape(TableShape<kKind, kOfTensors, kByReference>)
      .NotDifferentiable()
      .With(
          KernelFor<TableKernel>(kKind, kOfTensors)
              .Types("key_dtype", {DT_INT32, DT_INT64, DT_STRING})
              .Types("value_dtype", {DT_BOOL, DT_INT32, DT_INT64, DT_FLOAT, DT_DOUBLE, DT_STRING}));
}

constexpr char kOfTensorsAttrs[] = "; value_shape: shape = {}";
constexpr char kDenseAttrs[] =
    "; value_shape: shape = {}; initial_num_buckets: int = 131072; max_load_factor: float = 0.8";

constexpr bool kScalars = false, kTensors = true;  // values
constexpr bool kResource = false, kReference = true;

const OpRegistration kTables[] = {
    TableOp<TableKind::kFixed, kScalars, kResource>("HashTableV2", "", ""),
    TableOp<TableKind::kFixed, kScalars, kReference>("HashTable", "", ""),
    TableOp<TableKind::kMutable, kScalars, kResource>("MutableHashTableV2", "", ""),
    TableOp<TableKind::kMutable, kScalars, kReference>("MutableHashTable", "", ""),
    TableOp<TableKind::kMutable, kTensors, kResource>("MutableHashTableOfTensorsV2", "",
                                                      kOfTensorsAttrs),
    TableOp<TableKind::kMutable, kTensors, kReference>("MutableHashTableOfTensors", "",
                                                       kOfTensorsAttrs),
    TableOp<TableKind::kDense, kScalars, kResource>(
        "MutableDenseHashTableV2", "empty_key: key_dtype, deleted_key: key_dtype ", kDenseAttrs),
    TableOp<TableKind::kDense, kScalars, kReference>("MutableDenseHashTable",
                                                     "empty_key: key_dtype ", kDenseAttrs)};

}  // namespace
}  // namespace millrace
