// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_VARIABLE_MAKER_H_
#define MILLRACE_OPS_KERNELS_VARIABLE_MAKER_H_

// VariableMaker: from the attrs of a VarHandleOp, VariableV2 or Variable node to its storage.
//
// Nodes that name the same container and shared_name share one variable; a node without
// shared_name names it by its own name. The first to come makes it, without a value.
//
// Thread-safety: Init once, then FindOrMake from any thread.
// Failure: InvalidArgument when the variable that is there has another dtype.

#include <memory>
#include <string>

#include "ops/rules/variable_rules.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {

class VariableMaker {
 public:
  Status Init(KernelConstruction* c) {
    MR_ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    MR_ASSIGN_OR_RETURN(shape_, c->GetAttr<PartialShape>("shape"));
    MR_ASSIGN_OR_RETURN(container_, c->GetAttr<std::string>("container"));
    MR_ASSIGN_OR_RETURN(name_, c->GetAttr<std::string>("shared_name"));
    if (name_.empty()) name_ = c->node().name();
    return absl::OkStatus();
  }
  StatusOr<std::shared_ptr<VariableStorage>> FindOrMake(ResourceManager* resources) const {
    MR_ASSIGN_OR_RETURN(
        auto storage,
        resources->LookupOrCreate<VariableStorage>(
            container_, name_, [this]() -> StatusOr<std::shared_ptr<VariableStorage>> {
              return std::make_shared<VariableStorage>(name_, dtype_, shape_);
            }));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*storage, dtype_));
    return storage;
  }
  const std::string& container() const { return container_; }
  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const PartialShape& shape() const { return shape_; }

 private:
  DType dtype_ = DT_INVALID;
  PartialShape shape_;
  std::string container_;
  std::string name_;
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_VARIABLE_MAKER_H_
