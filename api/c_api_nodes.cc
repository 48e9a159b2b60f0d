// SPDX-License-Identifier: Apache-2.0
//
// Nodes: constants, placeholders, and any other by its description.
#include "absl/strings/str_cat.h"
#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/status.h"
#include "graph/attr.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "proto/attr_value.pb.h"

namespace millrace::c_api {
namespace {

struct NodeDescription {
  using Opaque = MillraceNodeBuilder;
  static constexpr uint32_t kKind = 0x4d520008;
  static constexpr char kName[] = "MillraceNodeBuilder";

  struct Input {
    bool is_list;
    std::vector<std::string> tensors;
  };
  std::shared_ptr<GraphState> graph;
  std::string op, name, device;
  std::vector<Input> inputs;
  std::vector<std::string> control_inputs;
  std::map<std::string, tensorflow::AttrValue> attrs;
  Status error;  // the first one
};

Status AddNode(const Scope& scope, const NodeDescription& node, absl::string_view where,
               const char** name) {
  const Scope here = Named(scope, node.name.c_str());
  NodeBuilder builder(here, node.op);
  for (const NodeDescription::Input& input : node.inputs) {
    std::vector<Output> outputs;
    for (const std::string& tensor : input.tensors) {
      MR_ASSIGN_OR_RETURN(Output output, FindTensor(scope, tensor, where));
      outputs.push_back(std::move(output));
    }
    input.is_list ? builder.Input(outputs) : builder.Input(outputs[0]);
  }
  for (const std::string& control : node.control_inputs) {
    MR_ASSIGN_OR_RETURN(const Operation op, FindNode(scope, control, where));
    builder.ControlInput(op);
  }
  for (const auto& [attr, value] : node.attrs) builder.Attr(attr, value);
  if (!node.device.empty()) builder.Device(node.device);
  *name = NameFor(node.graph.get(), builder.Finish());
  return absl::OkStatus();
}

// Of a builder's setter: `set` fills in the attr's value, or refuses.
MillraceCode SetBuilderAttr(MillraceNodeBuilder* builder, const char* attr, MillraceStatus* status,
                            absl::string_view where,
                            absl::FunctionRef<Status(tensorflow::AttrValue*)> set) {
  return Call(status, where, [&](absl::string_view) -> Status {
    MR_ASSIGN_OR_RETURN(NodeDescription * node,
                        Handles<NodeDescription>::Get(builder, where, "builder"));
    const Status done = [&]() -> Status {
      MR_RETURN_IF_ERROR(CheckText(attr, where, "attr"));
      tensorflow::AttrValue value;
      MR_RETURN_IF_ERROR(set(&value));
      node->attrs[attr] = std::move(value);
      return absl::OkStatus();
    }();
    node->error.Update(done);
    return done;
  });
}

// The values of a list, copied.
template <typename To, typename From>
StatusOr<std::vector<To>> ListOf(const From* values, int count, absl::string_view where) {
  MR_RETURN_IF_ERROR(CheckArray(values, count, where, "values"));
  std::vector<To> result;
  for (int i = 0; i < count; ++i) result.push_back(static_cast<To>(values[i]));
  return result;
}

template <typename Value>
Status SetTo(const Value& value, tensorflow::AttrValue* attr) {
  SetAttr(value, attr);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace::c_api

using namespace millrace;         // NOLINT: this file is the C face of it
using namespace millrace::c_api;  // NOLINT

const char* millrace_graph_add_node(MillraceGraph* graph, const char* op, const char* name,
                                    const char* const* inputs, int num_inputs,
                                    MillraceStatus* status) {
  return CallFor<const char*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<const char*> {
        MR_ASSIGN_OR_RETURN(const GraphObject* object,
                            Handles<GraphObject>::Get(graph, where, "graph"));
        MR_RETURN_IF_ERROR(CheckText(op, where, "op"));
        MR_ASSIGN_OR_RETURN(std::vector<std::string> tensors,
                            TextsOf(inputs, num_inputs, where, "inputs"));
        NodeDescription node;
        node.graph = object->state;
        node.op = op;
        node.name = TextOrNone(name);
        for (std::string& tensor : tensors) node.inputs.push_back({false, {std::move(tensor)}});
        const char* made = nullptr;
        MR_RETURN_IF_ERROR(node.graph->Edit(
            [&](const Scope& scope) { return AddNode(scope, node, where, &made); }));
        return made;
      });
}

const char* millrace_graph_add_constant(MillraceGraph* graph, const char* name,
                                        const MillraceTensor* value, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MR_ASSIGN_OR_RETURN(const TensorObject* tensor,
                        Handles<TensorObject>::Get(value, where, "value"));
    return Const(Named(scope, name), tensor->tensor).op();
  });
}

const char* millrace_graph_add_placeholder(MillraceGraph* graph, const char* name,
                                           MillraceDType dtype, const int64_t* dims, int num_dims,
                                           MillraceStatus* status) {
  const absl::string_view where = __func__;
  return EditForName(graph, status, where, [&](const Scope& scope) -> StatusOr<Operation> {
    MR_ASSIGN_OR_RETURN(const DType type, DTypeOfNumber(dtype, where));
    MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShapeOf(dims, num_dims, where));
    return Placeholder(Named(scope, name), type, shape).op();
  });
}

MillraceNodeBuilder* millrace_node_builder_new(MillraceGraph* graph, const char* op,
                                               const char* name, MillraceStatus* status) {
  return CallFor<MillraceNodeBuilder*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<MillraceNodeBuilder*> {
        MR_ASSIGN_OR_RETURN(const GraphObject* object,
                            Handles<GraphObject>::Get(graph, where, "graph"));
        MR_RETURN_IF_ERROR(CheckText(op, where, "op"));
        NodeDescription node;
        node.graph = object->state;
        node.op = op;
        node.name = TextOrNone(name);
        return Handles<NodeDescription>::New(std::move(node));
      });
}

void millrace_node_builder_delete(MillraceNodeBuilder* builder) {
  DeleteHandle<NodeDescription>(builder, __func__);
}

namespace {

// A step of a builder that is no attr.
MillraceCode Describe(MillraceNodeBuilder* builder, MillraceStatus* status, absl::string_view where,
                      absl::FunctionRef<Status(NodeDescription*)> add) {
  return Call(status, where, [&](absl::string_view) -> Status {
    MR_ASSIGN_OR_RETURN(NodeDescription * node,
                        Handles<NodeDescription>::Get(builder, where, "builder"));
    const Status done = add(node);
    node->error.Update(done);
    return done;
  });
}

}  // namespace

MillraceCode millrace_node_builder_add_input(MillraceNodeBuilder* builder, const char* tensor,
                                             MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Describe(builder, status, where, [&](NodeDescription* node) -> Status {
    MR_RETURN_IF_ERROR(CheckText(tensor, where, "tensor"));
    node->inputs.push_back({false, {tensor}});
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_add_input_list(MillraceNodeBuilder* builder,
                                                  const char* const* tensors, int count,
                                                  MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Describe(builder, status, where, [&](NodeDescription* node) -> Status {
    MR_ASSIGN_OR_RETURN(std::vector<std::string> names, TextsOf(tensors, count, where, "tensors"));
    node->inputs.push_back({true, std::move(names)});
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_add_control_input(MillraceNodeBuilder* builder, const char* node,
                                                     MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Describe(builder, status, where, [&](NodeDescription* description) -> Status {
    MR_RETURN_IF_ERROR(CheckText(node, where, "node"));
    description->control_inputs.emplace_back(node);
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_set_device(MillraceNodeBuilder* builder, const char* device,
                                              MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Describe(builder, status, where, [&](NodeDescription* node) -> Status {
    MR_RETURN_IF_ERROR(CheckText(device, where, "device"));
    node->device = device;
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_set_int(MillraceNodeBuilder* builder, const char* attr,
                                           int64_t value, MillraceStatus* status) {
  return SetBuilderAttr(builder, attr, status, __func__,
                        [&](tensorflow::AttrValue* to) { return SetTo(value, to); });
}

MillraceCode millrace_node_builder_set_float(MillraceNodeBuilder* builder, const char* attr,
                                             float value, MillraceStatus* status) {
  return SetBuilderAttr(builder, attr, status, __func__,
                        [&](tensorflow::AttrValue* to) { return SetTo(value, to); });
}

MillraceCode millrace_node_builder_set_bool(MillraceNodeBuilder* builder, const char* attr,
                                            int value, MillraceStatus* status) {
  return SetBuilderAttr(builder, attr, status, __func__,
                        [&](tensorflow::AttrValue* to) { return SetTo(value != 0, to); });
}

MillraceCode millrace_node_builder_set_string(MillraceNodeBuilder* builder, const char* attr,
                                              const char* value, size_t size,
                                              MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const absl::string_view bytes, BytesOf(value, size, where, "value"));
    return SetTo(bytes, to);
  });
}

MillraceCode millrace_node_builder_set_type(MillraceNodeBuilder* builder, const char* attr,
                                            MillraceDType value, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const DType dtype, DTypeOfNumber(value, where));
    return SetTo(dtype, to);
  });
}

MillraceCode millrace_node_builder_set_shape(MillraceNodeBuilder* builder, const char* attr,
                                             const int64_t* dims, int num_dims,
                                             MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShapeOf(dims, num_dims, where));
    return SetTo(shape, to);
  });
}

MillraceCode millrace_node_builder_set_tensor(MillraceNodeBuilder* builder, const char* attr,
                                              const MillraceTensor* value, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const TensorObject* tensor,
                        Handles<TensorObject>::Get(value, where, "value"));
    return SetTo(tensor->tensor, to);
  });
}

MillraceCode millrace_node_builder_set_function(MillraceNodeBuilder* builder, const char* attr,
                                                const char* function, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_RETURN_IF_ERROR(CheckText(function, where, "function"));
    to->mutable_func()->set_name(function);
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_set_int_list(MillraceNodeBuilder* builder, const char* attr,
                                                const int64_t* values, int count,
                                                MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const auto list, ListOf<int64_t>(values, count, where));
    return SetTo(list, to);
  });
}

MillraceCode millrace_node_builder_set_float_list(MillraceNodeBuilder* builder, const char* attr,
                                                  const float* values, int count,
                                                  MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const auto list, ListOf<float>(values, count, where));
    return SetTo(list, to);
  });
}

MillraceCode millrace_node_builder_set_bool_list(MillraceNodeBuilder* builder, const char* attr,
                                                 const unsigned char* values, int count,
                                                 MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const auto list, ListOf<bool>(values, count, where));
    return SetTo(list, to);
  });
}

MillraceCode millrace_node_builder_set_string_list(MillraceNodeBuilder* builder, const char* attr,
                                                   const char* const* values, const size_t* sizes,
                                                   int count, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const auto list, StringsOf(values, sizes, count, where, "values"));
    return SetTo(list, to);
  });
}

MillraceCode millrace_node_builder_set_type_list(MillraceNodeBuilder* builder, const char* attr,
                                                 const MillraceDType* values, int count,
                                                 MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_RETURN_IF_ERROR(CheckArray(values, count, where, "values"));
    std::vector<DType> list;
    for (int i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(const DType dtype, DTypeOfNumber(values[i], where));
      list.push_back(dtype);
    }
    return SetTo(list, to);
  });
}

MillraceCode millrace_node_builder_set_shape_list(MillraceNodeBuilder* builder, const char* attr,
                                                  const int64_t* const* dims, const int* num_dims,
                                                  int count, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_RETURN_IF_ERROR(CheckArray(dims, count, where, "dims"));
    MR_RETURN_IF_ERROR(CheckArray(num_dims, count, where, "num_dims"));
    std::vector<PartialShape> list;
    for (int i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShapeOf(dims[i], num_dims[i], where));
      list.push_back(std::move(shape));
    }
    return SetTo(list, to);
  });
}

MillraceCode millrace_node_builder_set_tensor_list(MillraceNodeBuilder* builder, const char* attr,
                                                   MillraceTensor* const* values, int count,
                                                   MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_RETURN_IF_ERROR(CheckArray(values, count, where, "values"));
    auto* const list = to->mutable_list();
    for (int i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(
          const TensorObject* tensor,
          Handles<TensorObject>::Get(values[i], where, absl::StrCat("values[", i, "]")));
      tensorflow::AttrValue one;
      SetAttr(tensor->tensor, &one);
      *list->add_tensor() = std::move(*one.mutable_tensor());
    }
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_set_function_list(MillraceNodeBuilder* builder, const char* attr,
                                                     const char* const* functions, int count,
                                                     MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const auto names, TextsOf(functions, count, where, "functions"));
    auto* const list = to->mutable_list();
    for (const std::string& name : names) list->add_func()->set_name(name);
    return absl::OkStatus();
  });
}

MillraceCode millrace_node_builder_set_attr_value(MillraceNodeBuilder* builder, const char* attr,
                                                  const void* attr_value, size_t size,
                                                  MillraceStatus* status) {
  const absl::string_view where = __func__;
  return SetBuilderAttr(builder, attr, status, where, [&](tensorflow::AttrValue* to) -> Status {
    MR_ASSIGN_OR_RETURN(const auto value,
                        ParseMessage<tensorflow::AttrValue>(attr_value, size, where, "AttrValue"));
    *to = *value;
    return absl::OkStatus();
  });
}

const char* millrace_node_builder_finish(MillraceNodeBuilder* builder, MillraceStatus* status) {
  const char* const name = CallFor<const char*>(
      status, __func__, nullptr, [&](absl::string_view where) -> StatusOr<const char*> {
        MR_ASSIGN_OR_RETURN(const NodeDescription* node,
                            Handles<NodeDescription>::Get(builder, where, "builder"));
        MR_RETURN_IF_ERROR(node->error);
        const char* made = nullptr;
        MR_RETURN_IF_ERROR(node->graph->Edit(
            [&](const Scope& scope) { return AddNode(scope, *node, where, &made); }));
        return made;
      });
  if (Handles<NodeDescription>::Find(builder) != nullptr) {
    DeleteHandle<NodeDescription>(builder, __func__);
  }
  return name;
}
