// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DATASET_OP_H_
#define MILLRACE_DATA_DATASET_OP_H_

// DatasetOp: an op that describes a dataset: its signature, shapes and kernel in one registration.
//
//   const DatasetOp kTake("TakeDataset", "input_dataset: variant, count: int64", kDatasetElements,
//                         [](const DatasetArgs& args) -> StatusOr<Dataset> {
//                           MR_ASSIGN_OR_RETURN(const Dataset input, args.dataset(0));
//                           MR_ASSIGN_OR_RETURN(const int64_t count, args.Int(1));
//                           return input.Take(count);
//                         });
//
// The output is a variant scalar that holds the Dataset (data/dataset_variant.h). Where the op says
// of which types and shapes its elements are (output_types or Toutput_types, and output_shapes),
// the dataset's must agree with it. Making a description reads nothing, so no kernel blocks.
//
// Ops with functions (MapDataset's f) are the same: args.Function("f") is what they hand to the
// engine.

#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "data/dataset.h"
#include "data/element.h"
#include "data/graph_function.h"
#include "graph/op_registry.h"
#include "proto/node_def.pb.h"
#include "runtime/function_runner.h"
#include "runtime/kernel.h"

namespace millrace::data {

// The attrs that all transformations have.
inline constexpr char kDatasetElements[] =
    "output_types: list(type) >= 1; output_shapes: list(shape) >= 1";

// What the kernel of such an op knows before it runs.
class DatasetNodeInfo {
 public:
  Status Init(KernelConstruction* c);

  const tensorflow::NodeDef& node() const { return node_; }
  // Of the elements, by attrs; empty: not said.
  const ElementSpec& declared() const { return declared_; }
  // Of each input: the name of its argument.
  const std::vector<std::string>& names() const { return names_; }
  // Which inputs an argument is; Internal when there is no such argument.
  StatusOr<ArgRange> range(absl::string_view argument) const;
  // The function of an attr of type func.
  StatusOr<CalledFunction*> function(absl::string_view attr) const;

 private:
  tensorflow::NodeDef node_;
  ElementSpec declared_;
  std::vector<std::string> names_;
  std::vector<std::pair<std::string, ArgRange>> ranges_;
  std::vector<std::pair<std::string, CalledFunction*>> functions_;
};

// The inputs and attrs of one step's call.
class DatasetArgs {
 public:
  // Both outlive it.
  DatasetArgs(KernelContext* ctx, const DatasetNodeInfo* info) : ctx_(ctx), info_(info) {}

  const DatasetNodeInfo& info() const { return *info_; }
  // Of the elements, by attrs.
  const ElementSpec& declared() const { return info_->declared(); }
  int size() const { return ctx_->num_inputs(); }
  const std::string& name(int i) const { return info_->names()[static_cast<size_t>(i)]; }
  const Tensor& tensor(int i) const { return ctx_->input(i); }
  // Inputs [begin, end) as they are.
  Element tensors(int begin, int end) const;
  // Those of an argument that is a list.
  StatusOr<Element> Tensors(absl::string_view argument) const;
  // An argument behind a list.
  template <typename T>
  StatusOr<T> Scalar(absl::string_view argument) const {
    MR_ASSIGN_OR_RETURN(const ArgRange range, info_->range(argument));
    return ctx_->ScalarInput<T>(range.begin, argument);
  }
  // The function of attr `attr`, with the tensors of `captured` behind its other arguments.
  StatusOr<GraphFunction> Function(absl::string_view attr,
                                   absl::string_view captured = "other_arguments") const;
  StatusOr<Dataset> dataset(int i) const;
  StatusOr<int64_t> Int(int i) const { return ctx_->ScalarInput<int64_t>(i, name(i)); }
  StatusOr<bool> Flag(int i) const { return ctx_->ScalarInput<bool>(i, name(i)); }
  StatusOr<std::string> Text(int i) const { return ctx_->ScalarInput<std::string>(i, name(i)); }
  // A scalar or a vector.
  StatusOr<std::vector<std::string>> Texts(int i) const;
  template <typename T>
  StatusOr<T> Attr(absl::string_view attr) const {
    return GetAttr<T>(info_->node(), attr);
  }

 private:
  KernelContext* const ctx_;
  const DatasetNodeInfo* const info_;
};

using MakeDatasetFn = StatusOr<Dataset> (*)(const DatasetArgs& args);

// Shapes: variants and all others are scalars, but for
enum class DatasetArgShapes {
  kScalars,
  kFirstIsList,    // input 0: a scalar or a vector
  kElementTensors  // anything
};

class DatasetOp {
 public:
  // `arguments` without the output, which is "-> <output>: variant".
  DatasetOp(const char* name, const char* arguments, const char* attrs, MakeDatasetFn make,
            DatasetArgShapes shapes = DatasetArgShapes::kScalars);
};
// The same for one that reads what is outside of the graph, or begins a sequence: stateful, as
// TensorFlow has it.
class DatasetSourceOp {
 public:
  DatasetSourceOp(const char* name, const char* arguments, const char* attrs, MakeDatasetFn make,
                  DatasetArgShapes shapes = DatasetArgShapes::kScalars);
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_DATASET_OP_H_
