// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/lookup_table.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "graph/shape_inference.h"
#include "ops/kernels/table_storage.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// What the graph knows of the table: nothing of the old forms, and of tables from elsewhere.
HandleData TableOf(InferenceContext* c) { return c->input_handle(0).value_or(HandleData()); }

Status CheckValueType(InferenceContext* c, const char* attr) {
  const HandleData table = TableOf(c);
  if (table.dtype == DT_INVALID) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>(attr));
  if (dtype == table.dtype) return absl::OkStatus();
  return InvalidArgument("the table has values of ", table.dtype, ", got ", dtype);
}

// keys + value: a handle that says what a value is has scalar keys.
StatusOr<PartialShape> ValuesShape(const PartialShape& keys, const HandleData& table) {
  if (table.dtype == DT_INVALID || !keys.has_rank() || !table.shape.has_rank()) {
    return PartialShape();
  }
  std::vector<int64_t> dims(keys.dims().begin(), keys.dims().end());
  dims.insert(dims.end(), table.shape.dims().begin(), table.shape.dims().end());
  return PartialShape::Make(dims);
}

// An op on a table: a function of the step and its table.
class TableOpKernel : public Kernel {
 public:
  using RunFn = Status (*)(KernelContext* ctx, TableStorage* table);
  explicit TableOpKernel(RunFn run) : run_(run) {}
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto table, TableInput(ctx, 0));
    return run_(ctx, table.get());
  }

 private:
  const RunFn run_;
};

// The op, by its name without V2, in both forms.
struct TableOpForm {
  const char* name;
  const char* more_inputs;
  const char* outputs;
  const char* attrs;
  ShapeFn shape;
  TableOpKernel::RunFn run;
};
OpSpec NewForm(const TableOpForm& op) {
  return OpSpec(absl::StrCat(op.name, "V2"),
                absl::StrCat("table_handle: resource", op.more_inputs, op.outputs), op.attrs)
      .Stateful()
      .Shape(op.shape)
      .NotDifferentiable()
      .With(KernelFor<TableOpKernel>(op.run));
}
OpSpec OldForm(const TableOpForm& op) {
  return OpSpec(op.name, absl::StrCat("table_handle: Ref(string)", op.more_inputs, op.outputs),
                op.attrs)
      .Shape(op.shape)
      .NotDifferentiable()
      .With(KernelFor<TableOpKernel>(op.run));
}

// --- Find ----------------------------------------------------------------------------------------

Status FindShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckValueType(c, "Tout"));
  const HandleData table = TableOf(c);
  const PartialShape& missing = c->input(2);
  if (missing.has_rank() && missing.rank() > 1) {
    return InvalidArgument("default_value must be a scalar or a vector, got shape ", missing);
  }
  if (table.dtype != DT_INVALID && !missing.IsCompatibleWith(table.shape)) {
    return InvalidArgument("Expected shape ", table.shape, " for default value, got ", missing);
  }
  MR_ASSIGN_OR_RETURN(PartialShape values, ValuesShape(c->input(1), table));
  c->set_output(0, std::move(values));
  return absl::OkStatus();
}

Status RunFind(KernelContext* ctx, TableStorage* table) {
  const Tensor& keys = ctx->input(1);
  MR_ASSIGN_OR_RETURN(const Shape shape, table->ShapeOfValues(keys.shape()));
  if (ctx->input(2).dtype() != table->spec().value_dtype) {
    // Before an output of that type is made.
    return InvalidArgument(table->spec().Title(), " has values of ", table->spec().value_dtype,
                           ", got ", ctx->input(2).dtype());
  }
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(0, shape));
  const auto loop = [ctx](int64_t n, double cost_ns,
                          absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
    ctx->ParallelFor(n, cost_ns, body);
  };
  return table->Find(keys, ctx->input(2), loop, values);
}

const TableOpForm kFind = {"LookupTableFind",  ", keys: Tin, default_value: Tout",
                           " -> values: Tout", "Tin: type; Tout: type",
                           FindShape,          RunFind};

// --- Insert, Remove, Import ----------------------------------------------------------------------

// As many values as keys, where the table is known.
Status ChangeShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckValueType(c, "Tout"));
  MR_ASSIGN_OR_RETURN(const PartialShape wanted, ValuesShape(c->input(1), TableOf(c)));
  if (c->input(2).IsCompatibleWith(wanted)) return absl::OkStatus();
  return InvalidArgument("Expected shape ", wanted, " for value, got ", c->input(2));
}

Status RunInsert(KernelContext* ctx, TableStorage* table) {
  return table->Insert(ctx->input(1), ctx->input(2));
}
Status RunRemove(KernelContext* ctx, TableStorage* table) { return table->Remove(ctx->input(1)); }
Status RunImport(KernelContext* ctx, TableStorage* table) {
  return table->Import(ctx->input(1), ctx->input(2));
}

const TableOpForm kInsert = {"LookupTableInsert",
                             ", keys: Tin, values: Tout",
                             "",
                             "Tin: type; Tout: type",
                             ChangeShape,
                             RunInsert};
const TableOpForm kRemove = {"LookupTableRemove", ", keys: Tin", "",
                             "Tin: type",         NoOutputShape, RunRemove};
// What a dense table takes is shaped otherwise.
const TableOpForm kImport = {"LookupTableImport",
                             ", keys: Tin, values: Tout",
                             "",
                             "Tin: type; Tout: type",
                             NoOutputShape,
                             RunImport};

// --- Size, Export --------------------------------------------------------------------------------

Status RunSize(KernelContext* ctx, TableStorage* table) {
  ctx->set_output(0, Tensor::Scalar<int64_t>(table->size()));
  return absl::OkStatus();
}

const TableOpForm kSize = {"LookupTableSize", "", " -> size: int64", "", ScalarShape, RunSize};

Status ExportShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckValueType(c, "Tvalues"));
  // How many rows keys and values have, and what a dense table makes of scalars, is not known.
  return ValueDependentShape(c);
}

class ExportKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "Tkeys", &keys_, "Tvalues", &values_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto table, TableInput(ctx, 0));
    const TableSpec& spec = table->spec();
    if (spec.key_dtype == keys_ && spec.value_dtype == values_) return table->Export(ctx);
    return InvalidArgument(spec.Title(), " has ", spec.value_dtype, " by ", spec.key_dtype,
                           ", got ", values_, " by ", keys_);
  }

 private:
  DType keys_ = DT_INVALID, values_ = DT_INVALID;
};

OpSpec ExportOp(const char* name, const char* input) {
  return OpSpec(name, absl::StrCat(input, " -> keys: Tkeys, values: Tvalues"),
                "Tkeys: type; Tvalues: type")
      .Shape(ExportShape)
      .NotDifferentiable()
      .With(KernelFor<ExportKernel>());
}

const OpRegistration kTableOps[] = {
    NewForm(kFind),
    OldForm(kFind),
    NewForm(kInsert),
    OldForm(kInsert),
    NewForm(kRemove),  // removing is younger than the old forms
    NewForm(kImport),
    OldForm(kImport),
    NewForm(kSize),
    OldForm(kSize),
    ExportOp("LookupTableExportV2", "table_handle: resource").Stateful(),
    ExportOp("LookupTableExport", "table_handle: Ref(string)")};

}  // namespace
}  // namespace millrace
