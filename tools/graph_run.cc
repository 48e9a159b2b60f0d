// SPDX-License-Identifier: Apache-2.0
#include "tools/graph_run.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "formats/tensor_json.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "nlohmann/json.hpp"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr absl::string_view kLengths = "#lengths";

// The dtype of the tensor that `name` ("x" or "x:1") feeds; DT_INVALID when that is not known.
StatusOr<DType> FedType(const Graph& graph, const std::string& name) {
  const size_t colon = name.rfind(':');
  const Node* node = graph.FindNode(name.substr(0, colon));
  int index = 0;
  if (colon != std::string::npos && !absl::SimpleAtoi(name.substr(colon + 1), &index)) {
    node = nullptr;
  }
  if (node == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("feed '", name,
                     "': must name a tensor of the graph, got a node that it does "
                     "not have"));
  }
  if (index < 0 || index >= node->num_outputs()) {
    if (node->op_entry() == nullptr) return DT_INVALID;
    return absl::InvalidArgumentError(absl::StrCat("feed '", name, "': node '", node->name(),
                                                   "' has ", node->num_outputs(),
                                                   " outputs, got index ", index));
  }
  return WithoutRef(node->output_type(index));
}

// The same bytes under another name of their type.
StatusOr<Tensor> Reinterpret(const Tensor& tensor, DType dtype) {
  if (tensor.num_elements() == 0) return Tensor::Allocate(dtype, tensor.shape());
  return Tensor::FromBuffer(dtype, tensor.shape(), tensor.buffer(),
                            static_cast<size_t>(static_cast<const char*>(tensor.raw_data()) -
                                                static_cast<const char*>(tensor.buffer()->data())));
}

// An array as the tensor that it stands for.
StatusOr<Tensor> ToFeed(const std::string& name, const Tensor& array, DType dtype) {
  if (dtype == DT_INVALID || array.dtype() == dtype) return array;
  const std::map<DType, DType> stands_for = {{DT_QINT8, DT_INT8},
                                             {DT_QUINT8, DT_UINT8},
                                             {DT_QINT16, DT_INT16},
                                             {DT_QUINT16, DT_UINT16},
                                             {DT_QINT32, DT_INT32}};
  const auto it = stands_for.find(dtype);
  if (it != stands_for.end() && it->second == array.dtype()) return Reinterpret(array, dtype);
  if (dtype == DT_BFLOAT16 && array.dtype() == DT_FLOAT) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, array.shape()));
    const absl::Span<const float> from = array.flat<float>();
    const absl::Span<Bfloat16> to = tensor.mutable_flat<Bfloat16>();
    for (size_t i = 0; i < from.size(); ++i) to[i] = ToBfloat16(from[i]);
    return tensor;
  }
  return absl::InvalidArgumentError(absl::StrCat("feed '", name, "': array must be of ",
                                                 DTypeName(dtype), ", got ",
                                                 DTypeName(array.dtype())));
}

StatusOr<std::vector<Feed>> MakeFeeds(const tensorflow::GraphDef& graph_def,
                                      const NamedArrays& arrays) {
  if (arrays.empty()) return std::vector<Feed>();
  Graph graph;
  MR_RETURN_IF_ERROR(ImportGraphDef(graph_def, ImportOptions(), &graph));
  std::map<std::string, const Tensor*> by_name;
  for (const auto& [name, array] : arrays) by_name[name] = &array;
  std::vector<Feed> feeds;
  for (const auto& [name, array] : arrays) {
    if (absl::EndsWith(name, kLengths)) {
      const std::string base = name.substr(0, name.size() - kLengths.size());
      const auto strings = by_name.find(base);
      if (strings != by_name.end() && strings->second->dtype() == DT_STRING) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("feed '", name, "': must belong to an array of strings '", base, "'"));
    }
    Tensor value = array;
    const auto lengths = by_name.find(absl::StrCat(name, kLengths));
    if (lengths != by_name.end()) {
      StatusOr<Tensor> restored = WithLengths(array, *lengths->second);
      if (!restored.ok()) return Prefixed(absl::StrCat("feed '", name, "'"), restored.status());
      value = *std::move(restored);
    }
    MR_ASSIGN_OR_RETURN(const DType dtype, FedType(graph, name));
    MR_ASSIGN_OR_RETURN(Tensor feed, ToFeed(name, value, dtype));
    feeds.emplace_back(name, std::move(feed));
  }
  return feeds;
}

}  // namespace

StatusOr<NamedArrays> RunGraphOnArrays(const tensorflow::GraphDef& graph, const NamedArrays& feeds,
                                       const GraphRun& run) {
  MR_ASSIGN_OR_RETURN(const std::vector<Feed> fed, MakeFeeds(graph, feeds));
  SessionOptions options;
  options.config.allow_soft_placement = true;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(graph));
  for (const std::string& target : run.targets) {
    MR_RETURN_IF_ERROR(session->Run(fed, {}, {target}).status());
  }
  std::vector<FetchName> fetches;
  std::set<std::string> names;
  for (const std::string& fetch : run.fetches) {
    if (!names.insert(fetch).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("fetch '", fetch, "' must be given once, got it twice"));
    }
    fetches.push_back(fetch);
  }
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, session->Run(fed, fetches));
  if (outputs.size() != run.fetches.size()) {
    return absl::InvalidArgumentError(
        "fetches must be tensors, got an operation without outputs; make it a target");
  }
  NamedArrays arrays;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string& name = run.fetches[i];
    if (outputs[i].dtype() == DT_RESOURCE || outputs[i].dtype() == DT_VARIANT) {
      return absl::InvalidArgumentError(absl::StrCat("fetch '", name,
                                                     "' must be of a type that numpy has, got ",
                                                     DTypeName(outputs[i].dtype())));
    }
    arrays.emplace_back(name, outputs[i]);
    if (outputs[i].dtype() == DT_STRING) {
      MR_ASSIGN_OR_RETURN(Tensor lengths, LengthsOf(outputs[i]));
      arrays.emplace_back(absl::StrCat(name, kLengths), std::move(lengths));
    }
  }
  return arrays;
}

StatusOr<std::string> OutputsJson(const NamedArrays& outputs, const GraphRun& run) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, array] : outputs) {
    // "#lengths" say what numpy's strings lose and JSON's do not.
    if (std::find(run.fetches.begin(), run.fetches.end(), name) == run.fetches.end()) continue;
    MR_RETURN_IF_ERROR(
        Prefixed(absl::StrCat("fetch '", name, "'"), TensorToJson(array, &json[name])));
  }
  return JsonText(json);
}

}  // namespace millrace
