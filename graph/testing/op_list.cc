// SPDX-License-Identifier: Apache-2.0
#include "graph/testing/op_list.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/testing/shared_data.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/text_format.h"

namespace millrace {
namespace {

using tensorflow::AttrValue;
using tensorflow::OpDef;

std::string ArgSpec(const OpDef::ArgDef& arg) {
  std::string type = arg.type_attr();
  if (!arg.type_list_attr().empty()) type = arg.type_list_attr();
  if (type.empty()) type = DTypeName(static_cast<DType>(arg.type()));
  if (!arg.number_attr().empty()) type = absl::StrCat(arg.number_attr(), " * ", type);
  if (arg.is_ref()) type = absl::StrCat("Ref(", type, ")");
  return absl::StrCat(arg.name(), ": ", type);
}

template <typename Message>
std::string Braced(const Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  return absl::StrCat("{ ", text, "}");
}

std::string Quoted(const std::string& text) {
  AttrValue value;
  value.set_s(text);
  const std::string braced = Braced(value);  // { s: "..." }
  const size_t begin = braced.find('"');
  return braced.substr(begin, braced.rfind('"') + 1 - begin);
}

std::string TypeText(int type) { return DTypeEnumName(static_cast<DType>(type)); }

std::string ValueSpec(const AttrValue& value) {
  switch (value.value_case()) {
    case AttrValue::kS:
      return Quoted(value.s());
    case AttrValue::kI:
      return absl::StrCat(value.i());
    case AttrValue::kF:
      return absl::StrCat(value.f());
    case AttrValue::kB:
      return value.b() ? "true" : "false";
    case AttrValue::kType:
      return TypeText(value.type());
    case AttrValue::kShape:
      return Braced(value.shape());
    case AttrValue::kTensor:
      return Braced(value.tensor());
    case AttrValue::kFunc:
      return Braced(value.func());
    default:
      break;
  }
  std::vector<std::string> parts;
  for (const auto& s : value.list().s()) parts.push_back(Quoted(s));
  for (const auto i : value.list().i()) parts.push_back(absl::StrCat(i));
  for (const float f : value.list().f()) parts.push_back(absl::StrCat(f));
  for (const bool b : value.list().b()) parts.push_back(b ? "true" : "false");
  for (const int t : value.list().type()) parts.push_back(TypeText(t));
  for (const auto& s : value.list().shape()) parts.push_back(Braced(s));
  return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
}

std::string AttrSpec(const OpDef::AttrDef& attr) {
  std::string kind = attr.type();
  if (attr.has_allowed_values()) {
    std::vector<std::string> allowed;
    for (int t : attr.allowed_values().list().type()) {
      allowed.push_back(DTypeName(static_cast<DType>(t)));
    }
    for (const auto& s : attr.allowed_values().list().s()) allowed.push_back(Quoted(s));
    const std::string set = absl::StrCat("{", absl::StrJoin(allowed, ", "), "}");
    kind = attr.type().rfind("list(", 0) == 0 ? absl::StrCat("list(", set, ")") : set;
  }
  std::string spec = absl::StrCat(attr.name(), ": ", kind);
  if (attr.has_minimum()) absl::StrAppend(&spec, " >= ", attr.minimum());
  if (attr.has_default_value()) absl::StrAppend(&spec, " = ", ValueSpec(attr.default_value()));
  return spec;
}

}  // namespace

tensorflow::OpList TensorFlowOps() {
  tensorflow::OpList list;
  const std::string path = SharedDataPath("ops/ops.pbtxt");
  if (path.empty()) return list;
  std::ifstream file(path, std::ios::binary);
  google::protobuf::io::IstreamInputStream stream(&file);
  if (!google::protobuf::TextFormat::Parse(&stream, &list)) list.Clear();
  return list;
}

OpSpec SpecOf(const OpDef& def) {
  OpSpec spec(def.name());
  for (const auto& attr : def.attr()) spec.Attr(AttrSpec(attr));
  for (const auto& arg : def.input_arg()) spec.Input(ArgSpec(arg));
  for (const auto& arg : def.output_arg()) spec.Output(ArgSpec(arg));
  if (def.is_stateful()) spec.Stateful();
  if (def.is_commutative()) spec.Commutative();
  if (def.is_aggregate()) spec.Aggregate();
  if (def.allows_uninitialized_input()) spec.AllowsUninitializedInput();
  if (def.has_deprecation()) {
    spec.Deprecated(def.deprecation().version(), def.deprecation().explanation());
  }
  return spec;
}

}  // namespace millrace
