// SPDX-License-Identifier: Apache-2.0
#include "graph/node_body.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor_proto.h"
#include "graph/arg_range.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "proto/tensor.pb.h"

namespace millrace {
namespace {

using tensorflow::AttrValue;
using tensorflow::NodeDef;
using tensorflow::OpDef;
using tensorflow::TensorProto;

constexpr char kValueAttr[] = "value";

// Bodies with longer attrs are not worth looking for: they hold names, not kinds.
constexpr size_t kMaxKeyBytes = 512;

// A tensor may be larger than its message by this much; beyond, its message stands for it.
constexpr int64_t kMaxGrowth = 16;
constexpr int64_t kSmallTensorBytes = 4096;

using KindName = std::pair<absl::string_view, NodeBody::Kind>;
constexpr KindName kKinds[] = {
    {"Const", NodeBody::Kind::kConst},    {"_Arg", NodeBody::Kind::kArg},
    {"_Retval", NodeBody::Kind::kRetval}, {"_Send", NodeBody::Kind::kSend},
    {"_HostSend", NodeBody::Kind::kSend}, {"_Recv", NodeBody::Kind::kRecv},
    {"_HostRecv", NodeBody::Kind::kRecv}, {"LoopCond", NodeBody::Kind::kLoopCond},
};
// With "Ref" in front, too.
constexpr KindName kFlowKinds[] = {
    {"Switch", NodeBody::Kind::kSwitch},
    {"Merge", NodeBody::Kind::kMerge},
    {"Enter", NodeBody::Kind::kEnter},
    {"Exit", NodeBody::Kind::kExit},
    {"NextIteration", NodeBody::Kind::kNextIteration},
};

template <size_t kSize>
NodeBody::Kind Find(const KindName (&kinds)[kSize], absl::string_view op) {
  for (const auto& [name, kind] : kinds) {
    if (name == op) return kind;
  }
  return NodeBody::Kind::kOther;
}

// Attr `value` of a Const, or null.
const TensorProto* ConstProto(const NodeDef& node) {
  if (NodeBody::KindOf(node.op()) != NodeBody::Kind::kConst) return nullptr;
  const auto it = node.attr().find(kValueAttr);
  if (it == node.attr().end() || it->second.value_case() != AttrValue::kTensor) return nullptr;
  return &it->second.tensor();
}

// No value when the message is none, or would grow too much.
Tensor ParseConst(const TensorProto& proto) {
  const StatusOr<Shape> shape = Shape::FromProto(proto.tensor_shape());
  const StatusOr<DType> dtype = DTypeFromNumber(proto.dtype());
  if (!shape.ok() || !dtype.ok()) return Tensor();
  const int64_t size = static_cast<int64_t>(DTypeSize(*dtype));
  const int64_t element = size == 0 ? static_cast<int64_t>(sizeof(std::string)) : size;
  const int64_t limit =
      std::max(kSmallTensorBytes, kMaxGrowth * static_cast<int64_t>(proto.ByteSizeLong()));
  if (shape->num_elements() > limit / element) return Tensor();
  StatusOr<Tensor> tensor = TensorFromProto(proto);
  if (!tensor.ok()) return Tensor();
  CountConstantBytes(tensor->TotalBytes());
  return *std::move(tensor);
}

// The tensor's bytes are the message's, so that one can be made from the other.
bool CanDetach(const TensorProto& proto, const Tensor& tensor) {
  const std::string& content = proto.tensor_content();
  if (content.size() < kDetachedConstantBytes || !IsMemcopyable(tensor.dtype())) return false;
  const absl::Span<const char> bytes = tensor.bytes();
  if (bytes.size() != content.size()) return false;
  // Bytes other than 0 and 1 become true.
  return tensor.dtype() != DT_BOOL || std::memcmp(bytes.data(), content.data(), bytes.size()) == 0;
}

// Stands for the bytes of a value. No tensor of kDetachedConstantBytes has a content of this
// length, so a reader that takes it for one gets an error.
std::string DetachedMark() {
  static std::atomic<uint64_t> next{1};  // relaxed: only distinct
  const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return absl::StrCat("detached", absl::Hex(number, absl::kZeroPad16));
}

// As `from` but for tensor_content.
void CopyWithoutContent(const AttrValue& from, AttrValue* to) {
  const TensorProto& tensor = from.tensor();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  tensor.GetReflection()->ListFields(tensor, &fields);
  const bool plain =
      std::all_of(fields.begin(), fields.end(),
                  [](const google::protobuf::FieldDescriptor* field) {
                    return field->number() == TensorProto::kDtypeFieldNumber ||
                           field->number() == TensorProto::kTensorShapeFieldNumber ||
                           field->number() == TensorProto::kVersionNumberFieldNumber ||
                           field->number() == TensorProto::kTensorContentFieldNumber;
                  }) &&
      tensor.GetReflection()->GetUnknownFields(tensor).empty() &&
      from.GetReflection()->GetUnknownFields(from).empty();
  if (!plain) {
    CountConstantBytes(static_cast<int64_t>(tensor.ByteSizeLong()));
    *to = from;
    to->mutable_tensor()->clear_tensor_content();
    return;
  }
  TensorProto* const copy = to->mutable_tensor();
  copy->set_dtype(tensor.dtype());
  *copy->mutable_tensor_shape() = tensor.tensor_shape();
  copy->set_version_number(tensor.version_number());
}

// Equal for nodes that may share a body only. False for those that share with no other.
bool AppendKey(const NodeDef& node, const OpEntry* entry, std::string* key) {
  if (NodeBody::KindOf(node.op()) == NodeBody::Kind::kConst || node.has_experimental_debug_info() ||
      !node.GetReflection()->GetUnknownFields(node).empty()) {
    return false;
  }
  using Attr = google::protobuf::Map<std::string, AttrValue>::value_type;
  absl::InlinedVector<const Attr*, 8> attrs;
  for (const Attr& attr : node.attr()) {
    const AttrValue::ValueCase kind = attr.second.value_case();
    const bool plain = kind != AttrValue::kTensor && kind != AttrValue::kFunc &&
                       (kind != AttrValue::kList ||
                        attr.second.list().tensor_size() + attr.second.list().func_size() == 0);
    // Attrs of the framework ("_class") tell nodes apart.
    if (!plain || absl::StartsWith(attr.first, "_")) return false;
    attrs.push_back(&attr);
  }
  std::sort(attrs.begin(), attrs.end(),
            [](const Attr* a, const Attr* b) { return a->first < b->first; });
  const auto append_number = [key](uint64_t number) {
    key->append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  // An op that becomes known later is another one.
  append_number(reinterpret_cast<uintptr_t>(entry));
  if (entry == nullptr) {
    append_number(static_cast<uint64_t>(
        std::count_if(node.input().begin(), node.input().end(),
                      [](const std::string& input) { return !absl::StartsWith(input, "^"); })));
  }
  append_number(node.op().size());
  key->append(node.op());
  for (const Attr* attr : attrs) {
    append_number(attr->first.size());
    key->append(attr->first);
    const size_t length_at = key->size();
    append_number(0);
    if (!attr->second.AppendToString(key)) return false;
    const uint64_t length = key->size() - length_at - sizeof(uint64_t);
    std::memcpy(key->data() + length_at, &length, sizeof(length));
    if (key->size() > kMaxKeyBytes) return false;
  }
  return true;
}

}  // namespace

NodeBody::Kind NodeBody::KindOf(absl::string_view op) {
  if (const Kind kind = Find(kKinds, op); kind != Kind::kOther) return kind;
  absl::ConsumePrefix(&op, "Ref");
  return Find(kFlowKinds, op);
}

const OpTraits& NodeBody::traits() const {
  static const OpTraits kNone;
  return parts_.op_entry == nullptr ? kNone : parts_.op_entry->traits;
}

NodeBody::NodeBody(Parts parts) : parts_(std::move(parts)) {}
NodeBody::~NodeBody() = default;
NodeBody::NodeBody(const NodeBody& other) : parts_(other.parts_) {
  parts_.def = NewMessage<NodeDef>();
  *parts_.def = *other.parts_.def;
  // Two bodies that are written differently must not look equal.
  if (parts_.is_detached) {
    (*parts_.def->mutable_attr())[kValueAttr].mutable_tensor()->set_tensor_content(DetachedMark());
  } else if (const TensorProto* value = ConstProto(*parts_.def)) {
    CountConstantBytes(static_cast<int64_t>(value->ByteSizeLong()));
  }
}

const std::string& NodeBody::op() const { return parts_.def->op(); }

void NodeBody::WriteTo(NodeDef* def) const {
  if (def->GetArena() != nullptr) {
    def->MergeFrom(*parts_.def);
  } else {
    // What a constructor that fails has made is lost, not destroyed; see NewMessage.
    NodeDef copy(*parts_.def);
    def->Swap(&copy);
  }
  if (parts_.is_detached) {
    const absl::Span<const char> bytes = parts_.value.bytes();
    CountConstantBytes(static_cast<int64_t>(bytes.size()));
    // Not by the setter, which makes a copy on the way.
    (*def->mutable_attr())[kValueAttr].mutable_tensor()->mutable_tensor_content()->assign(
        bytes.data(), bytes.size());
  } else if (const TensorProto* value = ConstProto(*parts_.def)) {
    CountConstantBytes(static_cast<int64_t>(value->ByteSizeLong()));
  }
}

AttrValue* NodeBody::MutableAttr(absl::string_view name) {
  AttrValue* const attr = &(*parts_.def->mutable_attr())[std::string(name)];
  if (name == kValueAttr && parts_.value.has_value()) {
    if (parts_.is_detached) {
      const absl::Span<const char> bytes = parts_.value.bytes();
      CountConstantBytes(static_cast<int64_t>(bytes.size()));
      attr->mutable_tensor()->mutable_tensor_content()->assign(bytes.data(), bytes.size());
      parts_.is_detached = false;
    }
    parts_.value = Tensor();  // the message is the truth from here on
  }
  return attr;
}

std::shared_ptr<const NodeBody> NodeBody::WithAttr(absl::string_view name,
                                                   absl::FunctionRef<void(AttrValue*)> edit) const {
  std::shared_ptr<NodeBody> body(new NodeBody(*this));
  body->edited_ = true;
  edit(body->MutableAttr(name));
  return body;
}

struct NodeBodies::Known {
  HashMap<std::string, std::shared_ptr<const NodeBody>> by_key;
};

NodeBodies::NodeBodies() : known_(std::make_unique<Known>()) {}
NodeBodies::~NodeBodies() = default;

StatusOr<std::shared_ptr<const NodeBody>> NodeBodies::Make(const NodeDef& node, NodeDef* taken,
                                                           Check check) {
  return FindOrMake(node, taken, /*with_value=*/true, check);
}

StatusOr<std::shared_ptr<const NodeBody>> NodeBodies::MakeWithoutValue(const NodeDef& node,
                                                                       Check check) {
  return FindOrMake(node, /*taken=*/nullptr, /*with_value=*/false, check);
}

StatusOr<std::shared_ptr<const NodeBody>> NodeBodies::MakeConst(const NodeDef& node,
                                                                const Tensor& value) {
  return FindOrMake(
      node, /*taken=*/nullptr, /*with_value=*/true, [](const NodeDef&) { return absl::OkStatus(); },
      &value);
}

bool NodeBodies::CanShare(const Tensor& value) {
  // As an export writes it: bytes that stand for the message's content, and the other way round.
  if (!value.has_value() || value.is_reference() || !HasRawContent(value)) return false;
  const size_t bytes = value.bytes().size();
  return bytes >= kDetachedConstantBytes && !value.buffer()->is_external() &&
         value.buffer()->size() / 2 <= bytes;
}

StatusOr<std::shared_ptr<const NodeBody>> NodeBodies::FindOrMake(const NodeDef& node,
                                                                 NodeDef* taken, bool with_value,
                                                                 Check check,
                                                                 const Tensor* shared) {
  std::shared_ptr<const Function> function;
  const OpEntry* entry = LookUpOp(node.op());
  if (entry == nullptr && functions_ != nullptr) {
    function = functions_->Find(node.op());
    if (function != nullptr) entry = &function->op();
  }
  key_.clear();
  const bool keep = AppendKey(node, entry, &key_);
  if (keep) {
    if (const auto it = known_->by_key.find(key_); it != known_->by_key.end()) return it->second;
  }
  MR_RETURN_IF_ERROR(check(node));
  NodeBody::Parts parts;
  parts.def = NewMessage<NodeDef>();
  parts.op_entry = entry;
  parts.function = std::move(function);
  parts.kind = NodeBody::KindOf(node.op());
  if (parts.op_entry != nullptr) {
    MR_RETURN_IF_ERROR(ValidateNodeAttrs(node, parts.op_entry->def));
  } else {
    size_t num_inputs = 0;
    for (const std::string& input : node.input()) num_inputs += !absl::StartsWith(input, "^");
    if (num_inputs > kMaxNodeArgs) {
      return absl::InvalidArgumentError(absl::StrCat(node.op(), " '", node.name(),
                                                     "': number of inputs must be at most ",
                                                     kMaxNodeArgs, ", got ", num_inputs));
    }
    parts.input_types.assign(num_inputs, DT_INVALID);
  }

  const TensorProto* const value = ConstProto(node);
  if (shared != nullptr) {
    parts.value = *shared;
    parts.is_detached = true;
  } else if (value != nullptr && with_value) {
    parts.value = ParseConst(*value);
    parts.is_detached = parts.value.has_value() && CanDetach(*value, parts.value);
  }
  NodeDef& def = *parts.def;
  def.set_op(node.op());
  def.set_name(node.name());  // for messages
  for (const auto& [name, attr] : node.attr()) {
    const bool types = attr.value_case() == AttrValue::kType ||
                       attr.value_case() == AttrValue::kI || attr.value_case() == AttrValue::kList;
    if (!with_value && !types) continue;
    if (value != nullptr && name == kValueAttr) {
      if (parts.is_detached) {
        CopyWithoutContent(attr, &(*def.mutable_attr())[name]);
        continue;
      }
      CountConstantBytes(static_cast<int64_t>(value->ByteSizeLong()));
    }
    (*def.mutable_attr())[name] = attr;
  }
  if (node.has_experimental_debug_info()) {
    *def.mutable_experimental_debug_info() = node.experimental_debug_info();
  }
  const auto& unknown = node.GetReflection()->GetUnknownFields(node);
  if (!unknown.empty()) def.GetReflection()->MutableUnknownFields(&def)->MergeFrom(unknown);
  if (parts.is_detached) {
    (*def.mutable_attr())[kValueAttr].mutable_tensor()->set_tensor_content(DetachedMark());
  }
  if (taken != nullptr) taken->clear_attr();
  if (parts.op_entry != nullptr) {
    const OpDef& op = parts.op_entry->def;
    AddDefaultAttrs(op, &def);
    MR_RETURN_IF_ERROR(NodeTypes(def, op, &parts.input_types, &parts.output_types));
  }
  def.clear_name();
  auto body = std::make_shared<const NodeBody>(std::move(parts));
  if (keep) known_->by_key.emplace(key_, body);
  return body;
}

}  // namespace millrace
