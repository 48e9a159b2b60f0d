// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_ATTR_H_
#define MILLRACE_GRAPH_ATTR_H_

// Attributes of nodes as C++ values.
//
//   MR_ASSIGN_OR_RETURN(auto strides, GetAttr<std::vector<int64_t>>(node, "strides"));
//
// T is one of: std::string, int64_t, int32_t (range-checked), float, bool, DType,
// PartialShape, Tensor, tensorflow::NameAttrList, or a std::vector of one of these. A builder
// writes a function by its name alone: FunctionName.
//
// Failure: NotFound when the attr is missing, InvalidArgument when it has another kind; the message
// names node, op and attr.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace tensorflow {
class AttrValue;
class NameAttrList;
class NodeDef;
}  // namespace tensorflow

namespace millrace {

// Where attrs are read from: the message that holds them and, for a Const whose value has been
// parsed, the tensor that is its attr `value`. Refers to what it is made of.
class NodeAttrs {
 public:
  NodeAttrs(const tensorflow::NodeDef* node) : node_(node) {}  // NOLINT: a message has attrs
  // `name` is for messages, where the message itself has none. `value` may be null.
  NodeAttrs(absl::string_view name, const tensorflow::NodeDef* node, const Tensor* value)
      : name_(name), node_(node), value_(value) {}
  absl::string_view name() const;
  const tensorflow::NodeDef& node() const { return *node_; }
  const Tensor* value() const { return value_; }

 private:
  absl::string_view name_;
  const tensorflow::NodeDef* node_;
  const Tensor* value_ = nullptr;
};

template <typename T>
StatusOr<T> GetAttr(const NodeAttrs& attrs, absl::string_view name);
template <typename T>
StatusOr<T> GetAttr(const tensorflow::NodeDef& node, absl::string_view name) {
  return GetAttr<T>(NodeAttrs(&node), name);
}
bool HasAttr(const tensorflow::NodeDef& node, absl::string_view name);

// A function of the graph's library, without attrs of its own: {"f"}.
struct FunctionName {
  std::string name;
};

// Fills an AttrValue from a C++ value; overloads for the types above.
void SetAttr(absl::string_view value, tensorflow::AttrValue* attr);
void SetAttr(const char* value, tensorflow::AttrValue* attr);
void SetAttr(int64_t value, tensorflow::AttrValue* attr);
void SetAttr(int32_t value, tensorflow::AttrValue* attr);
void SetAttr(float value, tensorflow::AttrValue* attr);
void SetAttr(bool value, tensorflow::AttrValue* attr);
void SetAttr(DType value, tensorflow::AttrValue* attr);
void SetAttr(const PartialShape& value, tensorflow::AttrValue* attr);
void SetAttr(const Tensor& value, tensorflow::AttrValue* attr);
void SetAttr(const tensorflow::NameAttrList& value, tensorflow::AttrValue* attr);
void SetAttr(const FunctionName& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<FunctionName>& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<std::string>& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<int64_t>& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<float>& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<bool>& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<DType>& value, tensorflow::AttrValue* attr);
void SetAttr(const std::vector<PartialShape>& value, tensorflow::AttrValue* attr);
void SetAttr(const tensorflow::AttrValue& value, tensorflow::AttrValue* attr);

// Short text of a value for messages and printed graphs.
std::string AttrToString(const tensorflow::AttrValue& attr);

// Bytes of constants that this process has copied so far: parsed into tensors, written into
// messages, copied with a message. For tests that count.
int64_t ConstantBytesCopiedForTesting();
void CountConstantBytes(int64_t bytes);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_ATTR_H_
