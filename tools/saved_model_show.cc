// SPDX-License-Identifier: Apache-2.0
#include "tools/saved_model_show.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "formats/tensor_json.h"
#include "nlohmann/json.hpp"
#include "saver/message_file.h"
#include "saver/saved_model_reader.h"
#include "tools/numpy_format.h"
#include "tools/python_error.h"
#include "tools/python_literal.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;
using tensorflow::StructuredValue;

std::vector<std::string> Tags(const tensorflow::MetaGraphDef& meta_graph) {
  return {meta_graph.meta_info_def().tags().begin(), meta_graph.meta_info_def().tags().end()};
}

// Meta graphs in the order of their tag lists.
std::vector<const tensorflow::MetaGraphDef*> SortedByTags(const tensorflow::SavedModel& model) {
  std::vector<const tensorflow::MetaGraphDef*> sorted;
  for (const tensorflow::MetaGraphDef& m : model.meta_graphs()) sorted.push_back(&m);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto* a, const auto* b) { return Tags(*a) < Tags(*b); });
  return sorted;
}

template <typename Map>
std::vector<std::string> SortedKeys(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& entry : map) keys.push_back(entry.first);
  std::sort(keys.begin(), keys.end());
  return keys;
}

// "DT_FLOAT"; the number of a type that this release does not know.
std::string TypeText(tensorflow::DataType type) {
  const std::string& name = tensorflow::DataType_Name(type);
  return name.empty() ? absl::StrCat(static_cast<int>(type)) : name;
}

std::string ShapeText(const tensorflow::TensorShapeProto& shape) {
  if (shape.unknown_rank()) return "unknown_rank";
  std::vector<int64_t> sizes;
  for (const auto& dim : shape.dim()) sizes.push_back(dim.size());
  return absl::StrCat("(", absl::StrJoin(sizes, ", "), ")");
}

void AppendTensorInfos(const google::protobuf::Map<std::string, tensorflow::TensorInfo>& infos,
                       absl::string_view kind, const std::string& indent, std::string* out) {
  for (const std::string& key : SortedKeys(infos)) {
    const tensorflow::TensorInfo& info = infos.at(key);
    absl::StrAppend(out, indent, "  ", kind, "['", key, "'] tensor_info:\n", indent,
                    "      dtype: ", TypeText(info.dtype()), "\n", indent,
                    "      shape: ", ShapeText(info.tensor_shape()), "\n", indent,
                    "      name: ", info.name(), "\n");
  }
}

std::string SignatureText(const tensorflow::SignatureDef& signature, const std::string& indent) {
  std::string out =
      absl::StrCat(indent, "The given SavedModel SignatureDef contains the following input(s):\n");
  AppendTensorInfos(signature.inputs(), "inputs", indent, &out);
  absl::StrAppend(&out, indent,
                  "The given SavedModel SignatureDef contains the following output(s):\n");
  AppendTensorInfos(signature.outputs(), "outputs", indent, &out);
  absl::StrAppend(&out, indent, "Method name is: ", signature.method_name(), "\n");
  return out;
}

// TensorFlow's Python name of a dtype: "tf.int32".
std::string PythonTypeName(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return "tf.float16";
    case tensorflow::DT_FLOAT:
      return "tf.float32";
    case tensorflow::DT_DOUBLE:
      return "tf.float64";
    default:
      break;
  }
  std::string name = TypeText(type);
  if (name.rfind("DT_", 0) == 0) name = name.substr(3);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return "tf." + name;
}

// A TensorShape as Python prints it: "(None, 3)", "(3,)", "()", "<unknown>".
std::string PythonShape(const tensorflow::TensorShapeProto& shape) {
  if (shape.unknown_rank()) return "<unknown>";
  const std::string sizes = absl::StrJoin(shape.dim(), ", ", [](std::string* out, const auto& dim) {
    dim.size() < 0 ? absl::StrAppend(out, "None") : absl::StrAppend(out, dim.size());
  });
  return absl::StrCat("(", sizes, shape.dim_size() == 1 ? ",)" : ")");
}

std::string PythonString(const std::string& text) {
  PythonValue value;
  value.kind = PythonValue::Kind::kString;
  value.text = text;
  return PythonRepr(value);
}

std::string SpecText(const tensorflow::TensorSpecProto& spec) {
  return absl::StrCat("TensorSpec(shape=", PythonShape(spec.shape()),
                      ", dtype=", PythonTypeName(spec.dtype()),
                      ", name=", spec.name().empty() ? "None" : PythonString(spec.name()), ")");
}

// Nesting is bounded by the parser of the message.
std::string ValueText(const StructuredValue& value);

// An element inside a list or dictionary: strings in quotes.
std::string QuotedText(const StructuredValue& value) {
  return value.kind_case() == StructuredValue::kStringValue
             ? absl::StrCat("'", value.string_value(), "'")
             : ValueText(value);
}

template <typename Values>
std::string JoinValues(const Values& values) {
  return absl::StrJoin(values, ", ", [](std::string* out, const StructuredValue& item) {
    absl::StrAppend(out, QuotedText(item));
  });
}

std::string ValueText(const StructuredValue& value) {
  switch (value.kind_case()) {
    case StructuredValue::kFloat64Value:
      return NumpyString(Tensor::Scalar(value.float64_value()));
    case StructuredValue::kInt64Value:
      return absl::StrCat(value.int64_value());
    case StructuredValue::kStringValue:
      return value.string_value();
    case StructuredValue::kBoolValue:
      return value.bool_value() ? "True" : "False";
    case StructuredValue::kTensorShapeValue:
      return PythonShape(value.tensor_shape_value());
    case StructuredValue::kTensorDtypeValue:
      return absl::StrCat("<dtype: '", PythonTypeName(value.tensor_dtype_value()).substr(3), "'>");
    case StructuredValue::kTensorSpecValue:
      return SpecText(value.tensor_spec_value());
    case StructuredValue::kTypeSpecValue:
      return value.type_spec_value().type_spec_class_name();
    case StructuredValue::kListValue:
      return absl::StrCat("[", JoinValues(value.list_value().values()), "]");
    case StructuredValue::kTupleValue:
      return absl::StrCat("(", JoinValues(value.tuple_value().values()),
                          value.tuple_value().values_size() == 1 ? ",)" : ")");
    case StructuredValue::kDictValue: {
      std::string text = "{";
      for (const std::string& key : SortedKeys(value.dict_value().fields())) {
        absl::StrAppend(&text, text.size() > 1 ? ", " : "", "'", key,
                        "': ", QuotedText(value.dict_value().fields().at(key)));
      }
      return text + "}";
    }
    case StructuredValue::kNamedTupleValue: {
      const std::string fields =
          absl::StrJoin(value.named_tuple_value().values(), ", ",
                        [](std::string* out, const tensorflow::PairValue& pair) {
                          absl::StrAppend(out, pair.key(), "=", QuotedText(pair.value()));
                        });
      return absl::StrCat(value.named_tuple_value().name(), "(", fields, ")");
    }
    default:
      return "None";
  }
}

std::string KindText(const StructuredValue& value) {
  switch (value.kind_case()) {
    case StructuredValue::kFloat64Value:
      return "float";
    case StructuredValue::kInt64Value:
      return "int";
    case StructuredValue::kBoolValue:
      return "bool";
    case StructuredValue::kTensorShapeValue:
      return "TensorShape";
    case StructuredValue::kTensorDtypeValue:
      return "DType";
    case StructuredValue::kTypeSpecValue:
      return value.type_spec_value().type_spec_class_name();
    case StructuredValue::kListValue:
      return "list";
    case StructuredValue::kTupleValue:
      return "tuple";
    case StructuredValue::kDictValue:
      return "dict";
    case StructuredValue::kNamedTupleValue:
      return value.named_tuple_value().name();
    default:
      return "NoneType";
  }
}

void AppendArgument(const StructuredValue& value, absl::string_view what, int number,
                    std::string* out) {
  absl::StrAppend(out, "        ", what, " #", number, "\n");
  if (value.kind_case() == StructuredValue::kStringValue) {
    absl::StrAppend(out, "          ", value.string_value(), "\n");
  } else if (value.kind_case() == StructuredValue::kTensorSpecValue) {
    const std::string& name = value.tensor_spec_value().name();
    absl::StrAppend(out, "          ", name.empty() ? "None" : name, ": ",
                    SpecText(value.tensor_spec_value()), "\n");
  } else {
    absl::StrAppend(out, "          DType: ", KindText(value),
                    "\n          Value: ", ValueText(value), "\n");
  }
}

// "__inference_add_17" -> ("add", 17): loading orders functions by the name they had in Python.
std::pair<std::string, int64_t> CleanFunctionName(absl::string_view name) {
  constexpr absl::string_view kPrefix = "__inference_";
  const size_t end = name.rfind('_');
  int64_t number = 0;
  if (name.substr(0, kPrefix.size()) == kPrefix && end > kPrefix.size() &&
      end != absl::string_view::npos && absl::SimpleAtoi(name.substr(end + 1), &number)) {
    return {std::string(name.substr(kPrefix.size(), end - kPrefix.size())), number};
  }
  return {std::string(name), 0};
}

void AppendFunction(const std::string& name, const tensorflow::SavedObject& object,
                    const tensorflow::SavedObjectGraph& graph, std::string* out) {
  absl::StrAppend(out, "\n  Function Name: '", name, "'\n");
  std::vector<std::string> concrete;
  const bool bare = object.kind_case() == tensorflow::SavedObject::kBareConcreteFunction;
  if (bare) {
    concrete.push_back(object.bare_concrete_function().concrete_function_name());
  } else {
    concrete.assign(object.function().concrete_functions().begin(),
                    object.function().concrete_functions().end());
  }
  std::stable_sort(concrete.begin(), concrete.end(), [](const auto& a, const auto& b) {
    return CleanFunctionName(a) < CleanFunctionName(b);
  });
  for (size_t i = 0; i < concrete.size(); ++i) {
    // The structure is a pair: a tuple of positional and a dictionary of named arguments.
    std::vector<StructuredValue> arguments;
    std::vector<std::string> named;
    const auto it = graph.concrete_functions().find(concrete[i]);
    if (it != graph.concrete_functions().end() &&
        it->second.canonicalized_input_signature().tuple_value().values_size() == 2) {
      const auto& pair = it->second.canonicalized_input_signature().tuple_value();
      const auto& positional = pair.values(0).tuple_value().values();
      arguments.assign(positional.begin(), positional.end());
      named = SortedKeys(pair.values(1).dict_value().fields());
    } else if (bare) {
      for (const std::string& keyword : object.bare_concrete_function().argument_keywords()) {
        arguments.emplace_back().set_string_value(keyword);
      }
    }
    if (!arguments.empty()) {
      absl::StrAppend(out, "    Option #", i + 1, "\n      Callable with:\n");
      for (size_t k = 0; k < arguments.size(); ++k) {
        AppendArgument(arguments[k], "Argument", static_cast<int>(k) + 1, out);
      }
    }
    for (size_t k = 0; k < named.size(); ++k) {
      absl::StrAppend(out, "        Named Argument #", k + 1, "\n          ", named[k], "\n");
    }
  }
}

// The functions that are attributes of the model's root object.
void AppendFunctions(const tensorflow::SavedModel& model, std::string* out) {
  const tensorflow::SavedObjectGraph* graph = nullptr;
  for (const tensorflow::MetaGraphDef& m : model.meta_graphs()) {
    if (m.has_object_graph_def() && graph == nullptr) graph = &m.object_graph_def();
  }
  if (graph == nullptr) return;
  absl::StrAppend(out, "\nDefined Functions:");
  std::map<std::string, const tensorflow::SavedObject*> functions;
  if (graph->nodes_size() > 0) {
    for (const auto& child : graph->nodes(0).children()) {
      if (child.node_id() < 0 || child.node_id() >= graph->nodes_size()) continue;
      const tensorflow::SavedObject& object = graph->nodes(child.node_id());
      if (object.kind_case() == tensorflow::SavedObject::kFunction ||
          object.kind_case() == tensorflow::SavedObject::kBareConcreteFunction) {
        functions[child.local_name()] = &object;
      }
    }
  }
  for (const auto& [name, object] : functions) AppendFunction(name, *object, *graph, out);
  if (functions.empty()) absl::StrAppend(out, "\n");
}

// "; there are models in 'a', 'b'" of the subdirectories.
std::string ModelsBelow(FileSystem* fs, const std::string& dir) {
  constexpr size_t kMaxNames = 5;
  std::vector<std::string> names;
  for (const std::string& name : fs->GetChildren(dir).value_or(std::vector<std::string>())) {
    if (!SavedModelPath(fs, JoinPath(dir, name))) continue;
    names.push_back(PythonString(JoinPath(dir, name)));
    if (names.size() == kMaxNames) break;
  }
  return names.empty() ? "" : absl::StrCat("; there are models in ", absl::StrJoin(names, ", "));
}

std::string QuotedList(const std::vector<std::string>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, PythonString(name));
  });
}

// What ValueError and RuntimeError add to TensorFlow's text.
std::string HasInstead(const std::vector<std::string>& names) {
  return names.empty() ? "; it has none" : absl::StrCat("; it has ", QuotedList(names));
}

// The meta graphs that a command is about.
StatusOr<std::vector<const tensorflow::MetaGraphDef*>> Chosen(const tensorflow::SavedModel& model,
                                                              const std::string* tag_set) {
  if (tag_set == nullptr) {
    std::vector<const tensorflow::MetaGraphDef*> all;
    for (const tensorflow::MetaGraphDef& m : model.meta_graphs()) all.push_back(&m);
    return all;
  }
  MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* m, MetaGraphWithTags(model, *tag_set));
  return std::vector<const tensorflow::MetaGraphDef*>{m};
}

// Ops that touch files.
std::set<std::string> DeniedOps(const tensorflow::MetaGraphDef& meta_graph) {
  const std::set<std::string> denied = {"PrintV2", "ReadFile", "WriteFile"};
  std::set<std::string> found;
  const auto look = [&](const auto& nodes) {
    for (const auto& node : nodes) {
      if (denied.count(node.op()) > 0) found.insert(node.op());
    }
  };
  look(meta_graph.graph_def().node());
  for (const auto& function : meta_graph.graph_def().library().function()) {
    look(function.node_def());
  }
  return found;
}

ordered_json InfosJson(const google::protobuf::Map<std::string, tensorflow::TensorInfo>& infos) {
  ordered_json json = ordered_json::object();
  for (const std::string& key : SortedKeys(infos)) {
    const tensorflow::TensorInfo& info = infos.at(key);
    ordered_json& one = json[key];
    one["dtype"] = tensorflow::DataType_IsValid(info.dtype())
                       ? JsonTypeName(static_cast<DType>(info.dtype()))
                       : TypeText(info.dtype());
    one["shape"] = nullptr;  // unknown rank
    if (!info.tensor_shape().unknown_rank()) {
      one["shape"] = ordered_json::array();
      for (const auto& dim : info.tensor_shape().dim()) one["shape"].push_back(dim.size());
    }
    if (info.has_coo_sparse()) {
      one["coo_sparse"] = {{"values", info.coo_sparse().values_tensor_name()},
                           {"indices", info.coo_sparse().indices_tensor_name()},
                           {"dense_shape", info.coo_sparse().dense_shape_tensor_name()}};
    } else {
      one["name"] = info.name();
    }
  }
  return json;
}

}  // namespace

std::string ModelDirectory(FileSystem* fs, const std::string& dir, const std::string& program,
                           std::ostream& note) {
  if (SavedModelPath(fs, dir)) return dir;
  const std::optional<std::string> newest = NewestModelVersion(fs, dir);
  if (!newest) return dir;
  note << program << ": '" << dir << "' is a directory of versions; using the newest, '" << *newest
       << "'\n";
  return *newest;
}

StatusOr<tensorflow::SavedModel> ReadSavedModelForTool(FileSystem* fs, const std::string& dir) {
  const std::optional<std::string> path = SavedModelPath(fs, dir);
  if (!path) {
    const std::string below = ModelsBelow(fs, dir);
    return PythonError("IOError", absl::StrCat("SavedModel file does not exist at: ", dir,
                                               "/{saved_model.pbtxt|saved_model.pb}",
                                               below.empty() ? ModelNear(fs, dir) : below));
  }
  TextError error;
  StatusOr<tensorflow::SavedModel> model = ReadSavedModelFile(fs, *path, &error);
  if (model.ok()) return model;
  if (!absl::IsDataLoss(model.status())) return PythonError("IOError", model.status().message());
  const std::string reason = error.what.empty()
                                 ? "Error parsing message"
                                 : absl::StrCat(error.line, ":", error.column, " : ", error.what);
  return PythonError("IOError", absl::StrCat("Cannot parse file ", *path, ": ", reason, "."));
}

StatusOr<const tensorflow::MetaGraphDef*> MetaGraphWithTags(const tensorflow::SavedModel& model,
                                                            absl::string_view tag_set) {
  std::vector<std::string> tags;
  if (!tag_set.empty()) tags = absl::StrSplit(tag_set, ',');
  const StatusOr<const tensorflow::MetaGraphDef*> found = FindMetaGraph(model, tags);
  if (found.ok()) return *found;
  std::vector<std::string> there;
  for (const tensorflow::MetaGraphDef* m : SortedByTags(model)) {
    there.push_back(absl::StrJoin(Tags(*m), ","));
  }
  return PythonError("RuntimeError",
                     absl::StrCat("MetaGraphDef associated with tag-set ", tag_set,
                                  " could not be found in SavedModel", HasInstead(there)));
}

std::string ShowTagSets(const tensorflow::SavedModel& model) {
  std::string out = "The given SavedModel contains the following tag-sets:\n";
  for (const tensorflow::MetaGraphDef* m : SortedByTags(model)) {
    std::vector<std::string> tags = Tags(*m);
    std::sort(tags.begin(), tags.end());
    absl::StrAppend(&out, absl::StrJoin(tags, ", "), "\n");
  }
  return out;
}

std::string ShowSignatureKeys(const tensorflow::MetaGraphDef& meta_graph) {
  std::string out =
      "The given SavedModel MetaGraphDef contains SignatureDefs with the following keys:\n";
  for (const std::string& key : SortedKeys(meta_graph.signature_def())) {
    absl::StrAppend(&out, "SignatureDef key: \"", key, "\"\n");
  }
  return out;
}

std::string ShowSignature(const tensorflow::MetaGraphDef& meta_graph, const std::string& key) {
  const auto it = meta_graph.signature_def().find(key);
  return SignatureText(
      it == meta_graph.signature_def().end() ? tensorflow::SignatureDef() : it->second, "");
}

std::string ShowAll(const tensorflow::SavedModel& model) {
  std::string out;
  for (const tensorflow::MetaGraphDef* m : SortedByTags(model)) {
    absl::StrAppend(&out, "\nMetaGraphDef with tag-set: '", absl::StrJoin(Tags(*m), ", "),
                    "' contains the following SignatureDefs:\n");
    for (const std::string& key : SortedKeys(m->signature_def())) {
      absl::StrAppend(&out, "\nsignature_def['", key, "']:\n",
                      SignatureText(m->signature_def().at(key), "  "));
    }
  }
  AppendFunctions(model, &out);
  return out;
}

StatusOr<const tensorflow::SignatureDef*> FindSignature(const tensorflow::MetaGraphDef& meta_graph,
                                                        const std::string& key) {
  const auto found = meta_graph.signature_def().find(key);
  if (found != meta_graph.signature_def().end()) return &found->second;
  return PythonError("ValueError",
                     absl::StrCat("No SignatureDef with key '", key, "' found in MetaGraphDef",
                                  HasInstead(SortedKeys(meta_graph.signature_def()))));
}

StatusOr<std::string> ShowJson(const tensorflow::SavedModel& model, const std::string* tag_set,
                               const std::string* signature_key) {
  MR_ASSIGN_OR_RETURN(const auto meta_graphs, Chosen(model, tag_set));
  ordered_json json;
  json["saved_model_schema_version"] = model.saved_model_schema_version();
  json["meta_graphs"] = ordered_json::array();
  for (const tensorflow::MetaGraphDef* m : meta_graphs) {
    ordered_json one;
    one["tags"] = Tags(*m);
    one["tensorflow_version"] = m->meta_info_def().tensorflow_version();
    one["nodes"] = m->graph_def().node_size();
    one["functions"] = m->graph_def().library().function_size();
    one["signatures"] = ordered_json::object();
    std::vector<std::string> keys = SortedKeys(m->signature_def());
    if (signature_key != nullptr) {
      MR_RETURN_IF_ERROR(FindSignature(*m, *signature_key).status());
      keys = {*signature_key};
    }
    for (const std::string& key : keys) {
      const tensorflow::SignatureDef& signature = m->signature_def().at(key);
      one["signatures"][key] = {{"method_name", signature.method_name()},
                                {"inputs", InfosJson(signature.inputs())},
                                {"outputs", InfosJson(signature.outputs())}};
    }
    json["meta_graphs"].push_back(std::move(one));
  }
  return JsonText(json);
}

StatusOr<std::string> ScanForDeniedOps(const tensorflow::SavedModel& model,
                                       const std::string* tag_set) {
  MR_ASSIGN_OR_RETURN(const auto meta_graphs, Chosen(model, tag_set));
  std::string out;
  for (const tensorflow::MetaGraphDef* m : meta_graphs) {
    const std::set<std::string> found = DeniedOps(*m);
    absl::StrAppend(&out, "MetaGraph with tag set [", QuotedList(Tags(*m)), "]");
    if (found.empty()) {
      absl::StrAppend(&out, " does not contain blacklisted ops.\n");
    } else {
      absl::StrAppend(&out, " contains the following blacklisted ops: {",
                      QuotedList({found.begin(), found.end()}), "}\n");
    }
  }
  return out;
}

StatusOr<std::string> ScanJson(const tensorflow::SavedModel& model, const std::string* tag_set) {
  MR_ASSIGN_OR_RETURN(const auto meta_graphs, Chosen(model, tag_set));
  ordered_json json;
  json["meta_graphs"] = ordered_json::array();
  for (const tensorflow::MetaGraphDef* m : meta_graphs) {
    json["meta_graphs"].push_back({{"tags", Tags(*m)}, {"denied_ops", DeniedOps(*m)}});
  }
  return JsonText(json);
}

}  // namespace millrace
