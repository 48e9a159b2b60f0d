// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/table_initializer.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "graph/later_attrs.h"
#include "graph/shape_inference.h"
#include "ops/kernels/table_file.h"
#include "ops/kernels/table_storage.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- From tensors --------------------------------------------------------------------------------

Status InitializeShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape keys, c->InputWithRankAtLeast(1, 0, "keys"));
  if (c->input(2).IsCompatibleWith(keys)) return absl::OkStatus();
  return InvalidArgument("Expected shape ", keys, " for value, got ", c->input(2));
}

class InitializeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto table, TableInput(ctx, 0));
    return table->Initialize(ctx->input(1), ctx->input(2));
  }
};

OpSpec InitializeOp(const char* name, const char* handle) {
  return OpSpec(name, absl::StrCat(handle, ", keys: Tkey, values: Tval"), "Tkey: type; Tval: type")
      .Shape(InitializeShape)
      .NotDifferentiable()
      .With(KernelFor<InitializeKernel>());
}
const OpRegistration kInitialize[] = {
    InitializeOp("InitializeTableV2", "table_handle: resource").Stateful(),
    InitializeOp("InitializeTable", "table_handle: Ref(string)")};

// --- From files ----------------------------------------------------------------------------------

Status ReadLayout(const NodeAttrs& attrs, TableFileLayout* layout) {
  std::string delimiter;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "key_index", &layout->key_index, "value_index",
                               &layout->value_index, "vocab_size", &layout->vocab_size, "delimiter",
                               &delimiter));
  if (delimiter.size() != 1) {
    return InvalidArgument("delimiter should be only 1 char, got '", delimiter, "'");
  }
  layout->delimiter = delimiter[0];
  return absl::OkStatus();
}

Status FromFileShape(InferenceContext* c) {
  TableFileLayout layout;
  MR_RETURN_IF_ERROR(ReadLayout(c->attrs(), &layout));
  return c->InputWithRank(1, 0, "filename").status();
}

class FromFileKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override { return ReadLayout(c->attrs(), &layout_); }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    StatusOr<std::shared_ptr<TableStorage>> table = TableInput(ctx, 0);
    if (!table.ok()) return done(table.status());
    StatusOr<std::string> path = ctx->ScalarInput<std::string>(1, "filename");
    if (!path.ok()) return done(path.status());
    ctx->io_pool()->Schedule([table = *std::move(table), path = *std::move(path), layout = layout_,
                              cancellation = ctx->cancellation(),
                              done = std::move(done)]() mutable {
      done(FillTableFromFile(FileSystem::Default(), path, layout, cancellation, table.get()));
    });
  }

 private:
  TableFileLayout layout_;
};

OpSpec FromFileOp(const char* name, const char* handle) {
  return OpSpec(name, absl::StrCat(handle, ", filename: string"),
                "key_index: int >= -2; value_index: int >= -2; vocab_size: int >= -1 = -1; "
                "delimiter: string = '\\t'")
      .With(LaterAttr("offset: int = 0"))
      .UsesFiles()
      .Shape(FromFileShape)
      .NotDifferentiable()
      .With(KernelFor<FromFileKernel>());
}
const OpRegistration kFromFile[] = {
    FromFileOp("InitializeTableFromTextFileV2", "table_handle: resource").Stateful(),
    FromFileOp("InitializeTableFromTextFile", "table_handle: Ref(string)")};

}  // namespace
}  // namespace millrace
